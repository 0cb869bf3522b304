"""What is swept: a package, from which release on, for which known failures, and beside what."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Sweep:
    """One package's releases, and what is asked of each.

    Attributes:
        name: Also of its lock, `locks/sweep-<name>.txt`.
        package: The distribution whose releases are run; its compiled files are left out.
        first: The earliest release.
        codes: Known failures that repros make happen.
        python: Minor release of the interpreter.
        requirements: What is installed beside the package, the same for all of its releases.
        alone: More of them, installed without what they ask for.
        pinned: A file of this project with more of those, exact releases, one a line; "" for none.
        differs: In words, what a released environment would have had instead.
        environment: Variables of the programs that run in it.
        timeout_s: For one release.
        attempt_s: For one attempt.
        locks_itself: Whether the lock may hold the package; where it was only asked for what it needs, it may not.
        at_a_time: How many releases may run at once at most; None where only the machine limits that.
        family: What the command calls it, where several of them are asked together; "" for its name.
    """

    name: str
    package: str
    first: str
    codes: tuple[str, ...]
    python: str
    requirements: tuple[str, ...]
    alone: tuple[str, ...]
    differs: str
    environment: tuple[tuple[str, str], ...] = ()
    timeout_s: float = 240.0
    attempt_s: float = 60.0
    pinned: str = ""
    at_a_time: int | None = None
    locks_itself: bool = True
    family: str = ""

    @property
    def command(self) -> str:
        """Asks it."""
        return f"nox -s repro -- --all-versions --sweep {self.family or self.name}"


SWEEPS = {
    sweep.name: sweep
    for sweep in (
        Sweep(
            name="vllm",
            package="vllm",
            first="0.6.0",
            codes=("SCH001", "SCH002", "CMP001"),
            python="3.11",
            # As the recipe `scheduler` in matrix.toml, and what imports of the releases before 0.6.5 ask for.
            requirements=(
                "torch==2.13.0",
                "transformers==4.53.3",
                "aiohttp",
                "blake3",
                "cachetools",
                "cbor2",
                "cloudpickle",
                "einops",
                "fastapi",
                "gguf",
                "lark",
                "loguru",
                "mistral-common",
                "msgspec",
                "numpy",
                "openai",
                "openai-harmony",
                "opencv-python-headless",
                "partial-json-parser",
                "pillow",
                "prometheus-client",
                "protobuf",
                "psutil",
                "py-cpuinfo",
                "pybase64",
                "pydantic",
                "pyzmq",
                "requests",
                "sentencepiece",
                "setproctitle",
            ),
            alone=("compressed-tensors",),
            differs=(
                "vllm: the released wheel's Python files, each compared with its RECORD, without its compiled ones; "
                "torch and transformers: one release of each for all, not those that each asks for"
            ),
            environment=(("VLLM_USE_V1", "0"),),
            timeout_s=900.0,
            attempt_s=180.0,
        ),
        Sweep(
            name="verl",
            package="verl",
            first="0.2",
            codes=("RAY001",),
            python="3.11",
            requirements=(),
            alone=("torch==2.13.0", "vllm==0.8.5.post1"),
            pinned="repro/ray.txt",
            differs=(
                "vllm: one unmodified wheel for all, without its dependencies, on a machine without a GPU; "
                "ray, torch, transformers and what verl imports: one release of each for all, not those "
                "that each asks for"
            ),
            timeout_s=3600.0,
            attempt_s=600.0,
            at_a_time=1,
        ),
    )
}
