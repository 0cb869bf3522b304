"""What the server says of itself, against what the trainer needs: contradictions that cost nothing to find."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from diagnostics import given
from diagnostics.audit.live import trainer as trainers
from diagnostics.audit.model import CLEAN, FAULT, NOT_ASKED, Fact, ProbeAnswer

if TYPE_CHECKING:
    from pathlib import Path

    from diagnostics.audit.live.trainer import TrainerSide


def asked(told: dict[str, Any], side: TrainerSide, checkpoint: Path) -> list[ProbeAnswer]:
    """Judges settings; what the server keeps to itself is not asked."""
    found: list[ProbeAnswer] = []
    mode, temperature = str(told.get("logprobs_mode", "")), side.computes.temperature
    if mode.startswith("raw") and temperature != 1:
        values: dict[str, Any] = {"mode": mode, "temperature": temperature}
        found.append(ProbeAnswer("settings/logprobs_mode", FAULT, "P0", code="NUM001", values=values))
    longest = told.get("max_model_len")
    if isinstance(longest, int) and 0 < longest < side.length:
        values = {"engine": longest, "trainer": side.length}
        found.append(ProbeAnswer("settings/length", FAULT, "P0", values=values))
    if found:
        return found
    facts = tuple(
        Fact("setting", {"name": name, "value": str(told[name])})
        for name in ("release", "dtype", "logprobs_mode", "max_model_len", "quantization")
        if name in told
    )
    defaults = _defaults(checkpoint)
    if hidden := trainers.hidden(defaults, side.request):
        listed = ", ".join(f"{name} {value:g}" for name, value in hidden.items())
        facts += (Fact("defaults", {"told": listed}, "generation_config.json"),)
    if "logprobs_mode" not in told:
        lacking = Fact("server_info_text" if told.get("info") == "text" else "server_info")
        return [ProbeAnswer("settings", NOT_ASKED, "P0", facts=facts, wanted=(lacking,))]
    return [ProbeAnswer("settings", CLEAN, "P0", facts=facts)]


def of_text(config: str) -> dict[str, str]:
    """What is needed of a configuration as Python prints it, which is what vLLM answers up to 0.10.

    >>> of_text("model='m', tokenizer='m', dtype=torch.bfloat16, max_seq_len=320, quantization=None, seed=0")
    {'dtype': 'bfloat16', 'seed': '0'}
    """
    found = re.findall(r"(?:^|, )(dtype|quantization|seed)=(?:torch\.)?([\w.-]+)", config)
    return {name: value for name, value in found if value != "None"}


def _defaults(checkpoint: Path) -> dict[str, Any]:
    """The sampling parameters of the checkpoint's generation_config.json, which a server may take for its own."""
    try:
        found = given.parsed(given.text(checkpoint / "generation_config.json", given.METADATA))
    except (OSError, ValueError):
        return {}
    told = found.items() if isinstance(found, dict) else ()
    return {key: value for key, value in told if isinstance(value, int | float)}
