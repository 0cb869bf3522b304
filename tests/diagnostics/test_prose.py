"""Structure before prose: nothing reads back a text that we wrote, and every printed command is quoted in one place."""

import ast
import re
import shlex
from pathlib import Path

import pytest

from diagnostics import frameworks
from diagnostics.output import wording
from diagnostics.output.remedies import (
    Advice,
    Explain,
    Install,
    Remedy,
    Run,
    SetOption,
    SetVariables,
    Uninstall,
    Unset,
)

ROOT = Path(__file__).resolve().parents[2]
# What our records call their sentences.
PROSE = {"detail", "text", "summary", "excerpt", "reason", "notes", "note"}
READS = {
    "startswith",
    "endswith",
    "partition",
    "rpartition",
    "split",
    "rsplit",
    "removeprefix",
    "removesuffix",
}
MATCHES = {"match", "search", "fullmatch", "findall", "finditer", "sub"}
# Here `text` is what somebody else wrote.
OTHERS_TEXT = {
    "diagnostics/lint/command_lines.py": "the words of a command line",
    "diagnostics/lint/readers/": "scripts and configs",
    "diagnostics/triage/": "lines of a log",
    "diagnostics/nodes/answer.py": "what a node printed",
    # To go with `Answer.facts`.
    "diagnostics/matrix/report/findings.py": "the summary of an answer, until its facts are kept",
}
# What tells of a log rather than reads it.
TELLS = {"diagnostics/triage/report.py", "diagnostics/triage/command.py"}


def sources():
    """All modules of diagnostics but those whose matter text is."""
    found = sorted((ROOT / "diagnostics").rglob("*.py"))
    assert len(found) > 200
    return [path for path in found if not path.is_relative_to(ROOT / "diagnostics" / "output")]


def readings(tree):
    """Lines on which a sentence of a record, or a name that stands for one, is taken apart or looked through."""
    found = []
    for scope in ast.walk(tree):
        if isinstance(scope, ast.Module | ast.FunctionDef | ast.AsyncFunctionDef):
            names = _aliases(scope)
            found += [node.lineno for node in ast.walk(scope) if _reads(node, names)]
    return sorted(set(found))


def _aliases(scope):
    """Names that are bound to a sentence, or go over sentences."""
    names = set()
    for node in ast.walk(scope):
        if isinstance(node, ast.Assign) and _is_prose(node.value, set()):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        if isinstance(node, ast.NamedExpr) and _is_prose(node.value, set()):
            names.add(node.target.id)
        if (
            isinstance(node, ast.For | ast.comprehension)
            and _is_prose(node.iter, set())
            and isinstance(node.target, ast.Name)
        ):
            names.add(node.target.id)
    return names


def _is_prose(node, names):
    while True:
        if isinstance(node, ast.Attribute) and node.attr in PROSE:
            return True
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            if node.slice.value in PROSE:
                return True
            node = node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr == "get" and node.args and isinstance(node.args[0], ast.Constant):
                return node.args[0].value in PROSE
            node = node.func.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args:
            if node.func.id not in {"str", "repr"}:
                return False
            node = node.args[0]
        elif isinstance(node, ast.Name):
            return node.id in names
        else:
            return False


def _reads(node, names):
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr in READS and _is_prose(node.func.value, names):
            return True
        return node.func.attr in MATCHES and any(_is_prose(argument, names) for argument in node.args)
    if isinstance(node, ast.Compare):
        pairs = zip(node.ops, node.comparators, strict=True)
        return any(
            isinstance(operator, ast.In | ast.NotIn) and _is_prose(other, names) for operator, other in pairs
        )
    # To know what stands at which place among sentences is to know what they say.
    return (
        isinstance(node, ast.Subscript)
        and isinstance(node.value, ast.Attribute)
        and node.value.attr == "notes"
    )


def test_nothing_reads_back_a_text_that_we_wrote():
    """Outside report/ no sentence of a record is taken apart: what it says stands beside it as a fact."""
    found = [
        f"{name}:{line}"
        for path in sources()
        if (name := path.relative_to(ROOT).as_posix()) in TELLS or not name.startswith(tuple(OTHERS_TEXT))
        for line in readings(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert found == []


@pytest.mark.parametrize(
    "bad",
    [
        "if finding.detail.startswith('no'): pass",
        "version = answer.excerpt.partition('==')[2]",
        "words = line['summary'].lower().split()",
        "said = layer.get('reason', '').split(';')",
        "found = 'whether' in item.reason",
        "found = re.search('x', str(check.reason))",
        "rest = report.notes[1:]",
        "def f(finding):\n    told = finding.detail\n    return told.partition(':')",
        "found = [one for one in report.notes if one.startswith('static')]",
    ],
)
def test_a_text_that_is_read_back_is_seen(bad):
    """The test above can fail."""
    assert readings(ast.parse(bad))


@pytest.mark.parametrize(
    "good",
    [
        "told = ' '.join((finding.detail, check.reason))",
        "short = finding.detail[:80]",
        "found = 'x' in finding.codes",
        "path = place.partition(':')[0]",
    ],
)
def test_what_only_passes_a_text_on_is_none(good):
    """To print, to shorten and to join are no reading."""
    assert readings(ast.parse(good)) == []


def test_every_command_is_words_that_a_shell_gives_back():
    """Whatever stands in a word: spaces, quotes, a semicolon."""
    odd = "/my env's; rm -rf ~"
    actions = (
        Install(("numpy<2",), (f"{odd}/bin/python", "-m", "pip", "install")),
        Uninstall(("x y",)),
        Unset(("A", "B")),
        SetVariables((("A", odd),)),
        Explain("CMP901"),
        Run(("ls", odd)),
    )
    assert [tuple(shlex.split(wording.command_of(action))) for action in actions] == [
        action.words for action in actions
    ]
    assert wording.command_of(
        Run(("a", "b c"), piped=(("d", "|"),), into="e f", then=Run(("g",)), note="h")
    ) == ("a 'b c' | d '|' > 'e f' && g  # h")


def test_a_remedy_is_text_commands_and_the_data_they_come_from():
    """What a report had before stands where it stood; what it was made from is beside it."""
    document = wording.as_json(
        Remedy(
            (Advice("Do it."), SetOption("trl", "use_vllm=False"), Install(("numpy<2",)), Explain("CMP901"))
        )
    )
    assert document["text"] == "Do it.\nTRL: use_vllm=False"
    assert document["commands"] == ["pip install 'numpy<2'", "python -m diagnostics explain CMP901"]
    assert [action["kind"] for action in document["actions"]] == [
        "advice",
        "set_option",
        "install",
        "explain",
    ]
    assert document["actions"][2]["words"] == ["pip", "install", "numpy<2"]


# TRL and vLLM are the pair that the matrix is about, and are named all over.
NAMED = set(frameworks.FRAMEWORKS) - {"trl", "vllm"}
# Who may name a framework, and why.
NAMES_FRAMEWORKS = {
    "diagnostics/frameworks.py": "the list",
    "diagnostics/lint/dialects/": "one file a framework",
    "diagnostics/lint/rules/": "a rule is of a framework: it repeats a check of that framework's own",
    "diagnostics/matrix/sweep/": "a sweep goes over the releases of one framework",
}


def named(path):
    """Lines with a text that names a framework; docstrings are for readers."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    told = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and isinstance(node.body[0], ast.Expr)
    }
    word = re.compile(rf"(?i)\b(?:{'|'.join(NAMED)})\b")
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and id(node) not in told
        and word.search(node.value)
    ]


def test_frameworks_are_named_in_one_list():
    """A framework more is an entry there, a dialect, and their tests: no other module has a list of its own."""
    found = [
        f"{name}:{line}"
        for path in (ROOT / "diagnostics").rglob("*.py")
        if not (name := path.relative_to(ROOT).as_posix()).startswith(tuple(NAMES_FRAMEWORKS))
        for line in named(path)
    ]
    assert found == []
