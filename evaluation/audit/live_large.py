"""Measure time and memory of an audit of a 0.5B model: `python -m evaluation.audit.live_large CELL_PYTHON`.

Writes two checkpoints to a temporary folder: random weights in the shape of Qwen2.5-0.5B with peaked logits, and the
same with 1 % noise. A real `vllm serve` loads the first. `python -m diagnostics audit` compares the server with the
first (healthy) and with the second (other weights). Prints a line of JSON for each audit: time and peak memory of the
audit process, without the server, and the load average before and after. Further options are passed to the audit.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from tests.diagnostics.audit import tiny_model
from tests.processes import free_port
from tests.servers import ROOT, serving, vllm_command

# Sizes of Qwen2.5-0.5B's config.json, and tiny ones that only check that the program runs.
SHAPE = {"vocab_size": 151_936, "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24,
         "num_attention_heads": 14, "num_key_value_heads": 2}  # fmt: skip
TOY = {"vocab_size": 2048, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
       "num_attention_heads": 2, "num_key_value_heads": 1}  # fmt: skip
# Standard deviation of the logits: the likeliest of 151,936 tokens then has a probability of a few tenths, as in a
# trained model. _APART is the noise of the second checkpoint.
_PEAK, _APART = 7.0, 0.01
NEWER, OLDER = "checkpoint-300", "checkpoint-280"


def write_checkpoints(folder: Path, shape: dict[str, int]) -> None:
    """Write both checkpoints in bfloat16, with a tokenizer that has every id of the vocabulary."""
    torch.manual_seed(0)
    config = Qwen2Config(
        **shape, max_position_embeddings=512, tie_word_embeddings=True, bos_token_id=0, eos_token_id=1
    )
    model = Qwen2ForCausalLM(config).to(torch.bfloat16)
    with torch.no_grad():
        rows = model.get_input_embeddings().weight
        model.model.norm.weight.fill_(_PEAK / float(rows.float().std()) / config.hidden_size**0.5)
    tokenizer = _pad_tokenizer(shape["vocab_size"])
    for name in (NEWER, OLDER):
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim > 1:
                    parameter.add_(_APART * parameter.std() * torch.randn_like(parameter))


def _pad_tokenizer(size: int) -> PreTrainedTokenizerFast:
    """Return the tiny tokenizer with unused ids appended."""
    small_tokenizer = tiny_model.tokenizer(tiny_model.corpus(), 384)
    definition = json.loads(small_tokenizer.backend_tokenizer.to_str())
    known = definition["model"]["vocab"]
    known |= {f"<|{place}|>": place for place in range(len(known), size)}
    padded = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(definition)), bos_token="<s>", eos_token="</s>"
    )
    padded.chat_template = tiny_model.TEMPLATE
    return padded


def run_audit(url: str, checkpoint: Path, out: Path, more: list[str]) -> dict[str, Any]:
    """Run one audit in a separate process; return its report and cost."""
    load, began = os.getloadavg(), time.monotonic()
    command = [sys.executable, "-m", "diagnostics", "audit", f"--server={url}", f"--checkpoint={checkpoint}",
               "--format=json", *more]  # fmt: skip
    with out.open("w") as file:
        process = subprocess.Popen(command, cwd=ROOT, stdout=file)
        _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    wall = time.monotonic() - began
    document = json.loads(out.read_text(encoding="utf-8"))
    return {
        "checkpoint": checkpoint.name,
        "exit": process.returncode,
        "wall_s": round(wall, 1),
        "cpu_s": round(used.ru_utime + used.ru_stime, 1),
        "peak_mib": used.ru_maxrss // 1024,
        "load_before": [round(average, 1) for average in load],
        "load_after": [round(average, 1) for average in os.getloadavg()],
        "tokens": document["tokens"],
        "outcome": document["outcome"],
        "sentence": document["sentence"],
        "faults": [answer["family"] for answer in document["answers"] if answer["outcome"] == "fault"],
        "open": [answer["family"] for answer in document["answers"] if answer["outcome"] == "not_decided"],
        "off": {
            answer["family"]: [answer["residual"], answer["floor"]]
            for answer in document["answers"]
            if answer["residual"]
        },
    }


def main(arguments: list[str] | None = None) -> int:
    """Write the checkpoints, serve the first, audit both, and print the results."""
    parser = argparse.ArgumentParser()
    parser.add_argument("python", type=Path, help="Python of a matrix cell with vLLM")
    parser.add_argument(
        "--dtype", choices=("bfloat16", "float16"), default="bfloat16", help="dtype of the engine"
    )
    parser.add_argument("--times", type=int, default=1)
    parser.add_argument(
        "--toy", action="store_true", help="use tiny models; only checks that the program runs"
    )
    options, more = parser.parse_known_args(arguments)
    with tempfile.TemporaryDirectory() as name:
        folder, port = Path(name), free_port()
        write_checkpoints(folder, TOY if options.toy else SHAPE)
        command = vllm_command(
            options.python, folder / NEWER, port, f"--dtype={options.dtype}", "--served-model-name=policy"
        )
        variables = {"OMP_NUM_THREADS": str(os.cpu_count())}
        with serving(command, folder / "log", variables=variables, timeout_s=1500):
            for _ in range(options.times):
                for checkpoint in (NEWER, OLDER):
                    result = run_audit(
                        f"http://127.0.0.1:{port}", folder / checkpoint, folder / "report.json", more
                    )
                    print(json.dumps(result), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
