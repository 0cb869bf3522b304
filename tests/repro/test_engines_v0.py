"""SCH001 and SCH002 on the whole V0 engine of vLLM's CPU build: recorded outcomes by trigger."""

import pytest

from repro.drivers.engines_v0 import EVALUATION, TRAINING, EngineRequest, count_answers
from repro.issues import REPROS
from tests.cells import attempts_in_cell

CELL = "vllm-0.8.5+trl-0.17.0"
ASSERTED = "vllm/core/scheduler.py:1293"


def in_cell(test):
    """Mark a test that runs minutes of whole engines in a cell."""
    return pytest.mark.vllm(pytest.mark.slow(pytest.mark.heavy(test)))


class Output:
    """An answer, as far as counting looks at it."""

    def __init__(self, request, tokens, *, finished=True):
        self.prompt_token_ids, self.finished, self.outputs = request.prompt, finished, [self]
        self.token_ids = list(range(tokens))


def test_an_answer_is_known_by_its_prompt():
    """Its position does not matter: another caller's answer is stray, and a shortened one is not served."""
    first, second = EVALUATION
    done = count_answers([(EVALUATION, [Output(TRAINING[0], 6), Output(second, 4), Output(first, 3)])])
    assert (done.finished, done.stray, done.tokens, done.complete) == (1, 1, 7, False)


def test_what_is_unfinished_is_not_counted():
    """vLLM's outputs of a request that still runs look like those of one that ended."""
    [requests] = [EngineRequest("a", 1, 2, 3)]
    assert count_answers([([requests], [Output(requests, 3, finished=False)])]).finished == 0
    assert count_answers([([requests], [Output(requests, 3)])]).complete


@pytest.fixture(scope="module")
def attempts():
    """All attempts at SCH001 in the cell, by trigger and mitigation."""
    return attempts_in_cell(CELL, "SCH001", "--timeout", "240", timeout_s=1500)


@in_cell
@pytest.mark.parametrize("trigger", ["llm_two_threads", "llm_interrupted", "async_loop_ended"])
def test_the_whole_engine_asserts_and_each_mitigation_does_as_recorded(attempts, trigger):
    """At the wheel's own line; what helps has finished every request, with its tokens, and left no block taken."""
    bare = attempts[trigger, None]
    assert (bare["outcome"], bare["where"]) == ("reproduced", ASSERTED)
    assert "_schedule_default" in bare["chain"][-1]
    for mitigation in REPROS["SCH001"].mitigations:
        observed = attempts[trigger, mitigation.name]
        if trigger in mitigation.helps:
            assert (observed["outcome"], observed["leaked_blocks"]) == ("mitigated", 0), observed
            assert observed["finished"] == observed["expected"] > 0, observed
        else:
            assert observed["outcome"] in {"not_mitigated", "inapplicable"}, observed


@in_cell
def test_the_one_who_does_not_crash_is_worse_off(attempts):
    """Training's generate() returns without an error, with evaluation's completions instead of its own."""
    assert attempts["llm_two_threads", None]["detail"] == (
        "training got 0 of its 4 completions and 2 that it had not asked for, without an error"
    )


@in_cell
def test_after_the_assertion_it_is_too_late_to_abort(attempts):
    """The engine works again, but the lost requests' KV cache blocks stay leaked."""
    detail = attempts["llm_interrupted", None]["detail"]
    assert "asked once more: 2 of 2 requests finished, 8 tokens; 5 KV cache blocks leaked" in detail


@pytest.fixture(scope="module")
def leftovers():
    """All attempts at SCH002 in the cell, by trigger and mitigation."""
    return attempts_in_cell(CELL, "SCH002", "--timeout", "240", timeout_s=1500)


@in_cell
@pytest.mark.parametrize("trigger", ["llm_min_tokens", "llm_min_tokens_poisons_next"])
def test_with_async_output_the_whole_engine_asserts_and_stays_broken(leftovers, trigger):
    """It asserts at the wheel's own line, and again at the next valid prompt, even after aborts."""
    bare = leftovers[trigger, None]
    assert (bare["outcome"], bare["where"]) == ("reproduced", "vllm/core/scheduler.py:701")
    assert bare["detail"].endswith("a legal prompt asked for: the same again, 1 parked")
    assert len(bare["simulated"]) == 2
    for mitigation in ("async_output_off", "cap_min_tokens"):
        observed = leftovers[trigger, mitigation]
        assert (observed["outcome"], observed["leaked_blocks"]) == ("mitigated", 0)
        assert observed["finished"] == observed["expected"] > 0


@in_cell
def test_draining_gives_the_engine_back_and_not_its_blocks(leftovers):
    """The next call is served; the parked sequence's four blocks stay leaked."""
    observed = leftovers["llm_min_tokens_poisons_next", "drain"]
    assert (observed["outcome"], observed["finished"], observed["leaked_blocks"]) == ("not_mitigated", 1, 4)


@in_cell
def test_a_refused_row_moves_the_next_calls_answers(leftovers):
    """No error: the next call's answers begin with those to the rows before the refused one."""
    bare = leftovers["llm_refused_poisons_next", None]
    assert (bare["outcome"], bare["assertion"], bare["simulated"]) == ("reproduced", None, [])
    assert "the answers to next-0, next-1 are those to other prompts" in bare["detail"]
    for mitigation in ("filter_overlong", "truncate_overlong", "abort_leftovers", "fresh_engine"):
        assert leftovers["llm_refused_poisons_next", mitigation]["outcome"] == "mitigated"


@in_cell
def test_with_async_output_off_what_lies_past_the_model_is_not_the_models(leftovers):
    """Five of sixteen tokens have the log-prob that the model gives them; capping min_tokens leaves those five."""
    bare = leftovers["llm_past_limit", None]
    assert (bare["outcome"], bare["finished"], bare["expected"]) == ("reproduced", 5, 16)
    assert leftovers["llm_past_limit", "async_output_off"]["outcome"] == "not_mitigated"
    capped = leftovers["llm_past_limit", "cap_min_tokens"]
    assert (capped["outcome"], capped["finished"]) == ("mitigated", 5)
