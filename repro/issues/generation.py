"""Reproduce failures of tokenizers, generation and dtypes with tiny models in unmodified transformers and PyTorch.

CFG119, NUM020, NUM025, NUM026 and TOK013 raise errors. NUM044, TOK018, TOK019 and TOK021 are silent: their functions
return a description of the wrong result, or None if the result is right.
"""

from functools import partial

from repro.drivers import single_call, tiny_trl

_repro = partial(single_call.repro, needs=("transformers", "torch"), modules=tiny_trl.MODEL_MODULES)


@_repro(
    "CFG119",
    raises="ValueError: are not used by the model",
    simulated=("ms-swift's trainer, which passes the row on: a direct call",),
)
def cfg119_solution(mitigation: str | None) -> None:
    """Pass a dataset column to generate() of transformers, which refuses it."""
    import torch

    row = {"input_ids": torch.tensor([[3, 4]]), "solution": ["5"]}
    if mitigation == "columns":
        del row["solution"]
    tiny_trl.model().generate(max_new_tokens=2, **row)


@_repro(
    "NUM020",
    raises="RuntimeError: probability tensor contains",
    simulated=("how the weight came to be inf: it is written",),
)
def num020_overflow(_mitigation: str | None) -> None:
    """Sample from a model that has an infinite weight."""
    import torch

    policy = tiny_trl.model()
    with torch.no_grad():
        policy.lm_head.weight.fill_(float("inf"))
    policy.generate(input_ids=torch.tensor([[3, 4]]), max_new_tokens=2, do_sample=True)


@single_call.repro("NUM025", needs=("torch",), raises="ValueError: Attempting to unscale FP16 gradients")
def num025_half(mitigation: str | None) -> None:
    """Unscale float16 gradients, which come from float16 weights."""
    import torch

    kind = torch.float32 if mitigation == "weights" else torch.float16
    layer = torch.nn.Linear(2, 2).to(kind)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(layer(torch.ones(1, 2, dtype=kind)).float().sum()).backward()
    scaler.unscale_(optimizer)


@_repro("NUM026", raises="RuntimeError: to have the same dtype")
def num026_head(mitigation: str | None) -> None:
    """Run a model in bfloat16 with its head in float32, without autocast."""
    import torch

    policy = tiny_trl.model().bfloat16()
    policy.lm_head.float()
    if mitigation == "one_type":
        policy.to(torch.bfloat16)
    policy(input_ids=torch.tensor([[3, 4]]))


_ROWS, _LENGTH = 8, 16


@_repro("NUM044")
def num044_not_shifted(mitigation: str | None) -> str | None:
    """Compute log-probs from logits that are off by one position, and compare them with those of generate()."""
    import torch

    model = tiny_trl.model(seed=1)
    # A random model predicts nearly the same at every position; a sharper head makes positions differ.
    model.lm_head.weight.data *= 40
    prompts = torch.randint(3, tiny_trl.VOCABULARY, (_ROWS, 4), generator=torch.Generator().manual_seed(0))
    options = {"max_new_tokens": _LENGTH, "do_sample": True, "suppress_tokens": [2], "top_k": 0}
    options |= {"return_dict_in_generate": True, "output_logits": True}
    with torch.no_grad():
        torch.manual_seed(0)
        generated = model.generate(prompts, attention_mask=torch.ones_like(prompts), **options)
        sequences, ids = generated.sequences, generated.sequences[:, -_LENGTH:]
        reported = model.compute_transition_scores(sequences, generated.logits, normalize_logits=True)
        logits = model(sequences).logits
    # The logits at a position predict the next id.
    positions = slice(-_LENGTH - 1, -1) if mitigation == "align" else slice(-_LENGTH, None)
    local = logits[:, positions].log_softmax(-1).gather(-1, ids.unsqueeze(-1)).squeeze(-1)
    differences = (local - reported).abs()
    wrong = int((differences > 1e-3).sum())  # in float32, log-probs of the same token differ by 1e-6
    message = f"{wrong} of {ids.numel()} log-probs are another token's, {differences.mean():.2f} apart"
    return message if wrong else None


@_repro("TOK013", raises="ValueError: chat_template is not set")
def tok013_base_model(mitigation: str | None) -> None:
    """Apply the chat template of a tokenizer that has none."""
    tokenizer = tiny_trl.tokenizer()
    if mitigation == "template":
        tokenizer.chat_template = "{% for message in messages %}{{ message.content }} {% endfor %}"
    tokenizer.apply_chat_template([{"role": "user", "content": "a b"}])


@_repro("TOK018")
def tok018_through_text(mitigation: str | None) -> str | None:
    """Decode completions without special tokens and tokenize the text again, which loses the end token."""
    import torch

    tokenizer, model = tiny_trl.tokenizer(), tiny_trl.model()
    prompt = tokenizer("a b", return_tensors="pt").input_ids
    torch.manual_seed(0)
    prompts, mask = prompt.repeat(64, 1), torch.ones(64, prompt.shape[1])
    generated = model.generate(prompts, attention_mask=mask, do_sample=True, max_new_tokens=32)
    rows = generated[:, prompt.shape[1] :].tolist()
    end = tokenizer.eos_token_id
    # Tokens after the first end token are padding.
    ended = [row[: row.index(end) + 1] for row in rows if end in row]
    trained = ended
    if mitigation is None:
        texts = tokenizer.batch_decode(ended, skip_special_tokens=True)
        trained = tokenizer(texts, add_special_tokens=False).input_ids
    remaining = sum(end in row for row in trained)
    message = f"{remaining} of {len(ended)} completions that ended have their end token"
    return message if remaining < len(ended) else None


@_repro("TOK019")
def tok019_full_text(mitigation: str | None) -> str | None:
    """Take the texts of transformers' pipeline, which begin with the prompt, for completions."""
    from transformers import pipeline

    engine = pipeline("text-generation", model=tiny_trl.model(), tokenizer=tiny_trl.tokenizer(), device="cpu")
    settings = {"do_sample": False, "max_new_tokens": 8}
    if mitigation == "ids":
        settings["return_full_text"] = False
    prompts = list(tiny_trl.PROMPTS)
    result = [engine(prompt, **settings)[0]["generated_text"] for prompt in prompts]
    echoes = sum(text.startswith(prompt) for prompt, text in zip(prompts, result, strict=True))
    return f"{echoes} of {len(prompts)} completions begin with their prompt" if echoes else None


@single_call.repro("TOK021", needs=("transformers", "tokenizers"))
def tok021_first_token_twice(mitigation: str | None) -> str | None:
    """Tokenize the text of a chat template, which already has the first token: the tokenizer adds it again."""
    from tokenizers import processors

    words = tiny_trl.tokenizer()
    # The tokenizers of Llama 3 and Gemma do the same.
    words.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", words.bos_token_id)]
    )
    words.chat_template = "{{ bos_token }}{% for message in messages %}{{ message['content'] }}{% endfor %}"
    chat = [{"role": "user", "content": "a b c"}]
    if mitigation == "ids_of_template":
        result = words.apply_chat_template(chat, tokenize=True, return_dict=True)["input_ids"]
    else:
        text = words.apply_chat_template(chat, tokenize=False)
        result = words(text, add_special_tokens=mitigation != "no_special_tokens")["input_ids"]
    times = result.count(words.bos_token_id)
    return f"the prompt begins with {times} first tokens: {result}" if times != 1 else None
