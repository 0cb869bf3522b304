"""Execute the commands of fix plans in broken environments, and check the environments again.

usage: python -m evaluation.doctor.real_plans [NAME ...] [--base BASE] [--keep FILE] [--write FILE]

Each broken case of `environment_cases` is built as in `real_environments`. The commands that `doctor --fix-plan` prints
after `$`, and no others, run in one shell. Then the imports and doctor run again. A plan with advice but no commands
cannot be executed: its outcome is "in words alone", which does not count as fixed.
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
from evaluation.doctor import environment_cases
from evaluation.doctor.real_environments import (
    BuiltCase,
    Case,
    DoctorResult,
    build_case,
    doctor,
    install,
    observe,
)

# Outcomes of a plan. STILL, AGAIN, FAILED and CRASHED are defects.
SOUND, IN_WORDS, ABSENT = "mended", "in words alone", "not broken here"
STILL, AGAIN, FAILED = "still broken", "mended, named still", "a command failed"
CRASHED = "doctor crashed"
_SECONDS = 1200
_STEP = re.compile(r"\d+\. (\w+): ")


@dataclass(frozen=True)
class PlanResult:
    """A case before and after its fix plan.

    Attributes:
        before: Imports and findings before the plan.
        commands: Commands that ran.
        words: Steps of the plan without a command.
        error: The last line of a failed command.
        after: Imports and findings after the plan; None if it did not run or failed.
    """

    case: Case
    before: DoctorResult
    commands: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    error: str = ""
    after: DoctorResult | None = None

    @property
    def outcome(self) -> str:
        """Return the outcome as named in the table."""
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
    """Execute the plans of the cases; return 1 if a plan with commands fails or does not fix its case."""
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", help="cases; all broken ones if none is named")
    parser.add_argument("--base", action="append", default=[])
    parser.add_argument("--keep", type=Path, help="JSON file of finished cases, which are skipped")
    parser.add_argument("--write", type=Path, help="file for the table")
    options = parser.parse_args()
    rows = json.loads(options.keep.read_text("utf-8")) if options.keep and options.keep.exists() else {}
    cases = [case for case in (Case(*fields) for fields in environment_cases.CASES) if case.codes]
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
                install(base, *environment_cases.BASES[case.base])
            tried = try_plan(case, Path(folder))
            rows[case.name] = as_row(tried)
            print(
                f"{tried.outcome:<20} {case.name}: {tried.error or tried.commands or tried.words}", flush=True
            )
            if options.keep:
                options.keep.write_text(json.dumps(rows, indent=1), "utf-8")
    text = render_document(rows)
    print(text)
    if options.write:
        options.write.write_text(text, encoding="utf-8")
    return int(any(row["outcome"] in {STILL, AGAIN, FAILED, CRASHED} for row in rows.values()))


def try_plan(case: Case, folder: Path) -> PlanResult:
    """Build a case, execute the commands of its plan, and check it again."""
    with build_case(case, folder) as place:
        _unlink_from_base(place.prefix)
        before = observe(case, place)
        commands = read_plan(place)
        tried = PlanResult(case, before, commands[0], commands[1])
        if not before.truth or not commands[0]:
            return tried
        message, environ = run_commands(commands[0], place)
        if message:
            return replace(tried, error=message)
        return replace(tried, after=observe(case, replace(place, environ=environ)))


def _unlink_from_base(prefix: Path) -> None:
    """Replace hard links by copies for files into which a plan may write: pyvenv.cfg and those in bin."""
    for path in (prefix / "pyvenv.cfg", *(prefix / "bin").iterdir()):
        if path.is_file() and not path.is_symlink():
            data, mode = path.read_bytes(), path.stat().st_mode
            path.unlink()
            path.write_bytes(data)
            path.chmod(mode)


def read_plan(place: BuiltCase) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the commands of a plan, and its steps without a command, if they are marked must or should."""
    asking = replace(place, environ=place.environ | _index_variables() | {"COLUMNS": "400"})
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


def run_commands(commands: tuple[str, ...], place: BuiltCase) -> tuple[str, dict[str, str]]:
    """Run the commands in one shell; return the last line of a failure (or ""), and the variables afterwards."""
    after = place.prefix.parent / "variables"
    script = "\n".join(("set -e", *commands, f"env -0 > '{after}'"))
    # Records made before a change are stored next to the environment, not in the run's working folder.
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=place.prefix.parent / "home",
        env=place.environ | _index_variables(),
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


def _index_variables() -> dict[str, str]:
    """Return the variables that let uv use this machine's package index and cache."""
    environ = {name: value for name, value in os.environ.items() if name.startswith(("UV_", "PIP_", "SSL_"))}
    # A case has its own home folder, but shares the package cache of the user.
    environ.setdefault("UV_CACHE_DIR", str(Path.home() / ".cache" / "uv"))
    return environ | uv_environment(os.environ)


def _errors(seen: DoctorResult) -> set[str]:
    return {code for code, severity in seen.findings if severity in {"error", "blocker"}}


def as_row(tried: PlanResult) -> dict[str, object]:
    """Return a result as a row of the table."""
    after = tried.after
    return {
        "base": tried.case.base,
        "outcome": tried.outcome,
        "broken": _short(tried.before.truth),
        "found": _summary(tried.before),
        "commands": [_short(command) for command in tried.commands],
        "words": [_short(line) for line in tried.words],
        "said": _short(tried.error),
        "after": "" if after is None else _short(after.truth) or "imports",
        "again": "" if after is None else _summary(after),
    }


def _summary(seen: DoctorResult) -> str:
    return ", ".join(dict.fromkeys(f"{code} {severity}" for code, severity in seen.findings)) or "-"


def _short(text: str) -> str:
    """Return a text without the temporary folder of the case."""
    text = re.sub(r"[^\s('`]*/plans-real-[^/\s]+/case\b", "ENV", text)
    return re.sub(r"[^\s('`]*/plans-real-[^/\s]+/", "…/", text)


def render_document(rows: dict[str, dict[str, object]]) -> str:
    """Render all rows as a Markdown document."""
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
        done = "<br>".join(f"`{_cell(command)}`" for command in commands) or "nothing: advice only"
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
