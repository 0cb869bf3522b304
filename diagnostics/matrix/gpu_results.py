"""Import the results of the GPU test kit: checked against their schema, and kept next to the store."""

from __future__ import annotations

import hashlib
from collections import Counter
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from diagnostics import safe_io
from diagnostics.matrix.store import StoreError

LARGEST = 64 * safe_io.MIB


class Kit(Struct):
    """The kit that ran."""

    version: str
    sha256: Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]
    cells: list[str]


class Device(Struct):
    """One GPU."""

    name: str
    memory_gb: float | None
    capability: str | None
    mig: bool | None


class Machine(Struct):
    """The machine that ran it."""

    devices: list[Device]
    seen: list[str]
    driver: str | None
    cuda: str | None
    architecture: str


class TestResult(Struct, omit_defaults=True):
    """One test."""

    __test__ = False
    name: str
    outcome: Literal["passed", "failed", "error", "skipped"]
    seconds: float
    reason: str = ""
    output: str = ""


class Figure(Struct, omit_defaults=True):
    """One measurement, or why there is none."""

    name: str
    value: float | None = None
    low: float | None = None
    high: float | None = None
    unit: str = ""
    problem: str = ""


class GpuResults(Struct, tag_field="schema", tag="grpo-doctor.gpu.v1"):
    """The document that a kit writes."""

    made: Annotated[str, Meta(pattern=r"\A\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ\Z")]
    kit: Kit
    machine: Machine
    versions: dict[str, str]
    command: str
    exit_code: int
    seconds: float
    tests: Annotated[list[TestResult], Meta(min_length=1)]
    figures: list[Figure]

    def summary(self) -> str:
        """Return one line: how many tests ended how, and on which GPU."""
        counts = Counter(test.outcome for test in self.tests)
        listed = ", ".join(
            f"{count} {outcome}"
            for outcome, count in sorted(counts.items(), key=lambda item: _ORDER.index(item[0]))
        )
        return f"{len(self.tests)} tests on {', '.join(self.machine.seen) or 'no GPU'}: {listed}"


_ORDER = ("passed", "failed", "error", "skipped")


def read_gpu_results(path: Path) -> GpuResults:
    """Read the document of a kit.

    Raises:
        StoreError: it cannot be read, or no kit writes one like that.
    """
    try:
        results = msgspec.json.decode(safe_io.read_bytes(path, LARGEST), type=GpuResults)
    except OSError as error:
        raise StoreError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise StoreError(f"{path}: {error}") from None
    failed = any(test.outcome in {"failed", "error"} for test in results.tests)
    if failed != (results.exit_code == 1):
        raise StoreError(f"{path}: exit_code {results.exit_code} contradicts the outcomes of the tests")
    return results


def keep_gpu_results(folder: Path, results: GpuResults) -> bool:
    """Write the document into the folder of a store; return False if it is there already."""
    text = msgspec.json.format(msgspec.json.encode(results), indent=1) + b"\n"
    digest = hashlib.sha256(text).hexdigest()[:12]
    path = folder / "gpu" / f"{results.made.replace(':', '')}-{digest}.json"
    if path.exists():
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_suffix(".part")
    aside.write_bytes(text)
    aside.replace(path)
    return True
