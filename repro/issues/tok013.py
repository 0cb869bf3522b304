"""TOK013: a conversation for a tokenizer that has no chat template."""

from __future__ import annotations

from repro.drivers import calls, tiny_trl

TEMPLATE = "{% for message in messages %}{{ message.content }} {% endfor %}"


def _render(mitigation: str | None) -> None:
    tokenizer = tiny_trl.tokenizer()
    if mitigation == "template":
        tokenizer.chat_template = TEMPLATE
    tokenizer.apply_chat_template([{"role": "user", "content": "a b"}])


REPRO = calls.repro(
    "TOK013",
    "The tokenizer has no chat template",
    needs=("transformers", "torch"),
    modules=("torch", "transformers", "tokenizers"),
    trigger=("base_model", "apply_chat_template of a tokenizer without a template"),
    call=_render,
    failure=("ValueError", "raise ValueError(", "get_chat_template"),
    says="chat_template is not set",
    helps={"template": "tokenizer.chat_template = ..."},
)
