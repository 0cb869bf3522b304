"""The server's token is random or from the environment, and not in a run's files; wrong token options are refused."""

import json
import os
import secrets
from contextlib import closing
from pathlib import Path

import pytest

from grpo_core import __main__ as cli
from grpo_core.config import ConfigError
from grpo_core.rollout.server import process as server_process
from grpo_core.rollout.server.process import ServerProcess, token_from_environment
from grpo_core.settings import load
from tests.case_files import each_case, read_cases
from tests.grpo_core.conftest import engine_config, run_training

CASES = read_cases(__file__, "token_options.yaml")


def test_own_server_has_a_long_secret_token(model_dir):
    """The token has more than 40 characters and is not on the command line, which every user can read."""
    with closing(ServerProcess(engine_config(), model_dir)) as server:
        assert len(server.token) > 40
        assert server.token.encode() not in Path(f"/proc/{server.pid}/cmdline").read_bytes()


def test_run_writes_no_token(short_run, monkeypatch, capfd):
    """Neither the token of the run's own server nor the environment's token is in the run's files or output."""
    created, received = [], "given-to-nobody-in-particular"
    create = secrets.token_urlsafe
    monkeypatch.setattr(secrets, "token_urlsafe", lambda size: created.append(create(size)) or created[-1])
    monkeypatch.setenv("GRPO_CORE_TOKEN", received)
    config = short_run("server", **{"train.steps": 2, "output.record_every": 1})
    document, _ = run_training(config)
    assert len(created) == 1
    out, err = capfd.readouterr()
    written = [path.read_bytes() for path in Path(config.output.dir).rglob("*") if path.is_file()]
    assert len(written) > 4
    for text in (*written, out.encode(), err.encode(), json.dumps(document).encode()):
        assert created[0].encode() not in text
        assert received.encode() not in text


@each_case(CASES["options"])
def test_unusable_token_options_are_refused(model_dir, monkeypatch, capsys, options, variables, message):
    """The command exits with 2 and prints one line, which does not show an invalid token."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert cli.main(["serve", f"--model.path={model_dir}", *options]) == 2
    out, err = capsys.readouterr()
    assert (out, len(err.splitlines())) == ("", 1), err
    assert message in err
    assert "a\x7fc" not in err


def test_token_comes_from_the_environment(monkeypatch):
    """Without one there is none; a server removes it from the environment of its children."""
    assert token_from_environment() is None
    monkeypatch.setenv("GRPO_CORE_TOKEN", "of the environment")
    assert token_from_environment() == "of the environment"
    config = load(None, ["--model.path=/nowhere", "--rollout.host=0.0.0.0"])
    assert server_process._required_token(config, allow_unauthenticated=False) == "of the environment"
    assert "GRPO_CORE_TOKEN" not in os.environ


@pytest.mark.parametrize("text", ["two\nlines", "a" * 4097, "\u00e9"])
def test_invalid_token_is_refused_without_being_shown(monkeypatch, text):
    """The error names the variable and does not show the token."""
    monkeypatch.setenv("GRPO_CORE_TOKEN", text)
    with pytest.raises(ConfigError, match=r"^GRPO_CORE_TOKEN: a token is .*4096 printable ASCII characters$"):
        token_from_environment()
