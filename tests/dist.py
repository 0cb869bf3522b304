"""Build sdist and wheel twice, check that both builds are identical, replace `dist/` by one, and print its digests.

usage: python tests/dist.py [--release TAG]
For a release, the tag must be the version, and the changelog must have a dated section for it. If there is a problem,
`dist/` is not changed.
"""

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# The modification time of all files in the archives; any fixed time works.
EPOCH = "1767225600"


def main() -> int:
    """Build twice and compare; return 0, or 1 with a line on stderr for each problem."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--release", metavar="TAG", help="as v0.1.0")
    tag = parser.parse_args().release
    problems = release_problems(tag) if tag else []
    with tempfile.TemporaryDirectory() as first_folder, tempfile.TemporaryDirectory() as second_folder:
        first, second = build(Path(first_folder)), build(Path(second_folder))
        problems += [f"{name}: the two builds differ" for name in first if second.get(name) != first[name]]
        if not problems:
            shutil.rmtree(ROOT / "dist", ignore_errors=True)
            shutil.copytree(first_folder, ROOT / "dist")
            print("\n".join(f"{digest}  dist/{name}" for name, digest in first.items()))
    for line in problems:
        print(f"dist: {line}", file=sys.stderr)
    return 1 if problems else 0


def build(folder: Path) -> dict[str, str]:
    """Build an sdist and a wheel; return the SHA-256 of each by its name."""
    environ = {**os.environ, "SOURCE_DATE_EPOCH": EPOCH}
    command = [sys.executable, "-m", "hatchling", "build", "--directory", str(folder)]
    subprocess.run(command, cwd=ROOT, env=environ, check=True, stdout=subprocess.DEVNULL)
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


def release_problems(tag: str) -> list[str]:
    """Return the reasons why a tag cannot be released."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    problems = [] if tag == f"v{version}" else [f"the tag {tag} is not v{version}, which pyproject.toml has"]
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    head = re.search(rf"^## {re.escape(version)} \((.+)\)$", changelog, re.MULTILINE)
    if head is None or not re.fullmatch(r"\d{4}-\d\d-\d\d", head[1]):
        problems.append(f"CHANGELOG.md: expected `## {version} (YYYY-MM-DD)`")
    return problems


if __name__ == "__main__":
    sys.exit(main())
