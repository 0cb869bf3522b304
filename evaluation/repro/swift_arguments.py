"""CFG001: construct ms-swift's own argument class for rollout modes and resources, and record what it refuses.

Each rank constructs `RLHFArguments` of the installed ms-swift in its own process, as `swift rlhf` does, with the
variables that torchrun sets. The accelerators are a stand-in (`evaluation/repro/accelerators`); the ranks are real and
communicate over gloo. No trainer is constructed. The result of a case is `accepts`, `warns`, `refuses` (with the
exception, and the file and function that raised it), `no option` (this release does not have an option of the case), or
`unknown` (a rank did not report within 300 s).

Usage: python -m evaluation.repro.swift_arguments [CASE ...]   prints one JSON document
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import select
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from importlib import metadata
from pathlib import Path
from typing import Any

SCHEMA = "grpo-doctor.swift-arguments.v1"
SIMULATED = (
    "the accelerators: a stand-in that PyTorch is told of by its interface for out-of-tree devices",
    "under server_ignores: the connection to the server; the check that follows it is called by itself",
)
PACKAGES = ("torch", "transformers", "trl", "accelerate", "peft", "datasets")
_LIMIT_S = 300.0
_COUNT = "GRPO_DOCTOR_ACCELERATORS"


@dataclass(frozen=True)
class SwiftCase:
    """One combination of mode and resources.

    Args:
        description: One-line description.
        options: Options of `RLHFArguments` for this case, besides those that all cases share.
        devices: Number of accelerators of the machine.
        ranks: Number of training processes (NPROC_PER_NODE).
        server: Server address, which is set after the construction; then the check of ignored options is called.
    """

    description: str
    options: Mapping[str, Any] = field(default_factory=dict)
    devices: int = 2
    ranks: int = 2
    server: str = ""


def _vllm(**options: Any) -> dict[str, Any]:
    return {"use_vllm": True, **options}


def _server(option: str, value: Any) -> SwiftCase:
    return SwiftCase(f"a server, and {option}", {option: value}, server="127.0.0.1")


# Valid arguments: if these are refused, the harness is at fault and no result counts.
CONTROL = "no_engine"
CASES: Mapping[str, SwiftCase] = {
    CONTROL: SwiftCase("no vLLM at all", ranks=1, devices=1),
    # ms-swift 3.2 to 3.4: the mode follows from the resources.
    "workers_colocate": SwiftCase("2 devices, 2 train, 2 infer", _vllm(num_infer_workers=2)),
    "workers_separate": SwiftCase("3 devices, 2 train, 1 infers", _vllm(num_infer_workers=1), devices=3),
    "workers_do_not_add_up": SwiftCase("4 devices, 2 train, 1 infers", _vllm(num_infer_workers=1), devices=4),
    "workers_fewer_ranks": SwiftCase("3 devices, 2 train, 3 infer", _vllm(num_infer_workers=3), devices=3),
    "workers_colocate_async": SwiftCase(
        "2 devices, 2 train, 2 infer, async_generate", _vllm(num_infer_workers=2, async_generate=True)
    ),
    "workers_separate_async": SwiftCase(
        "3 devices, 2 train, 1 infers, async_generate",
        _vllm(num_infer_workers=1, async_generate=True),
        devices=3,
    ),
    "workers_separate_async_eval": SwiftCase(
        "the same, evaluating every step",
        _vllm(num_infer_workers=1, async_generate=True, eval_strategy="steps", eval_steps=1),
        devices=3,
    ),
    "workers_separate_sleep": SwiftCase(
        "3 devices, 2 train, 1 infers, sleep_level 1", _vllm(num_infer_workers=1, sleep_level=1), devices=3
    ),
    "workers_separate_parallel": SwiftCase(
        "3 devices, 2 train, 1 infers, tensor_parallel_size 2",
        _vllm(num_infer_workers=1, tensor_parallel_size=2),
        devices=3,
    ),
    # From 3.5 on the mode is an explicit option.
    "mode_colocate": SwiftCase("vllm_mode colocate", _vllm(vllm_mode="colocate")),
    "mode_unsaid": SwiftCase("use_vllm without vllm_mode", _vllm()),
    "mode_without_vllm": SwiftCase("vllm_mode colocate without use_vllm", {"vllm_mode": "colocate"}),
    "mode_server_no_host": SwiftCase("vllm_mode server, no address", _vllm(vllm_mode="server")),
    "mode_colocate_async": SwiftCase(
        "vllm_mode colocate, async_generate", _vllm(vllm_mode="colocate", async_generate=True)
    ),
    "mode_colocate_sleep": SwiftCase(
        "vllm_mode colocate, sleep_level 1", _vllm(vllm_mode="colocate", sleep_level=1)
    ),
    "mode_colocate_parallel": SwiftCase(
        "vllm_mode colocate, 2 train, vllm_tensor_parallel_size 3",
        _vllm(vllm_mode="colocate", vllm_tensor_parallel_size=3),
    ),
    # The server is elsewhere: options of a local engine.
    "server_alone": SwiftCase("a server, nothing for a local engine", server="127.0.0.1"),
    "server_ignores_device": _server("vllm_device", "cuda:1"),
    "server_ignores_workers": _server("num_infer_workers", 2),
    "server_ignores_length": _server("vllm_max_model_len", 32),
    # In every mode.
    "groups_do_not_divide": SwiftCase(
        "8 completions a step in groups of 3", {"num_generations": 3}, ranks=1, devices=1
    ),
    "one_generation": SwiftCase("groups of 1", {"num_generations": 1}, ranks=1, devices=1),
}


def main(arguments: Sequence[str]) -> None:
    """Run the cases, each in separate processes, and print the results."""
    unknown = [name for name in arguments if name not in CASES]
    if unknown:
        sys.exit(f"no case {unknown[0]}; there are: {', '.join(CASES)}")
    printed = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # imported packages print, too
    sys.path.insert(0, str(Path(__file__).parent / "accelerators"))
    os.environ.update(
        {_COUNT: "1", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    )
    with tempfile.TemporaryDirectory(prefix="repro-") as folder:
        os.chdir(folder)
        _write_inputs(Path(folder))
        arguments_class = _import_arguments_class()
        results = {name: run_case(arguments_class, CASES[name], Path(folder)) for name in arguments or CASES}
    control = results.get(CONTROL, {"said": "accepts"})
    if control["said"] != "accepts":
        sys.exit(f"the plainest arguments are not accepted here: {control['text']}")
    report = {
        "schema": SCHEMA,
        "version": metadata.version("ms-swift"),
        "packages": {name: _version(name) for name in PACKAGES},
        "simulated": SIMULATED,
        "about": {name: CASES[name].description for name in results},
        "cases": results,
    }
    json.dump(report, printed)
    printed.write("\n")
    printed.flush()


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"


def _import_arguments_class() -> Any:
    """Import RLHFArguments from where this release has it."""
    try:
        from swift.llm.argument import RLHFArguments
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("swift.llm"):
            raise
        from swift.arguments import RLHFArguments  # from 4.0 on
    return RLHFArguments


def run_case(arguments_class: Any, case: SwiftCase, folder: Path) -> dict[str, Any]:
    """Construct the arguments on every rank of a case; return the result."""
    options = _common_options(arguments_class, folder) | dict(case.options)
    needed = {*options, *(["vllm_server_host"] if case.server else [])}
    absent = sorted(needed - {item.name for item in fields(arguments_class)})
    if absent:
        return {"said": "no option", "text": ", ".join(absent)}
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as listener:
        port = listener.getsockname()[1]
    ranks = [_Rank(arguments_class, options, case, rank, port) for rank in range(case.ranks)]
    try:
        reports = _collect(ranks)
    finally:
        for rank in ranks:
            rank.terminate()
    refused = [report for report in reports if report.get("refused")]
    if refused:
        return {"said": "refuses", "text": refused[0]["refused"], "where": refused[0]["where"]}
    if len(reports) < case.ranks:
        return {
            "said": "unknown",
            "text": f"{len(reports)} of {case.ranks} ranks answered within {_LIMIT_S:g} s",
        }
    warnings = list(dict.fromkeys(line for report in reports for line in report["warnings"]))
    chosen = reports[0]["chosen"]
    return {"said": "warns" if warnings else "accepts", "text": " | ".join(warnings), "chosen": chosen}


class _Rank:
    """A forked training process that constructs the arguments and reports the result over a pipe."""

    def __init__(
        self, arguments_class: Any, options: Mapping[str, Any], case: SwiftCase, rank: int, port: int
    ) -> None:
        self.reading, writing = os.pipe()
        self.pid = os.fork()
        if self.pid:
            os.close(writing)
            return
        try:
            os.environ[_COUNT] = str(case.devices)
            os.environ.update(_torchrun_variables(rank, case.ranks, port))
            report = _construct_arguments(arguments_class, options, case)
            os.write(writing, json.dumps(report).encode())
            os.close(writing)
            signal.pause()  # other ranks may still communicate with it; it is killed when all have reported
        finally:
            os._exit(0)

    def terminate(self) -> None:
        """Kill the process."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self.reading)


def _collect(ranks: Sequence[_Rank]) -> list[dict[str, Any]]:
    """Return the reports of all ranks, or those up to the first refusal or the time limit."""
    waiting, reports = {rank.reading: b"" for rank in ranks}, []
    deadline = time.monotonic() + _LIMIT_S
    while waiting:
        ready, _, _ = select.select(list(waiting), [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            break
        for descriptor in ready:
            part = os.read(descriptor, 65536)
            waiting[descriptor] += part
            if part:
                continue
            chunk = waiting.pop(descriptor)
            if chunk:
                reports.append(json.loads(chunk))
                if reports[-1].get("refused"):
                    return reports
    return reports


def _torchrun_variables(rank: int, ranks: int, port: int) -> dict[str, str]:
    """Return the variables that torchrun sets for a rank."""
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
    return {name: str(value) for name, value in names.items()} | {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


def _construct_arguments(arguments_class: Any, options: Mapping[str, Any], case: SwiftCase) -> dict[str, Any]:
    warned = _Warnings()
    logging.getLogger("swift").addHandler(warned)
    for logger in [logging.getLogger(name) for name in logging.root.manager.loggerDict if "swift" in name]:
        logger.addHandler(warned)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            arguments = arguments_class(**options)
        if case.server:
            warned.lines.clear()
            arguments.use_vllm, arguments.vllm_server_host = True, case.server
            arguments._external_vllm_warning()
    except Exception as error:  # noqa: BLE001 - the exception is the result
        return {"refused": _error_text(error), "where": _last_frame(error)}
    names = ("vllm_mode", "num_infer_workers", "sleep_level", "async_generate", "vllm_tensor_parallel_size")
    return {
        "warnings": [line for line in warned.lines if any(name in line for name in _WARNING_WORDS)],
        "chosen": {name: getattr(arguments, name) for name in names if hasattr(arguments, name)},
    }


# A warning counts if it contains one of these words.
_WARNING_WORDS = ("vllm", "infer_workers", "sleep_level", "async", "external", "colocate")


class _Warnings(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(" ".join(record.getMessage().split()))


def _error_text(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


def _last_frame(error: Exception) -> str:
    """Return path and function of the last frame in ms-swift, or else in another package (without the line number)."""
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if "/site-packages/" in frame.filename
    ]
    mine = [frame for frame in frames if "/site-packages/swift/" in frame.filename]
    frame = (mine or frames or traceback.extract_tb(error.__traceback__))[-1]
    return f"{frame.filename.rpartition('/site-packages/')[2]} {frame.name}"


def _common_options(arguments_class: Any, folder: Path) -> dict[str, Any]:
    """Return the options of a small GRPO run that this release has."""
    known = {item.name for item in fields(arguments_class)}
    options = {
        "rlhf_type": "grpo",
        "model": str(folder / "model"),
        "model_type": "llama" if metadata.version("ms-swift")[0] > "3" else "llama3",
        "template": "llama3",
        "torch_dtype": "float32",
        "dataset": [str(folder / "data.jsonl")],
        "val_dataset": [str(folder / "data.jsonl")],
        "reward_funcs": ["format"],
        "use_hf": True,
        "output_dir": str(folder / "out"),
        "add_version": False,
        "per_device_train_batch_size": 8,
        "per_device_eval_batch_size": 8,
        "num_generations": 8,
        "max_completion_length": 8,
        "use_cpu": True,
        "ddp_backend": "gloo",
        "report_to": [],
        ("tuner_type" if "tuner_type" in known else "train_type"): "full",
    }
    return {name: value for name, value in options.items() if name in known}


def _write_inputs(folder: Path) -> None:
    """Write a tiny model's configuration and tokenizer, and one row of data: nothing is loaded from a hub."""
    model = folder / "model"
    model.mkdir()
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 8,
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "max_position_embeddings": 64,
        "torch_dtype": "float32",
    }
    special = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>", "pad_token": "</s>"}
    vocabulary = {word: number for number, word in enumerate(["<unk>", "<s>", "</s>", "a", "b"])}
    words = {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"}
    added = [
        {
            "id": vocabulary[word],
            "content": word,
            "special": True,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
        }
        for word in ("<unk>", "<s>", "</s>")
    ]
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": None,
        "decoder": None,
        "model": words,
    }
    (model / "config.json").write_text(json.dumps(config))
    (model / "tokenizer.json").write_text(json.dumps(tokenizer))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", **special}
    (model / "tokenizer_config.json").write_text(json.dumps(settings))
    row = {"messages": [{"role": "user", "content": "a"}]}
    (folder / "data.jsonl").write_text(json.dumps(row) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
