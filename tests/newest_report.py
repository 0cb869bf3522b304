"""Write the Markdown report of `nox -s tests-newest`, with the failing tests and the releases that the lock lacks.

usage: python -m tests.newest_report LOCK FOLDER
FOLDER has installed.txt (uv pip freeze) and tests.xml (JUnit); report.md is written there and printed.
"""

import sys
from pathlib import Path
from xml.etree import ElementTree as ET


def releases(text: str) -> dict[str, set[str]]:
    """Return the releases of each package in a requirements file; a universal lock has one per Python."""
    versions: dict[str, set[str]] = {}
    for line in text.splitlines():
        name, equals, rest = line.partition("==")
        if equals and not name.startswith("#"):
            versions.setdefault(name.strip(), set()).add(rest.split(";")[0].split("+")[0].strip())
    return versions


def changed(lock: str, installed: str) -> list[str]:
    """Return one line per installed package whose release the lock does not have."""
    locked = releases(lock)
    return [
        f"{name} {'/'.join(sorted(locked.get(name, {'(not locked)'})))} -> {release}"
        for name, (release, *_) in sorted(
            (name, sorted(releases_of_package)) for name, releases_of_package in releases(installed).items()
        )
        if release not in locked.get(name, set())
    ]


def failures(junit: Path) -> list[str]:
    """Return `test: first line of the error` for each test that failed; one line if pytest wrote no results."""
    if not junit.is_file():
        return ["pytest wrote no results: the suite did not run"]
    cases = ET.parse(junit).getroot().iter("testcase")
    failed = []
    for case in cases:
        for problem in [*case.findall("failure"), *case.findall("error")]:
            message = (problem.get("message") or "").splitlines() or [""]
            failed.append(f"{case.get('classname')}::{case.get('name')}: {message[0][:200]}")
    return failed


def report(lock: str, installed: str, junit: Path) -> str:
    """Return the report as Markdown."""
    failed, differs = failures(junit), changed(lock, installed)
    lines = [
        f"# {len(failed)} tests fail with the newest releases",
        "",
        "Releases that differ from the lock:",
        "",
    ]
    lines += [f"- {line}" for line in differs] or ["- none"]
    lines += ["", "Failing tests:", "", *([f"- `{line}`" for line in failed[:200]] or ["- none"])]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    lock_path, folder = Path(sys.argv[1]), Path(sys.argv[2])
    text = report(
        lock_path.read_text(encoding="utf-8"),
        (folder / "installed.txt").read_text(encoding="utf-8"),
        folder / "tests.xml",
    )
    (folder / "report.md").write_text(text, encoding="utf-8")
    print(text)
