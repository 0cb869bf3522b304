"""Any engine in a process of its own, so that it samples while the trainer trains."""

from __future__ import annotations

import os
import queue
import sys
import threading
import time
from collections import deque
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_core.machine.process import make_deterministic
from grpo_core.rollout.build import EngineSpec, build_engine
from grpo_core.rollout.engine import EngineError, EngineTimeoutError
from grpo_core.rollout.pipes import LimitedPipe, end_child, read_frame, start_child, write_frame
from grpo_core.rollout.weights.sync import Receiver, open_sender
from grpo_core.rollout.weights.transports import TornError
from grpo_core.rollout.wire import (
    decode_capabilities,
    decode_completions,
    decode_requests,
    encode_capabilities,
    encode_completions,
    encode_requests,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import torch

    from grpo_core.rollout.engine import Capabilities, Engine
    from grpo_core.rollout.weights.flat import Flat
    from grpo_core.types import Completion, Request, SamplingParams


class ProcessEngine:
    """The trainer's side. `start_generate` and `finish_generate` are the halves of a call; others wait for none."""

    def __init__(
        self, spec: EngineSpec, *, timeout_s: float, sync: str = "auto", root: Path | None = None
    ) -> None:
        """Starts the child and waits until its engine is up.

        Args:
            spec: The engine.
            timeout_s: The longest wait for an answer.
            sync: How weights get there, of `grpo_core.rollout.weights.transports.KINDS`.
            root: The folder for `files`.
        """
        self.name = f"{spec.engine} (own process)"
        self._timeout_s = timeout_s
        self._in_flight: deque[Sequence[Request]] = deque()
        self._writing = threading.RLock()  # an abort comes from another thread
        self._aborted = False
        self._process = start_child(["grpo_core.rollout.subprocess_engine"], spec.threads)
        self._answers: queue.SimpleQueue[tuple[dict[str, Any], bytearray] | None] = queue.SimpleQueue()
        # A thread reads, since a pipe can't be read with a time limit on every platform.
        self._reader = threading.Thread(target=self._read, name="engine-answers", daemon=True)
        self._reader.start()
        try:
            self._sender = open_sender(sync, self._call, timeout_s=timeout_s, root=root)
            own = {"timeout_s": timeout_s, "root": None if root is None else str(root)}
            state = self._call("start", {"spec": asdict(spec), "sync": own})
        except BaseException:
            self.close()
            raise
        able = decode_capabilities(state["capabilities"], self.name)
        self._capabilities = able.without(sleep="a process of its own has memory of its own to give back")
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
        self._ask(requests, params)
        self._in_flight.append(list(requests))

    def finish_generate(self) -> list[Completion]:
        """Waits for what the oldest `start_generate` asked for.

        Raises:
            EngineError: The child died, failed or answered something else.
        """
        if not self._in_flight:
            raise EngineError(f"{self.name} engine: finish_generate without start_generate")
        requests = self._in_flight.popleft()
        return self._answer(requests)

    def generate(self, requests: Sequence[Request], params: SamplingParams) -> list[Completion]:
        """Samples one completion a request, in the order of the requests."""
        self._check_idle("generate")
        self._ask(requests, params)
        return self._answer(requests)

    def update_weights(self, tensors: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        """Sends all parameters. What the engine refuses changes nothing; a version that came torn leaves none."""
        self._version = self._sender.send(tensors, version)

    def fingerprint(self) -> str | None:
        """The child's engine's."""
        digest = self._call("fingerprint", {})["fingerprint"]
        return None if digest is None else str(digest)

    def abort(self) -> None:
        """From another thread: the running generate ends with what it has. It is what is answered, not this."""
        with self._writing:  # so that it is clear which call it is meant for
            self._aborted = True
            self._send("abort", {})

    def reset_prefix_cache(self) -> None:
        """Makes the child's engine forget cached keys and values."""
        self._call("reset_prefix_cache", {})

    def close(self) -> None:
        """Ends the child."""
        if hasattr(self, "_sender"):
            self._sender.close()
        end_child(self._process)
        self._reader.join()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _ask(self, requests: Sequence[Request], params: SamplingParams) -> None:
        with self._writing:
            self._aborted = False
            self._send("generate", encode_requests(requests, params))

    def _answer(self, requests: Sequence[Request]) -> list[Completion]:
        return decode_completions(self._receive("generate"), requests, self.name, aborted=self._aborted)

    def _check_idle(self, method: str) -> None:
        if self._in_flight:
            raise EngineError(f"{self.name} engine, {method}: {len(self._in_flight)} rollouts are in flight")

    def _call(self, method: str, arguments: dict[str, Any], payload: Flat | None = None) -> dict[str, Any]:
        self._check_idle(method)
        self._send(method, arguments, payload)
        return self._receive(method)

    def _send(self, method: str, arguments: dict[str, Any], payload: Flat | None = None) -> None:
        if self._process.stdin is None or self._process.stdin.closed:
            raise EngineError(f"{self.name} engine, {method}: the engine is closed")
        message = {"method": method, "arguments": arguments}
        try:
            with self._writing:
                pipe = LimitedPipe(self._process.stdin, self._timeout_s)
                if payload is None:
                    write_frame(pipe, message)
                else:
                    write_frame(pipe, message, payload.size, payload.pieces())
        except TimeoutError:
            self._process.kill()  # with a part of a message it understands no other
            raise EngineTimeoutError(
                f"{self.name} engine, {method}: what it is sent it did not read on in {self._timeout_s:g} s "
                "(rollout.timeout_s); it was ended"
            ) from None
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
        if document.get("torn"):
            self._version = -1
        if document.get("error") is not None:
            raise EngineError(f"{document['error']} (in process {self.pid})")
        return dict(document["result"])

    def _death(self, method: str) -> EngineError:
        code = self._process.wait(timeout=self._timeout_s)
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        return EngineError(f"{self.name} engine, {method}: its process {self.pid} ended with {how}")

    def _read(self) -> None:
        stdout = self._process.stdout
        answer: tuple[dict[str, Any], bytearray] | None = None
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
        self.receiver: Receiver | None = None
        self.asked = self.done = 0  # calls of generate

    def start(self, arguments: dict[str, Any], _: bytearray) -> dict[str, Any]:
        spec, sync = EngineSpec(**arguments["spec"]), arguments["sync"]
        make_deterministic(spec.threads)
        self.receiver = Receiver(
            timeout_s=sync["timeout_s"], root=None if sync["root"] is None else Path(sync["root"])
        )
        self.engine = build_engine(spec)
        return {"capabilities": encode_capabilities(self.engine.capabilities)}

    def generate(self, arguments: dict[str, Any], _: bytearray) -> dict[str, Any]:
        assert self.engine is not None
        try:
            return encode_completions(self.engine.generate(*decode_requests(arguments)))
        finally:
            self.done += 1

    def sync_open(self, arguments: dict[str, Any], _: bytearray) -> dict[str, Any]:
        assert self.receiver is not None
        return self.receiver.open(arguments)

    def sync_begin(self, arguments: dict[str, Any], _: bytearray) -> dict[str, Any]:
        assert self.receiver is not None
        return self.receiver.begin(arguments)

    def sync_load(self, arguments: dict[str, Any], payload: bytearray) -> dict[str, Any]:
        assert self.engine is not None
        assert self.receiver is not None
        return self.receiver.load(arguments, self.engine, payload)

    def abort(self) -> None:
        """Comes between the calls, in the thread that listens, perhaps before its generate has begun."""
        if self.asked > self.done and hasattr(self.engine, "abort"):
            threading.Thread(target=self._stop, args=(self.done,), daemon=True).start()

    def _stop(self, done: int) -> None:
        while self.done == done:
            self.engine.abort()  # type: ignore[union-attr]
            time.sleep(0.01)

    def reset_prefix_cache(self, _: dict[str, Any], __: bytearray) -> dict[str, Any]:
        forget = getattr(self.engine, "reset_prefix_cache", None)
        if forget is not None:
            forget()
        return {}

    def fingerprint(self, _: dict[str, Any], __: bytearray) -> dict[str, Any]:
        assert self.engine is not None
        return {"fingerprint": self.engine.fingerprint()}


def _child() -> None:
    """Answers calls until stdin ends, and then ends at once, whatever is being sampled."""
    sys.stdout.flush()
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what an engine prints must not get between the frames
    calls: queue.SimpleQueue[tuple[dict[str, Any], bytearray]] = queue.SimpleQueue()

    servant = _Servant()

    def listen() -> None:
        while (call := read_frame(sys.stdin.buffer)) is not None:
            if call[0]["method"] == "abort":
                servant.abort()
                continue
            servant.asked += call[0]["method"] == "generate"
            calls.put(call)
        os._exit(0)  # the trainer is gone: nobody waits for the rest

    threading.Thread(target=listen, daemon=True).start()
    while True:
        document, payload = calls.get()
        try:
            result = getattr(servant, document["method"])(document["arguments"], payload)
            write_frame(answers, {"result": result, "error": None})
        except EngineError as error:
            write_frame(answers, {"error": str(error), "torn": isinstance(error, TornError)})
        except Exception as error:  # noqa: BLE001 - told to the trainer, with the traceback above
            import traceback

            traceback.print_exc()
            write_frame(answers, {"error": f"engine, {document['method']}: {type(error).__name__}: {error}"})


if __name__ == "__main__":
    _child()
