"""The matrix's program that starts a rollout server fails unless it answers one request; the server is simulated."""

import os

import pytest

from repro.cell_programs import server_start
from tests.case_files import each_case, read_cases

CASES = read_cases(__file__, "server_answers.yaml")

SERVER = """
import http.server, json, sys

class Handler(http.server.BaseHTTPRequestHandler):
    def answer(self, status, document):
        text = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def do_GET(self):
        known = {"/openapi.json": {"paths": {"PATH": {}}}, "/v1/models": {"data": [{"id": "m"}]}}
        self.answer(200 if self.path in known else 404, known.get(self.path, {}))

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.answer(200, ANSWER)

port = int(next(word.partition("=")[2] for word in sys.argv if word.startswith("--port=")))
server = http.server.HTTPServer(("127.0.0.1", port), Handler)
print("INFO:     Application startup complete.", flush=True)
server.serve_forever()
"""


@pytest.fixture
def observe(tmp_path, monkeypatch):
    """Return a function that runs `server_start` with the text of a Python program as the server."""

    def observe_program(program):
        (tmp_path / "simulated_server_program.py").write_text(program)
        path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
        monkeypatch.setenv("PYTHONPATH", path)
        monkeypatch.setitem(
            server_start.SERVERS, "vllm", ("simulated serve", "simulated_server_program", "--max-model-len")
        )
        for name in ("VLLM_CPU_OMP_THREADS_BIND", "VLLM_CPU_KVCACHE_SPACE", "VLLM_NO_USAGE_STATS"):
            monkeypatch.setenv(name, "")  # set by the program, and taken back here
        return server_start.observe("vllm", [])

    return observe_program


@each_case(CASES["answers"])
def test_server_counts_as_running_only_if_it_answers(observe, path, answer, outcome, message):
    """Both protocols are accepted; otherwise the error names what is wrong with the answer."""
    document = observe(SERVER.replace("PATH", path).replace("ANSWER", repr(answer)))
    assert document["outcome"] == outcome, document
    assert message is None or message in document["error"]


def test_server_that_exits_is_reported_by_its_first_error(observe, capsys):
    """The server's output is printed, escaped."""
    document = observe('import sys\nprint("OSError: first")\nprint("RuntimeError: \\x1b[2J")\nsys.exit(3)\n')
    assert "RuntimeError: \\u001b[2J" in capsys.readouterr().err
    assert document["outcome"] == "failed"
    assert document["error"] == "ended with 3 before it was up: OSError: first"
