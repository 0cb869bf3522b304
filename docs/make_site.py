"""`python docs/make_site.py FOLDER`: write Sphinx sources of the documentation, with a page per code and command.

Paths are the same as in the repository, so that links work in both. `nox -s docs` builds the site. Sphinx with MyST is
used because it is well maintained, reads our Markdown unchanged and fails on broken links. Its search needs no server,
so the built folder can be opened without a network.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from diagnostics import catalog, cli
from diagnostics.catalog import documents, mitigation_ranking
from diagnostics.output.markdown import issue_page
from grpo_core.__main__ import COMMANDS as TRAINER_COMMANDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)#\s]+)(#[^)\s]*)?\)|!\[[^\]]*\]\(([^)#\s]+)\)")
INDEX = (
    '<!doctype html>\n<title>grpo-doctor</title>\n<meta http-equiv="refresh" content="0; url=README.html">\n'
)
# Programs with subcommands: the module, and the names of the subcommands.
WITHIN = {
    "repro": ("repro", ("list", "run", "imports", "fuzz")),
    "matrix": ("diagnostics.matrix", ("run", "lock", "report", "publish")),
    "train": ("grpo_core", tuple(name for name in TRAINER_COMMANDS if name != "train")),
}
CONTENTS = (
    ("How to", "docs/how-to/*.md"),
    ("The commands", "docs/reference/*.md"),
    ("What there is to know", "docs/*.md"),
    ("Known issues", "docs/codes/*.md"),
    ("Results", "docs/results/*.md"),
    ("The project", "*.md"),
)


def main() -> int:
    """Write all sources into the folder given on the command line, which is emptied first."""
    parser = argparse.ArgumentParser(prog="python docs/make_site.py", description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, help="made anew")
    folder = parser.parse_args().folder
    if folder.exists() and not (folder / "conf.py").exists():
        parser.error(f"{folder} is there and is no folder of such pages: name another")
    write_sources(folder)
    return 0


def write_sources(folder: Path) -> None:
    """Write the sources of all pages into a folder, which is removed first."""
    shutil.rmtree(folder, ignore_errors=True)
    texts = {path.relative_to(ROOT): path.read_text(encoding="utf-8") for path in document_paths()}
    texts |= {Path("docs/codes", f"{code}.md"): text for code, text in code_pages()}
    texts |= {
        Path("docs/reference", f"{name}.md"): command_page(name) for name in (*cli.COMMANDS, *cli.PROGRAMS)
    }
    table = texts[Path("docs/codes.md")]
    texts[Path("docs/codes.md")] = re.sub(
        r"^\| ([A-Z]{3}\d{3}) \|", r"| [\1](codes/\1.md) |", table, flags=re.MULTILINE
    )
    for path, text in texts.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(copy_linked_files(path, text, texts, folder), encoding="utf-8")
    with (folder / "README.md").open("a", encoding="utf-8") as file:
        file.write(tables_of_contents(texts))
    shutil.copyfile(ROOT / "docs" / "conf.py", folder / "conf.py")
    (folder / "index.html").write_text(INDEX, encoding="utf-8")
    (folder / "_static").mkdir()
    shutil.copyfile(ROOT / "docs" / "site.css", folder / "_static" / "site.css")


def document_paths() -> Iterator[Path]:
    """Yield the paths of all Markdown documents in the repository."""
    yield from sorted(ROOT.glob("*.md"))
    yield from sorted((ROOT / "docs").rglob("*.md"))


def code_pages() -> Iterator[tuple[str, str]]:
    """Yield each code (known issue or check) with its page."""
    for issue in catalog.load().values():
        fix = mitigation_ranking.recommended_fix(issue)
        yield issue.code, issue_page(documents.issue_document(issue, fix))
    for check in catalog.load_checks().values():
        yield check.code, issue_page(documents.check_document(check))


def command_page(name: str) -> str:
    """Return the page of a command: its `--help` output, and that of each of its subcommands."""
    text = f"# {name}\n\n{printed_output('diagnostics', name, '--help')}"
    module, commands = WITHIN.get(name, ("", ()))
    text += "".join(
        f"\n## {module} {command}\n\n{printed_output(module, command, '--help')}" for command in commands
    )
    if name == "train":
        text += f"\n## Settings\n\n{printed_output(module, 'train', '--help-settings')}"
    return text


def printed_output(*words: str) -> str:
    """Run `python -m` with these words, and return its output as a Markdown code block."""
    command = [sys.executable, "-m", *words]
    environ = {"PYTHONPATH": str(ROOT), "COLUMNS": "100", "PATH": "", "HOME": "/"}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    return f"What `python -m {' '.join(words)}` prints.\n\n```text\n{done.stdout.rstrip()}\n```\n"


def copy_linked_files(path: Path, text: str, texts: dict[Path, str], folder: Path) -> str:
    """Copy the repository files that a page links to into the site; return the page without links to folders."""

    def resolve(match: re.Match[str]) -> str:
        target = match[2] or match[4]
        if "://" in target:
            return match[0]
        place = (ROOT / path.parent / target).resolve()
        inside = place.relative_to(ROOT) if place.is_relative_to(ROOT) else Path("..")
        if inside in texts or not place.exists():  # what does not exist is Sphinx's to refuse
            return match[0]
        if place.is_dir():
            return match[1]
        (folder / inside).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(place, folder / inside)
        return match[0]

    return LINK.sub(resolve, text)


def tables_of_contents(paths: Iterable[Path]) -> str:
    """Return the hidden toctrees that make the sidebar; each page is in the first one whose pattern matches."""
    unlisted = {path for path in paths if path != Path("README.md")}
    parts = []
    for title, pattern in CONTENTS:
        mine = sorted(
            path for path in unlisted if path.match(pattern) and len(path.parts) == len(Path(pattern).parts)
        )
        unlisted -= set(mine)
        head = ["```{toctree}", f":caption: {title}", ":hidden:", ":maxdepth: 1", ""]
        parts.append("\n".join([*head, *(str(path.with_suffix("")) for path in mine), "```"]))
    assert not unlisted, f"in no tree of contents: {sorted(map(str, unlisted))}"
    return "\n\n" + "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    sys.exit(main())
