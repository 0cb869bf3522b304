"""A killed and resumed run gives the numbers of an uninterrupted run, except wall times.

A resume with settings that change numbers is refused. A damaged checkpoint is skipped.
"""

import functools
import json
import os
from pathlib import Path

import pytest

from grpo_core import run
from grpo_core.config import ConfigError
from grpo_core.machine import checkpoint
from grpo_core.machine.checkpoint import State, load
from tests.cells import ROOT
from tests.grpo_core.conftest import run_training
from tests.processes import run_python

KILLS = 20
MODES = {
    "colocate": ["--rollout.mode=colocate"],
    "async": ["--rollout.mode=async", "--rollout.max_staleness=1"],
    "async, deeper": ["--rollout.mode=async", "--rollout.max_staleness=3"],
    "server": ["--rollout.mode=server"],
}
SHORT = ["--train.steps=12", "--train.prompts_per_step=4", "--sampling.group_size=4"]
SHORT += ["--output.completions_every=1", "--eval.every=3", "--eval.prompts=8"]


@pytest.fixture(scope="module")
def killed_runs(tmp_path_factory):
    """Return a function that runs the kill-and-resume program for a mode once, and returns its report."""

    @functools.cache
    def run_killed(mode: str) -> dict:
        program = ("-m", "tests.grpo_core.kill_and_resume", tmp_path_factory.mktemp("killed"), KILLS, 0)
        done = run_python(*program, *MODES[mode], *SHORT, cwd=ROOT, timeout=None)
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(done.stdout)

    return run_killed


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("mode", MODES)
def test_killed_and_resumed_run_is_identical(killed_runs, mode):
    """Parameters are bit-identical; metrics (except wall times) and completions have no line lost or doubled."""
    report = killed_runs(mode)
    assert len(report["deaths"]) == KILLS
    assert report["outcome"] == "ok"
    assert report["parameters"][0] == report["parameters"][1]
    assert report["differences"] == {"metrics": [], "completions": []}
    assert report["lines"] == {"metrics": [12, 12], "completions": [192, 192]}


@pytest.mark.slow
@pytest.mark.long
def test_kills_hit_training_and_writing_of_files(killed_runs):
    deaths = [death for report in map(killed_runs, MODES) for death in report["deaths"]]
    files = {death["killed_in"].split(":")[0] for death in deaths}
    assert len(files) > 10
    assert files & {"checkpoint.py", "run_files.py"}


def ignore_progress(_: dict) -> None:
    """Ignore a progress report."""


@pytest.mark.parametrize(
    "settings",
    [
        {
            "train.mini_batches": 2,
            "train.scheduler": "cosine",
            "train.beta2": 0.99,
            "train.warmup_updates": 1,
        },
        # Checkpoints have the float32 weights; the copy is made from them.
        {"model.dtype": "bfloat16", "rollout.dtype": "bfloat16", "rollout.sync_tolerance": 0.2},
        {"model.lora_rank": 4, "train.learning_rate": 0.02, "loss.kl_coefficient": 0.01},
    ],
    ids=["mini-batches and schedule", "bfloat16", "adapters and reference"],
)
def test_interrupted_and_resumed_run_is_identical(short_run, settings):
    """A run that is interrupted after step 2 of 3 and resumed has the parameters of an uninterrupted run.

    tests/gpu/test_runs.py resumes a plain run that was finished with fewer steps.
    """

    def interrupt(entry):
        if entry["step"] == 2:
            raise KeyboardInterrupt

    uninterrupted, _ = run_training(short_run(**settings, **{"train.steps": 3}))
    parts = short_run(**settings, **{"train.steps": 3, "output.name": "parts"})
    assert run.train(parts, interrupt)["outcome"] == "interrupted"
    resumed = run.train(parts, ignore_progress, resume=True)
    assert (resumed["steps"], resumed["parameters"]) == (3, uninterrupted["parameters"])


def test_damaged_checkpoint_is_skipped(short_run, capsys):
    """A checkpoint with a wrong checksum is skipped; the run resumes from the one before and ends the same."""
    settings = {"train.steps": 4, "checkpoint.keep": 2}
    full_run = run.train(short_run(**settings), ignore_progress)
    folder = Path(full_run["metrics"]).parent / "checkpoints"
    assert [path.name for path in sorted(folder.iterdir())] == ["step-00000003", "step-00000004"]
    path = folder / "step-00000004" / "policy.safetensors"
    payload = bytearray(path.read_bytes())
    payload[-1] ^= 1
    path.write_bytes(payload)
    again = run.train(short_run(**settings), ignore_progress, resume=True)
    assert "step-00000004 is damaged (policy.safetensors has another checksum" in capsys.readouterr().err
    assert again["parameters"] == full_run["parameters"]


def test_path_of_a_damaged_checkpoint_is_escaped(tmp_path, capsys):
    folder = tmp_path / "a\x1b[2J\n::error::"
    (folder / "step-00000001").mkdir(parents=True)
    assert checkpoint.load(folder) is None
    assert "a\\u001b[2J\n\\u003a:error::/step-00000001 is damaged" in capsys.readouterr().err


@pytest.mark.parametrize("damage", ["{", "", '{"schema": "other"}', "[]"])
def test_invalid_state_file_is_skipped(tmp_path, damage):
    """A truncated, empty or foreign file counts as no checkpoint, without an exception."""
    checkpoint.save(tmp_path, State(step=1), keep=1)
    assert load(tmp_path).step == 1
    (tmp_path / "step-00000001" / "state.json").write_text(damage)
    assert load(tmp_path) is None


def test_existing_run_is_not_overwritten(short_run):
    """A run of the same name without --resume is refused, and no file changes."""
    document = run.train(short_run(**{"output.record_every": 1}), ignore_progress)
    folder = Path(document["metrics"]).parent
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(ConfigError, match=r"output.name = 'colocate': .*colocate holds a run; --resume it"):
        run.train(short_run(**{"train.seed": 1}), ignore_progress)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_name_of_run_without_steps_can_be_reused(short_run):
    """After a configuration error, the corrected run can use the same name."""
    config = short_run()
    folder = Path(config.output.dir, "colocate")
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "metrics.jsonl").touch()
    assert run.train(config, ignore_progress)["steps"] == 4


def test_resume_refuses_settings_that_change_numbers(short_run):
    """One error has the changed settings with both values; a setting that changes no number is accepted.

    Settings that cannot be read are refused too.
    """
    started_with = {"train.seed": 3, "loss.clip_low": 0.1}
    run.train(short_run(**started_with), ignore_progress)
    message = r"^train.seed = 0 \(its default\), begun with 3; loss.clip_low = 0.3, begun with 0.1: the run in [^\n]*$"
    with pytest.raises(ConfigError, match=message):
        run.train(short_run(**{"loss.clip_low": 0.3}), ignore_progress, resume=True)
    accepted = short_run(**started_with, **{"output.completions_every": 0})
    assert run.train(accepted, ignore_progress, resume=True)["outcome"] == "ok"
    for settings in ("{", "[]", '{"train": 3}'):
        path = Path(short_run().output.dir, "colocate", "config.json")
        path.write_text(settings)
        with pytest.raises(ConfigError, match=r"config.json: not JSON \(.*\): the run of this name can't be"):
            run.train(short_run(), ignore_progress, resume=True)
    path.unlink()
    os.mkfifo(path)  # a read of it would wait for a writer
    with pytest.raises(ConfigError, match="no regular file"):
        run.train(short_run(), ignore_progress, resume=True)


def test_resume_needs_an_existing_run(short_run):
    """A missing or unknown name is refused; an empty folder of a run starts anew."""
    with pytest.raises(ConfigError, match="--resume needs the name"):
        run.train(short_run(**{"output.name": ""}), ignore_progress, resume=True)
    folder = Path(short_run().output.dir)
    (folder / "august").mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"no such run in .* to go on with; without --resume it is started"):
        run.train(short_run(**{"output.name": "agust"}), ignore_progress, resume=True)
    assert [path.name for path in folder.iterdir()] == ["august"]
    assert run.train(short_run(**{"output.name": "august"}), ignore_progress, resume=True)["steps"] == 4


def test_unwritable_checkpoint_is_reported(tmp_path):
    """A ConfigError names the folder and the step."""
    (tmp_path / "checkpoints").write_text("in the way")
    with pytest.raises(ConfigError, match=r"checkpoints: step 3 can't be saved: "):
        checkpoint.save(tmp_path / "checkpoints", State(step=3), keep=1)
