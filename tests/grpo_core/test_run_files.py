"""A resumed run continues its metrics file, links in a run's folder are refused, and no temporary file is left.

`JsonLines` does not write through a link. Progress is printed. The metrics of a short run are documented.
"""

import io
import json
import re
import stat
import tempfile
from pathlib import Path

import pytest

from grpo_core import run
from grpo_core.config import ConfigError
from grpo_core.run_files import JsonLines, StepProgress, read_metrics
from grpo_core.settings import load
from tests.cells import ROOT
from tests.grpo_core.conftest import run_training


def metrics_entry(step: int, **values) -> dict:
    """Return the metrics of a step: some numbers, and one missing value."""
    return {"step": step, "reward/mean": step / 100, "loss": -0.0123, "sync/moved": None, **values}


def test_resumed_file_is_cut_and_continued(tmp_path):
    """Later lines and a torn last line are cut off; the bytes before them do not change."""
    path = tmp_path / "metrics.jsonl"
    assert read_metrics(path) == []
    path.write_text("old\n")
    lines = JsonLines(path)  # without a number of bytes the file is replaced
    lines.write(metrics_entry(1))
    position = lines.position()
    assert path.read_bytes() == json.dumps(metrics_entry(1)).encode() + b"\n"
    lines.write(metrics_entry(2))
    lines.close()
    with path.open("a") as file:
        file.write('{"step": 3, "rew')
    assert [line["step"] for line in read_metrics(path)] == [1, 2]
    lines = JsonLines(path, keep_bytes=position)
    assert lines.position() == position == path.stat().st_size
    lines.write(metrics_entry(2, loss=7.0))
    lines.close()
    assert read_metrics(path) == [metrics_entry(1), metrics_entry(2, loss=7.0)]


def test_file_shorter_than_its_checkpoint_is_refused(tmp_path):
    """Continuing would leave a gap; the file is not changed."""
    path = tmp_path / "metrics.jsonl"
    path.write_text("{}\n")
    with pytest.raises(ConfigError, match=r"jsonl: 3 bytes, but the checkpoint was saved when it had 10"):
        JsonLines(path, keep_bytes=10)
    assert path.read_text() == "{}\n"


def test_lines_are_not_written_through_a_link(tmp_path):
    """A link is replaced by a file that only its owner reads; a resumed run refuses the link."""
    victim, path = tmp_path / "victim", tmp_path / "metrics.jsonl"
    victim.write_text("victim\n")
    path.symlink_to(victim)
    with pytest.raises(OSError, match="symbolic links"):
        JsonLines(path, keep_bytes=1)
    JsonLines(path).close()
    assert (path.is_symlink(), stat.S_IMODE(path.stat().st_mode)) == (False, 0o600)
    assert victim.read_text() == "victim\n"


@pytest.mark.parametrize("name", ["summary.json", "rollouts", "checkpoints/.unfinished"])
def test_run_folder_with_a_link_is_refused(tmp_path, name):
    """A run whose folder has a link to a file or folder is refused; a new folder is private."""
    config = load(None, [f"--output.dir={tmp_path}", "--output.name=run"])
    folder = run._run_folder(config, resume=False)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).symlink_to(tmp_path)
    with pytest.raises(ConfigError, match="a link in a run's folder"):
        run._run_folder(config, resume=False)


def test_metrics_of_a_run_are_documented(short_run):
    """docs/metrics.md has a row for each metric of a colocate run with a KL penalty, and no row twice."""
    document, _ = run_training(short_run(**{"loss.kl_coefficient": 0.1}))
    text = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    explained = re.findall(r"^\| `(.+?)` \| .+ \|$", text, re.MULTILINE)
    assert len(set(explained)) == len(explained)
    patterns = [re.compile(re.sub("<.+>", ".+", name)) for name in explained]
    names = {name for line in read_metrics(Path(document["metrics"])) for name in line}
    assert [name for name in names if not any(pattern.fullmatch(name) for pattern in patterns)] == []


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["colocate", "server", pytest.param("async", marks=pytest.mark.long)])
def test_no_temporary_files_are_left(short_run, tmp_path, monkeypatch, mode):
    """A run in any mode leaves no temporary file."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    # PyTorch makes its folder for compiled code when a process first needs it.
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    run_training(short_run(mode, **{"train.steps": 2}))
    assert list(temporary.iterdir()) == []


def test_progress_is_printed_about_twenty_times():
    """Of 100 steps the first, each fifth and the last are printed, and a step after 20 s without a line."""
    now, stream = [0.0], io.StringIO()
    progress = StepProgress(100, stream, clock=lambda: now[0])
    rest = {"entropy": 1.5, "staleness/max": 1, "time/step_s": 2.0}
    for step in (*range(1, 13), 100):
        now[0] += 60 if step == 8 else 0.1
        progress(metrics_entry(step, **rest))
    lines = stream.getvalue().splitlines()
    assert [int(line.split()[1].partition("/")[0]) for line in lines] == [1, 5, 8, 10, 100]
    assert lines[1] == "step 5/100  reward 0.050  loss -0.0123  entropy 1.50  staleness 1  2.00 s"
