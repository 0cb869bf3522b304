"""Define the kinds of faults: the effect of each on an HTTP call, and the phases where it applies.

A fault gets the call (`link`), the bench (server, proxy and switch) and a seeded random generator, so that the same
case is the same fault each time.
"""

import http.client
import json
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from grpo_core.rollout.remote_engines import RemoteEngine
from grpo_core.tasks.model import load_model
from grpo_core.types import Request, SamplingParams
from tests.grpo_core.conftest import perturb
from tests.grpo_core.faults.proxy import PHASES, Link, Message, answer

CALLS = PHASES[1:]
"""Phases with a request."""
ENGINE = PHASES[2:]
"""Phases in which the server calls its engine."""
POSTS = ("upload", "probe", "generate", "evaluation")
"""Phases whose request has a body."""
SAMPLED = ("probe", "generate", "evaluation")
"""Phases whose response has completions."""
_POINT = {"upload": "update_weights", "fingerprint": "fingerprint"}
TIMEOUT_S = 4.0
"""Time limit of a call in cases that must end by a time-out."""


class CaseRandom(random.Random):
    """A case's random generator, seeded with the case; `index` is its number among those of its kind and phase."""

    def __init__(self, kind: str, phase: str, index: int) -> None:
        super().__init__(f"{kind}/{phase}/{index}")
        self.index = index


Fault = Callable[[Link, Any, CaseRandom], None]
"""It gets the call, the `Bench` of `__main__.py`, and the random generator of the case."""


@dataclass(frozen=True)
class Kind:
    """A kind of fault.

    Attributes:
        name: Its name in the table.
        do: The function that injects it, see `Fault`.
        phases: Where it is injected.
        seeds: Cases per phase.
        waits: The run must end by its time-out.
        lasting: It applies to every call of the phase from the first on.
    """

    name: str
    do: Fault
    phases: tuple[str, ...] = CALLS
    seeds: int = 2
    waits: bool = False
    lasting: bool = False


def _kill_before(link, bench, draw) -> None:
    """Kill the server before the call reaches it, reset the connection, and restart the server."""
    bench.servers.kill()
    link.reset()
    bench.servers.restart()


def _kill_during(link, bench, draw) -> None:
    """Kill the server in the middle of the call, reset the connection, and restart the server."""
    bench.servers.switch.kill_during(_POINT.get(link.phase, "generate"), draw.randrange(1, 9))
    answered = link.forward()
    assert answered is None, f"the server lived on and answered {answered}"
    link.reset()
    bench.servers.restart()


def _kill_after(link, bench, draw) -> None:
    """Kill the server after its answer, then pass the answer to the client, and restart the server."""
    answered = link.forward()
    bench.servers.kill()
    link.reply(answered)
    bench.servers.restart()


def _restart_old(link, bench, draw) -> None:
    """Restart the server with the model's first weights before the call."""
    bench.servers.restart()
    link.reply(link.forward())


def _refuse_connection(link, bench, draw) -> None:
    """Refuse connections for a while."""
    bench.proxy.refuse(0.3)
    link.reset()


def _cut(link, bench, draw) -> None:
    """Reset the connection instead of forwarding the call."""
    link.reset()


def _drop_after(link, bench, draw) -> None:
    """Deliver the call, and drop the answer."""
    link.forward()
    link.reset()


def _silence(link, bench, draw) -> None:
    """Never answer."""
    link.stall()


def _delay(link, bench, draw) -> None:
    """Answer after the time-out."""
    answered = link.forward()
    link.stall()
    link.reply(answered)


def _drip(link, bench, draw) -> None:
    """Send the answer, or an endless head, one byte at a time."""
    answered = link.forward()
    endless = b"HTTP/1.1 100 Continue\r\n\r\n" * 1000
    # Byte by byte, the answer or a head without end takes many times the time-out.
    link.stall(drips=draw.choice([answered.data, endless]), every_s=TIMEOUT_S / 20)


def _cut_answer(link, bench, draw) -> None:
    """Cut the connection in the middle of the answer."""
    answered = link.forward().data
    link.reply(answered[: draw.randrange(1, len(answered))])


def _shorten_answer(link, bench, draw) -> None:
    """Deliver a shortened answer with a matching length."""
    answered = link.forward()
    link.reply(answered.with_body(answered.body[: draw.randrange(len(answered.body))]))


def _cut_request(link, bench, draw) -> None:
    """Deliver a part of the request, and cut the connection."""
    sent = link.request
    link.send_partial(sent.head + sent.body[: draw.randrange(len(sent.body))])
    link.reset()


def _shorten_request(link, bench, draw) -> None:
    """Deliver a shortened request with a matching length."""
    sent = link.request
    link.reply(link.forward(sent.with_body(sent.body[: draw.randrange(len(sent.body))])))


def _replay_answer(link, bench, draw) -> None:
    """Deliver the last answer of this phase again, with or without forwarding the call."""
    if draw.randrange(2):
        link.forward()
    earlier = [answered for which, _, answered in bench.proxy.passed if which == link.phase]
    link.reply(earlier[-1])


def _swap_answers(link, bench, draw) -> None:
    """Deliver the last answer of another phase, without forwarding the call."""
    earlier = [answered for which, _, answered in bench.proxy.passed if which != link.phase]
    link.reply(earlier[-1])


def _garbage(link, bench, draw) -> None:
    """Deliver bytes that are not a valid answer."""
    link.forward()
    variants = [
        draw.randbytes(200),
        b"HTTP/1.1 two hundred\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1000000000000000\r\n\r\n{}",
        answer(200, b"<html><body>It works!</body></html>", "text/html"),
        answer(502, b"<html><h1>502 Bad Gateway</h1></html>", "text/html"),
        answer(200, b"[" * 100_000),
        answer(200, b"[]"),
        answer(200, b"{}"),
        answer(200, b'{"schema": "grpo-doctor.serve.v1", "policy_version": "x", "completions": [7]}'),
        answer(200, b'{"schema": "other"}'),
    ]
    # Each seed selects another variant, so that the cases of a phase cover all of them.
    link.reply(variants[draw.index % len(variants)])


def _invalid_values(link, bench, draw) -> None:
    """Deliver a well-formed answer with unusable ids, log-probs, versions or finish reason."""
    answered = link.forward()
    body = json.loads(answered.body)
    entry = draw.choice(body["completions"])
    name, value = [
        ("ids", 10**6),
        ("ids", -1),
        ("logprobs", float("nan")),
        ("logprobs", 0.5),
        ("versions", 10**9),
        ("ids", float("inf")),
        ("logprobs", 10**400),
        ("finish_reason", None),
    ][draw.index % 8]
    entry[name] = value if name == "finish_reason" else [value, *entry[name][1:]]
    link.reply(answered.with_body(json.dumps(body).encode()))


def _wrong_count(link, bench, draw) -> None:
    """Deliver too many or too few completions."""
    answered = link.forward()
    completions = json.loads(answered.body)["completions"]
    place = draw.randrange(len(completions))
    repeats = 0 if draw.index % 2 else 2
    changed = completions[:place] + [completions[place]] * repeats + completions[place + 1 :]
    link.reply(_with_completions(answered, changed))


def _swap_completions(link, bench, draw) -> None:
    """Exchange two completions of the answer."""
    answered = link.forward()
    completions = json.loads(answered.body)["completions"]
    first, second = draw.sample(range(len(completions)), 2)
    completions[first], completions[second] = completions[second], completions[first]
    link.reply(_with_completions(answered, completions))


def _wrong_request_id(link, bench, draw) -> None:
    """Change the request id of a completion."""
    answered = link.forward()
    completions = json.loads(answered.body)["completions"]
    draw.choice(completions)["request_id"] += "0"
    link.reply(_with_completions(answered, completions))


def _with_completions(found: Message, completions: list) -> Message:
    """Return the answer with other completions."""
    return found.with_body(json.dumps({**json.loads(found.body), "completions": completions}).encode())


def _refuse(link, bench, draw) -> None:
    """Answer with an error status."""
    status = (400, 500, 401, 502, 413, 504, 422, 507)[draw.index % 8]
    link.reply(answer(status, json.dumps({"detail": f"refused with {status}"}).encode()))


def _queue_full(link, bench, draw) -> None:
    """Suspend the engine and queue other calls until the server answers 503; then send this call."""
    switch = bench.servers.switch
    switch.suspend_during("fingerprint")
    calls = [threading.Thread(target=_call_fingerprint, args=(bench, refused := threading.Event()))]
    calls[0].start()
    switch.wait_suspended()
    calls += [threading.Thread(target=_call_fingerprint, args=(bench, refused)) for _ in range(40)]
    for call in calls[1:]:
        call.start()
    assert refused.wait(500), "forty calls are waiting, and none was refused"
    # A server may let an upload pass the queue. It waits for the engine, so the engine is resumed after a while.
    later = threading.Timer(0.5, switch.resume)
    later.start()
    link.reply(link.forward())
    for call in [later, *calls]:
        call.join()


def _call_fingerprint(bench, refused: threading.Event) -> None:
    """Send a call that waits for the engine; set `refused` if the answer is status 503."""
    connection = http.client.HTTPConnection(*bench.proxy.upstream, timeout=500)
    connection.request("GET", "/fingerprint")
    if connection.getresponse().status == http.client.SERVICE_UNAVAILABLE:
        refused.set()
    connection.close()


def _flip_request_bit(link, bench, draw) -> None:
    """Flip one bit of the request's body."""
    sent = link.request
    link.reply(link.forward(Message(sent.head, _flip_bit(sent.body, draw))))


def _flip_answer_bit(link, bench, draw) -> None:
    """Flip one bit of the answer's body."""
    answered = link.forward()
    link.reply(Message(answered.head, _flip_bit(answered.body, draw)))


def _flip_bit(body: bytes, draw: CaseRandom) -> bytes:
    """Return the body with one random bit flipped."""
    place, changed = draw.randrange(8 * len(body)), bytearray(body)
    changed[place // 8] ^= 1 << place % 8
    return bytes(changed)


def _other_client(link, bench, draw) -> None:
    """Let another client load weights, under this run's version or another, and sample; then send this call."""
    engine = RemoteEngine(*bench.proxy.upstream, timeout_s=500)
    version = max(0, engine.policy_version) if draw.index < 2 else 10**6
    tensors = dict(load_model(bench.model_dir).named_parameters())
    perturb(tensors.values(), seed=draw.randrange(2**32))
    engine.update_weights(tensors.items(), version)
    engine.generate([Request("0.0.0", (0, 1, 2), seed=1)], SamplingParams(max_tokens=4))
    link.reply(link.forward())


def _replayed_upload(link, bench, draw) -> None:
    """Send the server the first upload again, then this call."""
    link.forward(next(sent for which, sent, _ in bench.proxy.passed if which == "upload"))
    link.reply(link.forward())


KINDS = (
    Kind("kill before", _kill_before, PHASES), Kind("kill during", _kill_during, ENGINE),
    Kind("kill after", _kill_after), Kind("restart, old weights", _restart_old, ENGINE),
    Kind("connection refused", _refuse_connection, ("connect",)),
    Kind("connection reset", _cut, ("connect",)), Kind("half-open", _silence, PHASES, waits=True),
    Kind("drop before", _cut), Kind("drop after", _drop_after), Kind("drop for ever", _cut, lasting=True),
    Kind("delay", _delay, waits=True), Kind("drip", _drip, waits=True), Kind("truncate answer", _cut_answer),
    Kind("shorten answer", _shorten_answer), Kind("truncate request", _cut_request, POSTS),
    Kind("shorten request", _shorten_request, POSTS), Kind("duplicate", _replay_answer),
    Kind("foreign answer", _swap_answers), Kind("garbage", _garbage, seeds=10),
    Kind("nonsense", _invalid_values, SAMPLED, seeds=8), Kind("wrong count", _wrong_count, SAMPLED),
    Kind("swap", _swap_completions, SAMPLED[1:]), Kind("other id", _wrong_request_id, SAMPLED),
    Kind("refuse", _refuse, seeds=4), Kind("queue full", _queue_full, ENGINE),
    Kind("flip a bit sent", _flip_request_bit, POSTS, seeds=6),
    Kind("flip a bit answered", _flip_answer_bit, seeds=4),
    Kind("other client", _other_client, ENGINE, seeds=4), Kind("replayed upload", _replayed_upload, ENGINE),
)  # fmt: skip
