"""Resolve the requirements of a cell with uv: find package versions that fit together, up to a date cut.

`resolve_declared` resolves what users get, `resolve_runnable` what a recipe describes for a machine without a GPU. Both
return a `Resolution`: packages with hashes, or uv's explanation. Its `infrastructure` separates failures of uv, the
network or the disk from requirements without a solution. `read_pylock` reads the packages of a pylock.toml, and
`lock_text` writes them as a requirements file with hashes.
"""

import datetime
import re
import tempfile
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

from diagnostics.matrix.cells import Cell
from diagnostics.matrix.context import Context
from diagnostics.matrix.verdicts import Fact
from diagnostics.uv import error_line, torch_arguments

# Messages of uv about the index, the network or the disk.
NETWORK_FAULT = re.compile(
    r"error sending request|failed to fetch|connection (refused|reset|closed)|timed out|dns error|\bnetwork\b|"
    r"could not connect|temporary failure|no space left|no result within|"
    r"5\d\d (server error|bad gateway|service unavailable)",
    re.IGNORECASE,
)
_MAX_LISTED = 5  # packages without a hash in a summary


@dataclass(frozen=True)
class LockedPackage:
    """One package of a lock, with the hashes of the files that may be installed."""

    pin: str
    """The requirement, such as 'numpy==2.4.6'."""
    hashes: tuple[str, ...] = ()
    """'sha256:…' of each file that fits the platform, sorted; empty for files in a folder of this machine."""
    source_only: bool = False
    """Whether only a source archive fits, which has to be built for the installation."""


@dataclass(frozen=True)
class Resolution:
    """The result of resolving: packages, or uv's message without one."""

    packages: tuple[LockedPackage, ...] = ()
    """The packages, sorted by pin; empty if there is no solution or uv failed."""
    explanation: str = ""
    """uv's message if there are no packages."""
    infrastructure: bool = False
    """Whether uv failed otherwise, as without a network or disk space: nothing is known about the requirements."""
    platform: str = ""
    """The target platform, such as 'x86_64-manylinux_2_28'; empty for this machine."""
    refused: str = ""
    """uv's message about the matrix's own platform, if another platform was tried after it; else empty."""

    @property
    def pins(self) -> tuple[str, ...]:
        """The pins of the packages."""
        return tuple(item.pin for item in self.packages)


def resolve_declared(context: Context, cell: Cell, *, timeout_s: float) -> Resolution:
    """Resolve the environment that users get if they install the trainer with its extra `vllm`, and this vLLM.

    If wheels need a newer glibc than the matrix's platform has, resolve for a platform with that glibc.
    """

    def attempt(platform: str) -> Resolution:
        requirements = (f"{cell.trainer}[vllm]=={cell.version}", f"vllm=={cell.vllm}")
        arguments = ["--python-platform", platform]
        resolution = _compile(
            context, cell, requirements, arguments, cell.exclude_newer, timeout_s, wheels=False
        )
        return replace(resolution, platform=platform)

    resolution = attempt(context.matrix.platform)
    newer = newer_glibc(resolution.explanation, context.matrix.platform)
    if resolution.packages or resolution.infrastructure or not newer:
        return resolution
    # If a wheel needs a newer glibc, the fault is the platform's, not the pair's.
    return replace(attempt(newer), refused=resolution.explanation)


def newer_glibc(explanation: str, platform: str) -> str:
    """Return the platform with the newer glibc that wheels need according to uv's hint; '' without such a hint.

    >>> newer_glibc("hint: Wheels are available on: `manylinux_2_31_x86_64`", "x86_64-manylinux_2_28")
    'x86_64-manylinux_2_31'
    >>> newer_glibc("hint: Wheels are available on: `manylinux_2_17_x86_64`", "x86_64-manylinux_2_28")
    ''
    """
    machine, _, minor = platform.partition("-manylinux_2_")
    versions = [int(text) for text in re.findall(rf"`manylinux_2_(\d+)_{re.escape(machine)}`", explanation)]
    newer = [number for number in versions if minor.isdigit() and number > int(minor)]
    return f"{machine}-manylinux_2_{min(newer)}" if newer else ""


def resolve_runnable(context: Context, cell: Cell, *, timeout_s: float) -> Resolution:
    """Resolve the environment that the cell's recipe describes for a machine without a GPU."""
    assert cell.recipe is not None
    recipe = cell.recipe
    requirements, alone = recipe.requirements_for(cell)
    cut = recipe.exclude_newer or cell.exclude_newer
    # An override whose marker never holds leaves a package out.
    overrides = (*recipe.instead, *(f"{item} ; sys_platform == 'never'" for item in recipe.without))
    torch = cpu_torch(context, cell)
    resolution = _compile(context, cell, requirements, torch, cut, timeout_s, overrides=overrides)
    if not resolution.packages or not alone:
        return resolution
    more = _compile(context, cell, alone, ["--no-deps", *torch], cut, timeout_s)
    return Resolution(_sorted((*resolution.packages, *more.packages))) if more.packages else more


def cpu_torch(context: Context, cell: Cell) -> list[str]:
    """Return uv's arguments for PyTorch's CPU build for the cell's Python."""
    major, minor = (int(part) for part in cell.python.split("."))
    return torch_arguments(context.environ, python=(major, minor))


def _compile(
    context: Context,
    cell: Cell,
    requirements: Iterable[str],
    arguments: Sequence[str],
    cut: datetime.date,
    timeout_s: float,
    *,
    overrides: Iterable[str] = (),
    wheels: bool = True,
) -> Resolution:
    """Run `uv pip compile` with a date cut, and return the packages or uv's message."""
    with tempfile.TemporaryDirectory(prefix="grpo-doctor-") as name:
        folder = Path(name)
        (folder / "requirements.txt").write_text("\n".join(requirements) + "\n", encoding="utf-8")
        (folder / "overrides.txt").write_text("".join(f"{line}\n" for line in overrides), encoding="utf-8")
        # A date alone would be read in the machine's time zone.
        newest = f"{cut.isoformat()}T23:59:59Z"
        command: list[str | Path] = [
            context.uv, "pip", "compile", "--quiet", "--no-config", "--no-header", "--no-annotate",
            "--format", "pylock.toml", "--python-version", cell.python, "--exclude-newer", newest,
            "--override", "overrides.txt", *arguments, "requirements.txt",
        ]  # fmt: skip
        result = context.run_command(command, timeout_s=timeout_s, wheels=wheels, cwd=folder)
    if result.code == 0:
        return Resolution(read_pylock(result.output))
    # uv reports index faults and contradictions alike; only "No solution found" is about the requirements.
    unsolvable = "No solution found" in result.errors and not NETWORK_FAULT.search(result.errors)
    return Resolution(explanation=error_line(result.errors), infrastructure=not unsolvable)


def read_pylock(text: str) -> tuple[LockedPackage, ...]:
    r"""Return the packages of a lock in the standard form (`pylock.toml`), sorted.

    A package has the hashes of its wheels for the platform, or of its source archive if there are no wheels.

    Raises:
        ValueError: The text is no such lock.

    >>> read_pylock('[[packages]]\nname = "a"\nversion = "1"\nwheels = [{url = "x", hashes = {sha256 = "0f"}}]')
    (LockedPackage(pin='a==1', hashes=('sha256:0f',), source_only=False),)
    """
    try:
        return _sorted(map(_locked, tomllib.loads(text)["packages"]))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a pylock.toml: {type(error).__name__}: {error}") from None


def _sorted(packages: Iterable[LockedPackage]) -> tuple[LockedPackage, ...]:
    by_pin = {item.pin: item for item in packages}
    return tuple(by_pin[pin] for pin in sorted(by_pin))


def _locked(package: Mapping[str, Any]) -> LockedPackage:
    """Return a package of a pylock with the hashes of its wheels, or of its source archive if it has no wheel."""
    files = package.get("wheels") or [package[key] for key in ("sdist", "archive") if key in package]
    # A file in a local folder gets no hash: other machines take the package from an index, perhaps in another build.
    shared = [item for item in files if not item.get("url", "").startswith("file:") and "path" not in item]
    hashes = {f"{kind}:{value}" for item in shared for kind, value in item.get("hashes", {}).items()}
    pin = f"{package['name']}=={package['version']}"
    return LockedPackage(pin, tuple(sorted(hashes)), source_only=bool(files) and not package.get("wheels"))


def lock_text(packages: Iterable[LockedPackage]) -> str:
    r"""Return the packages as a requirements file with hashes, which pip and uv read.

    >>> print(lock_text([LockedPackage("a==1", ("sha256:00",))]), end="")
    a==1 \
        --hash=sha256:00
    """
    lines = ((item.pin, *(f"--hash={digest}" for digest in item.hashes)) for item in _sorted(packages))
    return "".join(" \\\n    ".join(parts) + "\n" for parts in lines)


def hash_coverage(packages: Iterable[LockedPackage]) -> str:
    """Return a text with the number of packages, and the names of those without hashes."""
    packages = list(packages)
    bare = [item.pin for item in packages if not item.hashes]
    if not bare:
        return f"{len(packages)} packages, each with the hashes of its files"
    listed = ", ".join(bare[:_MAX_LISTED]) + (", …" if len(bare) > _MAX_LISTED else "")
    return (
        f"{len(packages)} packages; no hash for {listed}, from a folder of wheels or an index without hashes"
    )


def package_facts(pins: Iterable[str]) -> tuple[Fact, ...]:
    """Return each pin as ("package", name, version), the form in which an answer stores facts.

    >>> package_facts(("numpy==2.4.6", "torch==2.13.0+cpu ; sys_platform == 'linux'"))
    (('package', 'numpy', '2.4.6'), ('package', 'torch', '2.13.0+cpu'))
    """
    lines = (line.partition(";")[0].partition("==") for line in pins)
    return tuple(
        ("package", canonicalize_name(name.partition("[")[0].strip()), version.strip())
        for name, _, version in lines
    )
