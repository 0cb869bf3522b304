"""Run doctor on real environments, broken or healthy, and print how many causes it names.

usage: python -m evaluation.doctor.real_environments [NAME ...] [--base BASE] [--part I/N] [--write FILE]

Each case of `environment_cases` is a copy (with hard links) of an environment that uv installed, with an injected fault
or healthy. The labels were written before doctor first ran on the cases. The Python of the environment imports what a
run imports first: this shows whether the environment is really broken. Doctor reads the environment without running it.
`--base trl` selects the cases with PyTorch and TRL, whose import takes about 15 s of CPU time.
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

from evaluation.doctor import environment_cases

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Case:
    """An environment to build.

    Attributes:
        base: Name of its base in `environment_cases.BASES`.
        change: Changes the copy; may return environment variables of the run, and its working folder as `cwd`.
        codes: Codes of which doctor must report one; empty for a healthy environment.
    """

    name: str
    base: str
    change: Callable[[Path], dict[str, str] | None]
    codes: tuple[str, ...] = ()


@dataclass
class DoctorResult:
    """The result of a case.

    Attributes:
        truth: The last error line of the imports; empty if they succeed.
        code: Exit code of doctor.
        findings: (code, severity) of each finding.
        not_judged: Whether a check was incomplete or crashed.
    """

    case: Case
    truth: str
    code: int
    findings: list[tuple[str, str]] = field(default_factory=list)
    not_judged: bool = False

    @property
    def outcome(self) -> str:
        """Return the outcome as named in the table."""
        errors = {code for code, severity in self.findings if severity in {"error", "blocker"}}
        if not self.case.codes:
            return "sound, flagged" if errors else "sound, not judged" if self.not_judged else "sound, fine"
        if {code for code, _ in self.findings} & set(self.case.codes):
            return "broken, cause named"
        if errors:
            return "broken, other cause"
        return "broken, not judged" if self.not_judged else "broken, nothing found"


def main() -> int:
    """Build and evaluate the cases; return 1 for a flagged healthy or a missed broken environment."""
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--base", action="append", default=[])
    parser.add_argument("--write", type=Path)
    parser.add_argument("--part", default="1/1", metavar="I/N", help="every Nth case, from the Ith")
    options = parser.parse_args()
    cases = [Case(*fields) for fields in environment_cases.CASES]
    cases = [
        case
        for case in cases
        if (not options.names or case.name in options.names)
        and (not options.base or case.base in options.base)
    ]
    number, parts = map(int, options.part.split("/"))
    cases = cases[number - 1 :: parts]
    results: list[DoctorResult] = []
    with tempfile.TemporaryDirectory(prefix="doctor-real-") as folder:
        for name in dict.fromkeys(case.base for case in cases):
            install(Path(folder, name), *environment_cases.BASES[name])
        for case in cases:
            results.append(_evaluate_case(case, Path(folder)))
            print(
                f"{results[-1].outcome:<24} {case.name}: {results[-1].truth} | {results[-1].findings}",
                flush=True,
            )
    text = _render_document(results)
    print(text)
    if options.write:
        options.write.write_text(text, encoding="utf-8")
    wrong = {"sound, flagged", "broken, nothing found"}
    return int(any(result.outcome in wrong and not _contradicts_label(result) for result in results))


def install(place: Path, requirements: tuple[str, ...], options: tuple[str, ...], program: str) -> None:
    """Install a base with uv, and run its program once."""
    subprocess.run(["uv", "venv", "-q", "--python", sys.executable, place], check=True)
    subprocess.run(["uv", "pip", "install", "-q", "--python", place, *options, *requirements], check=True)
    # The first import writes the bytecode, which all copies share.
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    subprocess.run([place / "bin" / "python", "-c", program], check=True, env=environ, cwd=place)


@dataclass(frozen=True)
class BuiltCase:
    """The built environment of a case, with the variables and the working folder of its run."""

    prefix: Path
    environ: dict[str, str]
    working: str


@contextlib.contextmanager
def build_case(case: Case, folder: Path) -> Iterator[BuiltCase]:
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
        yield BuiltCase(prefix, {**environ, "HOME": str(home), "HF_HUB_OFFLINE": "1", **changes}, working)
    finally:
        for path in (prefix, cwd, home):
            shutil.rmtree(path, ignore_errors=True)


def _evaluate_case(case: Case, folder: Path) -> DoctorResult:
    with build_case(case, folder) as place:
        return observe(case, place)


def observe(case: Case, place: BuiltCase) -> DoctorResult:
    """Run the imports of a case, then doctor."""
    truth = last_error_line(place.prefix, environment_cases.BASES[case.base][2], place.environ, place.working)
    return _run_doctor(case, place, truth)


def last_error_line(prefix: Path, program: str, environ: dict[str, str], working: str) -> str:
    """Run a program in an environment; return the last line of its errors, or an empty string if it succeeds."""
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


def doctor(place: BuiltCase, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run doctor in isolated mode, so that files of the case cannot hide modules that doctor imports."""
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


def _run_doctor(case: Case, place: BuiltCase, truth: str) -> DoctorResult:
    done = doctor(place, "--format", "json")
    try:
        document = json.loads(done.stdout)
    except ValueError:
        return DoctorResult(case, truth, done.returncode, [("CRASH", done.stderr[-200:])])
    findings = [(finding["code"], finding["severity"]) for finding in document["findings"]]
    # "No trainer installed" is reported for every base without one, so it does not count here.
    checks = [check for check in document["checks"] if check["check"] != "environment"]
    unread = any(check["not_judged"] or check["outcome"] == "crashed" for check in checks)
    return DoctorResult(case, truth, done.returncode, findings, unread)


def _contradicts_label(seen: DoctorResult) -> bool:
    """Return whether the imports contradict the label, so that the case does not count."""
    return bool(seen.case.codes) != bool(seen.truth)


def _render_document(seen: list[DoctorResult]) -> str:
    # A case whose label is contradicted by the imports is listed, but not counted.
    consistent = [result for result in seen if not _contradicts_label(result)]
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
        odd = " (not counted: importing contradicts the label)" if _contradicts_label(result) else ""
        lines.append(
            f"| {result.case.name} | {result.case.base} | {truth} | {codes} | {result.outcome}{odd} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
