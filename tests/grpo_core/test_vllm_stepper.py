"""`Stepper` submits requests within a fake vLLM's limits, and pairs each with its output.

A vLLM that answers unknown requests or loses some is an error.
"""

from types import SimpleNamespace

import pytest

from grpo_core.rollout import vllm_engine
from grpo_core.rollout.engine import EngineError
from grpo_core.rollout.vllm_engine import Job, Stepper


class CountingEngine:
    """Give each request one token per step; record each step's prompt tokens, and the most requests and blocks."""

    def __init__(self, *, blocks=100, sequences=8, tokens=50):
        self.vllm_config = SimpleNamespace(
            cache_config=SimpleNamespace(block_size=10, num_gpu_blocks=blocks),
            scheduler_config=SimpleNamespace(max_num_seqs=sequences, max_num_batched_tokens=tokens),
        )
        self.left, self.prompts = {}, {}
        self.new_tokens, self.most_running, self.most_blocks = [0], 0, 0

    def add_request(self, name, prompt, params):
        self.left[name], self.prompts[name] = params.max_tokens, prompt
        self.new_tokens[-1] += len(prompt)

    def step(self):
        """Give each request one token; record the numbers of requests and blocks."""
        stored = [self.prompts[name] for name in self.left]
        self.most_running = max(self.most_running, len(stored))
        self.most_blocks = max(self.most_blocks, sum(len(prompt) // 10 + 1 for prompt in stored))
        self.new_tokens.append(0)
        outputs = []
        for name in list(self.left):
            self.left[name] -= 1
            output = {"request_id": name, "prompt": self.prompts[name]}
            outputs.append(SimpleNamespace(**output, finished=not self.left[name]))
            if not self.left[name]:
                del self.left[name]
        return outputs

    def has_unfinished_requests(self):
        return bool(self.left)


@pytest.fixture(autouse=True)
def plain_prompts(monkeypatch):
    """Pass prompts as plain ids, because vLLM's prompt class needs vLLM."""
    monkeypatch.setattr(vllm_engine, "engine_prompt", lambda ids: ids)


def make_jobs(*lengths, max_tokens=3):
    """Return one job for each prompt length, with this many tokens at most."""
    return [Job(tuple(range(length)), SimpleNamespace(max_tokens=max_tokens)) for length in lengths]


def test_jobs_get_their_own_output_in_any_finish_order():
    """A second call can't mistake request names of the first for its own."""
    engine = CountingEngine()
    stepper = Stepper(engine)
    batch = [*make_jobs(3, 1, 2), *make_jobs(9, max_tokens=1)]
    for _ in range(2):
        outputs = stepper.run(batch)
        assert [output.prompt for output in outputs] == [job.ids for job in batch]
        assert all(output.finished for output in outputs)


def test_prompts_are_submitted_within_the_step_budget():
    """Each step of forty prompts stays within the token budget, the cache and the batch size."""
    engine = CountingEngine(blocks=20, sequences=6, tokens=50)
    assert all(Stepper(engine).run(make_jobs(*(range(1, 41)), max_tokens=5)))
    assert max(engine.new_tokens) <= 50
    assert engine.most_blocks <= 20
    assert 1 < engine.most_running <= 6


def test_job_that_fills_the_engine_runs_alone():
    engine = CountingEngine(blocks=6, tokens=50)
    assert all(Stepper(engine).run(make_jobs(50, 2, 50)))
    assert (max(engine.new_tokens), engine.most_running) == (50, 1)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (lambda engine: [SimpleNamespace(request_id="7", finished=True)], "an answer to unknown request 7"),
        (lambda engine: engine.left.clear() or [], "vLLM lost 2 requests before they ended"),
    ],
)
def test_inconsistent_scheduler_is_an_error(fault, message):
    """A scheduler that answers unknown requests or loses some causes neither a wrong pairing nor an endless loop."""
    engine = CountingEngine()
    engine.step = lambda: fault(engine)
    with pytest.raises(EngineError, match=message):
        Stepper(engine).run(make_jobs(1, 2))
