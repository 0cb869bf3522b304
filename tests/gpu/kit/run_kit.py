"""Joins a kit, unpacks it, runs the suite for a GPU and writes the one JSON to bring back. Python 3.11 is all it needs.

`python3 run_kit.py [--python PYTHON] [--out gpu.json] [-- ARGUMENTS OF PYTEST]`, in the folder of the parts. Nothing is
looked for on a network. With --python that environment's PyTorch is used and nothing is installed; without, one is made
of the kit's wheels. Cells in the kit are made of their wheels, too. `matrix merge gpu.json` takes what it writes.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import os
import platform
import subprocess
import sys
import tarfile
import time
import tomllib
import venv
from pathlib import Path
from xml.etree import ElementTree as ET

SCHEMA = "grpo-doctor.gpu.v1"
KIT = "grpo-doctor.gpu-kit.v1"
WANTED = ["-m", "gpu"]
# Imported where the tests run: what decides about their outcomes.
VERSIONS = """
import json, sys
from importlib import metadata
found = {"python": sys.version.split()[0]}
for name in ("torch", "transformers", "peft", "safetensors", "pytest", "vllm", "trl"):
    try:
        found[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
        pass
cuda, names = None, []
try:
    import torch
    cuda = torch.version.cuda
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
except ImportError:
    pass
print(json.dumps({"versions": found, "cuda": cuda, "seen": names}))
"""


class KitError(Exception):
    """Raised when the kit is incomplete, altered, or can't be used here; one line that says what."""


def sha256(path: Path) -> str:
    """Of a file's bytes."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(2**20):
            digest.update(block)
    return digest.hexdigest()


def joined(folder: Path, work: Path) -> dict:
    """Puts the parts together; returns what the list of them says.

    Raises:
        KitError: A part is missing or is not the one that was packed.
    """
    try:
        listed = json.loads((folder / "parts.json").read_text(encoding="utf-8"))
        parts, whole = listed["parts"], listed["sha256"]
    except (OSError, ValueError, KeyError) as error:
        raise KitError(f"{folder / 'parts.json'}: no list of parts: {error}") from error
    if listed.get("schema") != KIT:
        raise KitError(f"{folder / 'parts.json'}: expected {KIT}")
    with (work / "kit.tar.gz").open("wb") as target:
        for part in parts:
            path = folder / Path(part["name"]).name
            if not path.is_file():
                raise KitError(f"{path}: is missing")
            if sha256(path) != part["sha256"]:
                raise KitError(f"{path}: is not the part that was packed; copy it again")
            target.write(path.read_bytes())
    if sha256(work / "kit.tar.gz") != whole:
        raise KitError("the parts do not make the kit that was packed")
    return listed


def unpacked(work: Path) -> dict:
    """Unpacks the kit; returns its own list of files, each of which was compared."""
    with tarfile.open(work / "kit.tar.gz") as archive:
        for member in archive.getmembers():
            # Never through a link, never outside: what a stranger may have put in.
            if not (
                member.isfile()
                and not Path(member.name).is_absolute()
                and ".." not in Path(member.name).parts
            ):
                raise KitError(f"{member.name}: a kit holds nothing but files below its folder")
            archive.extract(member, work)
    kit = json.loads((work / "kit.json").read_text(encoding="utf-8"))
    for name, digest in kit["files"].items():
        if sha256(work / name) != digest:
            raise KitError(f"{name}: is not the file that was packed")
    (work / "kit.tar.gz").unlink()
    return kit


def tests_need(work: Path) -> list[str]:
    """The project with its extras, and the group of its tests: pytest's settings name plugins of that."""
    groups = tomllib.loads((work / "source" / "pyproject.toml").read_text(encoding="utf-8"))[
        "dependency-groups"
    ]

    def of(name: str) -> list[str]:
        parts = [of(one["include-group"]) if isinstance(one, dict) else [one] for one in groups[name]]
        return [one for part in parts for one in part]

    return ["grpo-doctor[matrix,train]", *of("test")]


def environment(work: Path, wanted: list[str], folder: Path) -> Path:
    """Makes an environment of the kit's wheels; returns its Python."""
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    install = [
        python,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-index",
        "--find-links",
        work / "wheels",
        *wanted,
    ]
    done = subprocess.run(list(map(str, install)), stdin=subprocess.DEVNULL, check=False)
    if done.returncode:
        raise KitError(
            f"{folder.name}: its wheels can't be installed with {platform.python_version()}; --python PYTHON"
        )
    return python


def cells_of(work: Path, kit: dict) -> Path:
    """Makes the cells that the kit has wheels for."""
    folder = work / "cells"
    for cell in kit["cells"]:
        lock = work / "source" / "locks" / f"{cell}.txt"
        environment(work, ["--no-deps", "--require-hashes", "-r", str(lock)], folder / cell)
    return folder


def machine(work: Path, python: Path) -> dict:
    """The devices, by the driver's library and by PyTorch; no serial numbers, no host's name."""
    asked = work / "source" / "diagnostics" / "collect" / "nvml.py"
    told = subprocess.run([str(python), "-I", "-S", str(asked)], capture_output=True, text=True, check=False)
    nvml = json.loads(told.stdout) if told.returncode == 0 else {"state": "failed"}
    keep = ("name", "memory_gb", "capability", "mig")
    devices = [{key: device.get(key) for key in keep} for device in nvml.get("devices", [])]
    done = subprocess.run([str(python), "-c", VERSIONS], capture_output=True, text=True, check=True)
    seen = json.loads(done.stdout.splitlines()[-1])
    about = {"driver": nvml.get("driver"), "cuda": seen["cuda"], "architecture": platform.machine()}
    return {"machine": {"devices": devices, "seen": seen["seen"], **about}, "versions": seen["versions"]}


def outcomes(path: Path) -> list[dict]:
    """Each test's, out of the XML that pytest writes."""
    found = []
    for case in ET.parse(path).iter("testcase"):
        kinds = {child.tag: child for child in case}
        bad = kinds.get("failure", kinds.get("error"))
        skipped = kinds.get("skipped")
        kind = "failed" if "failure" in kinds else "error" if bad is not None else "passed"
        kind = "skipped" if bad is None and skipped is not None else kind
        entry = {"name": f"{case.get('classname')}::{case.get('name')}", "outcome": kind}
        entry["seconds"] = float(case.get("time") or 0)
        said = bad if bad is not None else skipped
        if said is not None:
            entry["reason"] = (said.get("message") or "")[:2000]
            entry["output"] = (said.text or "")[-6000:] if bad is not None else ""
        found.append(entry)
    return found


def run(work: Path, python: Path, arguments: list[str], environ: dict) -> dict:
    """Runs pytest on the kit's sources."""
    report = work / "junit.xml"
    report.unlink(missing_ok=True)
    command = [
        str(python),
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        f"--junitxml={report}",
        *arguments,
    ]
    started = time.monotonic()
    done = subprocess.run(command, cwd=work / "source", env=environ, stdin=subprocess.DEVNULL, check=False)
    if not report.is_file():
        raise KitError(f"pytest ended with {done.returncode} and wrote nothing; see above")
    return {
        "command": " ".join(["pytest", *arguments]),
        "exit_code": done.returncode,
        "seconds": round(time.monotonic() - started, 1),
        "tests": outcomes(report),
    }


def figures(work: Path, python: Path, environ: dict) -> list[dict]:
    """What the benchmark for a GPU prints; on a machine without one, at a size that measures nothing."""
    program = work / "source" / "benchmarks" / "gpu.py"
    if not program.is_file():
        return []
    done = subprocess.run(
        [str(python), str(program), "--json"], cwd=work / "source", env=environ, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    try:
        found = json.loads(done.stdout)
    except ValueError:
        return [{"name": "benchmarks/gpu.py", "problem": f"ended with {done.returncode} and no figures"}]
    return list(found["figures"])


def main() -> int:
    """Everything; the exit code is pytest's."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--python", type=Path, help="an environment with PyTorch and pytest, used as it is")
    parser.add_argument(
        "--out", type=Path, default=Path("gpu.json"), help="what to bring back (default: gpu.json)"
    )
    parser.add_argument(
        "--work", type=Path, default=Path("kit"), help="where it is unpacked (default: ./kit)"
    )
    parser.add_argument("--no-figures", action="store_true", help="leave the benchmark out")
    parser.add_argument(
        "pytest", nargs="*", help=f"arguments of pytest behind -- (default: {' '.join(WANTED)})"
    )
    options = parser.parse_args()
    work = options.work.resolve()
    try:
        work.mkdir(parents=True, exist_ok=True)
        listed = joined(Path(__file__).resolve().parent, work)
        kit = unpacked(work)
        python = options.python or environment(work, tests_need(work), work / "environment")
        environ = {
            **os.environ,
            "PYTHONPATH": str(work / "source"),
            "HF_HUB_OFFLINE": "1",
            "PIP_NO_INDEX": "1",
        }
        if kit["cells"]:
            environ["GRPO_DOCTOR_GPU_CELLS"] = str(cells_of(work, kit))
        about = machine(work, python)
        ran = run(work, python, options.pytest or WANTED, environ)
        found = [] if options.no_figures else figures(work, python, environ)
    except KitError as error:
        print(f"run_kit: {error}", file=sys.stderr)
        return 2
    made = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    kit_of = {"version": kit["version"], "sha256": listed["sha256"], "cells": kit["cells"]}
    document = {"schema": SCHEMA, "made": made, "kit": kit_of, **about, **ran, "figures": found}
    options.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    counts: dict[str, int] = {}
    for test in ran["tests"]:
        counts[test["outcome"]] = counts.get(test["outcome"], 0) + 1
    print(f"{options.out}: " + ", ".join(f"{count} {name}" for name, count in sorted(counts.items())))
    return int(ran["exit_code"])


if __name__ == "__main__":
    sys.exit(main())
