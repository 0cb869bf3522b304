"""Samples of a model under a known law, with the log-probs that engine and trainer would report: computed, not guessed.

The model is a tiny Llama whose logits are scaled, so that it is as sure as a trained one. The engine's log-prob is that
of the law that it samples by; the trainer's that of its own temperature over the whole vocabulary.
"""

from __future__ import annotations

import torch

from diagnostics.audit.recorded.run_data import Sample, Tokens


def model(seed=0, vocabulary=64, peak=20.0):
    """A Llama of two layers with random weights and sharp logits."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=256,
        tie_word_embeddings=False,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    built = LlamaForCausalLM(config).eval()
    built.lm_head.weight.data.mul_(peak)
    return built


def law(logits, ids, *, temperature=1.0, top_p=1.0, top_k=0, min_p=0.0, repetition_penalty=1.0):
    """Log-probs after a penalty, a temperature and a cut, in vLLM's order."""
    if repetition_penalty != 1.0:
        for row, observed in zip(logits, ids, strict=True):
            places = torch.tensor(sorted(set(observed)))
            row[places] = torch.where(
                row[places] > 0, row[places] / repetition_penalty, row[places] * repetition_penalty
            )
    logits = logits / temperature
    if min_p:
        chances = logits.softmax(-1)
        logits = logits.masked_fill(chances < min_p * chances.max(-1, keepdim=True).values, -torch.inf)
    if top_k:
        least = logits.topk(top_k, dim=-1).values[:, -1:]
        logits = logits.masked_fill(logits < least, -torch.inf)
    if top_p < 1:
        ordered, places = logits.sort(dim=-1, descending=True)
        chances = ordered.softmax(-1)
        cut = chances.cumsum(-1) - chances > top_p
        logits = logits.masked_fill(torch.zeros_like(cut).scatter(-1, places, cut), -torch.inf)
    return logits.log_softmax(-1)


@torch.inference_mode()
def sample_rows(
    made, *, seed=0, groups=32, size=4, length=32, trainer=1.0, raw=False, step=1, sampler=None, **sampling
):
    """Make groups of samples; `trainer` is its temperature, `raw` reports log-probs of the logits as they are.

    `sampler` is another model, which samples and reports; `made` is then the trainer's alone.
    """
    generator = torch.Generator().manual_seed(seed)
    prompts = torch.randint(3, made.config.vocab_size, (groups, 6), generator=generator)
    ids = prompts.repeat_interleave(size, 0)
    engine, mine = [], []
    for _ in range(length):
        logits = (sampler or made)(ids).logits[:, -1].float()
        own_ids = made(ids).logits[:, -1].float() if sampler else logits
        reported = law(logits.clone(), ids.tolist(), **sampling)
        # Completion again where a special one comes, so that every completion has the same length.
        chances = reported.exp()
        chances[:, :3] = 0
        # If truncation leaves only special tokens, take another one at its rare probability.
        none_left = chances.sum(-1) <= 0
        chances[none_left, 3:] = logits[none_left, 3:].softmax(-1)
        sampled = torch.multinomial(chances, 1, generator=generator)
        engine.append((logits.log_softmax(-1) if raw else reported).gather(1, sampled))
        mine.append((own_ids / trainer).log_softmax(-1).gather(1, sampled))
        ids = torch.cat([ids, sampled], 1)
    engine, mine = torch.cat(engine, 1).tolist(), torch.cat(mine, 1).tolist()
    none = (None,) * 6
    return [
        Sample(
            step,
            " ".join(map(str, own_ids[:6])),
            "",
            reward=float(sum(own_ids) % 7),
            group=str(place // size),
            tokens=Tokens(
                tuple(own_ids),
                6,
                (False,) * 6 + (True,) * length,
                (*none, *engine[place]),
                (*none, *mine[place]),
            ),
        )
        for place, own_ids in enumerate(ids.tolist())
    ]
