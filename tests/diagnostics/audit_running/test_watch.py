"""`audit --watch`: lines as they come, a document at the end, exit codes."""

import json

import pytest

from diagnostics.__main__ import main
from diagnostics.audit.results import FAULT, Result
from diagnostics.audit.watch import FOUND, GONE, Watch, Window
from tests.diagnostics.audit_running.lines import append_lines, healthy, samples

WRONG = {"grad_norm": 0.0, "frac_reward_zero_std": 0.0}


def watch(path, changes):
    return Watch([path], 0.0, changes.append, lambda _: None)


def test_healthy_metrics_are_clean(tmp_path, capsys):
    append_lines(tmp_path / "metrics.jsonl", map(healthy, range(1, 31)))
    assert main(["audit", "--watch", str(tmp_path / "metrics.jsonl"), "--idle", "0"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("audit: 3 checks passed")
    assert "30 scans" in err


def test_fault_is_a_line_and_then_the_document(tmp_path, capsys):
    path = tmp_path / "metrics.jsonl"
    append_lines(path, (healthy(step) | WRONG for step in range(1, 31)))
    assert main(["audit", "--watch", str(path), "--idle", "0"]) == 1
    first = capsys.readouterr().out.splitlines()[0]
    assert first.startswith("step 4: FAULT NUM046: rewards differ")
    assert first.endswith("# metrics.jsonl:1")
    assert main(["audit", "--watch", str(path), "--idle", "0", "--format", "jsonl"]) == 1
    kinds = [json.loads(line)["type"] for line in capsys.readouterr().out.splitlines()]
    assert kinds[:2] == ["change", "audit"]


@pytest.mark.parametrize(
    ("name", "code", "message"), [("", 2, "expected a file"), ("none", 3, "no line of metrics")]
)
def test_file_that_cannot_be_watched_is_named(tmp_path, capsys, name, code, message):
    assert main(["audit", "--watch", str(tmp_path / name), "--idle", "0"]) == code
    assert message in capsys.readouterr().err


def test_half_lines_wait_and_replaced_files_begin_anew(tmp_path):
    path, changes = tmp_path / "metrics.jsonl", []
    watching = watch(path, changes)
    line = json.dumps(healthy(1) | WRONG)
    path.write_text(line[:20])
    assert not watching.scan_files()
    path.write_text("".join(json.dumps(healthy(step) | WRONG) + "\n" for step in range(1, 7)))
    assert watching.scan_files()
    path.rename(tmp_path / "old")
    append_lines(path, map(healthy, range(1, 11)))
    assert watching.scan_files()
    assert [change.kind for change in changes] == [FOUND, GONE]
    assert watching.finish().outcome == FAULT


def test_finding_takes_two_scans_and_goes_after_three():
    window, fault = Window(), Result("curves/clip", FAULT, "curves", "clipped")
    clean = Result("curves", "clean", "curves")
    kinds = [
        [change.kind for change in window.update(step, [fault if step < 3 else clean])]
        for step in range(1, 7)
    ]
    assert kinds == [[], [FOUND], [], [], [GONE], []]


def test_samples_without_spread_are_found(tmp_path):
    path, changes = tmp_path / "completions.jsonl", []
    entries = [
        {
            "step": ["1"] * 16,
            "prompt": [row.prompt for row in rows],
            "completion": [row.completion for row in rows],
            "Exact": [0.0] * 16,
            "advantages": [0.0] * 16,
        }
        | {"step": [str(step)] * 16}
        for step in range(1, 11)
        for rows in [samples(step)]
    ]
    append_lines(path, entries)
    audit = watch(path, changes).run(sleep=lambda _: None)
    assert "rewards/constant" in {result.family for result in audit.select(FAULT)}
