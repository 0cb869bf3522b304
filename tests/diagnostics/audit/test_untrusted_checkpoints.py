"""Loading an untrusted checkpoint looks up no host, allocates no oversized model, and limits its chat template.

Missing weights, pipes, devices and broken settings are refused, in part also by grpo_core's loader.
"""

import json
import os
import resource
import shutil
import signal
import types
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from diagnostics.audit import checkpoint_validation
from diagnostics.audit.live import server_settings
from diagnostics.audit.live.reference import Reference
from diagnostics.audit.results import NOT_ASKED, AuditError
from grpo_core.config import ConfigError, ModelConfig
from grpo_core.tasks import model

LOADS = [
    lambda folder: checkpoint_validation.load_model(Path(folder)),
    lambda folder: checkpoint_validation.load_tokenizer(Path(folder)),
    lambda folder: Reference(Path(folder)).vocabulary,
    model.load_model,
    model.load_tokenizer,
]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """Save a tiny model; return its folder."""
    folder = tmp_path_factory.mktemp("tiny")
    model.make_tiny(folder, ModelConfig(), "ab", 0)
    return folder


@pytest.fixture
def looked_up_hosts(monkeypatch):
    """Record the host names that are looked up."""
    hosts = []

    def refuse_lookup(host, *_rest, **_options):
        hosts.append(host)
        raise OSError("no lookup in tests")

    monkeypatch.setattr("socket.getaddrinfo", refuse_lookup)
    return hosts


@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("name", ["gpt2", "someorg/some-model", "no\0name"])
def test_name_that_is_no_folder_is_refused_without_a_lookup(
    name, load, looked_up_hosts, monkeypatch, tmp_path
):
    """A name that is no folder is refused without a host look-up; transformers 5 alone would contact the hub."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises((AuditError, ConfigError)):
        load(name)
    assert not looked_up_hosts


@pytest.mark.parametrize("load", [LOADS[0], LOADS[3]])
@pytest.mark.parametrize("tied", [False, True])
def test_missing_weights_are_refused(load, tied, tmp_path):
    """A checkpoint with missing weights is refused, because transformers would initialise them at random."""
    sizes = {"vocab_size": 8, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2}
    built = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**sizes, num_attention_heads=1, tie_word_embeddings=tied)
    )
    built.save_pretrained(tmp_path)
    tokens = load(tmp_path).state_dict()
    assert all(torch.equal(tokens[name], value) for name, value in built.state_dict().items())
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, path, {"format": "pt"})
    with pytest.raises(
        (AuditError, ConfigError), match=r"1 (of its )?weights are in no file( there)?, \S*1\.mlp\.up_proj"
    ):
        load(tmp_path)


@pytest.mark.parametrize("load", [LOADS[0], LOADS[3]])
def test_adapter_does_not_request_its_base(load, looked_up_hosts, tiny, tmp_path):
    folder = shutil.copytree(tiny, tmp_path / "adapter")
    settings = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": "someorg/base"}
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    with pytest.raises((AuditError, ConfigError), match="whole model"):
        load(folder)
    assert not looked_up_hosts


LARGE = {
    "layers without end": {"num_hidden_layers": 10**9},
    "a number without end": {"vocab_size": 1 << 70},
    "more ids than weights": {"vocab_size": 10**7},
    "a name for each of many labels": {"num_labels": 10**8},
    "a million experts": {"model_type": "mixtral", "num_local_experts": 10**6, "intermediate_size": 10_000},
    "layers of a width": {"num_hidden_layers": 40, "hidden_size": 8000, "intermediate_size": 8000},
    "places": {"model_type": "gpt2", "n_positions": 10**9, "max_position_embeddings": 10**9},
    "a width of a million million": {"hidden_size": 10**12},
    "a word": {"hidden_size": "64"},
}


@pytest.mark.parametrize("change", LARGE.values(), ids=LARGE)
def test_model_larger_than_its_files_is_not_loaded(change, tiny, tmp_path, monkeypatch):
    """Config keys that make a model larger than its files are refused before weights are allocated."""
    path = shutil.copytree(tiny, tmp_path / "model") / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    monkeypatch.setattr(checkpoint_validation, "_load", lambda *_: pytest.fail("it was loaded"))
    with pytest.raises(AuditError, match=r"config\.json: "):
        checkpoint_validation.load_model(path.parent)


@pytest.mark.parametrize("text", ["[" * 100_000, "[]", "{", '{"hidden_size": ' + "9" * 5000 + "}"])
def test_config_that_is_not_a_json_object_is_refused(text, tmp_path):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(AuditError, match=r"config\.json"):
        Reference(tmp_path)


@pytest.mark.parametrize("load", [LOADS[0], LOADS[3]])
@pytest.mark.parametrize("index", ["model.safetensors.index.json", "pytorch_model.bin.index.json"])
@pytest.mark.parametrize("shard", ["pipe", "link", "/dev/null"])
def test_shard_that_is_no_regular_file_is_not_opened(load, index, shard, tiny, tmp_path):
    """An index that names a pipe or a device is refused; transformers would wait for a writer, or for the end."""
    names = load_file(tiny / "model.safetensors")
    shutil.copytree(tiny, tmp_path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.safetensors"))
    (tmp_path / index).write_text(json.dumps({"metadata": {}, "weight_map": dict.fromkeys(names, shard)}))
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    writer = os.open(tmp_path / "pipe", os.O_RDWR)  # so that no code waits here
    try:
        with pytest.raises((AuditError, ConfigError), match="regular file"):
            load(tmp_path)
    finally:
        os.close(writer)


@pytest.mark.parametrize("load", [LOADS[0], LOADS[3]])
def test_config_that_names_a_file_of_weights_is_refused(load, tiny, tmp_path):
    """By this setting, transformers 5 would load a pipe in a subfolder."""
    path = shutil.copytree(tiny, tmp_path / "model") / "config.json"
    change = {"transformers_weights": "other/model.safetensors"}
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises((AuditError, ConfigError), match=r"expected .*files of the usual names"):
        load(path.parent)


def test_oversized_tokenizer_or_device_file_is_not_read(tmp_path, looked_up_hosts):
    with (tmp_path / "tokenizer.json").open("wb") as file:
        file.truncate(1 << 32)
    with pytest.raises(AuditError, match="larger than 128 MiB"):
        checkpoint_validation.load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "tokenizer.json").symlink_to("/dev/zero")
    with pytest.raises(AuditError, match="not a regular file"):
        checkpoint_validation.load_tokenizer(tmp_path)
    assert not looked_up_hosts


TEMPLATES = {
    "a loop in a loop": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "a text of gigabytes": "{{ 'a' * 9000000000 }}",
    "sandbox escape": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "a program": "{{ cycler.__init__.__globals__.os.system('touch ran') }}",
    "no template": "{% for %}",
}


@pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES)
def test_chat_template_is_sandboxed_with_time_and_memory_limits(template, tiny, tmp_path, monkeypatch):
    """Templates that loop, allocate gigabytes or reach the interpreter leave the check undecided; limits are reset."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(checkpoint_validation, "_TEMPLATE_S", 0.3)
    tokenizer = checkpoint_validation.load_tokenizer(tiny)
    tokenizer.chat_template = template
    limits = resource.getrlimit(resource.RLIMIT_AS)
    server = types.SimpleNamespace(tokenize=lambda _: [1, 2])
    *_, result = server_settings.check_tokenization(server, tokenizer, "")
    assert (result.outcome, result.decisive) == (NOT_ASKED, True)
    assert "chat template" in str(result.needed)
    assert not (tmp_path / "ran").exists()
    assert resource.getrlimit(resource.RLIMIT_AS) == limits
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)
    tokenizer.chat_template = "{{ messages[0].content }}"
    ids = checkpoint_validation.chat_ids(tokenizer, [{"role": "user", "content": "ab"}])
    assert ids == tokenizer("ab")["input_ids"]
