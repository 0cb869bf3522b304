"""`python -m evaluation.doctor.real_environments [NAME ...] [--write FILE]`: doctor against real environments.

Each case is a copy (of hard links) of a real environment that uv installed, broken in a way that people do, or sound.
Its label, what is broken, stands beside it and was written before doctor saw it. What importing does is asked of the
environment's own Python; doctor's static tier is asked apart from it. `--base trl` takes the cases whose base holds
PyTorch and TRL: their import takes a quarter of a minute of a processor.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import datetime
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from evaluation.doctor import environment_cases as real_cases

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Case:
    """An environment to be made.

    Attributes:
        base: Its name in `real_cases.BASES`.
        change: What is done to it; it answers variables of the run, and may name a folder to run from under `cwd`.
        codes: Codes, one of which names what is broken; empty for a sound one.
    """

    name: str
    base: str
    change: Callable[[Path], dict[str, str] | None]
    codes: tuple[str, ...] = ()


@dataclass
class Seen:
    """The result of a case: the import's real outcome and doctor's findings."""

    case: Case
    truth: str
    code: int
    findings: list[tuple[str, str]] = field(default_factory=list)
    not_judged: bool = False

    @property
    def outcome(self) -> str:
        """One of the words of the table."""
        errors = {code for code, severity in self.findings if severity in {"error", "blocker"}}
        if not self.case.codes:
            return "sound, flagged" if errors else "sound, not judged" if self.not_judged else "sound, fine"
        if {code for code, _ in self.findings} & set(self.case.codes):
            return "broken, cause named"
        if errors:
            return "broken, other cause"
        return "broken, not judged" if self.not_judged else "broken, nothing found"


def main() -> int:
    """Make and judge the cases; return 1 if the table is not as expected."""
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--base", action="append", default=[])
    parser.add_argument("--write", type=Path)
    parser.add_argument("--part", default="1/1", metavar="I/N", help="every Nth case, from the Ith")
    options = parser.parse_args()
    cases = [Case(*fields) for fields in real_cases.CASES]
    cases = [
        case
        for case in cases
        if (not options.names or case.name in options.names)
        and (not options.base or case.base in options.base)
    ]
    number, parts = map(int, options.part.split("/"))
    cases = cases[number - 1 :: parts]
    results: list[Seen] = []
    with tempfile.TemporaryDirectory(prefix="doctor-real-") as folder:
        for name in dict.fromkeys(case.base for case in cases):
            install(Path(folder, name), *real_cases.BASES[name])
        for case in cases:
            results.append(_case(case, Path(folder)))
            print(
                f"{results[-1].outcome:<24} {case.name}: {results[-1].truth} | {results[-1].findings}",
                flush=True,
            )
    text = _summary(results)
    print(text)
    if options.write:
        options.write.write_text(text, encoding="utf-8")
    wrong = {"sound, flagged", "broken, nothing found"}
    return int(any(result.outcome in wrong and not _contradicts(result) for result in results))


def install(place: Path, requirements: tuple[str, ...], options: tuple[str, ...], program: str) -> None:
    """Make a base, and import in it what its cases import."""
    subprocess.run(["uv", "venv", "-q", "--python", sys.executable, place], check=True)
    subprocess.run(["uv", "pip", "install", "-q", "--python", place, *options, *requirements], check=True)
    # The first import writes the bytecode, which all copies share.
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    subprocess.run([place / "bin" / "python", "-c", program], check=True, env=environ, cwd=place)


@dataclass(frozen=True)
class Made:
    """A case's environment, and how a run in it is started."""

    prefix: Path
    environ: dict[str, str]
    working: str


@contextlib.contextmanager
def build_case(case: Case, folder: Path) -> Iterator[Made]:
    """Copy the base of a case, change the copy, and remove it afterwards."""
    prefix = folder / "case"
    subprocess.run(["cp", "-al", folder / case.base, prefix], check=True)
    cwd = folder / "cwd"
    cwd.mkdir()
    home = folder / "home"
    home.mkdir()
    try:
        changes = case.change(prefix) or {}
        working = changes.pop("cwd", str(cwd))
        environ = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
        yield Made(prefix, {**environ, "HOME": str(home), "HF_HUB_OFFLINE": "1", **changes}, working)
    finally:
        for path in (prefix, cwd, home):
            shutil.rmtree(path, ignore_errors=True)


def _case(case: Case, folder: Path) -> Seen:
    with build_case(case, folder) as place:
        return observe(case, place)


def observe(case: Case, place: Made) -> Seen:
    """Run the imports of a case, then doctor."""
    truth = ending(place.prefix, real_cases.BASES[case.base][2], place.environ, place.working)
    return _doctor(case, place, truth)


def ending(prefix: Path, program: str, environ: dict[str, str], working: str) -> str:
    """Return the last error line of a run's first statements; empty if they succeed."""
    try:
        done = subprocess.run(
            [prefix / "bin" / "python", "-c", program],
            cwd=working,
            env=environ,
            capture_output=True,
            text=True,
            timeout=1200,
            check=False,
        )
    except OSError as error:
        return f"does not start: {error.strerror}"
    if done.returncode == 0:
        return ""
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    return (lines[-1] if lines else f"ended with {done.returncode}")[:160]


def doctor(place: Made, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run doctor alone: what the case puts in the way must not be found by doctor itself."""
    program = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from diagnostics.__main__ import main; sys.exit(main())"
    return subprocess.run(
        [sys.executable, "-I", "-c", program, "doctor", "--prefix", place.prefix, *arguments],
        cwd=place.working,
        env=place.environ,
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )


def _doctor(case: Case, place: Made, truth: str) -> Seen:
    done = doctor(place, "--format", "json")
    try:
        document = json.loads(done.stdout)
    except ValueError:
        return Seen(case, truth, done.returncode, [("CRASH", done.stderr[-200:])])
    findings = [(finding["code"], finding["severity"]) for finding in document["findings"]]
    # "No trainer installed" is reported for every base without one, so it does not count here.
    checks = [check for check in document["checks"] if check["check"] != "environment"]
    unread = any(check["not_judged"] or check["outcome"] == "crashed" for check in checks)
    return Seen(case, truth, done.returncode, findings, unread)


def _contradicts(seen: Seen) -> bool:
    """Return whether the real result contradicts the label, which invalidates the case."""
    return bool(seen.case.codes) != bool(seen.truth)


def _summary(seen: list[Seen]) -> str:
    # A case that an import did not confirm is listed and not counted.
    consistent = [result for result in seen if not _contradicts(result)]
    counts = collections.Counter(result.outcome for result in consistent)
    broken = [result for result in consistent if result.case.codes]
    named_count = sum(result.outcome == "broken, cause named" for result in broken)
    today = datetime.datetime.now(datetime.UTC).date()
    lines = [
        "# Doctor against real environments", "",
        f"{today}, `python -m evaluation.doctor.real_environments`; the static tier.",
        f"{len(broken)} broken environments and {len(consistent) - len(broken)} sound ones: real packages,",
        "installed by uv, broken in a copy. The labels were written before doctor's first look.",
        f"The cause was named in {named_count} of {len(broken)}.", "",
        "| outcome | environments |", "|---|---|",
        *(f"| {outcome} | {count} |" for outcome, count in sorted(counts.items())), "",
        "| case | base | what importing did | doctor | outcome |", "|---|---|---|---|---|",
    ]  # fmt: skip
    for result in seen:
        codes = ", ".join(dict.fromkeys(f"{code} {severity}" for code, severity in result.findings)) or "-"
        truth = (result.truth or "imports").replace("|", "/").replace("`", "'")
        odd = " (not counted: importing contradicts the label)" if _contradicts(result) else ""
        lines.append(
            f"| {result.case.name} | {result.case.base} | {truth} | {codes} | {result.outcome}{odd} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
