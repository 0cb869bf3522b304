"""Prompts of a data set have a stable order, a template and a length limit; bad data is refused.

Further tests cover the formats of data sets, epochs, splits, the words of the shipped task, and evaluation prompts.
"""

import gzip
import json
import sys
from dataclasses import replace

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

from grpo_core.config import Config, ConfigError, ModelConfig
from grpo_core.tasks.dataset import _epoch_order, build_eval_prompts, build_prompts, with_steps
from grpo_core.tasks.model import load_tokenizer
from tests.case_files import each_case, read_cases
from tests.grpo_core.conftest import make_config

BAD_DATA = read_cases(__file__, "bad_data.yaml")

SPECIAL = ["<s>", "</s>", "<user>", "<system>", "<assistant>"]
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if m.role not in ['system', 'user', 'assistant'] %}{{ raise_exception('no role ' + m.role) }}{% endif %}"
    "<{{ m.role }}>{% if m.name is defined %}{{ m.name }}: {% endif %}{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
TEXTS = [{"prompt": f"What is {n} + {n}?", "answer": str(2 * n), "hints": [n, n]} for n in range(7)]
CHATS = [
    {"prompt": [{"role": "system", "content": "Add."}, {"role": "user", "content": f"{n} + 1"}], "answer": n}
    for n in range(6)
] + [{"prompt": [{"role": "user", "content": "6 + 1", "name": "Ada"}], "answer": 6}]


def make_tokenizer(folder, *, begin=True, end=False, template=True):
    """Make a tokenizer of single bytes that can add its begin and end token."""
    folder.mkdir(exist_ok=True)
    vocabulary = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(vocabulary)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    if begin or end:
        frame = f"{'<s>' if begin else ''} $A {'</s>' if end else ''}".strip()
        tokenizer.post_processor = processors.TemplateProcessing(
            single=frame, special_tokens=[("<s>", 0), ("</s>", 1)]
        )
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
    settings |= {"chat_template": TEMPLATE} if template else {}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "config.json").write_text('{"model_type": "llama"}')  # a tokenizer is searched next to a model
    return load_tokenizer(folder)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    """Return a byte tokenizer with a begin token and a chat template."""
    return make_tokenizer(tmp_path_factory.mktemp("tokenizer"))


def write_lines(path, rows):
    """Write the rows as JSON lines; return the path."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def write_dataset(folder, kind, rows):
    """Write the rows in a format; return the path of the file or folder."""
    if kind == "jsonl":
        return write_lines(folder / "rows.jsonl", rows)
    if kind == "jsonl.gz":
        path = folder / "rows.jsonl.gz"
        path.write_bytes(gzip.compress(write_lines(folder / "plain.jsonl", rows).read_bytes()))
        return path
    if kind == "parquet":
        arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        parquet.write_table(arrow.Table.from_pylist(rows), folder / "rows.parquet")
        return folder / "rows.parquet"
    datasets = pytest.importorskip("datasets")
    table = datasets.Dataset.from_list(rows)
    (table if kind == "folder" else datasets.DatasetDict({"train": table})).save_to_disk(str(folder / kind))
    return folder / kind


def data_settings(path="", *, seed=0, max_length=256, max_tokens=6, eval_path="", eval_prompts=64, **data):
    """Return settings with this data set and a model that is not the tiny one."""
    options = {"model.path": "elsewhere", "model.max_length": max_length, "sampling.max_tokens": max_tokens}
    options |= {"train.seed": seed, "eval.path": eval_path, "eval.prompts": eval_prompts, "data.path": path}
    options |= {f"data.{key}": value for key, value in data.items()}
    return make_config(options)


def prompts_of(tmp_path, tokenizer, rows, **options):
    """Write the rows as JSON lines, and build the prompts of such a data set."""
    return build_prompts(data_settings(write_dataset(tmp_path, "jsonl", rows), **options), tokenizer)


def texts(prompts):
    """Return the texts of prompts."""
    return [prompt.text for prompt in prompts]


@pytest.mark.parametrize("rows", [TEXTS, CHATS], ids=["texts", "chats"])
@pytest.mark.parametrize("kind", ["jsonl.gz", "parquet", "folder", "splits"])
def test_every_format_gives_the_same_prompts(tmp_path, tokenizer, kind, rows):
    """Ids, texts and columns equal those of JSON lines, though Arrow adds missing keys to messages."""
    prompts = build_prompts(data_settings(write_dataset(tmp_path, kind, rows)), tokenizer)
    assert prompts.batch(3, 9) == prompts_of(tmp_path, tokenizer, rows).batch(3, 9)


def test_each_epoch_has_its_own_permutation(tmp_path, tokenizer):
    """Each epoch has all rows once in its own order, also if a batch spans its end; the order depends on the seed."""
    path = write_dataset(tmp_path, "jsonl", TEXTS)
    prompts = build_prompts(data_settings(path), tokenizer)
    sampled = [text for number in range(7) for text in texts(prompts.batch(number, 5))]
    epochs = [sampled[start : start + 7] for start in range(0, 35, 7)]
    everything = sorted(f"<s>{row['prompt']}" for row in TEXTS)
    assert [sorted(epoch) for epoch in epochs] == [everything] * 5
    assert len({tuple(epoch) for epoch in epochs}) == 5
    reseeded = texts(build_prompts(data_settings(path, seed=1), tokenizer).batch(0, 7))
    assert sorted(reseeded) == everything
    assert reseeded != epochs[0]


def test_batch_depends_only_on_its_number(tmp_path, tokenizer):
    """A batch has the same prompts and ids after a restart and in reverse order."""
    path = write_dataset(tmp_path, "jsonl", TEXTS)
    prompts = build_prompts(data_settings(path), tokenizer)
    first = [prompts.batch(number, 4) for number in range(6)]
    again = build_prompts(data_settings(path), tokenizer)
    assert [again.batch(number, 4) for number in reversed(range(6))] == first[::-1]
    assert [prompt.id for prompt in first[5]] == ["5.0", "5.1", "5.2", "5.3"]
    assert texts(first[0] + first[1]) == texts(prompts.batch(0, 8))


@pytest.mark.parametrize(("epochs", "steps"), [(1.0, 4), (3.0, 11), (0.1, 1), (0.0, 300)])
def test_epochs_set_the_number_of_steps(tmp_path, tokenizer, epochs, steps):
    """The number of steps follows from the epochs, rounded up; 0 epochs leave `train.steps` as it is."""
    config = data_settings(write_dataset(tmp_path, "jsonl", TEXTS))
    config = replace(config, train=replace(config.train, epochs=epochs, prompts_per_step=2))
    assert with_steps(config, build_prompts(config, tokenizer)).train.steps == steps


def test_epoch_order_is_stable_across_releases():
    assert _epoch_order(8, 0, 0) == [3, 5, 0, 6, 2, 4, 7, 1]
    assert _epoch_order(8, 0, 1) == [1, 2, 0, 6, 4, 5, 7, 3]


def test_unshuffled_rows_keep_file_order(tmp_path, tokenizer):
    """A batch across the end of an epoch is in file order; the prompt column is not among a prompt's columns."""
    prompts = prompts_of(tmp_path, tokenizer, TEXTS, shuffle=False)
    batch = prompts.batch(1, 5)
    assert [prompt.columns["answer"] for prompt in batch] == ["10", "12", "0", "2", "4"]
    assert batch[0].columns == {"answer": "10", "hints": [5, 5]}


def test_shipped_task_words_are_stable(model_dir):
    """The words of seed 0 are those of releases before data sets were supported."""
    letters = load_tokenizer(model_dir)
    prompts = build_prompts(Config(), letters)
    assert (prompts.dropped, prompts.truncated) == (0, 0)
    assert texts(prompts.batch(0, 4)) == ["hgj>", "ffh>", "fhh>", "hhg>"]
    assert texts(prompts.batch(7, 4)) == ["fbb>", "fea>", "hdd>", "jfb>"]


def test_evaluation_uses_the_first_rows(tmp_path, tokenizer):
    """The evaluation prompts do not depend on the seed. Too few rows are not repeated. No `eval.path` is an error."""
    path = write_dataset(tmp_path, "jsonl", TEXTS)
    seeded = [data_settings(eval_path=path, seed=seed, eval_prompts=3) for seed in (0, 1)]
    few = [build_eval_prompts(config, tokenizer) for config in seeded]
    assert few[0] == few[1]
    assert texts(few[0]) == [f"<s>{row['prompt']}" for row in TEXTS[:3]]
    assert len(build_eval_prompts(data_settings(eval_path=path), tokenizer)) == len(TEXTS)
    with pytest.raises(ConfigError, match=r"eval.path = '': a run on data.path"):
        build_eval_prompts(data_settings(path), tokenizer)


@pytest.mark.parametrize("begin", [True, False])
@pytest.mark.parametrize("end", [True, False])
def test_chat_has_one_begin_token(tmp_path, begin, end):
    """A chat has only the begin token of its template, and its text is what the model sees."""
    tokenizer = make_tokenizer(tmp_path / "tokenizer", begin=begin, end=end)
    prompts = prompts_of(tmp_path, tokenizer, CHATS, shuffle=False).batch(0, 7)
    for row, prompt in zip(CHATS, prompts, strict=True):
        rendered = tokenizer.apply_chat_template(row["prompt"], add_generation_prompt=True, tokenize=False)
        ids = tokenizer(rendered, add_special_tokens=False)["input_ids"]
        assert (prompt.text, list(prompt.ids)) == (rendered, ids)
        assert prompt.ids.count(0) == 1
    assert prompts[0].text == "<s><system>Add.<user>0 + 1<assistant>"


@pytest.mark.parametrize("begin", [True, False])
@pytest.mark.parametrize("end", [True, False])
def test_text_has_at_most_one_begin_token_and_no_end_token(tmp_path, begin, end):
    """The tokenizer's begin token is not added to a text that begins with one."""
    tokenizer = make_tokenizer(tmp_path / "tokenizer", begin=begin, end=end, template=False)
    rows = [{"prompt": "one"}, {"prompt": "<s>two"}]
    prompts = prompts_of(tmp_path, tokenizer, rows, shuffle=False).batch(0, 2)
    assert texts(prompts) == ["<s>one" if begin else "one", "<s>two"]
    assert [len(prompt.ids) for prompt in prompts] == [3 + begin, 4]


@pytest.mark.parametrize(
    ("template", "text"), [("auto", "<s>Hi"), ("none", "<s>Hi"), ("chat", "<s><user>Hi<assistant>")]
)
def test_chat_template_setting_applies_to_text(tmp_path, tokenizer, template, text):
    """With `chat` the text becomes one user message; otherwise only the begin token is added."""
    prompts = prompts_of(tmp_path, tokenizer, [{"prompt": "Hi"}], template=template)
    assert texts(prompts.batch(0, 1)) == [text]


ROWS_BY_LENGTH = [{"prompt": "x" * n, "answer": n} for n in (3, 9, 4, 12)]  # the begin token adds one token


def test_overlong_prompts_are_dropped_and_counted(tmp_path, tokenizer):
    """Columns stay with their prompts."""
    prompts = prompts_of(tmp_path, tokenizer, ROWS_BY_LENGTH, max_prompt_tokens=5, shuffle=False)
    assert (prompts.dropped, prompts.truncated) == (2, 0)
    batch = prompts.batch(0, 3)
    rows = [(prompt.text, prompt.columns["answer"]) for prompt in batch]
    assert rows == [("<s>xxx", 3), ("<s>xxxx", 4), ("<s>xxx", 3)]


def test_overlong_prompts_are_truncated_on_the_left(tmp_path, tokenizer):
    """A truncated chat keeps the end of the question and the assistant's turn."""
    rows = [
        {"prompt": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "abcdef"}]},
        {"prompt": [{"role": "user", "content": "a"}]},
    ]
    options = {"max_prompt_tokens": 4, "over_limit": "truncate", "shuffle": False}
    prompts = prompts_of(tmp_path, tokenizer, rows, **options)
    assert (prompts.dropped, prompts.truncated) == (0, 1)
    assert texts(prompts.batch(0, 2)) == ["def<assistant>", "<s><user>a<assistant>"]


def test_default_prompt_limit_leaves_room_for_the_completion(tmp_path, tokenizer):
    """The default limit leaves room for the completion, and a larger limit is refused."""
    path = write_dataset(tmp_path, "jsonl", ROWS_BY_LENGTH)
    assert build_prompts(data_settings(path, max_length=16, max_tokens=6), tokenizer).dropped == 1
    with pytest.raises(ConfigError, match="the longest prompt and completion don't fit the model"):
        data_settings(path, max_length=16, max_tokens=6, max_prompt_tokens=50)


@each_case(BAD_DATA["rows"])
def test_bad_data_is_refused_with_key_and_path(tmp_path, tokenizer, content, options, message):
    """Overlong prompts are refused if `over_limit=error`, or if no prompt or token is left."""
    path = tmp_path / "rows.jsonl"
    if isinstance(content, str):
        path.write_text(content)
    elif content is not None:
        write_lines(path, content)
    with pytest.raises(ConfigError) as caught:
        build_prompts(data_settings(path, **options), tokenizer)
    assert str(caught.value).startswith(f"data.path = '{path}'")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["rows.parquet", "rows.jsonl.gz", "rows.jsonl"])
def test_corrupt_files_are_refused(tmp_path, tokenizer, name):
    """A corrupt file is refused in one line that begins with the key and its path."""
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    path = tmp_path / name
    path.write_bytes(b"\xff\xfe neither of them")
    with pytest.raises(ConfigError, match=rf"^data.path = '{path}': \S.*$"):
        build_prompts(data_settings(path), tokenizer)


def test_split_is_chosen_by_name(tmp_path, tokenizer):
    """A split is chosen by name; a missing one, or none among several, is refused with the existing names."""
    datasets = pytest.importorskip("datasets")
    tables = {name: datasets.Dataset.from_list(TEXTS[:n]) for name, n in (("train", 5), ("test", 2))}
    datasets.DatasetDict(tables).save_to_disk(str(tmp_path / "both"))
    path = tmp_path / "both"
    config = data_settings(path, split="test", eval_path=path / "test", shuffle=False)
    assert texts(build_prompts(config, tokenizer).batch(0, 2)) == texts(build_eval_prompts(config, tokenizer))
    for split in ("", "val"):
        with pytest.raises(ConfigError, match=rf"no split '{split}' \(data.split\) among: train, test; the"):
            build_prompts(data_settings(path, split=split), tokenizer)


@pytest.mark.parametrize(("name", "package"), [("rows.parquet", "pyarrow"), ("", "datasets")])
def test_missing_package_is_named(tmp_path, tokenizer, monkeypatch, name, package):
    """The error names the missing package and the key that needs it."""
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setitem(sys.modules, f"{package}.parquet", None)
    with pytest.raises(ConfigError, match=rf"^data.path = .*{package}.*; install it$"):
        build_prompts(data_settings(tmp_path / name), tokenizer)


def test_missing_chat_template_is_refused(tmp_path):
    """Without a chat template, chats are refused, and texts with `template=chat` too."""
    tokenizer = make_tokenizer(tmp_path / "tokenizer", template=False)
    for rows, template in ((CHATS, "auto"), (TEXTS, "chat")):
        with pytest.raises(ConfigError, match=r"row 1: .*chat_template is not set"):
            prompts_of(tmp_path, tokenizer, rows, template=template)


def test_tiny_model_refuses_unknown_characters(tmp_path, model_dir):
    """Characters that the tiny model's tokenizer would turn into padding are refused."""
    letters = load_tokenizer(model_dir)

    def tiny_prompts(rows):
        config = data_settings(write_dataset(tmp_path, "jsonl", rows))
        return build_prompts(replace(config, model=ModelConfig()), letters)

    assert tiny_prompts([{"prompt": "abc>"}]).batch(0, 1)[0].ids == (0, 1, 2, 10)
    with pytest.raises(ConfigError, match=r"row 1: .*the tiny model reads abcdefghij> only; set model.path"):
        tiny_prompts(TEXTS)
