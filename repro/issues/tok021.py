"""TOK021: a chat template that writes the first token as text, and a tokenizer that puts it there once more."""

from __future__ import annotations

from repro.drivers import calls, tiny_trl

_TEMPLATE = "{{ bos_token }}{% for message in messages %}{{ message['content'] }}{% endfor %}"
_CHAT = [{"role": "user", "content": "a b c"}]


def _first_tokens(mitigation: str | None) -> str | None:
    from tokenizers import processors

    words = tiny_trl.tokenizer()
    # As in the tokenizers of Llama 3 and Gemma.
    words.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", words.bos_token_id)]
    )
    words.chat_template = _TEMPLATE
    if mitigation == "ids_of_template":
        found = words.apply_chat_template(_CHAT, tokenize=True, return_dict=True)["input_ids"]
    else:
        text = words.apply_chat_template(_CHAT, tokenize=False)
        found = words(text, add_special_tokens=mitigation != "no_special_tokens")["input_ids"]
    times = found.count(words.bos_token_id)
    return f"{times} first tokens stand before the prompt: {found}" if times != 1 else None


REPRO = calls.repro(
    "TOK021",
    "Engine and trainer do not read a prompt as the same ids",
    needs=("transformers", "tokenizers"),
    modules=("transformers", "tokenizers"),
    trigger=("first_token_twice", "apply_chat_template(tokenize=False), and its text tokenized as any other"),
    call=_first_tokens,
    failure=("", "", ""),
    helps={
        "ids_of_template": "apply_chat_template(tokenize=True)",
        "no_special_tokens": "tokenizer(text, add_special_tokens=False)",
    },
    silent=True,
)
