"""A recorded step is read back unchanged, without columns that JSON cannot store; damaged records are refused.

A cut-off last line leaves the earlier steps readable. `output.record_every` selects the steps that a run records. A
record that refers to a file outside of its run is refused. The format is that of docs/rollout-format.md.
"""

import contextlib
import dataclasses
import datetime
import json
import math
import re
from importlib.metadata import version
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from grpo_core.records.recording import Recorder, RecordError, read_step
from grpo_core.settings import load
from grpo_core.types import Completion, Prompt, Request, Sample
from tests.cells import ROOT
from tests.grpo_core.conftest import run_training

RESULT = {"loss": 0.1 + 0.2, "gradient": "ab" * 32}


def make_step(logprob=-1.5):
    """Return two groups of two samples with all fields, and their requests in a different order."""
    samples = []
    for i in range(4):
        prompt = Prompt(f"p{i // 2}", f"text {i // 2}\n", (7, 8, 9)[: 2 + i // 2], {"answer": ["é", None]})
        ids = tuple(range(1 + i))
        versions = tuple(min(place, 3) for place in range(len(ids)))
        logprobs = tuple(logprob - place for place in range(len(ids)))
        answer = Completion(f"p{i // 2}.{i}", ids, logprobs, versions, ("stop", "length")[i % 2])
        scores = {"letters": 1 / 3, "other": None}
        samples.append(Sample(prompt, answer, f"it is {i}", i / 3, i / 7 - 0.2, scores, trained=i != 2))
    requests = [Request(s.completion.request_id, s.prompt.ids, 2**62 + i) for i, s in enumerate(samples)]
    return samples, requests[::-1]


def record_step(folder, config, logprob=-1.5):
    """Record a step; return the path of its tensors."""
    samples, requests = make_step(logprob)
    Recorder(folder, config).write(1, 0, samples, requests, RESULT)
    (path,) = folder.glob("rollouts/*.safetensors")
    return path


@pytest.fixture
def config():
    """Return settings with non-default values of several types."""
    reward = ["--reward.weights=1,0.3", "--reward.functions=exact,letters_in_place"]
    return load(None, [*reward, "--loss.clip_high=0.28", "--loss.kl_importance=true", "--output.name=a=b c"])


def test_recorded_step_round_trips(tmp_path, config):
    """Samples, seeds, settings and result are equal, floats to the last bit."""
    samples, requests = make_step()
    Recorder(tmp_path, config).write(3, 2, samples, requests, RESULT)
    recorded = read_step(tmp_path, 3)
    assert recorded.samples == samples
    assert recorded.config == config
    assert recorded.numbers["seeds"] == [request.seed for request in requests[::-1]]
    assert recorded.entry["result"] == RESULT
    assert (recorded.entry["step"], recorded.entry["policy_version"]) == (3, 2)
    assert recorded.entry["versions"]["torch"] == version("torch")


@pytest.mark.parametrize(("logprob", "dtype"), [(-1.5, torch.float32), (-0.1, torch.float64)])
def test_logprobs_are_stored_in_float32_if_exact(tmp_path, config, logprob, dtype):
    """Values of float32 are stored in it; Python's -0.1 is not one of them, and is stored in float64."""
    assert load_file(record_step(tmp_path, config, logprob))["behaviour_logprobs"].dtype == dtype
    assert read_step(tmp_path, 1).samples == make_step(logprob)[0]


def test_tensors_have_the_documented_shapes_and_dtypes(tmp_path, config):
    """Dtypes and shapes are those of docs/rollout-format.md, written out here for M = 2 prompts and N = 4 samples."""
    tensors = load_file(record_step(tmp_path, config))
    described = {name: (str(v.dtype)[6:], tuple(v.shape)) for name, v in tensors.items()}
    assert described == {
        "prompt_ids": ("int64", (5,)),
        "prompt_lengths": ("int64", (2,)),
        "prompt_index": ("int64", (4,)),
        "completion_ids": ("int64", (10,)),
        "completion_lengths": ("int64", (4,)),
        "behaviour_logprobs": ("float32", (10,)),
        "policy_versions": ("int64", (10,)),
        "seeds": ("int64", (4,)),
        "rewards": ("float64", (4,)),
        "advantages": ("float64", (4,)),
        "trained": ("bool", (4,)),
    }


def test_documented_writer_example_is_readable(tmp_path):
    """The program in docs/rollout-format.md, which imports nothing of grpo_core, writes a step that it can read."""
    text = (ROOT / "docs" / "rollout-format.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    assert "grpo_core" not in program
    exec(compile(program, "rollout-format.md", "exec"), {"folder": tmp_path})
    recorded = read_step(tmp_path, 1)
    assert [sample.text for sample in recorded.samples] == ["4", "five"]
    assert recorded.samples[0].completion.logprobs == (-0.25, -0.5)
    assert recorded.config.loss.clip_high == 0.28


def test_columns_without_a_json_form_are_omitted(tmp_path, config):
    """A date or a NaN in a data set must not end a run; a tuple becomes a list."""
    samples, requests = make_step()
    columns = {"when": datetime.date(2025, 1, 2), "nan": math.nan, "pair": (1, 2), "answer": "x"}
    prompt = dataclasses.replace(samples[0].prompt, columns=columns)
    samples[0] = dataclasses.replace(samples[0], prompt=prompt)
    Recorder(tmp_path, config).write(1, 0, samples, requests, RESULT)
    assert read_step(tmp_path, 1).samples[0].prompt.columns == {"pair": [1, 2], "answer": "x"}


@pytest.mark.parametrize("change", ["altered", "torn", "gone"])
def test_damaged_record_is_refused(tmp_path, config, change):
    """After one changed bit, a missing end or a missing file, the error names the file in one line."""
    path = record_step(tmp_path, config)
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]) if change == "altered" else data[:-9])
    if change == "gone":
        path.unlink()
    message = "No such file" if change == "gone" else "torn or altered"
    with pytest.raises(RecordError, match=message) as caught:
        read_step(tmp_path, 1)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_step_error_lists_recorded_steps(tmp_path, config):
    recorder = Recorder(tmp_path, config)
    for step in (2, 4):
        recorder.write(step, step - 1, *make_step(), RESULT)
    with pytest.raises(RecordError, match=r"rollouts\.jsonl: no .* of step 3; there is: \[2, 4\]"):
        read_step(tmp_path, 3)
    with pytest.raises(RecordError, match=r"rollouts\.jsonl.*No such file"):
        read_step(tmp_path / "nowhere", 1)


def test_unknown_recorded_settings_are_refused(tmp_path, config):
    """An unknown key may have changed the loss, so it can't be ignored."""
    Recorder(tmp_path, config).write(1, 0, *make_step(), RESULT)
    path = tmp_path / "rollouts.jsonl"
    path.write_text(path.read_text().replace('"clip_low"', '"clip_lowest"'))
    with pytest.raises(RecordError, match=r"step 1: .*loss\.clip_lowest: unknown key"):
        read_step(tmp_path, 1)


def test_cut_off_line_leaves_complete_steps(tmp_path, config):
    """If the last line is cut off, earlier steps are readable, and recording continues after them."""
    recorder = Recorder(tmp_path, config)
    recorder.write(1, 0, *make_step(), RESULT)
    path = tmp_path / "rollouts.jsonl"
    first = path.read_bytes()
    recorder.write(2, 1, *make_step(), RESULT)
    complete = path.read_bytes()
    for cut in range(len(first), len(complete), 397):
        path.write_bytes(complete[:cut])
        assert read_step(tmp_path, 1).entry["step"] == 1
        with pytest.raises(RecordError, match="of step 2"):
            read_step(tmp_path, 2)
        Recorder(tmp_path, config).write(2, 1, *make_step(), RESULT)
        assert path.read_bytes() == complete


def test_rerecorded_step_replaces_the_old_record(tmp_path, config):
    """Until the new line is written, the old record can be read."""
    Recorder(tmp_path, config).write(1, 0, *make_step(), {**RESULT, "loss": 1.0})
    path = tmp_path / "rollouts.jsonl"
    before = path.read_bytes()
    again = make_step(logprob=-2.5)
    Recorder(tmp_path, config).write(1, 0, *again, {**RESULT, "loss": 2.0})
    for samples, loss in ((again[0], 2.0), (make_step()[0], 1.0)):
        recorded = read_step(tmp_path, 1)
        assert (recorded.samples, recorded.entry["result"]["loss"]) == (samples, loss)
        path.write_bytes(before)


@pytest.mark.parametrize(("every", "expected"), [(2, [1, 3, 4]), (3, [1, 4]), (9, [1, 4]), (0, [])])
def test_recorded_steps_follow_the_setting(short_run, every, expected):
    """The first, every n-th and the last step are recorded; with 0, none is."""
    document, _ = run_training(short_run(**{"output.record_every": every}))
    steps = []
    for step in range(1, 5):
        with contextlib.suppress(RecordError):
            steps.append(read_step(Path(document["metrics"]).parent, step).entry["step"])
    assert steps == expected


@pytest.mark.parametrize("link", [False, True])
def test_record_can_not_refer_outside_its_run(tmp_path, config, link):
    """The error shows no hash of the other file."""
    folder = tmp_path / "run"
    Recorder(folder, config).write(1, 0, *make_step(), {})
    (tmp_path / "secret").write_bytes(b"secret")
    path = folder / "rollouts.jsonl"
    entry = json.loads(path.read_text())
    if link:
        (folder / entry["file"]).unlink()
        (folder / entry["file"]).symlink_to(tmp_path / "secret")
    else:
        path.write_text(json.dumps(entry | {"file": "../secret"}) + "\n")
    with pytest.raises(RecordError, match="outside of") as refused:
        read_step(folder, 1)
    assert "SHA-256" not in str(refused.value)
