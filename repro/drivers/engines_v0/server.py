"""vLLM's own OpenAI server in a process of its own: it alone owns the engine, and everybody else is its client.

The parts are those of `vllm.entrypoints.openai.api_server.run_server`, put together as there, on a socket that listens
already: so a client's connection waits for the engine, and nobody has to ask again and again whether it is up.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import re
import signal
import socket
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

from repro.base import Work
from repro.drivers.engines_v0.asked import EVALUATION, LIMIT, TRAINING, Asked, work
from repro.drivers.engines_v0.engine import model_folder
from repro.drivers.whole_engine import VOCABULARY

_LONGEST_S = 600
_NOTE = "vLLM's OpenAI server, in a process of its own"
# Two pipes between the server and its clients, made before the server is forked: (held, go).
_PIPES: dict[str, tuple[int, int]] = {}


def hold(_tokens: Any, logits: Any) -> Any:
    """Is the logits processor that a request names: it holds the server's step, once, until a client lets it go."""
    held, go = _PIPES.pop("hold", (0, 0))
    if held:
        os.write(held, b"h")
        os.read(go, 1)
    return logits


# As the server is told to allow it, and as a request names it.
_HOLD = f"{hold.__module__}.{hold.__name__}"


def two_clients() -> Work:
    """Training's prefill is held in the server while evaluation's requests are sent; both wait for their answers."""
    with _serving() as (port, held, go), ThreadPoolExecutor(2) as clients:
        training = clients.submit(_ask, _sent(port, TRAINING, holding=True))
        os.read(held, 1)
        sent = _sent(port, EVALUATION)
        os.write(go, b"g")
        evaluation = clients.submit(_ask, sent)
        return work([(TRAINING, training.result()), (EVALUATION, evaluation.result())], note=_NOTE)


def interrupted_client() -> Work:
    """Training's client goes away while its prefill is held; evaluation's asks the same server."""
    with _serving() as (port, held, go):
        training = _sent(port, TRAINING, holding=True)
        os.read(held, 1)
        training[0].close()
        os.write(go, b"g")
        return work([(EVALUATION, _ask(_sent(port, EVALUATION)))], note=_NOTE)


@contextlib.contextmanager
def _serving() -> Iterator[tuple[int, int, int]]:
    """Forks the server; gives its port, the pipe that tells that a step is held, and the one that lets it go."""
    held, says_held = os.pipe()
    waits_for_go, go = os.pipe()
    listening = socket.create_server(("127.0.0.1", 0))
    port = int(listening.getsockname()[1])
    folder = model_folder()
    server = os.fork()
    if server == 0:
        _PIPES["hold"] = (says_held, waits_for_go)
        _serve(listening, folder)
    listening.close()  # if the server ends, its clients see it
    os.close(says_held)
    try:
        yield port, held, go
    finally:
        os.kill(server, signal.SIGKILL)
        os.waitpid(server, 0)
        for end in (held, go, waits_for_go):
            os.close(end)


def _serve(listening: socket.socket, folder: str) -> None:
    """Is the server's process."""
    try:
        asyncio.run(_run(listening, folder))
    finally:
        os._exit(1)


async def _run(listening: socket.socket, folder: str) -> None:
    from vllm.entrypoints.launcher import serve_http
    from vllm.entrypoints.openai.api_server import (
        build_app,
        build_async_engine_client,
        init_app_state,
    )
    from vllm.entrypoints.openai.cli_args import make_arg_parser
    from vllm.utils import FlexibleArgumentParser

    _add_tokenizer(folder)
    parser = make_arg_parser(FlexibleArgumentParser())
    args = parser.parse_args([*_options(folder)])
    async with build_async_engine_client(args) as engine_client:
        app = build_app(args)
        await init_app_state(engine_client, await engine_client.get_vllm_config(), app.state, args)
        await serve_http(app, sock=listening, host="127.0.0.1", port=0, log_level="warning")


def _options(folder: str) -> list[str]:
    return [
        *("--model", folder, "--served-model-name", "tiny", "--dtype", "float32", "--enforce-eager"),
        *("--max-model-len", str(LIMIT), "--max-num-batched-tokens", "4096", "--max-num-seqs", "8"),
        *("--no-enable-chunked-prefill", "--disable-log-requests", "--disable-frontend-multiprocessing"),
        *("--logits-processor-pattern", re.escape(_HOLD)),
    ]


def _add_tokenizer(folder: str) -> None:
    """Writes a tokenizer of one word a token, without which the server takes no request."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(WordLevel({str(token): token for token in range(VOCABULARY)}))
    PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(folder)


def _sent(
    port: int, asked: Sequence[Asked], *, holding: bool = False
) -> tuple[http.client.HTTPConnection, Sequence[Asked]]:
    """Sends requests with one set of lengths as one completion each; the answers are still to be read."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_LONGEST_S)
    body = {
        "model": "tiny",
        "prompt": [item.prompt for item in asked],
        "max_tokens": asked[0].max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "logprobs": 0,
    }
    if holding:
        body["logits_processors"] = [_HOLD]
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    return connection, asked


def _ask(sent: tuple[http.client.HTTPConnection, Sequence[Asked]]) -> list[Any]:
    """Reads the answers, in the form in which vLLM's own engines give theirs."""
    connection, asked = sent
    with contextlib.closing(connection):
        answer = connection.getresponse()
        found = json.loads(answer.read())
    if answer.status != http.client.OK:
        raise RuntimeError(f"vLLM's server answered {answer.status}: {found}")
    return [
        SimpleNamespace(
            prompt_token_ids=asked[choice["index"]].prompt,
            finished=choice["finish_reason"] == "length",
            outputs=[SimpleNamespace(token_ids=choice["logprobs"]["tokens"])],
        )
        for choice in found["choices"]
    ]
