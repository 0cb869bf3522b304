"""The page of a run: whole whatever is missing, self-contained, nothing of a completion taken for HTML."""

from __future__ import annotations

import html
import json
from html.parser import HTMLParser
from pathlib import Path

import pytest

from grpo_core import run
from grpo_core.config import Config
from grpo_core.show.page import write_page


def entry(step: int, **values) -> dict:
    """The metrics of a step, as the trainer writes them."""
    numbers = {
        "reward/mean": step / 100,
        "reward/std": 0.1,
        "entropy": 2.0 - step / 50,
        "loss": 0.0,
        "importance_ratio/mean": 1.0,
        "importance_ratio/max": 1.0 + step / 1000,
        "logprob_difference/mean": 1e-7,
        "logprob_difference/max": step * 1e-6,
        "staleness/max": 0,
        "sync/moved": None,
        "time/rollout_s": 3.0,
        "time/train_s": 1.0,
        "time/step_s": 4.0,
    }
    return {"step": step, **numbers, **values}


def completion(step: int, text: str, **values) -> dict:
    """A line of completions.jsonl."""
    fields = {"prompt": "p", "completion": text, "reward": 0.5, "advantage": -1.0, "finish_reason": "stop"}
    return {"step": step, "request": "r", **fields, **values}


def written(
    folder: Path, *, steps: int = 40, completions: tuple = (), torn: str = "", config=None, summary=None
):
    """A run's folder."""
    lines = {"metrics": [entry(step) for step in range(1, steps + 1)], "completions": completions}
    for name, values in lines.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(v) + "\n" for v in values) + torn)
    for name, document in {"config": config, "summary": summary}.items():
        if document is not None:
            (folder / f"{name}.json").write_text(json.dumps(document))
    return folder


class Seen(HTMLParser):
    """The tags, links and text of a page, and its tables' rows of texts."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags, self.links, self.text, self.rows, self.in_cell = [], [], "", [], False
        self.source = path.read_text(encoding="utf-8")
        self.feed(self.source)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.links += [
            value for name, value in attrs if name in ("src", "href", "xlink:href", "action", "data")
        ]
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
        self.in_cell = tag in ("td", "th") or (self.in_cell and tag not in ("h2", "h3", "table"))

    def handle_data(self, data):
        self.text += data
        if self.in_cell:
            self.rows[-1][-1] += data.strip()


def test_the_page_of_a_real_run(short_run):
    """Answers, a curve with a band, explanations, completions with their rewards, and what was set."""
    document = run.train(short_run(), lambda entry: None)
    folder = Path(document["metrics"]).parent
    seen = Seen(write_page(folder))
    for said in ("ok", "4 of 4 steps", "colocate, engine transformers", "Does reward rise?", "reward/mean"):
        assert said in seen.text
    assert seen.tags.count("svg") >= 5
    assert ["train.steps", "4", "300"] in seen.rows
    first = json.loads((folder / "completions.jsonl").read_text().splitlines()[0])
    assert [first["prompt"]] in seen.rows
    assert [f"Step {step}" in seen.text for step in (1, 2, 3, 4)] == [True, False, True, True]


def test_it_needs_nothing_from_elsewhere(tmp_path):
    """No script, no link, no address but the name of SVG."""
    seen = Seen(write_page(written(tmp_path, completions=(completion(1, "x"),))))
    assert seen.links == []
    assert not {"script", "link", "img", "iframe", "object"} & set(seen.tags)
    rest = seen.source.replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert not any(sign in rest for sign in ("://", "url(", "@import"))


@pytest.mark.parametrize(
    "text", ["<script>alert(1)</script>", '"><img src=x onerror=y>', "$name ${x} &amp;", "\ud800"]
)
def test_completions_are_text(tmp_path, text):
    """Whatever the policy or the data set made up, in the head, too."""
    folder = tmp_path / "a<b>&"
    folder.mkdir()
    config = {"train": {"steps": 40}, "model": {"path": text}}
    summary = {"steps": 40, "outcome": "failed", "error": text}
    written(
        folder,
        completions=(completion(1, text, prompt=text, finish_reason=text),),
        config=config,
        summary=summary,
    )
    seen = Seen(write_page(folder))
    shown = text.replace("\ud800", "?")
    assert not {"script", "img"} & set(seen.tags)
    assert seen.rows[1:3] == [[shown], [shown, "0.5", "-1.00", shown]]
    assert seen.source.count(html.escape(shown)) >= 5


def test_a_long_completion_is_folded(tmp_path):
    """And whole."""
    text = "".join(chr(97 + i % 26) for i in range(1000))
    seen = Seen(write_page(written(tmp_path, completions=(completion(1, text),))))
    assert "details" in seen.tags
    assert seen.rows[2][0].replace(" …", "") == text


def test_an_empty_completion_is_named(tmp_path):
    """It would be taken for a mistake of the page."""
    assert Seen(write_page(written(tmp_path, completions=(completion(1, ""),)))).rows[2][0] == "empty"


def test_completions_of_first_middle_and_last_step(tmp_path):
    """Of two prompts each, from the best completion to the worst, six at most."""
    lines = tuple(
        completion(step, f"{step}.{prompt}.{place}", prompt=prompt, reward=place / 10)
        for step in (1, 11, 21, 31, 40)
        for prompt in ("a", "b", "c")
        for place in range(11)
    )
    seen = Seen(write_page(written(tmp_path, completions=lines, torn='{"step": 50, "compl')))
    assert [f"Step {step}" in seen.text for step in (1, 11, 21, 31, 40, 50)] == [
        True,
        False,
        True,
        False,
        True,
        False,
    ]
    places = (10, 8, 6, 4, 2, 0)
    wanted = [text for prompt in "ab" for text in (prompt, *(f"21.{prompt}.{place}" for place in places))]
    start = next(i for i, row in enumerate(seen.rows) if row[0] == "21.a.10") - 1
    assert [row[0] for row in seen.rows[start : start + 14]] == wanted


def test_what_is_missing_is_passed_over(tmp_path):
    """An empty folder, torn files, no step: a page all the same, which says so."""
    assert "0 of 0 steps" in Seen(write_page(tmp_path)).text
    (tmp_path / "config.json").write_text('{"train": {"st')
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "rew')
    seen = Seen(write_page(tmp_path))
    assert "unfinished" in seen.text
    assert "svg" not in seen.tags


def test_the_end_of_a_run_is_told(tmp_path):
    """From its summary, if that is of these very steps; else from the number of steps."""
    config = {"train": {"steps": 40}, "rollout": {"mode": "async", "engine": "vllm"}}
    folder = written(
        tmp_path, config=config, summary={"steps": 40, "outcome": "timeout", "error": "no answer"}
    )
    text = Seen(write_page(folder)).text
    assert "timeout 40 of 40 steps in 160 s · async, engine vllm" in text
    assert "no answer" in text
    written(tmp_path, steps=20)
    assert "unfinished 20 of 40 steps" in Seen(write_page(folder)).text


def test_the_answers_are_numbers_of_the_run(tmp_path):
    """Means of the first and last tenth; the largest difference of fresh steps; the part that takes most time."""
    folder = written(tmp_path, steps=0)
    entries = [entry(step, **{"staleness/max": int(step > 20)}) for step in range(1, 41)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in entries))
    text = Seen(write_page(folder)).text
    for answer in ("0.025 → 0.385", "1.95 → 1.23", "at most 1.04", "2.0e-05", "in 20 steps", "rollout 75%"):
        assert answer in text


def test_what_never_changes_is_no_curve(tmp_path):
    """It is named with its value."""
    seen = Seen(write_page(written(tmp_path)))
    assert "loss 0" in seen.text.partition("The same at every step:")[2]
    captions = seen.source.count("<b>loss</b>"), seen.source.count("<b>entropy</b>")
    assert captions == (0, 1)


def test_as_many_reward_functions_as_there_are(tmp_path):
    """Each has its line and its explanation, whatever its name."""
    names = [f"reward/f{place}<b>/mean" for place in range(9)]
    entries = [entry(step, **dict.fromkeys(names, step / 10)) for step in (1, 2, 3)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in entries))
    seen = Seen(write_page(tmp_path))
    assert all(f"{name} 0.3. Mean of one reward function" in seen.text for name in names)
    assert "b" in seen.tags
    figure = next(part for part in seen.source.split("<figure>") if "f8&lt;b&gt;" in part)
    assert figure.count("<polyline") == 9


def test_times_leave_out_the_first_step(tmp_path):
    """Which waited for the engine's start; a part that only it had has no line."""
    times = {"time/step_s": 60.0, "time/eval_s": 5.0}
    entries = [entry(1, **times), entry(2), entry(3, **{"time/train_s": 2.0})]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in entries))
    seen = Seen(write_page(tmp_path))
    assert "of 4.00 s a step" in seen.text
    figure = next(part for part in seen.source.split("<figure>") if "<b>time/train_s</b>" in part)
    assert "time/eval_s" not in figure.partition("</figure>")[0]
    assert "step 2" in figure


def test_settings_that_are_not_the_defaults(tmp_path):
    """Also of a key that this release does not know; nothing else."""
    config = json.loads(json.dumps(Config().as_dict()))
    config["loss"]["clip_high"] = 0.28
    config["rollout"]["new_key"] = "<x>"
    seen = Seen(write_page(written(tmp_path, config=config)))
    assert seen.rows[1:] == [["rollout.new_key", '"<x>"', "null"], ["loss.clip_high", "0.28", "0.2"]]
