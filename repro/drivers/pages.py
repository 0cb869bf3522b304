"""A server of ours with a few pages, for a client of upstream's that asks one; what is not among them is 404."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

# What TRL's client asks of a server of vLLM before it is ready.
VLLM = {"/health": {}, "/v1/models": {"data": [{"id": "model"}]}}


def serve(
    pages: Mapping[str, Any], port: int = 0, status: int = 404, header: tuple[str, str] = ("X", "")
) -> str:
    """Serves from a thread, and returns the address.

    Args:
        pages: what is answered, by path.
        port: 0 for any.
        status: of the answer where there is no such page.
        header: of every answer.
    """

    class Pages(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            page = pages.get(self.path.partition("?")[0])
            body = b"" if page is None else json.dumps(page).encode()
            self.send_response(status if page is None else 200)
            self.send_header(*header)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"] or 0))
            self.do_GET()

        do_HEAD = do_GET  # noqa: N815 - the name that http.server looks for

        def log_message(self, *_: Any) -> None:
            """Says nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", port), Pages)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}"
