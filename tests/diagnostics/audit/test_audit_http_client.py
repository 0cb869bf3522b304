"""The audit's HTTP client ends calls at their deadline, and refuses redirects, compressed answers and long errors."""

import asyncio
import contextlib
import gzip
import re
import socket
import threading
import urllib.parse

import pytest

from diagnostics.audit.live.http_client import Client
from diagnostics.audit.results import AuditError, NotAvailableError
from diagnostics.output.redact import forget_secrets, mask


@contextlib.contextmanager
def slow_server(answer):
    """Send the pieces of `answer()`, one every 50 ms, until the client disconnects; yield the address."""
    done = threading.Event()
    listener = socket.create_server(("127.0.0.1", 0))

    def serve():
        with contextlib.suppress(OSError):
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                for piece in answer():
                    connection.sendall(piece)
                    if done.wait(0.05):
                        return

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        done.set()
        thread.join(5)
        listener.close()


def send_endless_headers():
    yield b"HTTP/1.1 200 OK\r\n"
    for number in range(10_000):
        yield f"X-{number}: y\r\n".encode()


def send_endless_continues():
    for _ in range(10_000):
        yield b"HTTP/1.1 100 Continue\r\n\r\n"


def send_slow_body():
    yield b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n"
    for _ in range(10_000):
        yield b"x"


@pytest.mark.parametrize("answer", [send_endless_headers, send_endless_continues, send_slow_body])
def test_slow_trickle_response_times_out(answer):
    with slow_server(answer) as url, pytest.raises(NotAvailableError, match=r"no complete answer in 0.5 s"):
        Client(url, 0.5).call("/v1/models")


def test_slow_connect_times_out(monkeypatch):
    """The deadline of a call includes the time in which it connects."""
    connect = asyncio.BaseEventLoop.create_connection

    async def slow(*arguments, **options):
        await asyncio.sleep(0.6)
        return await connect(*arguments, **options)

    monkeypatch.setattr(asyncio.BaseEventLoop, "create_connection", slow)
    with (
        slow_server(lambda: [b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"]) as url,
        pytest.raises(NotAvailableError, match=r"no complete answer in 0.3 s"),
    ):
        Client(url, 0.3).call("/v1/models")


PACKED = gzip.compress(gzip.compress(bytes(1 << 24)))
REFUSED = {
    "redirect": (b"302 Found", b"Location: http://127.0.0.1:9/", b"", r"refused \(302\)"),
    "a kilobyte that takes gigabytes": (b"200 OK", b"Content-Encoding: gzip, gzip", PACKED, "its answer is compressed"),
    "a reason that takes minutes to mask": (
        b"400 Bad Request", b"X: y", b"9" * 5_000_000, r"\(400\): an answer of 5000000 bytes$"
    ),
}  # fmt: skip


@pytest.mark.parametrize(("status", "header", "body", "message"), REFUSED.values(), ids=REFUSED)
def test_redirects_compressed_answers_and_long_errors_are_refused(monkeypatch, status, header, body, message):
    monkeypatch.setattr("zlib.decompressobj", lambda *_: pytest.fail("the answer is unpacked"))
    answer = b"HTTP/1.1 %s\r\n%s\r\nContent-Length: %d\r\n\r\n%s" % (status, header, len(body), body)
    with slow_server(lambda: [answer]) as url, pytest.raises(AuditError, match=message):
        Client(url, 20).call("/v1/models")


@pytest.mark.parametrize("token", ["Tulip9Kestrel", "tulip", "secret", "x y", "kestrel-\\d"])
@pytest.mark.parametrize("in_url", [True, False])
def test_own_token_that_the_server_repeats_is_masked(monkeypatch, token, in_url):
    """Also one that is a common word; words that contain it stay."""
    monkeypatch.setenv("VLLM_API_KEY", "" if in_url else token)
    body = f"Malformed key {token}: <secret> xtulipx".encode()
    answer = b"HTTP/1.1 400 Bad Request\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    userinfo = f"ada:{urllib.parse.quote(token)}@" if in_url else ""
    with slow_server(lambda: [answer]) as url, pytest.raises(AuditError) as raised:
        Client(url.replace("//", f"//{userinfo}"), 20).call("/v1/models")
    assert mask(str(raised.value)).endswith("Malformed key <secret>: <secret> xtulipx")
    forget_secrets()


@pytest.mark.parametrize(
    "address",
    [
        "ada:Kes/Trel9@127.0.0.1:8000", ":Kes/Trel9@127.0.0.1:8000", "http:/ada:KesTrel9@h", "http://ada:Kes/Trel9@h",
        "http://ada:12?Trel9@h", "ada:Kes#Trel9@h", "ada:Kes%2FTrel9%40h", "ftp://ada:KesTrel9@h", "//ada:KesTrel9@h",
        "ada:Kes\\Trel9@h:99999", "http://h/ada:KesTrel9@", "ada:Kes Trel9@[::1",
    ],
)  # fmt: skip
def test_address_that_cannot_be_used_is_printed_without_user_and_password(address):
    with pytest.raises(AuditError) as caught:
        Client(address, 1)
    assert "<secret>@" in str(caught.value)
    assert not {"ada", "Kes", "Trel9", "12"} & {*re.split(r"\W", str(caught.value).partition("expected")[0])}


def test_key_that_is_not_ascii_is_an_error_of_the_user(monkeypatch):
    monkeypatch.setenv("VLLM_API_KEY", "p\u00e4ssword9X")
    with pytest.raises(AuditError, match="must be ASCII"):
        Client("127.0.0.1:8000", 1)
