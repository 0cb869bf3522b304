"""TOK018: completions that go through text on their way: what is decoded without special tokens has no end token."""

from __future__ import annotations

from repro.drivers import calls, tiny_trl


def _ends(mitigation: str | None) -> str | None:
    import torch

    tokenizer, model = tiny_trl.tokenizer(), tiny_trl.model()
    prompt = tokenizer("a b", return_tensors="pt").input_ids
    torch.manual_seed(0)
    rows = model.generate(
        prompt.repeat(64, 1),
        attention_mask=torch.ones(64, prompt.shape[1]),
        do_sample=True,
        max_new_tokens=32,
    )[:, prompt.shape[1] :].tolist()
    end = tokenizer.eos_token_id
    # What stands after the first end token pads the batch.
    ended = [row[: row.index(end) + 1] for row in rows if end in row]
    if mitigation is None:
        texts = tokenizer.batch_decode(ended, skip_special_tokens=True)
        trained = tokenizer(texts, add_special_tokens=False).input_ids
    else:
        trained = ended
    kept = sum(end in row for row in trained)
    return (
        None if kept == len(ended) else f"{kept} of {len(ended)} completions that ended have their end token"
    )


REPRO = calls.repro(
    "TOK018",
    "The end token is not in the completions",
    needs=("transformers", "torch"),
    modules=("torch", "transformers", "tokenizers"),
    trigger=("through_text", "batch_decode(skip_special_tokens=True), and the texts tokenized again"),
    call=_ends,
    failure=("", "", ""),
    helps={"keep": "the ids that generate() gave, up to the first end token"},
    silent=True,
)
