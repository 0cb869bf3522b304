"""Regenerate the parts of the documentation that are made from code, catalog and published results.

usage: python -m tests.documents
A part is a table or code block between `<!-- NAME: made by python -m tests.documents -->` and `<!-- end of NAME -->`;
NAME is a key of PARTS. Documents that change are rewritten, and their names are printed. test_documents.py checks that
the parts are up to date.
"""

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

from diagnostics import catalog
from diagnostics.catalog import model
from diagnostics.lint import rules
from diagnostics.matrix.layers import LAYERS
from repro.issues import REPROS
from tests import documentation_parts
from tests.documentation_parts import markdown_table

ROOT = Path(__file__).resolve().parent.parent
MARKED = re.compile(
    r"(?P<head><!-- (?P<name>[a-z]+): made by python -m tests\.documents -->\n).*?(?P<foot><!-- end of (?P=name) -->)",
    re.DOTALL,
)


def code_tables() -> str:
    """Return a table of the known issues, with the commands that report each one, and a table of the checks."""
    logs = {name for path in (ROOT / "tests/diagnostics/logs").iterdir() for name in path.name.split("+")}
    linted = _linted()
    rows = [
        (
            issue.code,
            issue.title,
            issue.kind,
            max((claim.evidence for claim in issue.affected), key=model.EVIDENCE.index),
            _yes(issue.status == "active"),
            _yes(issue.code in linted),
            _yes(issue.signature is not None),
            _yes(issue.code in logs),
            _yes(issue.code in REPROS),
        )
        for issue in catalog.load().values()
    ]
    head = ("code", "title", "kind", "evidence", "doctor", "lint", "triage", "logs in tests", "repro")
    check_rows = [(check.code, check.title) for check in catalog.load_checks().values()]
    checks = markdown_table(("code", "title"), check_rows)
    return f"{markdown_table(head, rows)}\nCodes of checks, which are not known issues:\n\n{checks}"


def rule_table() -> str:
    """Return the table of the codes that `lint` reports, by a rule or by values in the catalog entry."""
    issues, checks = catalog.load(), catalog.load_checks()
    checks_of_code: dict[str, dict[str, None]] = {}
    for check, judges in rules.RULES.items():
        for code in (code for rule in judges for code in rule.codes):
            checks_of_code.setdefault(code, {})[check] = None
    rows = []
    for code in sorted(_linted()):
        frameworks = issues[code].frameworks if code in issues else ()
        framework_names = ", ".join(model.FRAMEWORKS[name] for name in frameworks if name in model.FRAMEWORKS)
        where = ", ".join(checks_of_code.get(code, {"catalogue": None}))
        rows.append((code, (issues.get(code) or checks[code]).title, where, framework_names))
    return markdown_table(("code", "finding", "check", "frameworks"), rows)


def _linted() -> set[str]:
    """Return the codes that lint can report."""
    ruled = {code for judges in rules.RULES.values() for rule in judges for code in rule.codes}
    return ruled | {issue.code for issue in catalog.load().values() if issue.config}


def allowed_values() -> str:
    """Return the table of the allowed values of a catalog entry's keys."""
    known = {
        "kind": model.KINDS, "status": model.STATUSES, "evidence": model.EVIDENCE, "signature.role": model.ROLES,
        "frameworks": model.FRAMEWORKS, "components, package": model.COMPONENTS,
        "the family of a code": [f"{family} ({about})" for family, about in model.FAMILIES.items()],
    }  # fmt: skip
    return markdown_table(("key", "one of"), [(key, ", ".join(words)) for key, words in known.items()])


def layer_table() -> str:
    """Return the table of the matrix's layers in running order, with all repros in one row."""
    repros = [layer for layer in LAYERS if layer.name.startswith("repro:")]
    rows = []
    for layer in LAYERS:
        if layer in repros[1:]:
            continue
        name, question = layer.name, layer.question
        if layer in repros:
            name = f"repro:CODE ({len(repros)} of them)"
            question = "Does this known issue happen, and which mitigations help?"
        file = layer.code[0].rpartition(".")[2]
        needs = ", ".join(layer.needs) or "-"
        rows.append((f"`{name}`", question, layer.evidence.value, needs, f"`{file}.py`"))
    return markdown_table(("layer", "question", "evidence", "after", "in `diagnostics/matrix/layers/`"), rows)


def import_contracts() -> str:
    """Return the table of the import contracts that `lint-imports` checks."""
    document = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = document["tool"]["importlinter"]["contracts"]
    rows = [(f"`{contract['id']}`", contract["name"]) for contract in contracts]
    return markdown_table(("contract", "rule"), rows)


PARTS = {
    "codes": code_tables, "rules": rule_table, "values": allowed_values, "layers": layer_table,
    "contracts": import_contracts, **documentation_parts.PARTS,
}  # fmt: skip


def _yes(is_so: bool) -> str:
    return "yes" if is_so else ""


def documents() -> Iterator[Path]:
    """Yield the Markdown documents of the project."""
    yield from sorted(ROOT.glob("*.md"))
    yield from sorted((ROOT / "docs").rglob("*.md"))


def regenerate(text: str) -> str:
    """Return a document with its generated parts regenerated."""
    return MARKED.sub(lambda match: f"{match['head']}\n{PARTS[match['name']]()}\n{match['foot']}", text)


def main() -> int:
    """Rewrite the documents that are out of date and print their names."""
    for path in documents():
        before = path.read_text(encoding="utf-8")
        after = regenerate(before)
        if after != before:
            path.write_text(after, encoding="utf-8")
            print(path.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
