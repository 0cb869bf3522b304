"""Prompts from disk: every format the same rows, every epoch its own order, nothing dropped in silence."""

from __future__ import annotations

import gzip
import json

import datasets
import pyarrow as pa
import pyarrow.parquet
import pytest
from tokenizers import processors

from grpo_core import task
from grpo_core.config import ConfigError
from grpo_core.data import build_eval_prompts, build_prompts
from grpo_core.model import load_tokenizer
from grpo_core.settings import load

ROWS = [
    {"prompt": word + ">", "answer": word, "level": i}
    for i, word in enumerate(["ab", "cde", "f", "ghij", "a"])
]
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ message['content'] }}>{% endfor %}"
    "{% if add_generation_prompt %}a{% endif %}"
)


@pytest.fixture
def tokenizer(model_dir):
    """The tiny model's: single letters, no chat template, nothing put in front."""
    return load_tokenizer(model_dir)


@pytest.fixture
def build(tmp_path, tokenizer, model_dir):
    """Prompts of rows, written as JSON lines, under settings given by key."""

    def make(rows=None, path=None, **settings):
        path = path or tmp_path / "rows.jsonl"
        if rows is not None:
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        wanted = {"data.path": path, "model.path": model_dir, **settings}
        return build_prompts(load(None, [f"--{key}={value}" for key, value in wanted.items()]), tokenizer)

    return make


def test_every_format_gives_the_same_prompts(build, tmp_path):
    """JSON lines, the same compressed, Parquet, and a folder of save_to_disk with and without splits."""
    plain = build(ROWS).batch(0, 5)
    assert {prompt.text for prompt in plain} == {row["prompt"] for row in ROWS}
    assert all(p.columns == {"answer": p.text[:-1], "level": p.columns["level"]} for p in plain)
    with gzip.open(tmp_path / "rows.jsonl.gz", "wt") as file:
        file.writelines(json.dumps(row) + "\n\n" for row in ROWS)
    pa.parquet.write_table(pa.Table.from_pylist(ROWS), tmp_path / "rows.parquet")
    datasets.Dataset.from_list(ROWS).save_to_disk(tmp_path / "one")
    datasets.DatasetDict(train=datasets.Dataset.from_list(ROWS)).save_to_disk(tmp_path / "several")
    for name in ("rows.jsonl.gz", "rows.parquet", "one"):
        assert build(path=tmp_path / name).batch(0, 5) == plain, name
    assert build(path=tmp_path / "several", **{"data.split": "train"}).batch(0, 5) == plain
    with pytest.raises(ConfigError, match=r"data.split = 'test': .* has 'train'; name one of them"):
        build(path=tmp_path / "several", **{"data.split": "test"})
    with pytest.raises(ConfigError, match=r"data.split = 'test': .* has no splits"):
        build(path=tmp_path / "one", **{"data.split": "test"})


def test_each_epoch_is_a_permutation_of_its_own(build):
    """Every row once an epoch, in another order the next, the same order on another day, whatever the batch size."""
    prompts = build(ROWS)
    drawn = [prompt.text for number in range(10) for prompt in prompts.batch(number, 2)]
    epochs = [drawn[start : start + 5] for start in range(0, 20, 5)]
    assert all(sorted(epoch) == sorted(row["prompt"] for row in ROWS) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) > 1
    assert [p.text for p in build(ROWS).batch(3, 2)] == drawn[6:8]
    assert [p.text for number in range(4) for p in build(ROWS).batch(number, 5)] == drawn
    assert [p.id for p in prompts.batch(3, 2)] == ["3.0", "3.1"]
    in_order = build(ROWS, **{"data.shuffle": "false"})
    assert [p.text for p in in_order.batch(0, 5)] == [row["prompt"] for row in ROWS]
    other = build(ROWS, **{"train.seed": 1})
    assert [p.text for number in range(4) for p in other.batch(number, 5)] != drawn


def test_prompts_over_the_limit_follow_the_policy_and_are_counted(build):
    """Dropped, or cut at the front, or the end of the run."""
    limit = {"data.max_prompt_tokens": 3, "data.shuffle": "false"}
    dropped = build(ROWS, **limit)
    assert [p.text for p in dropped.batch(0, 3)] == ["ab>", "f>", "a>"]
    assert (dropped.dropped, dropped.truncated) == (2, 0)
    cut = build(ROWS, **limit, **{"data.over_limit": "truncate"})
    assert [p.text for p in cut.batch(0, 5)] == ["ab>", "de>", "f>", "ij>", "a>"]
    assert all(len(p.ids) <= 3 for p in cut.batch(0, 5))
    assert (cut.dropped, cut.truncated) == (0, 2)
    with pytest.raises(ConfigError, match=r"row 2: the prompt has 4 tokens, allowed are 3"):
        build(ROWS, **limit, **{"data.over_limit": "error"})
    with pytest.raises(ConfigError, match=r"all 5 prompts are over 1 tokens"):
        build(ROWS, **{"data.max_prompt_tokens": 1})


def test_the_limit_comes_from_what_the_model_leaves(build):
    """model.max_length less sampling.max_tokens."""
    prompts = build(ROWS, **{"model.max_length": 9, "sampling.max_tokens": 6})
    assert prompts.dropped == 2


@pytest.fixture
def chatty(tokenizer):
    """A tokenizer with a chat template, and with a first token that it puts in front of every text itself."""
    tokenizer.chat_template = TEMPLATE
    tokenizer.bos_token = "<pad>"
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<pad> $A", special_tokens=[("<pad>", tokenizer.bos_token_id)]
    )
    return tokenizer


MESSAGES = [{"role": "system", "content": "ab"}, {"role": "user", "content": "cd"}]


def test_chat_prompts_go_through_the_template_once(build, chatty):
    """With one first token, not two: the ids are those of the tokenizer's own apply_chat_template."""
    prompt = build([{"prompt": MESSAGES}]).batch(0, 1)[0]
    expected = chatty.apply_chat_template(
        MESSAGES, add_generation_prompt=True, tokenize=True, return_dict=False
    )
    assert list(prompt.ids) == list(expected)
    assert prompt.text == "<pad>ab>cd>a"
    assert prompt.ids.count(chatty.bos_token_id) == 1
    as_text = build([{"prompt": "cd"}], **{"data.template": "chat"}).batch(0, 1)[0]
    assert as_text.text == "<pad>cd>a"


def test_texts_get_what_the_tokenizer_puts_in_front_once(build, chatty):
    """Also where a template had already written it into the text."""
    first = chatty.bos_token_id
    assert build([{"prompt": "ab>"}]).batch(0, 1)[0].ids == (first, 0, 1, 10)
    assert build([{"prompt": "<pad>ab>"}]).batch(0, 1)[0].ids == (first, 0, 1, 10)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", r"data.path = .*: no rows"),
        ('{"prompt": "a"}\n{', r"rows.jsonl:2: not JSON"),
        ("[1]", r"rows.jsonl:1: expected one JSON object a line, found '\[1\]'"),
        ('{"question": "a"}', r"row 1: no column 'prompt' \(data.prompt\); there are 'question'"),
        ('{"prompt": 3}', r"row 1: prompt = '3': expected a text, or a list of messages"),
        ('{"prompt": ""}', r"row 1: prompt = '': expected a text"),
        ('{"prompt": [{"role": "user", "content": "a"}]}', r"row 1: a chat prompt, but .* no chat template"),
        ('{"prompt": "a", "x": 1}\n{"prompt": "b"}', r"row 2: it differs from row 1 in the columns 'x'"),
    ],
)
def test_a_bad_file_is_refused_with_its_place(build, tmp_path, text, says):
    """One line: file, row, what is wrong."""
    (tmp_path / "bad").mkdir()
    path = tmp_path / "bad" / "rows.jsonl"
    path.write_text(text)
    with pytest.raises(ConfigError, match=says) as caught:
        build(path=path)
    assert "\n" not in str(caught.value)


def test_files_that_are_not_there_or_not_what_they_are_called(build, tmp_path):
    """No traceback of a library."""
    with pytest.raises(ConfigError, match="No such file"):
        build(path=tmp_path / "nowhere.jsonl")
    (tmp_path / "empty.parquet").write_bytes(b"")
    with pytest.raises(ConfigError, match="not Parquet"):
        build(path=tmp_path / "empty.parquet")
    (tmp_path / "folder").mkdir()
    with pytest.raises(ConfigError, match="not a folder of save_to_disk"):
        build(path=tmp_path / "folder")


def test_the_shipped_task_is_unchanged_and_evaluates_on_rows_of_its_own(tokenizer):
    """Words of each rollout are those of its number; evaluation's are the same each time, and drawn apart."""
    config = load(None, [])
    prompts = build_prompts(config, tokenizer)
    assert prompts.batch(3, 4) == task.rows(config.task, tokenizer, seed=0, step=3, count=4)
    held_out = build_eval_prompts(config, tokenizer)
    assert held_out == build_eval_prompts(config, tokenizer)
    assert len(held_out) == config.eval.prompts
    assert [p.text for p in held_out[:4]] != [p.text for p in prompts.batch(0, 4)]


def test_a_data_set_to_evaluate_on(build, tmp_path, tokenizer, model_dir):
    """Its first rows in a fixed order; no row twice where there are fewer than asked for."""
    path = tmp_path / "eval.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    settings = {"data.path": path, "model.path": model_dir, "eval.path": path, "eval.every": 1}
    config = load(None, [f"--{key}={value}" for key, value in settings.items()])
    assert sorted(p.text for p in build_eval_prompts(config, tokenizer)) == sorted(r["prompt"] for r in ROWS)
