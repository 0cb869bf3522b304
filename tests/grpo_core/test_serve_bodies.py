"""What a body may cost: memory, time, and words about what is wrong in it."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
from contextlib import ExitStack, closing

import pytest
import torch
from grpo_core.rollout.serve import bodies
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from grpo_core.rollout.build import EngineSpec
from grpo_core.rollout.server.app import GenerateBody
from grpo_core.rollout.server.guard import Bodies, BodyError, Limits, shortly
from grpo_core.rollout.server.launch import ServerProcess
from grpo_core.rollout.weights.flat import FlatError, tensors_in

LARGEST = Limits().generate_bytes


@pytest.fixture(scope="module")
def server(model_dir):
    """A real one."""
    process = ServerProcess(EngineSpec("transformers", str(model_dir), max_model_len=256), timeout_s=500)
    with closing(process):
        yield process


def begun(server, stack, size=LARGEST, path="/generate") -> http.client.HTTPResponse:
    """The first word of the server to a call whose body does not come."""
    connection = stack.enter_context(socket.create_connection((server.host, server.port), timeout=500))
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {server.token}\r\n"
    head += f"Content-Length: {size}\r\nExpect: 100-continue\r\n\r\n"
    connection.sendall(head.encode())
    return int(connection.recv(2**16).split()[1])


def test_held_bodies_have_a_limit_together(server):
    """Past it a call is told to come back before its body is read; health, and small calls, are answered meanwhile."""
    room = Limits().held_bytes // LARGEST
    with ExitStack() as stack:
        assert [begun(server, stack) for _ in range(room)] == [100] * room
        assert begun(server, stack) == 503
        connection = stack.enter_context(
            closing(http.client.HTTPConnection(server.host, server.port, timeout=500))
        )
        connection.request("GET", "/health")
        assert connection.getresponse().status == 200


def read(sent, size, *, timeout_s=500.0):
    """What an application is told of a body that comes in these parts and then not at all."""
    parts = iter(sent)

    async def receive():
        for part in parts:
            return part
        return await asyncio.Event().wait()

    async def scenario():
        again = await Bodies(100, timeout_s).read(receive, size)
        told = [await again()]
        while told[-1].get("more_body"):
            told.append(await again())
        return told

    return asyncio.run(scenario())


def part(body: bytes) -> dict:
    """As uvicorn says it."""
    return {"type": "http.request", "body": body, "more_body": True}


def test_a_body_is_told_whole():
    """Whatever parts it came in; one that ended early is told to have ended."""
    assert read([part(b"ab"), part(b""), part(b"c")], 3) == [
        {"type": "http.request", "body": b"abc", "more_body": False}
    ]
    gone = {"type": "http.disconnect"}
    assert read([part(b"ab"), gone], 3) == [{"type": "http.request", "body": b"ab", "more_body": True}, gone]


def test_a_body_that_does_not_come_is_given_up():
    """Drop by drop, too: the time is for all of it."""
    with pytest.raises(BodyError) as error:
        read([part(b"a")], 3, timeout_s=0.05)
    assert error.value.args == (408, "1 of 3 bytes came in 0.05 s")


def test_what_is_released_can_be_taken_again():
    """To the byte."""
    held = Bodies(100, 1)
    held.admit(60)
    with pytest.raises(BodyError):
        held.admit(41)
    held.admit(40)
    held.release(60)
    held.admit(60)


@pytest.mark.parametrize("text", ["{" * 200, "[" * 200, "1," * 200])
def test_a_body_of_too_many_parts_is_not_parsed(monkeypatch, text):
    """They cost a hundred times their bytes, and everybody's time."""
    monkeypatch.setattr(bodies, "MOST_VALUES", 100)
    monkeypatch.setattr(bodies, "MOST_CONTAINERS", 100)
    with pytest.raises(BodyError) as error:
        read([part(text.encode())], len(text))
    assert error.value.args[0] == 413


PARAMS = {"max_tokens": 4, "temperature": 1.0, "stop_ids": []}
WRONG = ["x"] * 5000


@pytest.mark.parametrize(
    ("model", "body"),
    [
        (GenerateBody, {"params": PARAMS, "requests": [{"id": "a", "seed": 1, "prompt_ids": WRONG}]}),
        (GenerateBody, {"params": PARAMS, "requests": [{"id": "a", "seed": 1, "prompt_ids": [1], "prefix": WRONG}]}),
        (GenerateBody, {"params": {**PARAMS, "stop_ids": WRONG}, "requests": []}),
        (GenerateBody, {"params": PARAMS, "requests": [{"prompt_ids": WRONG}] * 100}),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_once(model, body):
    """And not of each of a million entries, at a gigabyte for a megabyte."""
    with pytest.raises(ValidationError) as error:
        model.model_validate(body)
    assert error.value.error_count() <= 8


@given(
    st.recursive(
        st.none() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_any_value_is_shown_in_a_few_characters(value):
    """In ASCII."""
    text = shortly(value)
    assert len(text) <= 80
    assert text.isascii()
    assert text.isprintable()


def test_a_value_of_a_million_parts_is_shown_as_fast_as_one():
    """It is not written out to be cut: of a list that can't be read past its begin, only that is read."""

    class Endless(list):
        def __iter__(self):
            raise AssertionError("read to its end")

        __repr__ = __iter__

        def __len__(self):
            return 10**9

    assert shortly({"a": Endless([1] * 20)}) == "{'a': [1, 1, 1, 1, 1, 1, 1, 1, ...]}"


def weights(shape) -> torch.Tensor:
    """A file of one tensor of a shape."""
    head = json.dumps({"a": {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]}}).encode()
    return torch.frombuffer(bytearray(len(head).to_bytes(8, "little") + head), dtype=torch.uint8)


@pytest.mark.parametrize("shape", [[2**62] * 3000, [1] * 17, [0] * 10**5])
def test_a_tensor_has_few_dimensions(shape):
    """The product of a million large ones takes minutes, in which nothing else runs."""
    with pytest.raises(FlatError, match=r"a shape of \d+ dimensions"):
        tensors_in(weights(shape))


def test_a_dimension_is_a_size():
    """Not any number that JSON can hold."""
    with pytest.raises(FlatError, match="that is none in 0 bytes"):
        tensors_in(weights([10**4000, 0]))
    assert tensors_in(weights([2**62, 0]))["a"].shape == (2**62, 0)


def test_required_fields_have_no_default():
    """All of a body, and of its parts."""
    with pytest.raises(ValidationError) as error:
        GenerateBody.model_validate({"requests": [{}], "params": {}})
    missing = {
        ".".join(map(str, entry["loc"])) for entry in error.value.errors() if entry["type"] == "missing"
    }
    params = {"params.max_tokens", "params.temperature", "params.stop_ids"}
    requests = {"requests.0.id", "requests.0.prompt_ids", "requests.0.seed"}
    assert missing == params | requests


def test_a_header_that_is_no_object_is_named():
    """It was refused by what Python's list said of itself."""
    head = b"[1]     "
    body = torch.frombuffer(bytearray(len(head).to_bytes(8, "little") + head), dtype=torch.uint8)
    with pytest.raises(FlatError, match="a header that is no object"):
        tensors_in(body)
