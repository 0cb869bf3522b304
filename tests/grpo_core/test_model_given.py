"""A folder of weights is of others, too: nothing in it is run."""

import json

import pytest

from grpo_core import __main__
from grpo_core.config import ConfigError, ModelConfig
from grpo_core.records import model_given
from grpo_core.tasks import dataset, model

LOADS = [model.load_model, model.load_tokenizer]


@pytest.mark.parametrize("load", LOADS)
def test_code_beside_a_model_is_neither_run_nor_asked_about(tmp_path, monkeypatch, load):
    """Who sits at a terminal was asked whether it may be run, and it was where they pressed y."""
    pytest.importorskip("transformers")
    (tmp_path / "mine.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Mine: pass\n")
    named = dict.fromkeys(("AutoConfig", "AutoModelForCausalLM"), "mine.Mine")
    config = {"model_type": "mine", "auto_map": named | {"AutoTokenizer": ["mine.Mine", None]}}
    for name in ("config.json", "tokenizer_config.json"):
        (tmp_path / name).write_text(json.dumps(config))
    asked = []
    monkeypatch.setattr("builtins.input", lambda *words: asked.append(words) or "y")
    with pytest.raises(ConfigError):
        load(tmp_path)
    assert not asked
    assert not (tmp_path / "ran").exists()


LARGE = {
    "layers without end": {"num_hidden_layers": 10**9},
    "experts without end": {"model_type": "mixtral", "num_local_experts": 10**9},
    "a thousand experts": {"model_type": "mixtral", "num_local_experts": 1000, "intermediate_size": 10**6},
    "a width of a million million": {"hidden_size": 10**12, "head_dim": 32},
    "more ids than weights": {"vocab_size": 10**9},
    "a head of gigabytes": {"head_dim": 10**8},
    "a word": {"hidden_size": "64"},
    "less than none": {"hidden_size": -1},
    "a name for each of many labels": {"num_labels": 10**8},
    "no settings": None,
}


@pytest.fixture
def tiny(tmp_path):
    """A folder that is fine."""
    pytest.importorskip("transformers")
    model.make_tiny(tmp_path / "tiny", ModelConfig(), "ab", 0)
    return tmp_path / "tiny"


@pytest.mark.parametrize("change", LARGE.values(), ids=LARGE)
def test_a_model_that_its_files_can_not_hold_is_not_made(tiny, change, monkeypatch, capfd):
    """It is counted before: a few bytes of settings took all memory there was."""
    model_given.check_folder("model.path", str(tiny))
    path = tiny / "config.json"
    path.write_text(json.dumps(change and json.loads(path.read_text()) | change))
    monkeypatch.setattr(model, "loaded", lambda *_, **__: pytest.fail("it was loaded"))
    words = ["--model.path", str(tiny), "--output.dir", str(tiny / "runs")]
    assert __main__.main(["train", *words]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert f"grpo_core: model.path = {str(tiny)!r}: config.json: " in line
    assert not (tiny / "runs").exists()


@pytest.mark.parametrize("text", ["[" * 100_000, "[]", "{", '{"hidden_size": ' + "9" * 5000 + "}"])
def test_settings_that_are_none(tiny, text):
    """In one line, whatever they are."""
    (tiny / "config.json").write_text(text)
    with pytest.raises(ConfigError, match=r"^model\.path = .*: config\.json: .*$"):
        model_given.check_folder("model.path", str(tiny))


def test_a_tokenizer_of_gigabytes_is_not_read(tiny):
    """Nor one that is no file."""
    with (tiny / "tokenizer.json").open("wb") as file:
        file.truncate(1 << 32)
    with pytest.raises(ConfigError, match="larger than 128 MiB"):
        model_given.check_folder("model.path", str(tiny))
    (tiny / "tokenizer.json").unlink()
    (tiny / "tokenizer.json").symlink_to("/dev/zero")
    with pytest.raises(ConfigError, match="no regular file"):
        model_given.check_folder("model.path", str(tiny))


@pytest.mark.parametrize(
    "template",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{{ 'a' * 9000000000 }}",
        "{% set n = namespace(t='a') %}{% for a in range(99) %}{% set n.t = n.t ~ n.t %}{% endfor %}",
    ],
)
def test_a_chat_template_has_limits(tiny, template, monkeypatch):
    """It is a program of whoever made the model, and need not end."""
    monkeypatch.setattr(model_given.held.__wrapped__, "__defaults__", (0.3, 1 << 28))
    words = model.load_tokenizer(tiny)
    words.chat_template = template
    with pytest.raises((TimeoutError, MemoryError, OverflowError)):
        dataset._ids(words, [{"role": "user", "content": "ab"}], [])
