"""TOK019: an engine that gives prompt and completion together, taken for completions."""

from __future__ import annotations

from repro.drivers import calls, tiny_trl


def _echoes(mitigation: str | None) -> str | None:
    from transformers import pipeline

    engine = pipeline("text-generation", model=tiny_trl.model(), tokenizer=tiny_trl.tokenizer(), device="cpu")
    settings = {"do_sample": False, "max_new_tokens": 8}
    if mitigation == "ids":
        settings["return_full_text"] = False
    prompts = list(tiny_trl.PROMPTS)
    found = [engine(prompt, **settings)[0]["generated_text"] for prompt in prompts]
    echoes = sum(text.startswith(prompt) for prompt, text in zip(prompts, found, strict=True))
    return f"{echoes} of {len(prompts)} completions begin with their prompt" if echoes else None


REPRO = calls.repro(
    "TOK019",
    "A completion beside another prompt, or with a prompt in it",
    needs=("transformers", "torch"),
    modules=("torch", "transformers", "tokenizers"),
    trigger=("full_text", "a text-generation pipeline, whose text is taken for the completion"),
    call=_echoes,
    failure=("", "", ""),
    helps={"ids": "return_full_text=False, which cuts the prompt off"},
    silent=True,
)
