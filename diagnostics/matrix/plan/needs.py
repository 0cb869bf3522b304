"""What a layer asks of a machine, as `matrix.toml` says it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Needs:
    """What a layer asks of a machine: of a node of a cluster, of a CI runner."""

    cpus: float = 1.0
    memory_gb: float = 0.0
    """GB of 1e9 bytes; 0 for no claim."""
    gpus: float = 0.0

    @property
    def described(self) -> str:
        """In words, as '1 CPU, 16 GB, 1 GPU'."""
        return words(self.cpus, self.memory_gb, self.gpus)


def words(cpus: float, memory_gb: float, gpus: float) -> str:
    """Says it for people; what is not asked for is left out."""
    parts = [f"{cpus:g} CPU", f"{memory_gb:.0f} GB" if memory_gb else "", f"{gpus:g} GPU" if gpus else ""]
    return ", ".join(word for word in parts if word)
