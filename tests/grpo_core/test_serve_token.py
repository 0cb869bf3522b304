"""The rollout server's token is random, stored privately and never shown; contradicting options are refused."""

from __future__ import annotations

import http.client
import json
import os
import stat
from contextlib import closing
from pathlib import Path

import pytest

from grpo_core import __main__ as cli
from grpo_core import run
from grpo_core.config import ConfigError
from grpo_core.rollout.build import EngineSpec
from grpo_core.rollout.server import process as server_process
from grpo_core.rollout.server.process import ServerProcess, end_child
from grpo_core.rollout.server.token import client_token, new_token, saved_token, server_token, token_path


def status(host, port, token=None, path="/info") -> int:
    """Return the HTTP status of one GET request."""
    connection = http.client.HTTPConnection(host, port, timeout=500)
    with closing(connection):
        connection.request("GET", path, headers={"Authorization": f"Bearer {token}"} if token else {})
        return connection.getresponse().status


def test_own_server_has_a_secret_random_token(model_dir):
    """The token differs each time and is not on the command line, which every user can read."""
    assert new_token() != new_token()
    with closing(ServerProcess(EngineSpec("transformers", str(model_dir), 256), timeout_s=500)) as server:
        assert len(server.token) > 40
        assert server.token.encode() not in Path(f"/proc/{server.pid}/cmdline").read_bytes()
        assert status(server.host, server.port) == 401
        assert status(server.host, server.port, "") == 401
        assert status(server.host, server.port, path="/health") == 200
        assert status(server.host, server.port, server.token) == 200


def test_run_writes_no_token(short_run, monkeypatch, capfd):
    """Neither the token of the run's own server nor the environment's token is in the run's files or output."""
    created, received = [], "given-to-nobody-in-particular"
    monkeypatch.setattr(server_process, "new_token", lambda: created.append(new_token()) or created[-1])
    monkeypatch.setenv("GRPO_CORE_TOKEN", received)
    config = short_run("server", **{"train.steps": 2, "output.record_every": 1})
    document = run.train(config, lambda _: None)
    assert document["outcome"] == "ok", document["error"]
    assert len(created) == 1
    out, err = capfd.readouterr()
    written = [path.read_bytes() for path in Path(config.output.dir).rglob("*") if path.is_file()]
    assert len(written) > 4
    for text in (*written, out.encode(), err.encode(), json.dumps(document).encode()):
        assert created[0].encode() not in text
        assert received.encode() not in text


def test_server_without_a_token_creates_a_token_file(forked_servers, model_dir, short_run):
    """A trainer of the same user finds the file; it is deleted when the server ends."""
    process = forked_servers.start(
        ["grpo_core", "serve", "--exit-with-stdin", f"--model.path={model_dir}"], 1
    )
    try:
        where = json.loads(process.stdout.readline())
        place = Path(where["token_file"])
        assert stat.S_IMODE(place.stat().st_mode) == 0o600
        token = place.read_text().strip()
        assert token not in json.dumps(where)
        assert status(where["host"], where["port"]) == 401
        assert status(where["host"], where["port"], token) == 200
        settings = {"rollout.port": where["port"], "model.path": model_dir, "train.steps": 2}
        document = run.train(short_run("server", **settings), lambda _: None)
        assert document["outcome"] == "ok", document["error"]
    finally:
        end_child(process, grace_s=500)
        process.stdout.close()
    assert not place.exists()


@pytest.mark.parametrize(
    ("options", "variables", "says"),
    [
        (["--allow-unauthenticated", "--rollout.host=0.0.0.0"], {}, "other machines could sample"),
        (["--allow-unauthenticated"], {"GRPO_CORE_TOKEN": "abc"}, "leave one of the two out"),
        (["--rollout.host=0.0.0.0"], {}, "set GRPO_CORE_TOKEN in the environment"),
        ([], {"GRPO_CORE_TOKEN": "a\x7fc"}, "GRPO_CORE_TOKEN: a token is a line of"),
        (["--rollout.token_file=/dev/zero"], {}, "/dev/zero: no regular file"),
        (["--rollout.token_file=/dev/null/here"], {}, "the server's token can't be kept there"),
    ],
)
def test_contradicting_token_options_are_refused(model_dir, monkeypatch, capsys, options, variables, says):
    """The command exits with 2 and prints one line without the token."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert cli.main(["serve", f"--model.path={model_dir}", *options]) == 2
    out, err = capsys.readouterr()
    assert (out, len(err.splitlines())) == ("", 1), err
    assert says in err
    assert "a\x7fc" not in err


def test_environment_token_precedes_the_file(tmp_path, monkeypatch):
    """The variable has priority over the file, and a server removes it so that child processes do not inherit it."""
    (tmp_path / "token").write_text("of the file\n")
    file = str(tmp_path / "token")
    assert server_token("") is client_token("", "10.0.0.5", 1) is None
    assert server_token(file) == client_token(file, "10.0.0.5", 1) == "of the file"
    monkeypatch.setenv("GRPO_CORE_TOKEN", "of the environment")
    assert client_token(file, "10.0.0.5", 1) == "of the environment"
    assert server_token(file) == "of the environment"
    assert "GRPO_CORE_TOKEN" not in os.environ


@pytest.mark.parametrize("text", ["", "\n", "two\nlines", "a" * 4096, "\u00e9", "\x00"])
def test_invalid_token_is_refused_without_being_shown(tmp_path, text):
    """An error names the file and the allowed characters, and does not show the token."""
    (tmp_path / "token").write_text(text)
    with pytest.raises(ConfigError, match=f"^{tmp_path}/token: a token is a line of 1 to 4096 printable"):
        server_token(str(tmp_path / "token"))


def test_token_file_may_not_be_a_pipe(tmp_path):
    """A named pipe is refused, because reading it would block."""
    os.mkfifo(tmp_path / "token")
    with pytest.raises(ConfigError, match="no regular file"):
        server_token(str(tmp_path / "token"))


def test_only_private_token_files_are_used():
    """A token file is used only for a server of this machine and its port, and only if no other user can read it."""
    with saved_token("", 4711) as (token, place):
        assert place == token_path(4711)
        assert client_token("", "127.0.0.1", 4711) == token
        assert client_token("", "10.0.0.5", 4711) is None
        assert client_token("", "127.0.0.1", 4712) is None
        place.chmod(0o640)
        assert client_token("", "127.0.0.1", 4711) is None
    assert not place.exists()


def test_symlink_at_the_token_path_is_replaced(tmp_path):
    """The target of the symlink does not change, and the token file of a later server is not deleted."""
    (tmp_path / "other").write_text("other")
    (tmp_path / "token").symlink_to(tmp_path / "other")
    with saved_token(str(tmp_path / "token"), 1) as (token, place):
        assert (tmp_path / "other").read_text() == "other"
        assert place.read_text().strip() == token
        place.write_text("a later one's")
    assert place.read_text() == "a later one's"
