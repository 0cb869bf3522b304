"""`audit --watch` reports faults in metrics files that grow or are replaced, and a summary at the end.

A folder exits with 2 and a missing file with 3; a truncated last line leaves the outcome undecided.
"""

import json

import pytest

from diagnostics.__main__ import main
from diagnostics.audit.finding_tracker import FOUND, GONE
from diagnostics.audit.results import FAULT, NOT_DECIDED
from diagnostics.audit.watch import Watch
from tests.diagnostics.audit_running.metric_lines import append_lines, healthy_metrics

NO_GRADIENT = {"grad_norm": 0.0, "frac_reward_zero_std": 0.0}


def test_healthy_metrics_are_clean(tmp_path, capsys):
    append_lines(tmp_path / "metrics.jsonl", map(healthy_metrics, range(1, 101)))
    assert main(["audit", "--watch", str(tmp_path / "metrics.jsonl"), "--idle", "0"]) == 0
    assert capsys.readouterr().out.startswith("audit: no fault found; 3 checks passed")


def test_fault_line_has_step_code_and_place(tmp_path, capsys):
    """The first line has step, code and the metrics file's line; the first JSON lines are a change and an audit."""
    path = tmp_path / "metrics.jsonl"
    append_lines(path, (healthy_metrics(step) | NO_GRADIENT for step in range(1, 31)))
    assert main(["audit", "--watch", str(path), "--idle", "0"]) == 1
    first = capsys.readouterr().out.splitlines()[0]
    assert first.startswith("step 30: FAULT NUM046: the gradient is 0 since step 1")
    assert first.endswith("# metrics.jsonl:1")
    assert main(["audit", "--watch", str(path), "--idle", "0", "--format", "jsonl"]) == 1
    kinds = [json.loads(line)["type"] for line in capsys.readouterr().out.splitlines()]
    assert kinds[:2] == ["change", "audit"]


@pytest.mark.parametrize(
    ("name", "code", "message"), [("", 2, "expected a file"), ("none", 3, "no line of metrics")]
)
def test_folder_or_missing_file_is_refused(tmp_path, capsys, name, code, message):
    """A folder exits with 2, and a missing file with 3."""
    assert main(["audit", "--watch", str(tmp_path / name), "--idle", "0"]) == code
    assert message in capsys.readouterr().err


def test_growing_and_replaced_files_are_read_again(tmp_path):
    """A fault is found in new lines, and is gone in the new file; the outcome at the end is still a fault."""
    path, changes = tmp_path / "metrics.jsonl", []
    watching = Watch([path], 0.0, changes.append, lambda _: None)
    assert not watching.scan_files()
    append_lines(path, (healthy_metrics(step) for step in range(1, 7)))
    assert watching.scan_files()
    for step in range(7, 14):
        append_lines(path, [healthy_metrics(step) | NO_GRADIENT])
        assert watching.scan_files()
        assert not watching.scan_files()
    append_lines(path, map(healthy_metrics, range(1, 11)), "w")
    for step in range(11, 14):
        assert watching.scan_files()
        append_lines(path, [healthy_metrics(step)])
    assert [(change.kind, change.step) for change in changes] == [(FOUND, 11), (GONE, 11)]
    assert watching.finish().outcome == FAULT


def test_truncated_last_line_is_not_clean(tmp_path):
    path = tmp_path / "metrics.jsonl"
    append_lines(path, map(healthy_metrics, range(1, 31)))
    path.write_bytes(path.read_bytes()[:-9])
    assert Watch([path], 0.0, print, print).run(sleep=lambda _: None).outcome == NOT_DECIDED
