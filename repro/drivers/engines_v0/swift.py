"""ms-swift's own inference engine, `GRPOVllmEngine` of its wheel, called by two threads as its trainer calls it.

With `async_generate` the trainer's rollout runs `infer()` in a thread of one worker, and evaluation, up to 3.4.1.post1,
runs it in the main thread on the same engine. ms-swift patches parts of vLLM itself; nothing of either is changed here.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Sequence
from importlib import metadata, util
from types import SimpleNamespace
from typing import Any

from repro.base import InapplicableError, Work
from repro.drivers.engines_v0 import two_owners
from repro.drivers.engines_v0.asked import Asked, Processor
from repro.drivers.engines_v0.engine import Offline, needed
from repro.drivers.engines_v0.moments import HOLDS
from repro.drivers.whole_engine import VOCABULARY

SIMULATED = (
    *HOLDS,
    "a subclass of ours adds that processor to ms-swift's sampling parameters, and leaves its stop words out",
    "the trainer around it: two threads call infer(), as its rollout and its evaluation do",
)
# ms-swift's answers tell a prompt's length and not its tokens: each is of a length of its own.
TRAINING = tuple(Asked(f"train-{index}", 10 + index, 8 + 3 * index, 6) for index in range(4))
EVALUATION = tuple(Asked(f"eval-{index}", 20 + index, 20 + 3 * index, 4) for index in range(2))


def lacks() -> str | None:
    """Says what is missing for it here, or None. Imports nothing."""
    if util.find_spec("swift") is None:
        return "ms-swift is not on the path: docs/engine-v0.md says how it is put beside a cell"
    return needed()


def two_threads(mitigation: str | None) -> Work:
    """Rollout and evaluation call `GRPOVllmEngine.infer`."""
    if mitigation == "lock_around_step":
        raise InapplicableError("infer() steps by itself: its caller has no step to lock")
    if mitigation == "server_mode":
        raise InapplicableError("ms-swift's own server is not driven here; vLLM's is, by llm_two_threads")
    return two_owners.two_threads(mitigation, Swift, (TRAINING, EVALUATION))


class Swift(Offline):
    """`swift.llm.infer.infer_engine.grpo_vllm_engine.GRPOVllmEngine`, around a `vllm.LLM`."""

    def _start(self, folder: str, given: dict[str, Any]) -> Any:
        import torch

        given = dict(given)
        for ours in ("dtype", "skip_tokenizer_init"):
            given.pop(ours)
        outer = {name: given.pop(name) for name in ("max_model_len", "max_num_seqs", "enforce_eager")}
        self._write_tokenizer(folder)
        started = _class()(
            folder,
            torch.float32,
            use_async_engine=False,
            model_type="llama3_2",
            use_hf=True,
            engine_kwargs=given,
            **outer,
        )
        self._template = importlib.import_module("swift.llm").get_template("dummy", started.processor)
        self._template.set_mode("vllm")
        # The template adds tokens of its own.
        self._asked = {
            len(self._template.encode(_request(item))["input_ids"]): item for item in (*TRAINING, *EVALUATION)
        }
        return started

    def _core(self) -> Any:
        return self.outer.engine.llm_engine

    @staticmethod
    def _write_tokenizer(folder: str) -> None:
        """Writes one whose words are the token ids themselves."""
        from tokenizers import Tokenizer, models, pre_tokenizers
        from transformers import PreTrainedTokenizerFast

        words = Tokenizer(models.WordLevel({str(token): token for token in range(VOCABULARY)}))
        words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=words)
        tokenizer.eos_token = "2"  # noqa: S105 - a token of text
        tokenizer.chat_template = "{{ messages[0]['content'] }}"
        tokenizer.save_pretrained(folder)

    def generate(
        self, asked: Sequence[Asked], processor: Processor | None = None, _turn: object = None
    ) -> list[Any]:
        """Calls `infer`; the processor goes with the first request."""
        settings = importlib.import_module("swift.llm").RequestConfig(
            max_tokens=asked[0].max_tokens, temperature=0, seed=0
        )
        if processor:  # parameters are made in the thread that asks
            self.outer.processors[threading.get_ident()] = processor
        answers = self.outer.infer([_request(item) for item in asked], settings, template=self._template)
        return [self._as_vllms(answer) for answer in answers]

    def _as_vllms(self, answer: Any) -> Any:
        """Returns an answer of ms-swift's in the form of vLLM's, its prompt known by its length."""
        return SimpleNamespace(
            prompt_token_ids=self._asked[answer.usage.prompt_tokens].prompt,
            finished=answer.choices[0].finish_reason == "length",
            outputs=[SimpleNamespace(token_ids=range(answer.usage.completion_tokens))],
        )


def _request(item: Asked) -> Any:
    words = " ".join([str(item.token)] * item.length)
    return importlib.import_module("swift.llm").InferRequest(messages=[{"role": "user", "content": words}])


def _class() -> Any:
    try:
        base: Any = importlib.import_module("swift.llm.infer.infer_engine.grpo_vllm_engine").GRPOVllmEngine
    except ImportError as error:
        release = metadata.version("ms-swift")
        raise InapplicableError(
            f"ms-swift {release} has no GRPOVllmEngine that can be imported here: {error}"
        ) from error

    class WithProcessor(base):  # type: ignore[misc]
        processors: dict[int, Any] = {}  # noqa: RUF012 - one attempt, one process

        def _prepare_generation_config(self, request_config: Any) -> Any:
            made = super()._prepare_generation_config(request_config)
            made.ignore_eos = True
            first = self.processors.pop(threading.get_ident(), None)
            made.logits_processors = [first] if first else None
            return made

        def _add_stop_words(self, *_: Any, **__: Any) -> None:
            """Adds none: every completion is to have all its tokens."""

    return WithProcessor
