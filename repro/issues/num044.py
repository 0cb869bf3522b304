"""NUM044: logits are read at the ids' own places, and each log-prob is another token's."""

from __future__ import annotations

from repro.drivers import calls, tiny_trl

_ROWS, _LENGTH = 8, 16


def _beside(mitigation: str | None) -> str | None:
    import torch

    model = tiny_trl.model(seed=1)
    # A random model says nearly the same everywhere; a sharper head tells places apart.
    model.lm_head.weight.data *= 40
    prompts = torch.randint(3, tiny_trl.VOCABULARY, (_ROWS, 4), generator=torch.Generator().manual_seed(0))
    options = {"max_new_tokens": _LENGTH, "do_sample": True, "suppress_tokens": [2], "top_k": 0}
    with torch.no_grad():
        torch.manual_seed(0)
        drawn = model.generate(
            prompts, attention_mask=torch.ones_like(prompts), return_dict_in_generate=True,
            output_logits=True, **options,
        )  # fmt: skip
        ids = drawn.sequences[:, -_LENGTH:]
        told = model.compute_transition_scores(drawn.sequences, drawn.logits, normalize_logits=True)
        logits = model(drawn.sequences).logits
    # The logits at a place are of the id behind it.
    places = slice(-_LENGTH - 1, -1) if mitigation == "align" else slice(-_LENGTH, None)
    own = logits[:, places].log_softmax(-1).gather(-1, ids.unsqueeze(-1)).squeeze(-1)
    apart = (own - told).abs()
    wrong = int((apart > 1e-3).sum())  # float32, one model: 1e-6 apart where they are of one token
    return (
        f"{wrong} of {ids.numel()} log-probs are another token's, {apart.mean():.2f} apart" if wrong else None
    )


REPRO = calls.repro(
    "NUM044",
    "A log-prob stands beside another token",
    needs=("transformers", "torch"),
    modules=("torch", "transformers", "tokenizers"),
    trigger=(
        "not_shifted",
        "logits taken at the ids' own places, beside what generate() says of the same ids",
    ),
    call=_beside,
    failure=("", "", ""),
    helps={"align": "the logits of the place before each id"},
    silent=True,
)
