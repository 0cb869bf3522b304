"""Feeds `audit RUN` runs whose files are damaged or hostile, and `audit` and `train` folders of models that are.

`python -m evaluation.hostile.fuzz_artifacts COUNT [SEED]`

Apart from `fuzz_readers`, since the writers of the tests that make its runs need the trainer's environment.
"""

import functools
import json
import re
import struct
import sys
import tempfile
from pathlib import Path

from diagnostics.audit import checkpoint_validation as folders
from diagnostics.audit.model import AuditError
from diagnostics.audit.recorded.run_audit import audit_run
from evaluation.hostile.fuzz_readers import as_json, damaged, main, refusing
from grpo_core.config import ConfigError, ModelConfig
from grpo_core.records import model_given as given
from grpo_core.tasks import model
from tests.diagnostics.audit_recorded import runs, test_recorded_reads


def run_left(numbers, folder):
    """What `audit RUN` is given: samples in several formats, event files, W&B's file, weights, a trainer's state."""
    run = folder / "run"
    for path, data in _left().items():
        if numbers.random() < 0.5:
            (run / path).parent.mkdir(parents=True, exist_ok=True)
            lines = (
                [as_json(numbers, json.loads(line)) for line in data.splitlines()] if "json" in path else []
            )
            (run / path).write_bytes(damaged(numbers, b"\n".join(lines) or data))
    with refusing(AuditError):
        audit_run(run)


@functools.cache
def _left():
    """Files of a run by their names: written by the tests' own writers where these need no package, else by hand."""
    with tempfile.TemporaryDirectory() as made:
        for form in ("parquet", "verl", "swift"):
            runs.WRITERS[form](test_recorded_reads.some_rows(2), Path(made) / form)
        left = {
            path.relative_to(made).as_posix(): path.read_bytes()
            for path in Path(made).rglob("*")
            if path.is_file()
        }
    scalar = b"\x10\x01\x2a\x10\x0a\x0e\x0a\x06reward\x15\0\0\0\x3f"
    left["events.out.tfevents.1.a"] = (struct.pack("<Q", len(scalar)) + b"\0" * 4 + scalar + b"\0" * 4) * 3
    header = json.dumps({"a": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}}).encode()
    left["checkpoint-1/model.safetensors"] = struct.pack("<Q", len(header)) + header + b"\0" * 16
    state = {"log_history": [{"step": 1, "loss": 0.5}, {"step": 2, "reward": 1.0}], "global_step": 2}
    left["checkpoint-1/trainer_state.json"] = json.dumps(state).encode()
    return left


# What makes a model large, by names of several kinds of models; and kinds.
SIZES = ("num_hidden_layers", "hidden_size", "intermediate_size", "vocab_size", "head_dim", "num_attention_heads",
         "num_key_value_heads", "num_local_experts", "num_experts", "n_routed_experts", "moe_intermediate_size",
         "max_position_embeddings", "n_positions", "n_embd", "n_layer", "kv_lora_rank", "state_size", "expand",
         "num_labels", "num_codebooks", "decoder_layers", "d_model", "sliding_window", "conv_kernel")  # fmt: skip
KINDS = (
    "llama",
    "mixtral",
    "gpt2",
    "qwen2_moe",
    "qwen3_moe",
    "deepseek_v3",
    "mamba",
    "gemma3",
    "bert",
    "opt",
    "x\n",
)


def model_given(numbers, folder):
    """A folder of weights: settings, tokenizer and weights damaged, or settings of any size; counted, then loaded."""
    for name, data in _tiny().items():
        worse = numbers.random() < 0.2
        (folder / name).write_bytes(damaged(numbers, data) if worse else data)
    told = json.loads(_tiny()["config.json"])
    if numbers.random() < 0.4:
        told["model_type"] = numbers.choice(KINDS)
    for _ in range(numbers.randrange(4)):
        told[numbers.choice(SIZES)] = numbers.choice((0, 1, 2, 10**3, 10**5, 10**8, 10**12, -1, [3, 4], 2.5))
    text = as_json(numbers, told) if numbers.random() < 0.3 else json.dumps(told).encode()
    (folder / "config.json").write_bytes(text)
    with given.held(120.0, 2 << 30), refusing(AuditError, ConfigError):
        try:
            if numbers.random() < 0.5:
                folders.load_model(folder)
                folders.load_tokenizer(folder)
            else:
                given.check_folder("model.path", str(folder))
                model.load_model(folder)
                model.load_tokenizer(folder)
        except (AuditError, ConfigError) as error:
            # Whatever was counted and let through takes no memory that is not there.
            told = f"{error} {error.__cause__!r}"
            assert "config.json: " in told or not re.search("MemoryError|alloc", told), told
            raise


@functools.cache
def _tiny():
    """The files of a model that is fine."""
    with tempfile.TemporaryDirectory() as made:
        model.make_tiny(Path(made), ModelConfig(), "ab", 0)
        return {path.name: path.read_bytes() for path in Path(made).iterdir()}


READERS = {run_left: 1, model_given: 1}

if __name__ == "__main__":
    sys.exit(main(READERS, *sys.argv[1:]))
