"""SCH002 on the whole engine of vLLM's CPU build, to which a platform plugin gives the async output that it lacks.

Real: `LLM`, the engine with its asynchronous path, scheduler, worker, model and forward pass. Simulated, through two
interfaces that vLLM offers: the platform's answer that asynchronous output is supported (a platform plugin), and the
call of the engine's callback that CUDA's model runner makes during a forward pass and the CPU's does not (an executor
class). vLLM picks its platform when it is imported, so each attempt has a process of its own, which imports it again.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from repro.base import InapplicableError, Work
from repro.drivers import elsewhere
from repro.drivers.engines_v0.asked import LIMIT, Asked, work
from repro.drivers.engines_v0.engine import Offline, options

SIMULATED = (
    "the CPU platform's answer that it supports async output (a platform plugin)",
    "the call of the engine's async callback before each forward pass (an executor class)",
)
_NEIGHBOUR = Asked("neighbour", 40, 5, 40)
# By itself the prompt is short enough; with the tokens it must produce it is not.
_MINIMUM = Asked("minimum", 41, LIMIT - 4, 30, min_tokens=16)
_LEGAL = Asked("legal", 42, 8, 5)
_BETWEEN_CALLS = {"abort_leftovers", "drain", "fresh_engine"}
_UNCHANGED = {
    "chunked_prefill_off": "chunked prefill is off already in this engine",
    "filter_overlong": "no prompt is over max_model_len",
    "truncate_overlong": "no prompt is over max_model_len",
}


def llm_min_tokens(mitigation: str | None) -> Work:
    """One `LLM.generate` with a row whose minimum does not fit, and a neighbour that goes on."""
    if mitigation in _BETWEEN_CALLS:
        raise InapplicableError("it acts between two calls of generate(); this failure falls within one")
    return _apart("in_one_call", mitigation)


def llm_min_tokens_poisons_next(mitigation: str | None) -> Work:
    """The row alone: `LLM.generate` returns nothing for it, and the next call, with a legal prompt, asserts."""
    return _apart("in_two_calls", mitigation)


def _apart(story: str, mitigation: str | None) -> Work:
    options(None)
    if mitigation in _UNCHANGED:
        raise InapplicableError(_UNCHANGED[mitigation])
    report = elsewhere.ask(__name__, {"story": story, "mitigation": mitigation}, _environment())
    if report["failure"]:
        raise elsewhere.failed(report["failure"], report["note"])
    return Work(**report["work"])


def _environment() -> dict[str, str]:
    """Returns this process's environment, and a folder on the path in which the plugin is declared."""
    import tempfile

    plugins = Path(tempfile.mkdtemp(), "site")
    info = plugins / "grpo_doctor_async_output-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: grpo-doctor-async-output\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[vllm.platform_plugins]\nasync_output = {__name__}:register\n")
    paths = [str(plugins), str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def register() -> str:
    """Is the plugin: names the platform's class."""
    return "repro.drivers.engines_v0.async_platform.Platform"


def executor() -> type[Any]:
    """Returns vLLM's CPU executor that calls the engine back before a forward pass, as CUDA's model runner does."""
    from vllm.executor.mp_distributed_executor import MultiprocessingDistributedExecutor

    class Executor(MultiprocessingDistributedExecutor):  # type: ignore[misc]
        def execute_model(self, execute_model_req: Any) -> Any:
            if execute_model_req.async_callback:
                execute_model_req.async_callback()
                execute_model_req.async_callback = (
                    None  # or the worker would pass it to a runner without a place for it
                )
            return super().execute_model(execute_model_req)

    return Executor


def run(plan: dict[str, Any]) -> Mapping[str, Any]:
    """Is the other process: carries a story out, and reports the work it did or the failure it ended with."""
    mitigation = plan["mitigation"]
    engine = Offline(mitigation, distributed_executor_backend=executor())
    if engine.core.model_config.use_async_output_proc == (mitigation == "async_output_off"):
        raise RuntimeError("the engine's async output is not what was asked for")
    told = _in_one_call if plan["story"] == "in_one_call" else _in_two_calls
    try:
        return {"failure": None, "work": asdict(told(engine, mitigation)), "note": ""}
    except AssertionError as error:
        failure = elsewhere.told(error)
        return {"failure": failure, "work": None, "note": _once_more(engine)}


def _in_one_call(engine: Offline, mitigation: str | None) -> Work:
    asked = [_NEIGHBOUR, _minimum(mitigation)]
    return work([(asked, engine.generate(asked))], [engine])


def _in_two_calls(engine: Offline, mitigation: str | None) -> Work:
    first = [_minimum(mitigation)]
    callers = [(first, engine.generate(first))]
    if mitigation == "abort_leftovers":
        engine.abort_in_flight()
    elif mitigation == "drain":
        engine.core.scheduler[0].free_finished_seq_groups()
    elif mitigation == "fresh_engine":
        engine = Offline(mitigation, distributed_executor_backend=executor())
    callers.append(([_LEGAL], engine.generate([_LEGAL])))
    # Those come too late for the first call: what they promise is a second one that works.
    return work(callers[1:] if mitigation in _BETWEEN_CALLS else callers, [engine])


def _minimum(mitigation: str | None) -> Asked:
    fits = LIMIT - _MINIMUM.length
    return replace(_MINIMUM, min_tokens=fits) if mitigation == "cap_min_tokens" else _MINIMUM


def _once_more(engine: Offline) -> str:
    """Says what comes of catching the assertion, aborting everything, and asking for a legal prompt."""
    engine.abort_in_flight()
    try:
        done = work([([_LEGAL], engine.generate([_LEGAL]))], [engine])
    except AssertionError:
        return (
            f"caught, everything aborted, a legal prompt asked for: the same again, {engine.parked()} parked"
        )
    return f"caught, everything aborted, a legal prompt asked for: {done.describe()}"


if __name__ == "__main__":
    elsewhere.answer(run)
