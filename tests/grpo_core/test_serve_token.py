"""The server's token: who has it, where it is kept, and who is never shown it."""

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
    """Return the status of one call."""
    connection = http.client.HTTPConnection(host, port, timeout=500)
    with closing(connection):
        connection.request("GET", path, headers={"Authorization": f"Bearer {token}"} if token else {})
        return connection.getresponse().status


def test_a_trainers_own_server_has_a_token_that_nobody_sees(model_dir):
    """Another one each time; not on its command line, which every user of the machine can read."""
    assert new_token() != new_token()
    with closing(ServerProcess(EngineSpec("transformers", str(model_dir), 256), timeout_s=500)) as server:
        assert len(server.token) > 40
        assert server.token.encode() not in Path(f"/proc/{server.pid}/cmdline").read_bytes()
        assert status(server.host, server.port) == 401
        assert status(server.host, server.port, "") == 401
        assert status(server.host, server.port, path="/health") == 200
        assert status(server.host, server.port, server.token) == 200


def test_a_run_leaves_no_token_in_its_files(short_run, monkeypatch, capfd):
    """Neither its own server's, nor one that is in the environment; nor is one printed."""
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


def test_a_server_that_is_given_none_makes_one_and_says_where(forked_servers, model_dir, short_run):
    """A trainer of the same user finds it; it is deleted when the server ends."""
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
def test_what_contradicts_is_refused(model_dir, monkeypatch, capsys, options, variables, says):
    """In one line, with exit code 2, and without the token."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert cli.main(["serve", f"--model.path={model_dir}", *options]) == 2
    out, err = capsys.readouterr()
    assert (out, len(err.splitlines())) == ("", 1), err
    assert says in err
    assert "a\x7fc" not in err


def test_the_environment_goes_before_the_file(tmp_path, monkeypatch):
    """And is taken out of it where it must not be handed on."""
    (tmp_path / "token").write_text("of the file\n")
    file = str(tmp_path / "token")
    assert server_token("") is client_token("", "10.0.0.5", 1) is None
    assert server_token(file) == client_token(file, "10.0.0.5", 1) == "of the file"
    monkeypatch.setenv("GRPO_CORE_TOKEN", "of the environment")
    assert client_token(file, "10.0.0.5", 1) == "of the environment"
    assert server_token(file) == "of the environment"
    assert "GRPO_CORE_TOKEN" not in os.environ


@pytest.mark.parametrize("text", ["", "\n", "two\nlines", "a" * 4096, "\u00e9", "\x00"])
def test_what_is_no_token_is_refused_without_being_shown(tmp_path, text):
    """The error names the file, not the token."""
    (tmp_path / "token").write_text(text)
    with pytest.raises(ConfigError, match=f"^{tmp_path}/token: a token is a line of 1 to 4096 printable"):
        server_token(str(tmp_path / "token"))


def test_a_file_that_waits_for_a_writer_is_not_waited_for(tmp_path):
    """A pipe."""
    os.mkfifo(tmp_path / "token")
    with pytest.raises(ConfigError, match="no regular file"):
        server_token(str(tmp_path / "token"))


def test_only_a_file_that_is_the_users_alone_is_looked_up():
    """And only for this machine."""
    with saved_token("", 4711) as (token, place):
        assert place == token_path(4711)
        assert client_token("", "127.0.0.1", 4711) == token
        assert client_token("", "10.0.0.5", 4711) is None
        assert client_token("", "127.0.0.1", 4712) is None
        place.chmod(0o640)
        assert client_token("", "127.0.0.1", 4711) is None
    assert not place.exists()


def test_a_link_in_its_place_is_replaced_and_not_followed(tmp_path):
    """The link's target does not change, and the token file of a later server is not deleted."""
    (tmp_path / "other").write_text("other")
    (tmp_path / "token").symlink_to(tmp_path / "other")
    with saved_token(str(tmp_path / "token"), 1) as (token, place):
        assert (tmp_path / "other").read_text() == "other"
        assert place.read_text().strip() == token
        place.write_text("a later one's")
    assert place.read_text() == "a later one's"
