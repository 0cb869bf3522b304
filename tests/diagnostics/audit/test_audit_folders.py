"""A weights folder is untrusted: nothing in it starts a download, and its reported size is checked."""

import json
import resource
import signal
import types
from pathlib import Path

import pytest

from diagnostics.audit import checkpoint_validation as folders
from diagnostics.audit.live import server_settings
from diagnostics.audit.live.reference import Reference
from diagnostics.audit.results import NOT_ASKED, AuditError
from grpo_core.config import ConfigError, ModelConfig
from grpo_core.tasks import model
from grpo_core.tasks.reward_functions import RewardModel

LOADS = [
    lambda folder: folders.load_model(Path(folder)),
    lambda folder: folders.load_tokenizer(Path(folder)),
    lambda folder: Reference(Path(folder)).vocabulary,
    model.load_model,
    model.load_tokenizer,
    lambda folder: RewardModel(str(folder), "cpu"),
]


@pytest.fixture
def asked_hosts(monkeypatch):
    """Record the host names that are looked up."""
    pytest.importorskip("transformers")
    audit = []

    def refuse_lookup(host, *_rest, **_options):
        audit.append(host)
        raise OSError("nobody is asked")

    monkeypatch.setattr("socket.getaddrinfo", refuse_lookup)
    return audit


@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("name", ["gpt2", "someorg/some-model", "no\0name"])
def test_a_name_that_is_no_folder_is_asked_of_nobody(name, load, asked_hosts, monkeypatch, tmp_path):
    """transformers 5 requested an adapter from the hub eight times, despite local_files_only."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises((AuditError, ConfigError)):
        load(name)
    assert not asked_hosts


@pytest.mark.parametrize("load", [LOADS[0], LOADS[3]])
@pytest.mark.parametrize("tied", [False, True])
def test_weights_that_are_in_no_file_are_told(load, tied, tmp_path):
    """transformers initialises missing weights at random, and the audit would then blame a correct engine."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    safetensors = pytest.importorskip("safetensors.torch")
    sizes = {"vocab_size": 8, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2}
    built = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**sizes, num_attention_heads=1, tie_word_embeddings=tied)
    )
    built.save_pretrained(tmp_path)
    tokens = load(tmp_path).state_dict()
    assert all(torch.equal(tokens[name], value) for name, value in built.state_dict().items())
    path = tmp_path / "model.safetensors"
    tensors = safetensors.load_file(path)
    del tensors["model.layers.1.mlp.up_proj.weight"]
    safetensors.save_file(tensors, path, {"format": "pt"})
    with pytest.raises(
        (AuditError, ConfigError), match=r"1 (of its )?weights are in no file( there)?, \S*1\.mlp\.up_proj"
    ):
        load(tmp_path)


@pytest.mark.parametrize("load", [LOADS[0], LOADS[3]])
def test_an_adapter_asks_nobody_for_its_base(load, asked_hosts, tmp_path):
    """Whatever its settings call it."""
    model.make_tiny(tmp_path, ModelConfig(), "ab", 0)
    settings = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": "someorg/base"}
    (tmp_path / "adapter_config.json").write_text(json.dumps(settings))
    with pytest.raises((AuditError, ConfigError), match="whole model"):
        load(tmp_path)
    assert not asked_hosts


HOSTILE = {
    "layers without end": {"num_hidden_layers": 10**9},
    "layers of its text": {"text_config": {"num_hidden_layers": 10**6}},
    "a number without end": {"vocab_size": 1 << 70},
    "less than none": {"vocab_size": -1},
    "more ids than weights": {"vocab_size": 10**7},
    "a name for each of many labels": {"num_labels": 10**8},
}


@pytest.mark.parametrize("change", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("load", [LOADS[0], LOADS[2]])
def test_a_model_that_its_files_can_not_hold_is_not_made(load, change, tmp_path, monkeypatch):
    """Each layer is made before a weight is read: a thousand million of them take all memory."""
    model.make_tiny(tmp_path, ModelConfig(), "ab", 0)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    monkeypatch.setattr(folders, "_load", lambda *_: pytest.fail("it was loaded"))
    with pytest.raises(AuditError, match=r"config\.json: "):
        load(tmp_path)


LARGE = {
    "a million experts": {"model_type": "mixtral", "num_local_experts": 10**6, "intermediate_size": 10_000},
    "layers of a width": {"num_hidden_layers": 40, "hidden_size": 8000, "intermediate_size": 8000},
    "places": {"model_type": "gpt2", "n_positions": 10**9, "max_position_embeddings": 10**9},
    "heads": {"num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 10**8},
    "a width of a million million": {"hidden_size": 10**12},
    "no width": {"hidden_size": -1},
    "a word": {"hidden_size": "64"},
}


@pytest.mark.parametrize("change", LARGE.values(), ids=LARGE)
def test_a_model_is_counted_before_it_is_made(change, tmp_path, monkeypatch):
    """A model's size is computed before it is allocated, under every config key that can make it large (once: 5 TB)."""
    pytest.importorskip("transformers")
    model.make_tiny(tmp_path, ModelConfig(), "ab", 0)
    assert folders.load_model(tmp_path).num_parameters() > 0
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    monkeypatch.setattr(folders, "_load", lambda *_: pytest.fail("it was loaded"))
    with pytest.raises(AuditError, match=r"config\.json: "):
        folders.load_model(tmp_path)


@pytest.mark.parametrize("text", ["[" * 100_000, "[]", "{", '{"hidden_size": ' + "9" * 5000 + "}"])
def test_a_config_that_is_none(text, tmp_path):
    """In one line, whatever it is."""
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(AuditError, match=r"config\.json"):
        Reference(tmp_path)


def test_a_tokenizer_of_gigabytes_is_not_read(tmp_path, asked_hosts):
    """Nor one that is no file."""
    with (tmp_path / "tokenizer.json").open("wb") as file:
        file.truncate(1 << 32)
    with pytest.raises(AuditError, match="larger than 128 MiB"):
        folders.load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "tokenizer.json").symlink_to("/dev/zero")
    with pytest.raises(AuditError, match="not a regular file"):
        folders.load_tokenizer(tmp_path)
    assert not asked_hosts


TEMPLATES = {
    "a loop in a loop": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "a text of gigabytes": "{{ 'a' * 9000000000 }}",
    "a text that doubles": "{% set n = namespace(t='a') %}{% for a in range(99) %}"
    "{% set n.t = n.t ~ n.t %}{% endfor %}",
    "what Python holds": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "a program": "{{ cycler.__init__.__globals__.os.system('touch ran') }}",
    "a refusal": "{{ raise_exception('no') }}",
    "no template": "{% for %}",
}


@pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES)
def test_a_chat_template_is_a_program_with_limits(template, tmp_path, monkeypatch):
    """It is no part of an audit that it ends, and runs nothing."""
    pytest.importorskip("transformers")
    model.make_tiny(tmp_path, ModelConfig(), "ab", 0)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(folders, "_TEMPLATE_S", 0.3)
    words = folders.load_tokenizer(tmp_path)
    words.chat_template = template
    limits = resource.getrlimit(resource.RLIMIT_AS)
    with pytest.raises(AuditError, match="chat template"):
        folders.chat_ids(words, [{"role": "user", "content": "ab"}])
    assert not (tmp_path / "ran").exists()
    assert resource.getrlimit(resource.RLIMIT_AS) == limits
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)
    words.chat_template = "{{ messages[0].content }}"
    assert folders.chat_ids(words, [{"role": "user", "content": "ab"}]) == words("ab")["input_ids"]


def test_a_template_that_fails_is_not_judged(tmp_path):
    """An audit goes on without it."""
    pytest.importorskip("transformers")
    model.make_tiny(tmp_path, ModelConfig(), "ab", 0)
    words = folders.load_tokenizer(tmp_path)
    words.chat_template = TEMPLATES["what Python holds"]
    endpoint = types.SimpleNamespace(tokenize=lambda _: [1, 2])
    answer = server_settings._check_chat(endpoint, words)
    assert answer.outcome == NOT_ASKED
    assert "chat template" in str(answer.needed)
