"""`python -m evaluation.doctor.real_plans [NAME ...]`: a fix plan carried out, and looked again.

Each broken case of `real_cases` is made as in `doctor_real`. What `doctor --fix-plan` prints behind a `$` is typed into
one shell, nothing else; then a run's first lines are imported again and doctor is asked again. A plan in sentences
alone can't be carried out by a program: that is said, and is no success.
"""

from __future__ import annotations

import argparse
import collections
import datetime
import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from diagnostics.uv import uv_environment
from evaluation.doctor import environment_cases as real_cases
from evaluation.doctor.real_environments import Case, Made, Seen, build_case, doctor, install, observe

# Outcomes of a plan. The last four are defects.
SOUND, IN_WORDS, ABSENT = "mended", "in words alone", "not broken here"
STILL, AGAIN, FAILED = "still broken", "mended, named still", "a command failed"
CRASHED = "doctor crashed"
_SECONDS = 1200
_STEP = re.compile(r"\d+\. (\w+): ")


@dataclass(frozen=True)
class Tried:
    """A case, before and after its plan.

    Attributes:
        commands: What was typed.
        said: The last line of a failed command.
        words: The plan's steps in sentences.
    """

    case: Case
    before: Seen
    commands: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    said: str = ""
    after: Seen | None = None

    @property
    def outcome(self) -> str:
        """One of the words of the table."""
        if not self.before.truth:
            return ABSENT
        if any(
            code == "CRASH" for result in (self.before, self.after) if result for code, _ in result.findings
        ):
            return CRASHED
        if self.after is None:
            return FAILED if self.commands else IN_WORDS
        if self.after.truth:
            return STILL
        return AGAIN if _errors(self.after) & set(self.case.codes) else SOUND


def main() -> int:
    """Carry out the plans of the cases; return 1 if one does not fix its case."""
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", help="cases; all broken ones if none is named")
    parser.add_argument("--base", action="append", default=[])
    parser.add_argument("--keep", type=Path, help="a file of rows: a case that is in it is not tried again")
    parser.add_argument("--write", type=Path, help="where the table goes")
    options = parser.parse_args()
    rows = json.loads(options.keep.read_text("utf-8")) if options.keep and options.keep.exists() else {}
    cases = [case for case in (Case(*fields) for fields in real_cases.CASES) if case.codes]
    cases = [
        case
        for case in cases
        if (not options.names or case.name in options.names)
        and (not options.base or case.base in options.base)
    ]
    with tempfile.TemporaryDirectory(prefix="plans-real-") as folder:
        for case in cases:
            if case.name in rows:
                continue
            base = Path(folder, case.base)
            if not base.exists():
                install(base, *real_cases.BASES[case.base])
            tried = carried_out(case, Path(folder))
            rows[case.name] = as_row(tried)
            print(
                f"{tried.outcome:<20} {case.name}: {tried.said or tried.commands or tried.words}", flush=True
            )
            if options.keep:
                options.keep.write_text(json.dumps(rows, indent=1), "utf-8")
    text = render_document(rows)
    print(text)
    if options.write:
        options.write.write_text(text, encoding="utf-8")
    return int(any(row["outcome"] in {STILL, AGAIN, FAILED, CRASHED} for row in rows.values()))


def carried_out(case: Case, folder: Path) -> Tried:
    """Make a case, carry out its plan, and check it again."""
    with build_case(case, folder) as place:
        _unlink_from_base(place.prefix)
        before = observe(case, place)
        commands = plan(place)
        tried = Tried(case, before, commands[0], commands[1])
        if not before.truth or not commands[0]:
            return tried
        message, environ = typed(commands[0], place)
        if message:
            return replace(tried, said=message)
        return replace(tried, after=observe(case, replace(place, environ=environ)))


def _unlink_from_base(prefix: Path) -> None:
    """Give a copy files of its own where the rest are links to its base's: a plan may write into these."""
    for path in (prefix / "pyvenv.cfg", *(prefix / "bin").iterdir()):
        if path.is_file() and not path.is_symlink():
            data, mode = path.read_bytes(), path.stat().st_mode
            path.unlink()
            path.write_bytes(data)
            path.chmod(mode)


def plan(place: Made) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the commands of a plan and its advice in words, for the steps marked must or should."""
    asking = replace(place, environ=place.environ | _machines() | {"COLUMNS": "400"})
    output = doctor(asking, "--fix-plan").stdout
    commands, words, need = [], [], ""
    for line in output.splitlines():
        if match := _STEP.match(line):
            need = match[1]
        elif need not in {"must", "should"}:
            continue
        elif line.startswith("   $ "):
            commands.append(line.removeprefix("   $ "))
        elif line.startswith("   do: ") and "Tried: " not in line:
            words.append(line.removeprefix("   do: "))
    return tuple(commands), tuple(words)


def typed(commands: tuple[str, ...], place: Made) -> tuple[str, dict[str, str]]:
    """Run the commands in one shell; return the first failure's output, and the variables afterwards."""
    after = place.prefix.parent / "variables"
    script = "\n".join(("set -e", *commands, f"env -0 > '{after}'"))
    # Records made before a change are stored next to the environment, not in the run's working folder.
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=place.prefix.parent / "home",
        env=place.environ | _machines(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    if done.returncode:
        lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        return (lines[-1] if lines else f"ended with {done.returncode}")[:200], place.environ
    pairs = (item.partition("=") for item in after.read_text("utf-8").split("\0") if item)
    existing = set(place.environ)
    return "", {name: value for name, _, value in pairs if name in existing}


def _machines() -> dict[str, str]:
    """Return the variables with this machine's package indexes for uv."""
    environ = {name: value for name, value in os.environ.items() if name.startswith(("UV_", "PIP_", "SSL_"))}
    # A case has a home of its own, and what was fetched once lies in this one's.
    environ.setdefault("UV_CACHE_DIR", str(Path.home() / ".cache" / "uv"))
    return environ | uv_environment(os.environ)


def _errors(seen: Seen) -> set[str]:
    return {code for code, severity in seen.findings if severity in {"error", "blocker"}}


def as_row(tried: Tried) -> dict[str, object]:
    """Return a case as a row of the table."""
    after = tried.after
    return {
        "base": tried.case.base,
        "outcome": tried.outcome,
        "broken": _short(tried.before.truth),
        "found": _summary(tried.before),
        "commands": [_short(command) for command in tried.commands],
        "words": [_short(line) for line in tried.words],
        "said": _short(tried.said),
        "after": "" if after is None else _short(after.truth) or "imports",
        "again": "" if after is None else _summary(after),
    }


def _summary(seen: Seen) -> str:
    return ", ".join(dict.fromkeys(f"{code} {severity}" for code, severity in seen.findings)) or "-"


def _short(text: str) -> str:
    """A text without the folder that was made for it."""
    text = re.sub(r"[^\s('`]*/plans-real-[^/\s]+/case\b", "ENV", text)
    return re.sub(r"[^\s('`]*/plans-real-[^/\s]+/", "…/", text)


def render_document(rows: dict[str, dict[str, object]]) -> str:
    """The document."""
    counts = collections.Counter(str(row["outcome"]) for row in rows.values())
    today = datetime.datetime.now(datetime.UTC).date()
    lines = [
        f"{today}, `python -m evaluation.doctor.real_plans`.", "",
        "| outcome | environments |", "|---|---|",
        *(f"| {outcome} | {count} |" for outcome, count in sorted(counts.items())), "",
        "| environment | what importing did | found | typed | importing again | found again | outcome |",
        "|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for name, row in rows.items():
        commands = row["commands"]
        assert isinstance(commands, list)
        done = "<br>".join(f"`{_cell(command)}`" for command in commands) or "nothing: it is said in words"
        again = _cell(str(row["said"] or row["after"] or "-"))
        cells = (
            name, _cell(str(row["broken"] or "imports")), row["found"], done, again, row["again"] or "-",
            row["outcome"],
        )  # fmt: skip
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "/").replace("`", "'").split())


if __name__ == "__main__":
    sys.exit(main())
