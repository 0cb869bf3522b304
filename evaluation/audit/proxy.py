"""Proxy between an audit and a real server that changes requests and responses, to inject faults.

For example, the server samples with other parameters than the audit requested, or log-probs are shifted.
"""

from __future__ import annotations

import contextlib
import http.client
import http.server
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from evaluation.audit.bench_server import BenchFaults, exchange_samples
from tests.diagnostics.audit.fake_vllm_server import ServerFaults
from tests.processes import run_server


@contextlib.contextmanager
def run_proxy(url: str, wrong: ServerFaults, second: str = "") -> Iterator[str]:
    """Run the proxy and yield its address; the server at `second`, if given, answers every other completion request."""
    calls = [0]

    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

        def do_GET(self) -> None:
            self._reply(*forward(url, "GET", self.path, None, self.headers["Authorization"]))

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            to = url
            if self.path == "/v1/completions":
                calls[0] += 1
                to = second if second and calls[0] % 2 else url
                body = change_request(body, wrong)
            elif wrong.double_bos and self.path == "/tokenize" and "prompt" in body:
                status, content = forward(to, "POST", self.path, body)
                reported = json.loads(content)
                reported["tokens"] = [reported["tokens"][0], *reported["tokens"]]
                self._reply(status, json.dumps(reported).encode())
                return
            status, content = forward(to, "POST", self.path, body, self.headers["Authorization"])
            if self.path == "/v1/completions" and status == 200:
                content = json.dumps(change_answer(json.loads(content), body, wrong)).encode()
            self._reply(status, content)

        def _reply(self, status: int, content: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    with run_server(Handler) as address:
        yield address


def forward(
    url: str, method: str, path: str, body: Any, authorization: str | None = None
) -> tuple[int, bytes]:
    """Send a request to the server; return the status and the body of the response."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=500)
    try:
        headers = {"Content-Type": "application/json"}
        if authorization:
            headers["Authorization"] = authorization
        connection.request(method, path, json.dumps(body) if body is not None else None, headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def change_request(body: dict[str, Any], wrong: ServerFaults) -> dict[str, Any]:
    """Return a completion request with the fault applied; requests for scores are unchanged."""
    if "prompt_logprobs" in body or body.get("logprobs"):
        return body  # scores and cache probes: sampling parameters do not affect them
    body = {**body, **wrong.sampling}
    if wrong.bias:
        body["logit_bias"] = {str(wrong.bias[0]): wrong.bias[1]}
    if wrong.greedy or wrong.one_seed:
        # vLLM gives copies of a prompt different seeds, so send one prompt for each copy.
        body["prompt"] = [prompt for prompt in body["prompt"] for _ in range(body.get("n", 1))]
        body["n"] = 1
    if wrong.greedy:
        body["temperature"] = 0.0
    if wrong.one_seed:
        body["seed"] = 11
    return body


def change_answer(answer: dict[str, Any], body: dict[str, Any], wrong: ServerFaults) -> dict[str, Any]:
    """Return a completion response with the fault applied (in place); responses with scores are unchanged."""
    choices = answer["choices"]
    if "prompt_logprobs" in body or body.get("logprobs"):
        return answer
    for choice in choices:
        reported = choice["logprobs"]
        if isinstance(wrong, BenchFaults) and wrong.shift:
            values = reported["token_logprobs"]
            reported["token_logprobs"] = values[-wrong.shift :] + values[: -wrong.shift]
        if wrong.argmax_logprobs:
            reported["tokens"] = [reported["tokens"][0], *reported["tokens"][:-1]]
    if isinstance(wrong, BenchFaults) and wrong.permuted:
        answer["choices"] = exchange_samples(choices, body)
    return answer
