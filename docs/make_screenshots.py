"""`python docs/make_screenshots.py`: write docs/images/*.svg from real output of the commands."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parent.parent
WIDTH = 110
SCREENS = {
    "triage": ("triage", "examples/dead_run.log"),
    "hang": ("hang", "--from", "examples/hangs/paused_engine.json"),
    "versions": ("versions",),
}
FONT_FACE = re.compile(r"@font-face \{.*?\}", re.DOTALL)


def main() -> int:
    """Write one image for each command."""
    folder = ROOT / "docs" / "images"
    folder.mkdir(exist_ok=True)
    for name, arguments in SCREENS.items():
        (folder / f"{name}.svg").write_text(draw(name, arguments), encoding="utf-8")
    return 0


def draw(name: str, arguments: tuple[str, ...]) -> str:
    """Run a command and return its terminal output as an SVG without external resources."""
    environ = {**os.environ, "FORCE_COLOR": "1", "COLUMNS": str(WIDTH), "PYTHONPATH": str(ROOT)}
    words = [sys.executable, "-m", "diagnostics", *arguments]
    done = subprocess.run(words, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
    console = Console(record=True, width=WIDTH, file=io.StringIO())
    console.print(Text("$ grpo-doctor " + " ".join(arguments)))
    console.print(Text.from_ansi(done.stdout))
    return FONT_FACE.sub("", console.export_svg(title=f"grpo-doctor {arguments[0]}", unique_id=name))


if __name__ == "__main__":
    sys.exit(main())
