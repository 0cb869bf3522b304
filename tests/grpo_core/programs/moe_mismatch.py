"""How far trainer and engine are apart on tiny mixtures of experts, with and without replayed routing, as Markdown.

`python -m tests.grpo_core.programs.moe_mismatch [LAYERS [HIDDEN]]`: random weights, 48 completions of 24 tokens.
"""

import sys
import tempfile
from pathlib import Path

import torch

from grpo_core.config import ModelConfig, TaskConfig
from grpo_core.experts.engine import RoutedEngine
from grpo_core.learn.chosen import policy_for
from grpo_core.learn.forms.update import updater_for
from grpo_core.machine.determinism import settle
from grpo_core.machine.world import World
from grpo_core.rollout.embedded.transformers import TransformersEngine
from grpo_core.settings import load
from grpo_core.tasks.model import load_model, make_tiny
from grpo_core.types import Completion, Prompt, Request, Sample, SamplingParams
from tests.grpo_core.experts import KINDS, make_moe


def measured(folder: Path, engine_type: str, trainer_type: str) -> list[str]:
    """The columns of one row: means and largest of |difference|, without and with; the share of choices that moved."""
    engine = TransformersEngine(folder, max_model_len=64, dtype=engine_type)
    requests = [Request(str(place), (place % 10, place % 7, 10), place) for place in range(48)]
    routed = RoutedEngine(engine, load_model(folder), 256)
    answers = routed.generate(requests, SamplingParams(24))
    words = [f"--model.path={folder}", f"--model.dtype={trainer_type}", "--rollout.replay_experts=true"]
    config = load(None, words)
    policy = policy_for(str(folder), config, World())
    updater = updater_for(policy, config, World())
    columns, moved = [], 0.0
    for replayed in (False, True):
        given = answers if replayed else [Completion(**plain(answer)) for answer in answers]
        samples = [
            Sample(Prompt(r.id, "", r.prompt_ids), a, "", 0.0, 0.0)
            for r, a in zip(requests, given, strict=True)
        ]
        metrics = updater.update(policy.make_batch(samples, policy.device))  # no advantage: nothing moves
        columns += [f"{metrics[f'logprob_difference/{kind}']:.1e}" for kind in ("mean", "max")]
        columns.append(f"{metrics['importance_ratio/max']:.3f}")
        moved = metrics.get("experts/moved", 0.0)
    return [*columns, f"{100 * moved:.2f} %"]


def plain(answer):
    """The fields that every completion has."""
    return {name: value for name, value in vars(answer).items() if name != "experts"}


def main(layers: int = 4, hidden: int = 128) -> None:
    """Prints the table."""
    settle(1)
    torch.manual_seed(0)
    kinds = ("mean", "max", "largest ratio")
    titles = ("model", "engine", "trainer", *kinds, *(f"{kind}, replayed" for kind in kinds), "moved")
    print(f"| {' | '.join(titles)} |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as name:
        tiny = Path(name) / "tiny"
        tiny.mkdir()
        make_tiny(tiny, ModelConfig(), TaskConfig().letters, seed=0)
        for kind in KINDS:
            folder = make_moe(Path(name) / kind, tiny, kind, layers=layers, hidden=hidden)
            for pair in (("float32", "float32"), ("bfloat16", "float32"), ("bfloat16", "bfloat16")):
                print(f"| {kind} | {' | '.join(pair)} | {' | '.join(measured(folder, *pair))} |", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
