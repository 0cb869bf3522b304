"""Dumps of TRL and verl, written by their own code (see data/make_*.py), and what is said of their advantages."""

import dataclasses
import json
import os
import sys
from pathlib import Path

import pytest

from grpo_core.config import ConfigError, LossConfig
from grpo_core.metrics import completion_entry
from grpo_core.records.dumps import (
    Oddity,
    TextSample,
    TextStep,
    check_advantages,
    read_trl_completions,
    read_verl_dump,
)
from grpo_core.types import Completion, Prompt, Sample
from tests.diagnostics.programs import fuzz_readers
from tests.grpo_core.programs import fuzz_records

DATA = Path(__file__).parent / "data"
TRL, VERL = DATA / "trl-1.16.0", DATA / "verl-0.9.1"
WEIGHTS = {"letters": 1.0, "brief": 0.5}


@pytest.fixture(scope="module")
def trl():
    """TRL's two steps of two groups of four."""
    pytest.importorskip("pyarrow", reason="pyarrow reads the dumps of TRL; it is in the group `test`")
    return read_trl_completions(TRL, WEIGHTS)


def a_step(*groups, prompts="abcdefgh"):
    """Groups of (reward, advantage)."""
    return TextStep(
        1,
        [[TextSample(p, "", r, {}, a) for r, a in group] for p, group in zip(prompts, groups, strict=False)],
    )


def test_what_trl_wrote_is_read(trl):
    """Steps, groups, texts, rewards by function, their weighted sum, and advantages."""
    assert [(step.step, [len(group) for group in step.groups]) for step in trl] == [(1, [4, 4]), (2, [4, 4])]
    scores = {"letters": pytest.approx(0.4), "brief": -0.625}
    assert trl[0].groups[0][1] == TextSample(
        "fgh>", "bigef", pytest.approx(0.0875), scores, pytest.approx(-0.49938544)
    )
    assert [step.groups[0][0].prompt for step in trl] == ["fgh>", "cab>"]


def test_a_sample_that_no_function_scored_has_no_reward(trl):
    """TRL writes null there; null is not a reward of 0."""
    silent, _, one, _ = trl[0].groups[1]
    assert (silent.reward, silent.scores, silent.advantage) == (None, {"letters": None, "brief": None}, 0.0)
    assert (one.scores["brief"], one.reward) == (None, one.scores["letters"])


def test_trls_advantages_follow_from_its_rewards(trl):
    """TRL's own numbers are those of `group_advantages` with its settings, silent samples included."""
    assert [check_advantages(step, LossConfig(), 4) for step in trl] == [[], []]


@pytest.mark.parametrize(
    "other", [{"advantage_ddof": 0}, {"advantage_scale": "none"}, {"advantage_epsilon": 0.01}]
)
def test_advantages_of_other_settings_are_told_apart(trl, other):
    """Each of the switches changes advantages by more than the tolerance."""
    found = check_advantages(trl[1], dataclasses.replace(LossConfig(), **other), 4)
    assert {finding.kind for finding in found} == {"advantage"}
    assert {finding.group for finding in found} == {0, 1}


def test_a_finding_says_which_sample_and_both_numbers(trl):
    """One advantage altered in a real dump is found, and nothing else."""
    group = list(trl[1].groups[1])
    right = group[2].advantage
    group[2] = dataclasses.replace(group[2], advantage=right + 0.01)
    found = check_advantages(TextStep(2, [trl[1].groups[0], group]), LossConfig(), 4)
    assert found == [Oddity("advantage", 1, 2, right + 0.01, pytest.approx(right, abs=1e-5))]


def test_without_weights_every_column_of_numbers_counts_once():
    """Also one of `log_extra`: the file doesn't tell them apart, which is why weights can be given."""
    pytest.importorskip("pyarrow")
    (step,) = read_trl_completions(TRL / "completions_00002.parquet")
    first = step.groups[0][0]
    assert (first.scores, first.reward) == ({"letters": 0.25, "brief": -0.5, "length": 4}, 3.75)


def test_conversations_and_an_empty_file(tmp_path):
    """Messages are kept as JSON; a log before the first completion has no rows, so no step."""
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    ask, answer = [{"role": "user", "content": "2+2"}], [{"role": "assistant", "content": "4"}]
    row = {"step": 7, "prompt": ask, "completion": answer, "right": 1.0, "advantage": 0.0}
    parquet.write_table(pyarrow.Table.from_pylist([row] * 2), tmp_path / "completions_00007.parquet")
    parquet.write_table(pyarrow.Table.from_pylist([row]).slice(0, 0), tmp_path / "completions_00000.parquet")
    (step,) = read_trl_completions(tmp_path)
    assert (step.step, len(step.groups[0])) == (7, 2)
    assert json.loads(step.groups[0][0].completion) == answer


@pytest.mark.parametrize("content", [b"no Parquet", None])
def test_what_is_no_dump_of_trl_is_refused(tmp_path, content):
    """In one line that names the file."""
    pytest.importorskip("pyarrow")
    path = tmp_path / "completions_00001.parquet"
    if content:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"completions_00001\.parquet: not a dump that can be read"):
        read_trl_completions(path)


def test_a_reward_function_that_is_not_there_is_named():
    """A misspelt name can't be taken for a function that said nothing."""
    pytest.importorskip("pyarrow")
    with pytest.raises(ConfigError, match="'lettres'"):
        read_trl_completions(TRL, {"lettres": 1.0})


def test_without_pyarrow_the_error_says_what_to_install(monkeypatch):
    """pyarrow is not a dependency of this package."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigError, match="pip install pyarrow"):
        read_trl_completions(TRL)


def test_what_verl_wrote_is_read_whatever_its_order():
    """verl has shuffled the samples of three groups; they are found together again."""
    (step,) = read_verl_dump(VERL / "plain")
    assert step.step == 3
    assert [sorted(sample.scores["place"] for sample in group) for group in step.groups] == [
        [0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11],
    ]  # fmt: skip
    first = step.groups[0][0]
    assert first == TextSample("ae", "a", 0.0, {"acc": False, "place": 0}, None)


def test_what_can_be_said_of_verls_groups():
    """Without advantages: sizes, and groups without a signal."""
    (step,) = read_verl_dump(VERL / "plain")
    assert check_advantages(step, LossConfig(), 4) == [Oddity("zero_variance", 2)]
    assert check_advantages(step, LossConfig(), 3)[0] == Oddity("group_size", 0, 0, 4, 3)


def test_verls_keys_tell_groups_of_the_same_prompt_apart():
    """The newer trainer writes `uid_session_output`; the same prompt under two uids is two groups."""
    (step,) = read_verl_dump(VERL / "keyed" / "12.jsonl")
    assert [[sample.completion for sample in group] for group in step.groups] == [["a", "b"], ["c", "d"]]
    assert check_advantages(step, LossConfig(), 2) == [
        Oddity("split_prompt", 1),
        Oddity("zero_variance", 1),
    ]


@pytest.mark.parametrize("content", ["{", '{"input": "a"}\n', "[]\n"])
def test_what_is_no_dump_of_verl_is_refused(tmp_path, content):
    """In one line that names the file."""
    (tmp_path / "1.jsonl").write_text(content)
    with pytest.raises(ConfigError, match=r"1\.jsonl: not a dump that can be read"):
        read_verl_dump(tmp_path)


def test_steps_are_in_order_of_their_number_not_of_their_name(tmp_path):
    """verl's `10.jsonl` comes after `9.jsonl`."""
    for number in (9, 10, 1):
        row = {"input": "a", "output": "b", "gts": None, "score": 1.0, "step": number}
        (tmp_path / f"{number}.jsonl").write_text(json.dumps(row) + "\n")
    assert [step.step for step in read_verl_dump(tmp_path)] == [1, 9, 10]


def test_a_prompt_split_across_groups_and_groups_of_the_wrong_size():
    """A group that something was put into the middle of: the parts have the wrong size, the second is a split."""
    halves = [(0.0, -0.5), (1.0, 0.5)]
    options = dataclasses.replace(LossConfig(), advantage_scale="none")
    found = check_advantages(a_step(halves, halves * 2, halves, prompts="aba"), options, 4)
    assert found == [
        Oddity("group_size", 0, 0, 2, 4), Oddity("split_prompt", 2), Oddity("group_size", 2, 0, 2, 4),
    ]  # fmt: skip


def test_a_prompt_twice_in_a_row_is_two_groups():
    """Each is compared with itself: with a common mean, no advantage of these would be right."""
    options = dataclasses.replace(LossConfig(), advantage_scale="none")
    step = a_step([(0.0, -0.5), (1.0, 0.5), (8.0, -1.0), (10.0, 1.0)])
    assert check_advantages(step, options, 2) == []
    assert len(check_advantages(step, options, 4)) == 4


def test_a_signal_made_of_rounding_is_found():
    """Equal rewards whose mean isn't quite equal to them: TRL divides the rest by 1e-4; there is no signal."""
    found = check_advantages(a_step([(3.3, -2.4e-3)] * 3), LossConfig(), 3)
    assert found[0] == Oddity("zero_variance", 0)
    assert found[1:] == [Oddity("advantage", 0, place, -2.4e-3, 0.0) for place in range(3)]


@pytest.mark.parametrize(
    "row",
    [
        "[" * 100_000,
        '{"input": "p", "output": "o", "score": 1e308, "step": 1}',
        '{"input": "p", "output": "o", "score": Infinity, "step": 1}',
        '{"input": "p", "output": "o", "score": "1", "step": 1}',
        '{"input": "p", "output": "o", "score": 1, "step": []}',
        "[]",
    ],
)
def test_a_dump_that_holds_something_else_is_refused(tmp_path, row):
    """By a named error, whatever stands where a number should."""
    (tmp_path / "1.jsonl").write_text(row + "\n")
    with pytest.raises(ConfigError, match=r"1\.jsonl: not a dump"):
        read_verl_dump(tmp_path)


def test_a_prompt_that_is_a_conversation_is_one(tmp_path):
    """As JSON; it need not be hashable."""
    row = {"input": [{"role": "user", "content": "p"}], "output": "o", "score": 1.0, "step": 1}
    (tmp_path / "1.jsonl").write_text(json.dumps(row) + "\n")
    (step,) = read_verl_dump(tmp_path)
    assert check_advantages(step, LossConfig(), 1)[0].kind == "zero_variance"


def test_a_dump_s_folder_may_hold_what_is_no_file(tmp_path):
    """A pipe, a device, something of the kernel's: refused, and not waited for."""
    for name, make in (("pipe", os.mkfifo), ("zero", lambda path: path.symlink_to("/dev/zero"))):
        path = tmp_path / name / "1.jsonl"
        path.parent.mkdir()
        make(path)
        with pytest.raises(ConfigError, match="no regular file"):
            read_verl_dump(path.parent)
    kernel = tmp_path / "environ.jsonl"
    kernel.symlink_to("/proc/self/environ")
    with pytest.raises(ConfigError, match="made up by the kernel"):
        read_verl_dump(kernel)


def test_a_parquet_file_of_kilobytes_that_holds_gigabytes_is_refused(tmp_path, monkeypatch):
    """The same text a million times is one text to the file."""
    pyarrow = pytest.importorskip(
        "pyarrow", reason="pyarrow reads the dumps of TRL; it is in the group `test`"
    )
    from pyarrow import parquet

    from grpo_core.records import given

    monkeypatch.setattr(given, "LARGEST", 10_000_000)
    text = pyarrow.array(["x" * 100_000] * 1000)
    numbers = pyarrow.array([1.0] * 1000)
    columns = {"step": numbers, "prompt": text, "completion": text, "advantage": numbers}
    parquet.write_table(pyarrow.table(columns), tmp_path / "completions_1.parquet")
    assert (tmp_path / "completions_1.parquet").stat().st_size < given.LARGEST
    with pytest.raises(ConfigError, match="no step has them"):
        read_trl_completions(tmp_path)


def test_a_binary_is_refused_in_a_line(tmp_path):
    """Without its bytes, of which there may be megabytes."""
    (tmp_path / "1.jsonl").write_bytes(b"\x7fELF" + bytes(range(256)) * 4000)
    with pytest.raises(ConfigError, match=r"not a dump .* byte 132 is no UTF-8") as caught:
        read_verl_dump(tmp_path)
    assert len(str(caught.value)) < 300
    (tmp_path / "1.jsonl").write_text('{"input": "' + "x" * 9000 + '"}\n[')
    with pytest.raises(ConfigError, match="not a dump") as caught:
        read_verl_dump(tmp_path)
    assert len(str(caught.value)) < 500


def test_our_own_completions_are_told_from_a_dump(tmp_path):
    """They stand beside a run's metrics; another command is for them."""
    completion = Completion("1.0", (1,), (-0.5,), (0,), "stop")
    entry = completion_entry(1, Sample(Prompt("1", "p", (2,), {}), completion, "t", 1.0, 0.5, {}))
    folder = tmp_path / ("deep" * 50)  # however long its path is
    folder.mkdir()
    (folder / "completions.jsonl").write_text(json.dumps(entry) + "\n")
    with pytest.raises(ConfigError, match=r"own completions, no dump of another's: .* `replay RUN STEP`"):
        read_verl_dump(folder / "completions.jsonl")


@pytest.mark.parametrize("reader", fuzz_records.READERS, ids=lambda reader: reader.__name__)
def test_damaged_and_hostile_files_are_read_or_refused(reader):
    """A few of the cases of `python -m tests.grpo_core.programs.fuzz_records`, which is run with many."""
    _outcomes, _slowest, wrong = fuzz_readers.run(reader, 30, 0)
    assert not wrong, "\n".join(text for _case, text in wrong)


@pytest.mark.parametrize("schema", ["grpo-doctor.rollout.v1", "grpo-doctor.rollout.v2"])
def test_our_own_records_are_told_from_a_dump(tmp_path, schema):
    """Of either version: what computes them again is named."""
    path = tmp_path / "rollouts.jsonl"
    path.write_text(json.dumps({"schema": schema, "step": 1}) + "\n")
    with pytest.raises(ConfigError, match=r"own steps, no dump of another's: .* `replay RUN STEP`"):
        read_verl_dump(path)
