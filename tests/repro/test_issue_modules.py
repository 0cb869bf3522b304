"""Test repros without upstream packages: counts, failed imports, affected releases, RAY001's causes, log-probs."""

import math
from importlib import metadata
from types import SimpleNamespace

import pytest
import torch

from repro import upstream
from repro.drivers import whole_engine
from repro.drivers.verl_rollout import NAMES, OTHER_NAMESPACE, RIGHT
from repro.drivers.whole_engine import SampledCompletion
from repro.issues import REPROS, num004, ray001, rew001, syn002, syn003, tok001, trl_imports
from repro.registry import InapplicableError, UpstreamFailureError

RIGHT_GRADIENTS = {"a": [1.0, -2.0], "b": [4.0]}
NAME = "ImportError: cannot import name 'GuidedDecodingParams' from 'vllm.sampling_params' (/a/vllm/sampling_params.py)"
ASCEND = "ModuleNotFoundError: No module named 'vllm_ascend'"


def workers_report(**changes):
    """Return RAY001's report of an engine process that found its workers, with these changes; None removes a key."""
    result = {
        "engine_environment": {"RAY_ADDRESS": None, "VLLM_WORKER_MULTIPROC_METHOD": "spawn"},
        "engine_address": "127.0.0.1:1",
        "server_address": "127.0.0.1:1",
        "names": list(NAMES),
        "everywhere": [f"training/{name}" for name in NAMES],
        "requested": {name: ["init_worker", "init_device", "load_model"] for name in NAMES},
    }
    return {name: value for name, value in (result | changes).items() if value is not None}


def failed_import(error):
    """Return the report of a failed import."""
    return {"ok": False, "error": error, "where": "/env/trl/scripts/vllm_serve.py:55"}


@pytest.mark.parametrize(
    ("work", "description"),
    [
        (
            num004.count_right_gradients({"a": [0.25, -0.5], "b": [4.0]}, RIGHT_GRADIENTS),
            "1 of 2 parameters' gradients are right; mean gradient of the steps",
        ),
        (
            num004.count_right_gradients({"a": [0.25, -0.5], "b": [1.0]}, RIGHT_GRADIENTS),
            "0 of 2 parameters' gradients are right; mean gradient of the steps / gradient of all samples at once: "
            "0.2500",
        ),
        (
            rew001.count_rewarded([1.0] * 6 + [0.0, 0.5]),
            "6 of 8 right answers are rewarded; mean reward 0.812",
        ),
        (
            syn002.count_unmixed(
                {"first": ["old"] * 3, "second": ["old", "new", "new"]}, {"first": 3, "second": 1}
            ),
            "0 of 2 completions are of one policy; tokens when the pause was over: 3 of first, 1 of second; "
            "first: 3 by the old weights; second: 1 by the old weights, then 2 by the new weights",
        ),
        (
            syn003.count_policy_logprobs([-1.0, -2.0, -3.0], policy=[-1.05, -4.0, -3.0], base=[-9.0, -2.1, -9.0]),
            "2 of 3 log-probs are the policy's; mean difference 0.68; 1 of 3 are the base model's",
        ),
        (
            tok001.count_with_text([0, tok001.TOKENS - 1, tok001.TOKENS, whole_engine.VOCABULARY - 1]),
            "2 of 4 sampled tokens have a text",
        ),
        (
            whole_engine.count_agreeing([(-1.0, -1.0), (-1.0, -1.0001), (-1.0, -2.0)]),
            "2 of 3 log-probs are the trainer's; largest difference 1, trainer / engine ratio 0.717",
        ),
        (
            trl_imports.judge_import("CMP002", "server", failed_import(NAME)),
            "0 of 1 modules are imported; trl/scripts/vllm_serve.py:55: "
            "ImportError: cannot import name 'GuidedDecodingParams' from 'vllm.sampling_params'",
        ),
        (
            ray001.count_calls(workers_report(requested={NAMES[0]: ["init_worker"]}, names=["k3X9aBWorkerDict_9:9"])),
            "0 of 1 workers are loaded; the workers are in another namespace (training): RAY_ADDRESS=(unset), "
            "VLLM_WORKER_MULTIPROC_METHOD=spawn; engine's cluster 127.0.0.1:1, server's 127.0.0.1:1; "
            f"prefix k3X9aBWorkerDict in namespace training, expected {NAMES[0]}; seen k3X9aBWorkerDict_9:9",
        ),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)  # fmt: skip
def test_only_right_results_are_counted(work, description):
    assert not work.complete
    assert work.describe().startswith(description)


def test_right_results_are_complete():
    """Right results give a complete tally; TRL's log-prob may be a number or a list."""
    completions = {name: ["old"] * syn002.TOKENS for name in syn002.PROMPTS}
    assert syn002.count_unmixed(completions, {}).complete
    assert num004.count_right_gradients(RIGHT_GRADIENTS, RIGHT_GRADIENTS).complete
    assert ray001.count_calls(workers_report()).complete
    # The log-prob is a number in TRL 0.29, and a list with one number in newer releases.
    assert (syn003.sampled_logprob(-1.5), syn003.sampled_logprob([-1.5])) == (-1.5, -1.5)


def test_other_reports_are_errors():
    """Tokens of neither policy are a harness error; a failure of the engine process keeps its name and frames."""
    with pytest.raises(RuntimeError, match="of neither weights"):
        syn002.count_unmixed({"first": ["old", "?"]}, {})
    with pytest.raises(RuntimeError, match="exit code 1"):
        ray001.count_calls({"broken": "exit code 1"})
    failure = {"kind": "EngineDeadError", "text": "has ended", "frames": [["a.py", 3, "f"]]}
    with pytest.raises(UpstreamFailureError, match="EngineDeadError: has ended") as error:
        ray001.count_calls(workers_report(failure=failure))
    assert error.value.frames == (["a.py", 3, "f"],)


@pytest.mark.parametrize(
    ("error", "outcome", "message"),
    [
        (None, InapplicableError, "is imported with"),
        (ASCEND, InapplicableError, "comes first, CMP003"),
        ("ModuleNotFoundError: No module named 'weave'", InapplicableError, "comes first, CMP003"),
        ("ModuleNotFoundError: No module named 'torch'", RuntimeError, "torch"),
        ("ImportError: cannot import name 'PreTrainedModel' from 'transformers'", RuntimeError, "PreTrained"),
        ("OSError: libcuda.so.1: cannot open shared object file", RuntimeError, "libcuda"),
    ],
)
def test_import_without_the_failure_of_the_code_is_not_counted(error, outcome, message):
    """An import that works or shows another issue is inapplicable; an unknown error is an error of the harness."""
    report = failed_import(error) if error else {"ok": True, "error": None, "where": None}
    with pytest.raises(outcome, match=message):
        trl_imports.judge_import("CMP002", "trainer", report)
    assert (
        trl_imports.identify_failure("ModuleNotFoundError: No module named 'vllm.transformers_utils'")
        == "CMP002"
    )


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, "the workers are there"),
        ({"engine_address": "127.0.0.1:2", "names": [], "everywhere": []}, "another cluster than its server"),
        ({"names": [], "everywhere": [f"other/{NAMES[0]}"]}, "in another namespace (other)"),
        ({"names": [], "everywhere": ["training/someone-else"]}, "the workers are gone"),
        ({"engine_address": None}, "the engine process joined no cluster"),
    ],
)
def test_cause_of_missing_workers_is_derived_from_the_report(changes, reason):
    assert reason in ray001.find_cause(workers_report(**changes))


PARSER, GRADER = "math_verify/parser.py", "verl/utils/reward_score/math_verify.py"
THREADED = "it doesn't support threaded environment"
TRL_TRAINER = "trl/trainer/grpo_trainer.py"
TRL_ENGINE = "trl/generation/vllm_generation.py"


@pytest.mark.parametrize(
    ("code", "trigger", "installed", "reason"),
    [
        ("CMP001", "", {"vllm/platforms/interface.py": "", "vllm/engine/arg_utils.py": ""}, "does not contain"),
        ("NUM004", "", {TRL_TRAINER: "normalizer = inputs['x']"}, "does not contain"),
        ("NUM004", "", {TRL_TRAINER: f"steps_per_generation {num004.DIVIDES}"}, None),
        ("NUM004", "", {TRL_TRAINER: f"{num004.DIVIDES} * {num004.RESCALES}"}, "rescales the tokens"),
        ("NET001", "", {"fastapi": "0.137.0", "prometheus-fastapi-instrumentator": "8.0.0"}, None),
        ("NET001", "", {"fastapi": "0.136.3", "prometheus-fastapi-instrumentator": "7.1.0"}, "copies a router's"),
        ("NET001", "", {"fastapi": "1.0.0", "prometheus-fastapi-instrumentator": "8.0.1"}, "passes over routes"),
        ("SYN003", "", {}, f"has no {TRL_ENGINE}"),
        ("SYN003", "", {TRL_ENGINE: "self.sync_weights()"}, "does not contain"),
        ("SYN003", "", {TRL_ENGINE: f"self.llm.{syn003.RELOADS}"}, None),
        ("REW001", "false_in_thread", {PARSER: THREADED}, "see raises_in_thread"),
        ("REW001", "false_in_thread", {PARSER: "return []"}, None),
        ("REW001", "raises_in_thread", {PARSER: "return []"}, "see false_in_thread"),
        ("REW001", "verl_reward", {}, "no verl with such a reward"),
        ("REW001", "verl_reward", {GRADER: "with ProcessPoolExecutor() as pool:"}, "processes of its own"),
    ],
)  # fmt: skip
def test_affected_release_is_recognised(monkeypatch, code, trigger, installed, reason):
    """The reason why an issue is inapplicable comes from upstream's source or version numbers; None if it is not."""
    monkeypatch.setattr(upstream, "source", lambda path, *_: installed.get(path))
    distribution = SimpleNamespace(version="0.0.0", metadata={"Name": "upstream"})
    monkeypatch.setattr(upstream, "first_installed", lambda _: distribution)
    monkeypatch.setattr(metadata, "version", installed.get)
    monkeypatch.setattr(whole_engine, "inapplicable_reason", lambda: None)
    check = REPROS[code].trigger(trigger).missing_requirement if trigger else REPROS[code].inapplicable_reason
    assert check() is None if reason is None else reason in check()


def test_release_that_accepts_every_id_makes_the_trigger_inapplicable(monkeypatch):
    monkeypatch.setattr(upstream, "source", lambda _: "max_input_id > max(tokenizer.max_token_id,")
    with pytest.raises(InapplicableError, match="every id"):
        REPROS["TOK001"].trigger("fed_back").run(None)


def test_recorded_mitigations_of_ray_have_a_plan():
    """Each recorded pair has a plan; `explicit_address` and `unset_spawn` change one variable of the server."""
    for item in REPROS["RAY001"].mitigations:
        for trigger in item.helps | item.fails:
            ray001.make_plan(trigger, item.name)
    bare = ray001.make_plan("wrong_address", None)
    explicit = ray001.make_plan("wrong_address", "explicit_address")
    assert explicit.server_env == bare.server_env | {"RAY_ADDRESS": RIGHT}
    address = {"RAY_ADDRESS": bare.server_env["RAY_ADDRESS"]}
    assert ray001.make_plan("wrong_address", "unset_spawn").server_env == address
    assert ray001.make_plan("other_namespace", None).workers_namespace == OTHER_NAMESPACE


def test_allowed_and_biased_ids_cover_the_model():
    allowed = tok001.mitigation_params("allowed_ids")["allowed_token_ids"]
    biased = tok001.mitigation_params("logit_bias")["logit_bias"]
    assert sorted([*allowed, *biased]) == list(range(whole_engine.VOCABULARY))


class FixedLogits(torch.nn.Module):
    """A model that returns the same logits at each position."""

    def __init__(self, *logits):
        super().__init__()
        self.logits = torch.tensor(logits)

    def forward(self, ids):
        return SimpleNamespace(logits=self.logits.expand(*ids.shape, -1))


def test_trainer_logprob_matches_closed_form():
    """Log-probs follow temperature and top-p; the token that crosses the nucleus is in, a later one is out."""
    weights = [0.5, 0.3, 0.15, 0.05]
    policy = FixedLogits(*map(math.log, weights))
    sampled = SampledCompletion((0,), (0, 1, 3), (0.0,) * 3)
    bare = whole_engine.trainer_logprobs(policy, sampled)
    assert bare == pytest.approx([math.log(weights[i]) for i in (0, 1, 3)])
    squared = [weight**2 for weight in weights]
    at_half = [math.log(squared[i] / sum(squared)) for i in (0, 1, 3)]
    assert whole_engine.trainer_logprobs(policy, sampled, temperature=0.5) == pytest.approx(at_half)
    within = whole_engine.trainer_logprobs(policy, sampled, top_p=0.7)
    assert within == pytest.approx([math.log(0.5 / 0.8), math.log(0.3 / 0.8), -math.inf])
