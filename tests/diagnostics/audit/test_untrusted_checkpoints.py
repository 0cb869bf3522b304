"""Loading an untrusted checkpoint looks up no host, and reads files of its folder (in the hub's cache, blobs) only.

For an adapter, the folder of its base is read, too. A model larger than its files, missing weights, pipes, devices,
names of code or other models, and broken settings are refused, in part also by grpo_core's loader. The tokenizer and
its sandboxed chat template are used in a child process, whose time, memory and answers are limited, and which ends with
the audit.
"""

import json
import os
import re
import shutil
import signal
import threading
import types
from multiprocessing import Pipe
from pathlib import Path
from unittest.mock import Mock

import huggingface_hub
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from diagnostics import process
from diagnostics.__main__ import main
from diagnostics.audit import checkpoint_validation, command
from diagnostics.audit.live import checkpoint_tokenizer, server_settings
from diagnostics.audit.live.checkpoint_tokenizer import Tokenizer
from diagnostics.audit.live.reference import Reference
from diagnostics.audit.results import SKIPPED, AuditError, NotAvailableError
from diagnostics.cpu_limit import CpuLimitError
from grpo_core.config import ConfigError, ModelConfig
from grpo_core.tasks import model
from tests.case_files import each_case, read_cases
from tests.processes import is_running, run_python, wait_until

TOKENIZERS = read_cases(__file__, "tokenizer_parts.yaml")
REFUSED = read_cases(__file__, "refused_checkpoints.yaml")
PARTS = ("normalizer", "pre_tokenizer", "post_processor", "decoder")
LOADS = [
    lambda folder: checkpoint_validation.load_model(Path(folder)),
    lambda folder: Tokenizer(Path(folder)),
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
    """Refuse host look-ups; return the list of the names that were looked up."""
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
    """A complete checkpoint is loaded unchanged; one without a tensor is refused, because it would be random."""
    sizes = {"vocab_size": 8, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2}
    built = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**sizes, num_attention_heads=1, tie_word_embeddings=tied)
    )
    built.save_pretrained(tmp_path)
    loaded = load(tmp_path).state_dict()
    assert all(torch.equal(loaded[name], value) for name, value in built.state_dict().items())
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
    """A model with an adapter_config.json is refused; by it, transformers would request a base from the hub."""
    folder = shutil.copytree(tiny, tmp_path / "adapter")
    settings = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": "someorg/base"}
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    with pytest.raises((AuditError, ConfigError), match="whole model"):
        load(folder)
    assert not looked_up_hosts


class _Bytes:
    def __reduce__(self):
        return bytearray, (40 << 30,)


def test_pickle_that_asks_for_memory_is_refused(tiny, tmp_path):
    """torch's weights_only allows a bytearray of any length."""
    folder = shutil.copytree(tiny, tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save({**tensors, "x": _Bytes()}, folder / "pytorch_model.bin")
    with pytest.raises(AuditError, match="transformers loading it failed"):
        checkpoint_validation.load_model(folder)


LARGE = {
    "layers without end": {"num_hidden_layers": 10**9},
    "a number without end": {"vocab_size": 1 << 70},
    "more ids than weights": {"vocab_size": 10**7},
    "ids of width 1": {"vocab_size": 3 * 10**6, "hidden_size": 1, "num_attention_heads": 1},
    "ids as a fraction": {"vocab_size": 1e12},
    "ids as a text": {"vocab_size": "1000000000000"},
    "a name for each of many labels": {"num_labels": 10**8},
    "a million experts": {"model_type": "mixtral", "num_local_experts": 10**6, "intermediate_size": 10_000},
    "layers of a width": {"num_hidden_layers": 40, "hidden_size": 8000, "intermediate_size": 8000},
    "places": {"model_type": "gpt2", "n_positions": 10**9, "max_position_embeddings": 10**9},
    "a width of a million million": {"hidden_size": 10**12},
    "a word": {"hidden_size": "64"},
}


@pytest.mark.parametrize(
    ("compute", "error", "message"),
    [
        (lambda **_: bytearray(5 << 30), AuditError, "computing its logits failed"),
        (lambda **_: next(item for item in iter(int, 1) if item), CpuLimitError, "its logits needed more than"),
    ],
    ids=["5 GiB", "no end"],
)  # fmt: skip
def test_memory_and_time_of_a_forward_pass_are_limited(compute, error, message, tiny, monkeypatch):
    """The weights have less than a megabyte; a config may ask for any number of cycles, which need no file."""
    monkeypatch.setattr(checkpoint_validation, "_MODEL_S", 0.1)
    monkeypatch.setattr(Reference, "_model", lambda *_: compute)
    with pytest.raises(error, match=message):
        list(Reference(tiny).logits([[1, 2]], "float32"))


@pytest.mark.parametrize("base", ["x" * 5000, "hf_abcdefghijklmnopqrstuvwxyz012345"])
def test_base_that_is_no_folder_is_refused_and_masked(base, tmp_path):
    settings = {"peft_type": "LORA", "base_model_name_or_path": base}
    (tmp_path / "adapter_config.json").write_text(json.dumps(settings))
    with pytest.raises(AuditError, match="expected a folder of weights") as error:
        Reference(tmp_path)
    assert "hf_a" not in str(error.value)


@pytest.mark.parametrize("change", LARGE.values(), ids=LARGE)
def test_model_larger_than_its_files_is_not_loaded(change, tiny, tmp_path, monkeypatch):
    """Config keys that make a model larger than its files are refused before weights are allocated."""
    path = shutil.copytree(tiny, tmp_path / "model") / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    load = transformers.AutoModelForCausalLM
    monkeypatch.setattr(load, "from_pretrained", lambda *_, **__: pytest.fail("it was loaded"))
    with pytest.raises(AuditError, match=r"config\.json: "):
        checkpoint_validation.load_model(path.parent)


WRONG_TYPES = [
    *[("eos_token_id", value) for value in ([[1]], "abc", 1.5)], ("text_config", 5), ("vocab_size", [3]),
    *[("lora_alpha", value) for value in ("abc", [1], True, 10**400, float("inf"))],
]  # fmt: skip


@pytest.mark.parametrize("file", ["config.json", "generation_config.json", "adapter_config.json"])
@pytest.mark.parametrize(("name", "value"), WRONG_TYPES)
def test_setting_of_another_type_is_refused(file, name, value, tiny, tmp_path):
    """The error names the setting; null is no setting."""
    path = shutil.copytree(tiny, tmp_path / "model") / file
    settings = {"peft_type": "LORA", "base_model_name_or_path": str(tiny)} if "adapter" in file else {}
    if path.is_file():
        settings = json.loads(path.read_text()) | {name: None}
    if "adapter" in file:
        (path.parent / "config.json").unlink()
    path.write_text(json.dumps(settings))
    assert isinstance(Reference(path.parent).vocabulary, int)
    path.write_text(json.dumps(settings | {name: value}))
    with pytest.raises(AuditError, match=rf"{file}: {name} = .*: expected an? "):
        _ = Reference(path.parent).stop_ids


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


@pytest.mark.parametrize("name", ["vocab", "merges", "vocab_file", "anything"])
def test_tokenizer_setting_that_names_a_file_elsewhere_is_refused(name, tiny, tmp_path):
    """transformers 5 opens the texts `vocab` and `merges`; a folder under another name is no file."""
    (tmp_path / "private.txt").write_text("secret")
    path = shutil.copytree(tiny, tmp_path / "model") / "tokenizer_config.json"
    for value in (str(tmp_path / "private.txt"), "../private.txt"):
        path.write_text(json.dumps({name: value}))
        with pytest.raises(AuditError, match="refused"):
            Tokenizer(path.parent)
    path.write_text(json.dumps({"name_or_path": str(tmp_path), "tokenizer_class": "PreTrainedTokenizerFast"}))
    assert Tokenizer(path.parent)
    path.rename(path.with_name("special_tokens_map.json"))
    with pytest.raises(AuditError, match="no special token"):
        Tokenizer(path.parent)


def with_parts(tiny, folder, parts):
    """Return a copy of the tiny model whose tokenizer.json has other parts, given as the text of a JSON object."""
    path = shutil.copytree(tiny, folder / "model") / "tokenizer.json"
    document = {key: value for key, value in json.loads(path.read_text()).items() if key not in PARTS}
    path.write_text(f"{json.dumps(document)[:-1]}, {parts[1:]}")
    return path.parent


def test_tokenizer_of_other_files_is_refused(tiny, tmp_path):
    """Files besides tokenizer.json, and tokenizers in subfolders as those of RagTokenizer, would not be checked."""
    folder = shutil.copytree(tiny, tmp_path / "model")
    (folder / "generator_tokenizer").mkdir()
    with pytest.raises(AuditError, match="generator_tokenizer: a tokenizer in a subfolder is not checked"):
        Tokenizer(folder)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(AuditError, match=r"it needs tokenizer\.json"):
        Tokenizer(folder)


@pytest.mark.parametrize(
    "kind", ["BertJapaneseTokenizer", "CTRLTokenizer", "EsmTokenizer", "PhobertTokenizer"]
)
def test_class_that_does_not_use_tokenizer_json_is_not_loaded(kind, tiny, tmp_path):
    """Without this, MeCab would read the pipe, which an option in a longer text names, and wait for ever."""
    folder = shutil.copytree(tiny, tmp_path / "model")
    os.mkfifo(tmp_path / "pipe")
    settings = {"tokenizer_class": kind, "mecab_kwargs": {"mecab_option": f"-r {tmp_path / 'pipe'}"}}
    settings |= {"word_tokenizer_type": "mecab"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(AuditError, match=r"its class does not use tokenizer\.json"):
        Tokenizer(folder)


@each_case(TOKENIZERS["structures"])
def test_tokenizer_of_a_real_structure_is_loaded(parts, tiny, tmp_path):
    assert Tokenizer(with_parts(tiny, tmp_path, parts)).encode("ab")


@pytest.fixture
def limits(monkeypatch):
    """Allow the child process half a second of processor time for each call."""
    monkeypatch.setattr(checkpoint_tokenizer, "_CALL_S", 0.5)


@each_case(TOKENIZERS["hostile"])
def test_hostile_tokenizer_reaches_a_limit(parts, message, tiny, tmp_path, limits):
    """A text that grows ends in one line, and the next tokenizer is loaded."""
    with pytest.raises(NotAvailableError, match=f"its tokenizer failed: .*{message}"):
        Tokenizer(with_parts(tiny, tmp_path, parts)).encode("a" * 40)
    assert Tokenizer(tiny).decode(Tokenizer(tiny).encode("ab")) == "ab"


def test_oversized_tokenizer_reaches_a_limit(tiny, tmp_path, limits):
    folder = shutil.copytree(tiny, tmp_path / "model")
    os.truncate(folder / "tokenizer.json", 1 << 35)
    with pytest.raises(NotAvailableError, match="its tokenizer failed: "):
        Tokenizer(folder)


@each_case(REFUSED["settings"])
def test_setting_that_makes_unchecked_files_count_is_refused(name, value, tiny, tmp_path):
    """Another configuration file, and the files of a processor, are not checked for settings that load something."""
    path = shutil.copytree(tiny, tmp_path / "model") / "tokenizer_config.json"
    path.write_text(json.dumps({name: value}))
    with pytest.raises(AuditError, match=f"{name} = .* refused"):
        Tokenizer(path.parent)


def test_panic_of_the_tokenizer_is_reported_as_not_checked(tiny, tmp_path, monkeypatch, capfd):
    """A panic, which is no Exception, gives exit code 3 and a line of the audit's own; Rust's message is hidden."""
    step = '{"type": "Replace", "pattern": {"Regex": "(?=.)"}, "content": "x"}'
    words = '"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true}'
    parts = f'{{{words}, "normalizer": {{"type": "Sequence", "normalizers": [{step}, {step}, {step}]}}}}'
    tokenizer = Tokenizer(with_parts(tiny, tmp_path, parts))
    monkeypatch.setattr(command, "audit_server", lambda *_, **__: tokenizer.encode("ab"))
    assert main(["audit", "--server", "127.0.0.1:1", "--checkpoint", str(tiny)]) == 3
    assert re.fullmatch("diagnostics: audit: .*: its tokenizer failed: .*\n", capfd.readouterr().err)


ANSWERS = [b"{", b'["", ["a"]]', b'["", [-1]]', b'["", []]' + b" " * 1000]


@pytest.fixture
def stalled(tiny, monkeypatch):
    """Return a tokenizer whose child process is one that sleeps, that process, and the other end of its connection."""
    tokenizer, (ours, theirs), child = Tokenizer(tiny), Pipe(), process.start(["sleep", "1000"])
    monkeypatch.setattr(checkpoint_tokenizer, "_start_child", Mock(return_value=(child, ours)))
    return tokenizer, child, theirs


@pytest.mark.parametrize("answer", ANSWERS, ids=["a part", "a text", "a negative id", "a long text"])
def test_invalid_answer_is_refused(answer, stalled, monkeypatch):
    """Ids are numbers, and the size of an answer is limited; the child process is ended."""
    monkeypatch.setattr(checkpoint_tokenizer, "_MAX_ANSWER", 500)
    tokenizer, child, theirs = stalled
    theirs.send_bytes(answer)
    with pytest.raises(NotAvailableError, match="no valid answer of 4 MiB"):
        tokenizer.encode("ab")
    assert child.returncode == -signal.SIGTERM


def test_wait_ends_in_the_middle_of_an_answer(tiny, monkeypatch):
    """After its limit a wait ends, although the child process sent only the beginning of an answer."""
    tokenizer, (ours, theirs) = Tokenizer(tiny), Pipe()
    monkeypatch.setattr(checkpoint_tokenizer, "_WAIT_S", 0.1)
    with theirs:
        os.write(theirs.fileno(), (100).to_bytes(4, "big") + b"[")
        child = process.start(["sleep", "1000"], pass_fds=[theirs.fileno()])
    monkeypatch.setattr(checkpoint_tokenizer, "_start_child", Mock(return_value=(child, ours)))
    with pytest.raises(NotAvailableError, match=r"no valid answer of 4 MiB in 0.1 s"):
        tokenizer.encode("ab")


def test_child_process_has_kernel_limits_and_no_hub(tiny):
    """Its working folder is the root, so that names in settings lead to no file of the caller."""
    Tokenizer(tiny)
    child = Path(f"/proc/{checkpoint_tokenizer._start_child()[0].pid}")
    lines = re.findall(r"Max (address space|core file size|file size) +(\d+)", (child / "limits").read_text())
    assert dict(lines) == {"address space": str(3 << 30), "core file size": "0", "file size": "0"}
    assert b"\0HF_HUB_OFFLINE=1\0" in b"\0" + (child / "environ").read_bytes()
    assert (child / "cwd").readlink() == Path("/")


def test_ctrl_c_ends_the_child_process(stalled):
    tokenizer, child, _ = stalled
    threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        tokenizer.encode("ab")
    assert child.returncode == -signal.SIGTERM


KILLED = """
import os, signal, sys, threading
from pathlib import Path
from diagnostics.audit.live.checkpoint_tokenizer import Tokenizer, _start_child
tokenizer, (child, _) = Tokenizer(Path(sys.argv[1])), _start_child()
print(child.pid, Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text(), flush=True)
threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGKILL)).start()
tokenizer.chat_ids([{"role": "user", "content": "a"}])
"""


def test_child_process_ends_with_its_parent(tiny, tmp_path):
    """If the audit is killed, the child process and its fork end, also during a long call of C."""
    folder = shutil.copytree(tiny, tmp_path / "model")
    [template] = [case["template"] for case in REFUSED["templates"] if case["id"] == "one long call"]
    (folder / "chat_template.jinja").write_text(template)
    done = run_python("-c", KILLED, folder)
    assert done.returncode == -signal.SIGKILL
    assert len(done.stdout.split()) == 2
    wait_until(lambda: not any(is_running(int(pid)) for pid in done.stdout.split()))


def test_secret_in_the_name_of_a_refused_setting_is_masked(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"x" * 80 + "_kernel = hf_" + "aB3" * 12: "a/b"}))
    with pytest.raises(AuditError, match="refused") as refused:
        checkpoint_validation.read_config(tmp_path)
    assert "hf_aB3" not in str(refused.value)


@each_case(REFUSED["names"])
def test_config_that_names_a_kernel_or_a_model_is_refused(change, tiny, tmp_path, monkeypatch):
    """transformers would import code of the hub, and timm would load a pickle."""
    path = shutil.copytree(tiny, tmp_path / "model") / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    monkeypatch.setattr(checkpoint_validation, "_import_transformers", lambda: pytest.fail("it was loaded"))
    for load in LOADS[:3]:
        with pytest.raises(AuditError, match=r"config\.json: .* refused"):
            load(path.parent)


def test_config_with_usual_names_is_loaded(tiny, tmp_path):
    path = shutil.copytree(tiny, tmp_path / "model") / "config.json"
    change = {
        "_attn_implementation": "eager",
        "cache_implementation": "hybrid",
        "_name_or_path": "someorg/model",
    }
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    assert checkpoint_validation.load_model(path.parent).config._attn_implementation == "eager"


def test_hub_is_not_contacted(looked_up_hosts, monkeypatch):
    """The audit's import of transformers switches the hub's offline mode on, although it was off."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    checkpoint_validation._import_transformers()
    with pytest.raises(huggingface_hub.errors.OfflineModeIsEnabled):
        huggingface_hub.HfApi().model_info("someorg/model")
    assert not looked_up_hosts
    assert os.environ["HF_HUB_OFFLINE"] == "1"


@pytest.mark.parametrize(
    "name",
    ["chat_template.jinja", "additional_chat_templates/a.jinja", "additional_chat_templates", "generation_config.json",
     "tokenizer.json"],
)  # fmt: skip
def test_link_out_of_the_checkpoint_is_not_followed(name, tiny, tmp_path):
    """Neither the tokenizer nor the model is loaded."""
    outside = tmp_path / "private/diary.jinja"
    outside.parent.mkdir()
    outside.write_text("{}")
    link = shutil.copytree(tiny, tmp_path / "model") / name
    link.parent.mkdir(exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(outside if "." in link.name else outside.parent)
    for load in (Tokenizer, checkpoint_validation.load_model):
        with pytest.raises(AuditError, match="a link that leads out of the folder"):
            load(tmp_path / "model")


def test_links_of_the_hub_cache_are_followed_to_its_own_blobs(tiny, tmp_path):
    """A snapshot links to blobs of its repository; blobs that are a link themselves are refused."""
    repository = tmp_path / "models--someorg--model"
    snapshot = repository / "snapshots/0123"
    snapshot.mkdir(parents=True)
    shutil.copytree(tiny, repository / "blobs")
    for path in tiny.iterdir():
        (snapshot / path.name).symlink_to(f"../../blobs/{path.name}")
    assert Reference(snapshot).state
    assert Tokenizer(snapshot)
    (repository / "blobs").rename(tmp_path / "elsewhere")
    (repository / "blobs").symlink_to("../elsewhere")
    with pytest.raises(AuditError, match="a link that leads out"):
        Tokenizer(snapshot)


def test_adapter_that_is_no_regular_file_is_not_opened(tiny, tmp_path):
    settings = {"peft_type": "LORA", "base_model_name_or_path": str(tiny)}
    (tmp_path / "adapter_config.json").write_text(json.dumps(settings))
    os.mkfifo(tmp_path / "adapter_model.safetensors")
    writer = os.open(tmp_path / "adapter_model.safetensors", os.O_RDWR)  # so that no code waits here
    try:
        with pytest.raises(AuditError, match="not a regular file"):
            _ = Reference(tmp_path).state
    finally:
        os.close(writer)


@each_case(REFUSED["templates"])
def test_chat_template_is_sandboxed_with_time_and_memory_limits(
    template, message, tiny, tmp_path, monkeypatch, limits
):
    """The check is skipped if the template loops, allocates gigabytes, reaches for the interpreter or is invalid.

    The tokenizer can be used afterwards.
    """
    monkeypatch.chdir(tmp_path)
    folder = shutil.copytree(tiny, tmp_path / "model")
    (folder / "chat_template.jinja").write_text(template)
    tokenizer, server = Tokenizer(folder), types.SimpleNamespace(tokenize=lambda _: [1, 2])
    *_, result = server_settings.check_tokenization(server, tokenizer, "")
    assert (result.outcome, result.decisive) == (SKIPPED, True)
    assert re.search(f"the chat template failed: .*{message}", str(result.needed))
    assert not (tmp_path / "ran").exists()
    assert tokenizer.decode(tokenizer.encode("ab")) == "ab"
