"""Any engine in a process of its own, so that it samples while the trainer trains."""

from __future__ import annotations

import os
import queue
import sys
import threading
from collections import deque
from typing import TYPE_CHECKING, Any

from grpo_core.engines import EngineSpec, build_engine
from grpo_core.engines.base import Capabilities, EngineError, EngineTimeoutError
from grpo_core.engines.frames import end_child, read_frame, start_child, write_frame
from grpo_core.engines.wire import decode_completions, decode_requests, encode_completions, encode_requests

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import torch

    from grpo_core.engines.base import Engine
    from grpo_core.types import Completion, Request, SamplingParams


class ProcessEngine:
    """The trainer's side. `start_generate` and `finish_generate` are the halves of a call; others wait for none."""

    def __init__(self, spec: EngineSpec, *, timeout_s: float) -> None:
        """Starts the child and waits until its engine is up."""
        self.name = f"{spec.engine} (own process)"
        self._timeout_s = timeout_s
        self._in_flight: deque[Sequence[Request]] = deque()
        self._process = start_child(["grpo_core.engines.process"], spec.threads)
        self._answers: queue.SimpleQueue[tuple[dict[str, Any], bytes] | None] = queue.SimpleQueue()
        # A thread reads, since a pipe can't be read with a time limit on every platform.
        self._reader = threading.Thread(target=self._read, name="engine-answers", daemon=True)
        self._reader.start()
        try:
            state = self._call("start", spec.as_dict())
        except BaseException:
            self.close()
            raise
        self._capabilities = Capabilities(**{**state["capabilities"], "sleep": False})
        self._version = -1

    @property
    def capabilities(self) -> Capabilities:
        """Those of the engine in the child."""
        return self._capabilities

    @property
    def policy_version(self) -> int:
        """As the child reported after the last update."""
        return self._version

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._process.pid

    def start_generate(self, requests: Sequence[Request], params: SamplingParams) -> None:
        """Sends the requests and returns at once; they wait for those sent before."""
        self._in_flight.append(list(requests))
        self._send("generate", encode_requests(requests, params))

    def finish_generate(self) -> list[Completion]:
        """Waits for what the oldest `start_generate` asked for.

        Raises:
            EngineError: The child died, failed or answered something else.
        """
        if not self._in_flight:
            raise EngineError(f"{self.name} engine: finish_generate without start_generate")
        requests = self._in_flight.popleft()
        return decode_completions(self._receive("generate"), requests, self.name)

    def generate(self, requests: Sequence[Request], params: SamplingParams) -> list[Completion]:
        """Samples one completion a request, in the order of the requests."""
        answer = self._call("generate", encode_requests(requests, params))
        return decode_completions(answer, requests, self.name)

    def update_weights(self, tensors: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        """Sends all parameters as safetensors."""
        import safetensors.torch

        payload = safetensors.torch.save({name: tensor.detach().cpu() for name, tensor in tensors})
        self._version = int(self._call("update_weights", {"version": version}, payload)["version"])

    def fingerprint(self) -> str | None:
        """The child's engine's."""
        digest = self._call("fingerprint", {})["fingerprint"]
        return None if digest is None else str(digest)

    def close(self) -> None:
        """Ends the child."""
        end_child(self._process)
        self._reader.join()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _call(self, method: str, arguments: dict[str, Any], payload: bytes = b"") -> dict[str, Any]:
        if self._in_flight:
            raise EngineError(f"{self.name} engine, {method}: {len(self._in_flight)} rollouts are in flight")
        self._send(method, arguments, payload)
        return self._receive(method)

    def _send(self, method: str, arguments: dict[str, Any], payload: bytes = b"") -> None:
        if self._process.stdin is None or self._process.stdin.closed:
            raise EngineError(f"{self.name} engine, {method}: the engine is closed")
        try:
            write_frame(self._process.stdin, {"method": method, "arguments": arguments}, payload)
        except OSError as error:
            raise self._death(method) from error

    def _receive(self, method: str) -> dict[str, Any]:
        try:
            answer = self._answers.get(timeout=self._timeout_s)
        except queue.Empty:
            raise EngineTimeoutError(
                f"{self.name} engine, {method}: no answer in {self._timeout_s:g} s (rollout.timeout_s)"
            ) from None
        if answer is None:
            self._answers.put(None)  # every later call meets the end, too
            raise self._death(method)
        document = answer[0]
        if document.get("error") is not None:
            raise EngineError(f"{document['error']} (in process {self.pid})")
        return dict(document["result"])

    def _death(self, method: str) -> EngineError:
        code = self._process.wait(timeout=self._timeout_s)
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        return EngineError(f"{self.name} engine, {method}: its process {self.pid} ended with {how}")

    def _read(self) -> None:
        stdout = self._process.stdout
        answer: tuple[dict[str, Any], bytes] | None = None
        while True:
            try:
                answer = read_frame(stdout) if stdout is not None else None
            except (OSError, ValueError):  # closed under us, or cut off by the child's death
                answer = None
            self._answers.put(answer)
            if answer is None:
                return


class _Servant:
    """The child's side: one engine, called by name."""

    def __init__(self) -> None:
        self.engine: Engine | None = None

    def start(self, arguments: dict[str, Any], _: bytes) -> dict[str, Any]:
        import torch

        spec = EngineSpec(**arguments)
        torch.set_num_threads(spec.threads)
        torch.use_deterministic_algorithms(mode=True)
        self.engine = build_engine(spec)
        return {"capabilities": vars(self.engine.capabilities)}

    def generate(self, arguments: dict[str, Any], _: bytes) -> dict[str, Any]:
        assert self.engine is not None
        return encode_completions(self.engine.generate(*decode_requests(arguments)))

    def update_weights(self, arguments: dict[str, Any], payload: bytes) -> dict[str, Any]:
        import safetensors.torch

        assert self.engine is not None
        self.engine.update_weights(safetensors.torch.load(payload).items(), arguments["version"])
        return {"version": self.engine.policy_version}

    def fingerprint(self, _: dict[str, Any], __: bytes) -> dict[str, Any]:
        assert self.engine is not None
        return {"fingerprint": self.engine.fingerprint()}


def _child() -> None:
    """Answers calls until stdin ends, and then ends at once, whatever is being sampled."""
    sys.stdout.flush()
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what an engine prints must not get between the frames
    calls: queue.SimpleQueue[tuple[dict[str, Any], bytes]] = queue.SimpleQueue()

    def listen() -> None:
        while (call := read_frame(sys.stdin.buffer)) is not None:
            calls.put(call)
        os._exit(0)  # the trainer is gone: nobody waits for the rest

    threading.Thread(target=listen, daemon=True).start()
    servant = _Servant()
    while True:
        document, payload = calls.get()
        try:
            result = getattr(servant, document["method"])(document["arguments"], payload)
            write_frame(answers, {"result": result, "error": None})
        except EngineError as error:
            write_frame(answers, {"error": str(error)})
        except Exception as error:  # noqa: BLE001 - told to the trainer, with the traceback above
            import traceback

            traceback.print_exc()
            write_frame(answers, {"error": f"engine, {document['method']}: {type(error).__name__}: {error}"})


if __name__ == "__main__":
    _child()
