"""Resolves a cell's requirements with uv, and reads what came out. Metadata only: nothing is installed."""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name

from diagnostics.matrix.build import pylock
from diagnostics.matrix.build.uv import torch_arguments

if TYPE_CHECKING:
    import datetime
    from collections.abc import Iterable, Sequence

    from diagnostics.matrix.build.pylock import Locked
    from diagnostics.matrix.build.workplace import Workplace
    from diagnostics.matrix.plan.cells import Cell

NETWORK = re.compile(
    r"error sending request|failed to fetch|connection (refused|reset|closed)|timed out|dns error|\bnetwork\b|"
    r"could not connect|temporary failure|no space left|"
    r"5\d\d (server error|bad gateway|service unavailable)",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Resolution:
    """How resolving ended."""

    pins: tuple[str, ...]
    """The lock's lines without hashes, sorted; empty if there is no solution."""
    explanation: str
    """What uv said if there is none."""
    infrastructure: bool
    """The index, the network or the disk failed: nothing is known about the requirements."""
    packages: tuple[Locked, ...] = ()
    """The same with the hashes of their files."""
    platform: str = ""
    """For which it was looked, as 'x86_64-manylinux_2_28'; empty for this machine's."""
    refused: str = ""
    """Why there is none on the platform that was asked for first, which is an older one."""

    @property
    def archives(self) -> tuple[str, ...]:
        """The pins of which only a source archive fits."""
        return tuple(item.pin for item in self.packages if item.archive)

    @property
    def text(self) -> str:
        """The pins as text, without comments and hashes."""
        return "".join(f"{pin}\n" for pin in self.pins)


def declared(
    workplace: Workplace, cell: Cell, *, timeout_s: float, cut: datetime.date | None = None
) -> Resolution:
    """Resolves what a user gets who asks for this TRL with its vLLM extra and this vLLM.

    Args:
        workplace: where.
        cell: the pair.
        timeout_s: seconds that uv gets.
        cut: nothing uploaded after this day counts; the cell's date cut if not given.
    """
    asked = workplace.matrix.platform
    found = _declared(workplace, cell, asked, cut or cell.exclude_newer, timeout_s)
    newer = newer_glibc(found.explanation, asked)
    if found.pins or found.infrastructure or not newer:
        return found
    # That a wheel asks for a newer glibc says something about the platform, and nothing about the pair.
    later = _declared(workplace, cell, newer, cut or cell.exclude_newer, timeout_s)
    return replace(later, refused=found.explanation)


def _declared(
    workplace: Workplace, cell: Cell, platform: str, cut: datetime.date, timeout_s: float
) -> Resolution:
    requirements = (f"trl[vllm]=={cell.trl}", f"vllm=={cell.vllm}")
    arguments = ["--python-platform", platform]
    found = _compile(workplace, cell, requirements, (), cut, arguments, wheels=False, timeout_s=timeout_s)
    return replace(found, platform=platform)


def newer_glibc(explanation: str, platform: str) -> str:
    """Returns the platform with the glibc that uv says the wheels ask for, '' where it names none that is newer.

    >>> newer_glibc("hint: Wheels are available on: `manylinux_2_31_x86_64`", "x86_64-manylinux_2_28")
    'x86_64-manylinux_2_31'
    >>> newer_glibc("hint: Wheels are available on: `manylinux_2_17_x86_64`", "x86_64-manylinux_2_28")
    ''
    """
    machine, _, asked = platform.partition("-manylinux_2_")
    named = [int(text) for text in re.findall(rf"`manylinux_2_(\d+)_{re.escape(machine)}`", explanation)]
    newer = [minor for minor in named if asked.isdigit() and minor > int(asked)]
    return f"{machine}-manylinux_2_{min(newer)}" if newer else ""


def runnable(workplace: Workplace, cell: Cell, *, timeout_s: float) -> Resolution:
    """Resolves what a machine without a GPU installs to run this cell, by its recipe."""
    assert cell.recipe is not None
    recipe = cell.recipe
    requirements, alone = recipe.filled(cell)
    python = tuple(int(part) for part in cell.python.split("."))
    arguments = torch_arguments(workplace.environ, python=(python[0], python[1]))
    cut = recipe.exclude_newer or cell.exclude_newer
    # An override whose marker never holds leaves a package out.
    overrides = (*recipe.instead, *(f"{item} ; sys_platform == 'never'" for item in recipe.without))
    found = _compile(
        workplace, cell, requirements, overrides, cut, arguments, wheels=True, timeout_s=timeout_s
    )
    if not found.pins or not alone:
        return found
    more = _compile(
        workplace, cell, alone, (), cut, ["--no-deps", *arguments], wheels=True, timeout_s=timeout_s
    )
    if not more.pins:
        return more
    return _solved((*found.packages, *more.packages))


def kept(
    workplace: Workplace, cell: Cell, found: tuple[str, ...], *, runs: bool, timeout_s: float
) -> Resolution:
    """Looks up the files of pins as they are, and changes none of them.

    Args:
        workplace: where.
        cell: whose lock it is.
        found: its pins.
        runs: whether it is the lock of the environment that runs here, or of the declared one.
        timeout_s: seconds that uv gets.
    """
    arguments, cut = ["--python-platform", workplace.matrix.platform], cell.exclude_newer
    if runs and cell.recipe is not None:
        major, minor = (int(part) for part in cell.python.split("."))
        arguments = torch_arguments(workplace.environ, python=(major, minor))
        cut = cell.recipe.exclude_newer or cut
    return _compile(
        workplace, cell, found, (), cut, ["--no-deps", *arguments], wheels=runs, timeout_s=timeout_s
    )


def _solved(packages: tuple[Locked, ...]) -> Resolution:
    found = {item.pin: item for item in packages}
    return Resolution(
        tuple(sorted(found)), "", infrastructure=False, packages=tuple(found[pin] for pin in sorted(found))
    )


def _compile(
    workplace: Workplace,
    cell: Cell,
    requirements: tuple[str, ...],
    overrides: tuple[str, ...],
    cut: datetime.date,
    arguments: list[str],
    *,
    wheels: bool,
    timeout_s: float,
) -> Resolution:
    # A date alone would be read in the machine's time zone.
    newest = f"{cut.isoformat()}T23:59:59Z"
    with tempfile.TemporaryDirectory(prefix="grpo-doctor-") as name:
        wanted, overriding = Path(name) / "requirements.txt", Path(name) / "overrides.txt"
        wanted.write_text("\n".join(requirements) + "\n", encoding="utf-8")
        overriding.write_text("".join(f"{line}\n" for line in overrides), encoding="utf-8")
        command: list[str | Path] = [
            workplace.uv,
            "pip",
            "compile",
            "--quiet",
            "--no-config",
            "--no-header",
            "--no-annotate",
            # The standard form names each file with its hash; only what fits the platform stands in it.
            "--format",
            "pylock.toml",
            "--python-version",
            cell.python,
            "--exclude-newer",
            newest,
            "--override",
            overriding,
            *arguments,
            wanted,
        ]
        try:
            code, output, errors = _uv(workplace, command, Path(name), wheels=wheels, timeout_s=timeout_s)
        except subprocess.TimeoutExpired:
            return Resolution((), f"uv gave no answer within {timeout_s:.0f} s", infrastructure=True)
    if code == 0:
        return _solved(pylock.read(output))
    explanation = explain(errors)
    # uv puts index faults and contradictions into the same text; only "No solution found" is about the
    # requirements.
    unsolvable = "No solution found" in errors and not NETWORK.search(errors)
    return Resolution((), explanation, infrastructure=not unsolvable)


def _uv(
    workplace: Workplace, command: Sequence[str | Path], folder: Path, *, wheels: bool, timeout_s: float
) -> tuple[int, str, str]:
    """Runs uv and returns (exit code, output, errors); while it runs, an interrupted run can end it."""
    with subprocess.Popen(
        command,
        env=workplace.uv_environ(wheels=wheels),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
    ) as process:
        workplace.running.add(process)
        try:
            output, errors = process.communicate(timeout=timeout_s)
        except BaseException:
            process.kill()
            raise
        finally:
            workplace.running.discard(process)
    return process.returncode, output, errors


def pins(text: str) -> tuple[str, ...]:
    r"""Returns the requirement lines of a lock, without comments and hashes, in a stable order.

    A lock's identity rests on these: a file that is added to a release changes no version.

    >>> pins("# made by uv\nb==2\na==1  # via b\n")
    ('a==1', 'b==2')
    >>> pins("a==1 \\\n    --hash=sha256:00 \\\n    --hash=sha256:01\nb==2 --hash=sha256:02\n")
    ('a==1', 'b==2')
    """
    whole = text.replace("\\\n", " ")
    lines = (
        line.partition(" #")[0].partition(" --hash=")[0].strip()
        for line in whole.splitlines()
        if not line.lstrip().startswith("#")
    )
    return tuple(sorted(line for line in lines if line))


def packages(found: Iterable[str]) -> tuple[tuple[str, ...], ...]:
    """Returns pins as facts of an answer.

    >>> packages(("numpy==2.4.6", "torch==2.13.0+cpu ; sys_platform == 'linux'"))
    (('package', 'numpy', '2.4.6'), ('package', 'torch', '2.13.0+cpu'))
    """
    lines = (line.partition(";")[0].partition("==") for line in found)
    return tuple(
        ("package", canonicalize_name(name.partition("[")[0].strip()), version.strip())
        for name, _, version in lines
    )


def version_of(found: tuple[str, ...], package: str) -> str:
    """Returns the pinned version of a package, '' if it isn't pinned.

    >>> version_of(("numpy==2.4.6", "torch==2.13.0+cpu ; sys_platform == 'linux'"), "torch")
    '2.13.0+cpu'
    """
    wanted = canonicalize_name(package)
    return next((version for _kind, name, version in packages(found) if name == wanted), "")


def drift(committed: tuple[str, ...], found: tuple[str, ...]) -> list[str]:
    """Returns how a resolution differs from the committed lock, one line a package."""
    gone, new = sorted(set(committed) - set(found)), sorted(set(found) - set(committed))
    return [f"- {line}" for line in gone] + [f"+ {line}" for line in new]


def explain(text: str) -> str:
    r"""Returns uv's explanation on one line, without its drawing characters and the markers in braces.

    >>> explain("error: No solution found\n  cause: Because a{sys_platform == 'linux'}==1 is gone")
    'No solution found: Because a==1 is gone'
    """
    words = re.sub(r"\s*[\u00d7╰─▶│├]+\s*", " ", " ".join(text.split())).strip()
    words = words.removeprefix("error: ").replace(" cause: ", ": ")
    return re.sub(r"\{[^{}]*\}", "", words)[:2000]
