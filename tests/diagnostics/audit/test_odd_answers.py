"""Answers of another structure than vllm serve's end an audit with a one-line error that names the server."""

import pytest

from diagnostics.audit.live.servers import Server
from diagnostics.audit.results import AuditError


class Client:
    """A client whose server gives one answer to every call, except for the list of models."""

    address, tokens = "http://127.0.0.1:1", 0

    def __init__(self, answer):
        self.answer = answer

    def get(self, path):
        return {"data": [{"id": "model", "max_model_len": 10**400}]}

    def try_call(self, path, body=None):
        return self.answer

    def post(self, path, body):
        return {"choices": [self.answer]}


def sampled(**values):
    """Return a choice with one token, and these values instead of its own."""
    return {"index": 0, "logprobs": {"tokens": ["token_id:1"], "token_logprobs": [-1.0]}} | values


@pytest.mark.parametrize(
    ("method", "arguments", "answer"),
    [
        ("sample", ([(1,)], 1, {}), "x"),
        ("sample", ([(1,)], 1, {}), sampled(index=[])),
        ("sample", ([(1,)], 1, {}), sampled(logprobs=[1])),
        ("sample", ([(1,)], 1, {}), sampled(token_ids=[1.5])),
        ("sample", ([(1,)], 1, {}), sampled(token_ids=[2**63])),
        ("sample", ([(1,)], 1, {}), sampled(logprobs={"tokens": ["x"], "token_logprobs": [-1.0]})),
        ("sample", ([(1,)], 1, {}), sampled(logprobs={"tokens": ["token_id:1"], "token_logprobs": [[]]})),
        ("next_ids", ((1,),), sampled(logprobs={"top_logprobs": [1.5]})),
        ("next_ids", ((1,),), sampled(logprobs={"top_logprobs": [{"token_id:1": 10**400}]})),
        ("score", ((1, 2),), {"prompt_logprobs": [None, {"2": {"logprob": "x"}}]}),
        ("tokenize", ("text",), {"tokens": 0}),
        ("tokenize", ("text",), {"tokens": [None]}),
        ("cache_hits", (), "vllm:prefix_cache_hits_total x"),
    ],
)
def test_answer_of_another_structure_names_the_server(method, arguments, answer):
    """Nothing but an AuditError leaves a method that reads answers."""
    with pytest.raises(AuditError, match=r"http://127\.0\.0\.1:1: its answer differs from vllm serve's: "):
        getattr(Server(Client(answer)), method)(*arguments)


def test_length_that_no_model_has_is_left_out():
    """A number that no computation can use is not a setting."""
    assert "max_model_len" not in Server(Client(None)).settings()
