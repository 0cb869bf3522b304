"""`vllm_server` refuses answers of another structure, other servers, unknown models, and servers that are not awake.

Long texts of a server are replaced by their length.
"""

import pytest

from diagnostics.audit.live.vllm_server import Server, check_awake
from diagnostics.audit.results import AuditError, NotAvailableError
from tests.case_files import each_case, read_cases

CASES = read_cases(__file__, "server_states.yaml")


class FakeClient:
    """A client that answers a path from `answers`, or else with `answer`.

    A call with a body returns `answer` as the completion's only choice.
    """

    address, tokens = "http://127.0.0.1:1", 0

    def __init__(self, answer=None, **answers):
        self.answer = answer
        self.answers = {"v1/models": {"data": [{"id": "model"}]}} | answers

    def try_call(self, path, _=None):
        return self.answers.get(path.strip("/"), self.answer)

    def call(self, path, body=None):
        return self.try_call(path) if body is None else {"choices": [self.answer]}


def sampled(**values):
    """Return a choice with one token, and these values instead of its own."""
    return {"index": 0, "logprobs": {"tokens": ["token_id:1"], "token_logprobs": [-1.0]}} | values


@pytest.mark.parametrize(
    ("method", "arguments", "answer"),
    [
        ("sample", ([(1,)], 1, {}), "x"),
        ("sample", ([(1,)], 1, {}), sampled(index=[])),
        ("sample", ([(1,)], 1, {}), sampled(token_ids=[2**63])),
        ("sample", ([(1,)], 1, {}), sampled(logprobs={"tokens": ["x"], "token_logprobs": [-1.0]})),
        ("sample", ([(1,)], 1, {}), sampled(logprobs={"tokens": ["token_id:1"], "token_logprobs": [[]]})),
        (
            "sample",
            ([(1,)], 1, {}),
            sampled(logprobs={"tokens": ["token_id:1"] * 2, "token_logprobs": [-1.0] * 2}),
        ),
        ("sample", ([(1,)], 1, {}), sampled(token_ids=[1, 2])),
        ("sample", ([(1,)], 1, {}), sampled(stop_reason=[[1]])),
        ("next_ids", ((1,),), sampled(logprobs={"top_logprobs": [{"token_id:1": 10**400}]})),
        ("score", ((1, 2),), {"prompt_logprobs": [None, {"2": {"logprob": "x"}}]}),
        ("tokenize", ("text",), {"tokens": [None]}),
        ("cache_hits", (), "vllm:prefix_cache_hits_total x"),
    ],
)
def test_answer_of_another_structure_names_the_server(method, arguments, answer):
    """Each method that reads an answer of another structure raises AuditError with the address."""
    with pytest.raises(AuditError, match=r"http://127\.0\.0\.1:1: its answer differs from vllm serve's: "):
        getattr(Server(FakeClient(answer)), method)(*arguments)


def test_other_servers_and_unknown_models_are_refused():
    """A server whose /v1/models has no list is refused, and so is a model that the server does not list."""
    with pytest.raises(AuditError, match="not vllm serve"):
        Server(FakeClient(**{"v1/models": {}}))
    with pytest.raises(AuditError, match=r"--model nobody: .* serves a ::b$"):
        Server(FakeClient(**{"v1/models": {"data": [{"id": "a\n::b"}]}}), "nobody")
    with pytest.raises(AuditError, match="lists no model"):
        Server(FakeClient(**{"v1/models": {"data": []}}))


@each_case(CASES["states"])
def test_sleeping_or_updating_server_is_recognised(answers, awake):
    """The state is read from a gauge or from two paths; a server without them counts as awake."""
    if awake:
        assert check_awake(FakeClient(**answers)) == ""
    else:
        with pytest.raises(NotAvailableError):
            check_awake(FakeClient(**answers))


def test_long_texts_of_the_server_are_replaced_by_their_length():
    """Masking them for the report would take minutes; an absurdly large `max_model_len` is left out."""
    model = {"dtype": "torch.float32", "logprobs_mode": "m" * 201}
    client = FakeClient(
        **{
            "v1/models": {"data": [{"id": "m" * 1_000_000, "max_model_len": 10**400}]},
            "server_info?config_format=json": {"model_config": model},
        },
        version={"version": "9" * 5_000_000},
        weight_info={"weight_version": "w" * 5_000_000},
    )
    bounded = {"logprobs_mode": "a text of 201 characters", "release": "a text of 5000000 characters"}
    assert Server(client).settings() == {"dtype": "float32"} | bounded
    assert check_awake(client) == "a text of 5000000 characters"
    with pytest.raises(AuditError, match=r"serves a text of 1000000 characters$"):
        Server(client, "other")
