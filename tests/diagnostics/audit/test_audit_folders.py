"""A weights folder is untrusted: nothing in it starts a download, and its reported size is checked."""

import json
import resource
import shutil
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

LOADS = [
    lambda folder: folders.load_model(Path(folder)),
    lambda folder: folders.load_tokenizer(Path(folder)),
    lambda folder: Reference(Path(folder)).vocabulary,
    model.load_model,
    model.load_tokenizer,
]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A folder with a tiny model."""
    pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("tiny")
    model.make_tiny(folder, ModelConfig(), "ab", 0)
    return folder


@pytest.fixture
def changed_config(tiny, tmp_path, monkeypatch):
    """Copy the tiny model with other settings; loading its weights fails the test."""

    def copy(change):
        folder = shutil.copytree(tiny, tmp_path / "model")
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | change))
        monkeypatch.setattr(folders, "_load", lambda *_: pytest.fail("it was loaded"))
        return folder

    return copy


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
def test_name_that_is_no_folder_is_not_looked_up(name, load, asked_hosts, monkeypatch, tmp_path):
    """transformers 5 requested an adapter from the hub eight times, despite local_files_only."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises((AuditError, ConfigError)):
        load(name)
    assert not asked_hosts


@pytest.mark.parametrize("load", [LOADS[0], LOADS[3]])
@pytest.mark.parametrize("tied", [False, True])
def test_weights_that_are_in_no_file_are_refused(load, tied, tmp_path):
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
def test_adapter_does_not_request_its_base(load, asked_hosts, tiny, tmp_path):
    folder = shutil.copytree(tiny, tmp_path / "adapter")
    settings = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": "someorg/base"}
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    with pytest.raises((AuditError, ConfigError), match="whole model"):
        load(folder)
    assert not asked_hosts


HOSTILE = {
    "layers without end": {"num_hidden_layers": 10**9},
    "a number without end": {"vocab_size": 1 << 70},
    "more ids than weights": {"vocab_size": 10**7},
    "a name for each of many labels": {"num_labels": 10**8},
}


@pytest.mark.parametrize("change", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("load", [LOADS[0], LOADS[2]])
def test_model_that_its_files_cannot_hold_is_not_built(load, change, changed_config):
    """Each layer is built before a weight is read: a thousand million of them take all memory."""
    with pytest.raises(AuditError, match=r"config\.json: "):
        load(changed_config(change))


LARGE = {
    "a million experts": {"model_type": "mixtral", "num_local_experts": 10**6, "intermediate_size": 10_000},
    "layers of a width": {"num_hidden_layers": 40, "hidden_size": 8000, "intermediate_size": 8000},
    "places": {"model_type": "gpt2", "n_positions": 10**9, "max_position_embeddings": 10**9},
    "a width of a million million": {"hidden_size": 10**12},
    "a word": {"hidden_size": "64"},
}


@pytest.mark.parametrize("change", LARGE.values(), ids=LARGE)
def test_model_is_counted_before_it_is_built(change, changed_config):
    """A model's size is computed before it is allocated, under every config key that can make it large (once: 5 TB)."""
    with pytest.raises(AuditError, match=r"config\.json: "):
        folders.load_model(changed_config(change))


@pytest.mark.parametrize("text", ["[" * 100_000, "[]", "{", '{"hidden_size": ' + "9" * 5000 + "}"])
def test_config_that_is_no_object_is_refused(text, tmp_path):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(AuditError, match=r"config\.json"):
        Reference(tmp_path)


def test_tokenizer_of_gigabytes_or_a_device_is_not_read(tmp_path, asked_hosts):
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
    "what Python holds": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "a program": "{{ cycler.__init__.__globals__.os.system('touch ran') }}",
    "no template": "{% for %}",
}


@pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES)
def test_chat_template_is_a_program_with_limits(template, tiny, tmp_path, monkeypatch):
    """It may not end, and it may try to run programs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(folders, "_TEMPLATE_S", 0.3)
    tokenizer = folders.load_tokenizer(tiny)
    tokenizer.chat_template = template
    limits = resource.getrlimit(resource.RLIMIT_AS)
    with pytest.raises(AuditError, match="chat template"):
        folders.chat_ids(tokenizer, [{"role": "user", "content": "ab"}])
    assert not (tmp_path / "ran").exists()
    assert resource.getrlimit(resource.RLIMIT_AS) == limits
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)
    tokenizer.chat_template = "{{ messages[0].content }}"
    ids = folders.chat_ids(tokenizer, [{"role": "user", "content": "ab"}])
    assert ids == tokenizer("ab")["input_ids"]


def test_template_that_fails_is_not_checked(tiny):
    tokenizer = folders.load_tokenizer(tiny)
    tokenizer.chat_template = TEMPLATES["what Python holds"]
    result = server_settings._check_chat(types.SimpleNamespace(tokenize=lambda _: [1, 2]), tokenizer)
    assert result.outcome == NOT_ASKED
    assert "chat template" in str(result.needed)
