"""Packs what a GPU box without internet needs to run the suite, in parts that fit through a narrow door.

`python -m tests.gpu.kit.pack OUT [--requirements FILE] [--cell CELL ...] [--part-mb 60]`. OUT has then the parts, a
list of them with their hashes (`parts.json`), and `run_kit.py`, which joins, unpacks and runs them and writes the one
JSON to bring back. Packed are the sources with their tests, the project's wheel, the wheels of the requirements, and
those of the cells' locks: the declared ones, for CUDA, by the locks' own hashes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
RUNNER = Path(__file__).with_name("run_kit.py")
SCHEMA = "grpo-doctor.gpu-kit.v1"
PART_MB = 60
_BLOCK = 2**20
# Whose names wheels of the locks may have: what a GPU box is, most likely.
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_27_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64",
             "manylinux_2_5_x86_64", "manylinux1_x86_64", "linux_x86_64")  # fmt: skip


def sources() -> list[Path]:
    """What git tracks, or would; without it, in a kit that was unpacked, all there is."""
    command = ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    done = subprocess.run(command, capture_output=True, check=False)
    found = [ROOT / name for name in done.stdout.decode().split("\0") if name]
    if done.returncode:
        found = [path for path in ROOT.rglob("*") if "__pycache__" not in path.parts]
    return sorted(path for path in found if path.is_file() and not path.is_symlink())


def build_wheel(folder: Path) -> None:
    """The project's own."""
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)


def download(folder: Path, arguments: Sequence[str]) -> None:
    """Wheels by pip, with the index that it is set to; no source archive is taken, which would have to be built."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--dest", str(folder)]
    subprocess.run([*command, "--only-binary=:all:", *arguments], check=True)


def download_cell(folder: Path, cell: str) -> None:
    """Those of a cell's declared lock, each held to its hash."""
    python = tomllib.loads((ROOT / "matrix.toml").read_text(encoding="utf-8"))["cells"][cell].get(
        "python", "3.11"
    )
    platforms = [f"--platform={name}" for name in PLATFORMS]
    lock = str(ROOT / "locks" / f"{cell}.txt")
    download(folder, ["--no-deps", "--require-hashes", f"--python-version={python}", *platforms, "-r", lock])


def sha256(path: Path) -> str:
    """Of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def split(path: Path, out: Path, size: int) -> list[dict[str, object]]:
    """Cuts a file into parts of at most `size` bytes, and says which."""
    found: list[dict[str, object]] = []
    with path.open("rb") as file:
        while first := file.read(min(_BLOCK, size)):
            part = out / f"kit.part-{len(found):03}"
            with part.open("wb") as target:
                target.write(first)
                left = size - len(first)
                while left and (block := file.read(min(_BLOCK, left))):
                    target.write(block)
                    left -= len(block)
            found.append({"name": part.name, "bytes": part.stat().st_size, "sha256": sha256(part)})
    return found


def contents(wheels: Path) -> Iterator[tuple[Path, str]]:
    """Each file of the kit, and its name there."""
    for path in sources():
        yield path, f"source/{path.relative_to(ROOT)}"
    for path in sorted(wheels.iterdir()):
        yield path, f"wheels/{path.name}"


def pack(out: Path, wheels: Path, cells: Sequence[str], part_bytes: int) -> dict[str, object]:
    """Writes the kit, and returns its list of parts."""
    out.mkdir(parents=True, exist_ok=True)
    for old in out.glob("kit.part-*"):
        old.unlink()
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    with tempfile.TemporaryDirectory() as name:
        whole = Path(name) / "kit.tar.gz"
        files = {}
        # Wheels are packed already; sources shrink to a fifth.
        with tarfile.open(whole, "w:gz", compresslevel=1) as archive:
            for path, place in contents(wheels):
                archive.add(path, place, recursive=False)
                files[place] = sha256(path)
            listed = Path(name) / "kit.json"
            listed.write_text(
                json.dumps({"schema": SCHEMA, "version": version, "cells": list(cells), "files": files})
            )
            archive.add(listed, "kit.json")
        parts = {
            "schema": SCHEMA,
            "version": version,
            "sha256": sha256(whole),
            "parts": split(whole, out, part_bytes),
        }
    (out / "parts.json").write_text(json.dumps(parts, indent=1) + "\n", encoding="utf-8")
    shutil.copy(RUNNER, out / RUNNER.name)
    return parts


def main(arguments: Sequence[str] | None = None) -> int:
    """Packs, and says what it made."""
    parser = argparse.ArgumentParser(prog="nox -s gpu-kit --", description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path, help="the folder of the kit")
    parser.add_argument(
        "--requirements", type=Path, help="wheels of these and of what they need, as pip reads them"
    )
    parser.add_argument(
        "--cell", action="append", default=[], help="the wheels of a cell's declared lock, too"
    )
    parser.add_argument(
        "--part-mb", type=float, default=PART_MB, help=f"the largest part (default: {PART_MB})"
    )
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as name:
        wheels = Path(name)
        build_wheel(wheels)
        if options.requirements:
            download(wheels, ["-r", str(options.requirements)])
        for cell in options.cell:
            download_cell(wheels, cell)
        made = pack(options.out, wheels, options.cell, int(options.part_mb * 10**6))
        count = len(list(wheels.iterdir()))
    parts = made["parts"]
    assert isinstance(parts, list)
    size = sum(part["bytes"] for part in parts) / 1e6
    print(
        f"{options.out}: {len(parts)} parts, {size:.1f} MB, {count} wheels; there: python3 run_kit.py --help"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
