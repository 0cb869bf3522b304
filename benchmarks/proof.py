"""What proving a sync costs, as a share of a step, at the shapes of a model of half a billion parameters.

`python benchmarks/proof.py [--layers N] [--plain] [--toy]`; `--toy` shows that it runs and measures nothing. Width 896,
vocabulary, heads and feed-forward as Qwen2.5-0.5B has them, random weights, float32, one thread; of its 24 layers as
many as memory and patience allow. The proof is both digests and the probe; sending the weights is the step's own.
`--plain` has plain gradient descent in place of AdamW, whose state is 4 GB of 10 with all layers: the step is cheaper
then, so that the share is more than a user's.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.measure import interval  # noqa: E402

GOAL = 0.03


def make(folder: Path, *, layers: int, toy: bool) -> None:
    """Writes the model and a tokenizer of words."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    size = {"vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 2} if toy else {
        "vocab_size": 151_936, "hidden_size": 896, "intermediate_size": 4864, "num_attention_heads": 14,
    }  # fmt: skip
    config = LlamaConfig(
        **size, num_hidden_layers=layers, num_key_value_heads=2, max_position_embeddings=512,
        tie_word_embeddings=True, bos_token_id=None, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder / "model")
    words = {f"w{i}": i for i in range(size["vocab_size"])} | {"<end>": size["vocab_size"]}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "model" / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<end>", "pad_token": "w0"}
    (folder / "model" / "tokenizer_config.json").write_text(json.dumps(settings))
    lines = [json.dumps({"prompt": " ".join(f"w{(i * 37 + j) % 499}" for j in range(64))}) for i in range(64)]
    (folder / "prompts.jsonl").write_text("\n".join(lines))


def timed(found: dict[str, float]) -> None:
    """Has the parts of a proof add their CPU time to `found`: all of `publish` but the engine's loading."""
    from grpo_core import publish
    from grpo_core.rollout.embedded.transformers import TransformersEngine

    def counted(owner: Any, name: str, key: str) -> None:
        original = getattr(owner, name)

        def wrapped(*arguments: Any, **named: Any) -> Any:
            started = time.process_time()
            try:
                return original(*arguments, **named)
            finally:
                found[key] = found.get(key, 0.0) + time.process_time() - started

        setattr(owner, name, wrapped)

    counted(publish.Publisher, "publish", "publish")
    counted(TransformersEngine, "update_weights", "load")


def shares(options: argparse.Namespace) -> list[float]:
    """The proof's share of each step's CPU time, but for the first."""
    import torch

    from grpo_core.run import train
    from grpo_core.settings import load

    if options.plain:
        torch.optim.AdamW = lambda trained, lr, **_: torch.optim.SGD(trained, lr=lr)
    found: dict[str, float] = {}
    timed(found)
    ends, proofs = [time.process_time()], [0.0]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make(folder, layers=options.layers, toy=options.toy)
        settings = {
            "model.path": folder / "model", "model.max_length": 256, "data.path": folder / "prompts.jsonl",
            "reward.functions": f"{ROOT / 'benchmarks' / 'programs' / 'tiny.py'}:even_words",
            "train.steps": options.steps, "train.prompts_per_step": options.prompts, "checkpoint.every": 0,
            "sampling.group_size": options.group, "sampling.max_tokens": options.tokens, "train.micro_batch": 4,
            "output.dir": folder, "output.completions_every": 0, "train.learning_rate": 1e-6,
        }  # fmt: skip

        def report(_: object) -> None:
            ends.append(time.process_time())
            proofs.append(found["publish"] - found["load"])

        document = train(load(None, [f"--{key}={value}" for key, value in settings.items()]), report)
        assert document["outcome"] == "ok", document["error"]
    steps = [b - a for a, b in itertools.pairwise(ends)]
    costs = [b - a for a, b in itertools.pairwise(proofs)]
    print(f"steps {', '.join(f'{s:.1f}' for s in steps)} s; proofs {', '.join(f'{c:.2f}' for c in costs)} s")
    return [cost / step for cost, step in zip(costs, steps, strict=True)][1:]


def main() -> None:
    """One line, and one with the steps."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--toy", action="store_true")
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=64)
    options = parser.parse_args()
    if options.toy:
        options.layers, options.steps, options.prompts, options.group, options.tokens = 1, 2, 2, 2, 4
    middle, low, high = interval(shares(options))
    count = options.prompts * options.group * options.tokens
    print(
        f"proof of a sync, {options.layers} of 24 layers, {count} sampled tokens a step: {middle:.2%} "
        f"[{low:.2%}, {high:.2%}] of a step's CPU time; goal {GOAL:.0%} {'pass' if middle <= GOAL else 'MISS'}"
    )


if __name__ == "__main__":
    main()
