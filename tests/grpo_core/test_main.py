"""grpo_core's command line prints a summary or one document on stdout, and has help.

Wrong usage and bugs exit with 2. Control characters in errors are escaped.
"""

import json
import os
import re
import subprocess
import sys

import pytest

from grpo_core import modes
from grpo_core.__main__ import main

TINY = ("--train.steps=2", "--train.prompts_per_step=2", "--sampling.group_size=2", "--output.name=r")


def test_train_json_prints_exactly_one_document(tmp_path, monkeypatch, capfd):
    """Progress and all prints go to stderr; the document has the outcome and the path of the metrics."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("grpo_core.modes.run_mode", _noisy(modes.run_mode))
    assert main(["train", *TINY, "--json"]) == 0
    out, err = capfd.readouterr()
    document = json.loads(out)
    assert (document["schema"], document["outcome"], document["steps"]) == ("grpo-doctor.train.v1", "ok", 2)
    assert (document["syncs"], document["syncs_proven"], document["max_staleness"]) == (2, 2, 0)
    assert document["versions"]["torch"]
    assert (tmp_path / document["metrics"]).exists()
    assert "step 2/2" in err
    assert "noise" in err


def _noisy(function):
    """Wrap a function so that it writes to the process's stdout, as some engines do."""

    def run(trainer):
        os.write(1, b"noise\n")
        subprocess.run(["echo", "noise"], check=True)
        function(trainer)

    return run


def test_train_prints_a_summary(tmp_path, monkeypatch, capfd):
    """The summary has the reward and the sync proofs, and no colour in a pipe."""
    monkeypatch.chdir(tmp_path)
    assert main(["train", *TINY]) == 0
    out = capfd.readouterr().out
    assert re.search(r"reward 0\.\d+ -> 0\.\d+ ", out)
    assert "weight syncs proven: 2 of 2" in out
    assert "\033" not in out


def test_server_without_a_model_is_one_line_with_exit_code_2(capfd):
    """There is one line on stderr without a traceback, and stdout is empty."""
    assert main(["serve"]) == 2
    out, err = capfd.readouterr()
    assert (out, len(err.splitlines())) == ("", 1)
    assert "a server needs the folder of the model" in err


def test_missing_folder_is_reported_before_importing_torch():
    """Importing torch takes seconds. With --json, stdout has a document."""
    program = (
        "import sys; from grpo_core.__main__ import main; "
        "print(main(['train', '--model.path=nowhere', '--json']), 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    document, _, exit_code = done.stdout.partition("\n")
    error = "model.path = 'nowhere': no such folder; expected a transformers checkpoint"
    assert json.loads(document) == {"outcome": "error", "error": error}
    assert (exit_code, done.stderr) == ("2 False\n", f"grpo_core: {error}\n")


def test_internal_error_shows_its_traceback(tmp_path, monkeypatch, capfd):
    """The exit code is 2; stderr has the traceback, and stdout one document."""
    monkeypatch.setattr("grpo_core.modes.run_mode", lambda trainer: 1 / 0)
    assert main(["train", *TINY, f"--output.dir={tmp_path}", "--json"]) == 2
    out, err = capfd.readouterr()
    assert json.loads(out) == {"outcome": "error", "error": "ZeroDivisionError: division by zero"}
    assert "Traceback" in err


@pytest.mark.parametrize("name", ["train", "serve", "replay"])
def test_help_fits_one_screen(name, capfd):
    """Help has usage and exit codes, in at most 24 lines; the main help lists the command."""
    assert main([name, "--help"]) == 0
    text = capfd.readouterr().out
    assert text.startswith(f"usage: python -P -m grpo_core {name} ")
    assert "exit codes: 0 " in text
    assert len(text.splitlines()) <= 24
    assert main(["--help"]) == 0
    assert f"\n{name} " in capfd.readouterr().out


def test_settings_search(capfd):
    """A word in any case selects settings, which are shown with defaults; if none matches, there is a sentence."""
    assert main(["train", "--help-settings"]) == 0
    every = capfd.readouterr().out
    assert "--rollout.max_staleness 1" in every
    assert main(["train", "--help-settings", "STALENESS"]) == 0
    some = capfd.readouterr().out
    assert "--rollout.max_staleness 1" in some
    assert len(some) < len(every) / 5
    assert main(["--help-settings", "zebra"]) == 0
    assert "No setting has 'zebra'" in capfd.readouterr().out


def test_control_sequences_in_arguments_are_escaped(capfd):
    """Neither a terminal nor a CI runner obeys an argument quoted in an error."""
    assert main(["train", "\x1b]52;c;x\x07\x9b31m\u202e\n \u00a0::error::x ##[command]y ##vso[a]b"]) == 2
    text = capfd.readouterr().err
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]|##|(?m:^)\\s*::", text)
    assert "\\u001b]52;c;x" in text
