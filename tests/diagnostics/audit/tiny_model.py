"""Train a tiny Llama model and tokenizer on corpus.txt, and save checkpoints for the audit tests.

The model's next-token distributions are peaked, like those of real models.
"""

import json
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

# An old text of README, DESIGN and docs/outcomes.md. Do not change it: another text gives another model,
# and with it other numbers in every test.
TEXT = Path(__file__).with_name("corpus.txt")
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<|{{ message['role'] }}|>\n{{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)


def corpus() -> str:
    """Return the training text: English with repetitions."""
    return TEXT.read_text(encoding="utf-8")


def tokenizer(text: str, size: int) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE tokenizer of this size on the text."""
    built = Tokenizer(models.BPE())
    built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    built.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    built.train_from_iterator(text.splitlines(keepends=True), trainer)
    full = PreTrainedTokenizerFast(tokenizer_object=built, bos_token="<s>", eos_token="</s>")
    full.chat_template = TEMPLATE
    return full


def train_checkpoints(
    folder: Path, *, keep: tuple[int, ...] = (20, 280, 300), width: int = 64, layers: int = 3
) -> Path:
    """Train a model, save a checkpoint after each step in `keep`, and return the last checkpoint's folder.

    The folder `base` has the untrained model.
    """
    torch.manual_seed(0)
    text = corpus()
    text_tokenizer = tokenizer(text, 384)
    ids = torch.tensor(text_tokenizer(text, add_special_tokens=False)["input_ids"])
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=384,
            hidden_size=width,
            intermediate_size=2 * width,
            num_hidden_layers=layers,
            num_attention_heads=width // 32,
            num_key_value_heads=1,
            max_position_embeddings=512,
            bos_token_id=0,
            eos_token_id=1,
            tie_word_embeddings=False,
        )
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    _save(model, text_tokenizer, folder / "base")
    starts = torch.Generator().manual_seed(0)
    for step in range(1, max(keep) + 1):
        places = torch.randint(0, len(ids) - 97, (8,), generator=starts)
        batch = torch.stack([ids[place : place + 96] for place in places.tolist()])
        # The last steps are as small as a step of GRPO.
        for group in optimizer.param_groups:
            group["lr"] = 3e-3 if step <= 0.8 * max(keep) else 3e-4
        model(input_ids=batch, labels=batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step in keep:
            _save(model, text_tokenizer, folder / f"checkpoint-{step}")
    return folder / f"checkpoint-{max(keep)}"


def _save(model: LlamaForCausalLM, text_tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    model.save_pretrained(folder)
    text_tokenizer.save_pretrained(folder)
    # The transformers release of vLLM 0.10 does not have the new class name; both releases have this name.
    settings = folder / "tokenizer_config.json"
    values = json.loads(settings.read_text(encoding="utf-8")) | {"tokenizer_class": "PreTrainedTokenizerFast"}
    settings.write_text(json.dumps(values), encoding="utf-8")
