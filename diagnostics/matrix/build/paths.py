"""Where our own code is, what this machine is, and how both are kept out of what is shown."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path

# The project: the folder that holds diagnostics, grpo_core and repro.
ROOT = Path(__file__).resolve().parents[3]
# What runs inside cells. Copied aside, so that a cell sees these and nothing else of ours.
STAGED = ("grpo_core", "repro")
# What runs outside of them, and may be what an answer rests on.
OURS = ("diagnostics", "tests")


def machine() -> str:
    """Returns the platform that executed verdicts hold for, as 'linux-x86_64'."""
    return f"{platform.system()}-{platform.machine()}".lower()


def shareable(text: str, store: Path) -> str:
    """Returns a text without the paths of this machine and without credentials in addresses."""
    for path, name in (
        (store.resolve(), "<store>"),
        (ROOT, "<project>"),
        (Path.home(), "~"),
    ):
        text = text.replace(os.fspath(path), name)
    return re.sub(r"//[^/@\s:]+:[^/@\s]+@", "//", text)
