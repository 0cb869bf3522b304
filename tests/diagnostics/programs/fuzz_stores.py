"""Feeds `matrix merge` what passes every check of form, as somebody would write it who knows them all.

`python -m tests.diagnostics.programs.fuzz_stores COUNT [SEED [READER...]]`

Each event has the identity that its inputs give, each log a name as logs have. What stands behind that is tried: texts
of all kinds, many events of one question that contradict each other, links and pipes in the place of logs, and the
reports that are made of what was taken in.
"""

import copy
import json
import os
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree as ET

from diagnostics.matrix import report
from diagnostics.matrix.ask.registry import BY_NAME, load
from diagnostics.matrix.plan.verdicts import EvidenceLevel, Outcome
from diagnostics.matrix.records import gpu_runs
from diagnostics.matrix.records.identity import digest
from diagnostics.matrix.records.store import StoreError, flaky, latest
from diagnostics.matrix.report import digests, table
from diagnostics.matrix.run.board import Question, board
from tests.diagnostics.programs.fuzz_readers import _mischief, event, main, refusing, spoiled, took_in
from tests.gpu.test_kit import GOOD

TEXTS = (
    "",
    "x",
    "seen in /home/ada/run on 10.1.2.3",
    "\x1b]52;c;aGk=\x07",
    "a\n::error::x",
    "##vso[task.setvariable]x",
    "<script>alert(1)</script>",
    "{{ 7*7 }} {% raw %}",
    "javascript:alert(1)",
    "](http://x) | `a` @everyone &lt;b&gt; ]]>",
    "\u202e\u2028\0\ufeff\ud7ff\U000e0041",
    "a" * 3000,
    "_" * 3000,
    "hf_" + "a1B2" * 9,
    "'; rm -rf / #",
    "\r\n\t\x85",
)
NAMES = ("import.log", "engine.log", "a" * 200, "x", "_", "a+b:c.d-e", "store.jsonl", "lock", "logs", "9")
_CELLS = []


def _text(numbers):
    return numbers.choice(TEXTS) + numbers.choice(("", "", numbers.choice(TEXTS)))


def _texts(numbers):
    return [_text(numbers) for _ in range(numbers.choice((0, 1, 3)))]


def _pairs(numbers):
    return [[_text(numbers), _text(numbers)] for _ in range(numbers.choice((0, 1, 3)))]


def _cell():
    if not _CELLS:
        _CELLS.append(load(Path(__file__).parents[3] / "matrix.toml").cells[0])
    return _CELLS[0]


def _fact(numbers):
    """What a layer writes, or something like it."""
    kind, *parts = numbers.choice(_FACTS)
    parts = [_text(numbers) if part == "x" else part for part in parts]
    if numbers.random() < 0.05:
        parts = parts[1:] if numbers.random() < 0.5 else [*parts, "more"]
    return [kind, *parts]


_FACTS = (
    ("package", "a", "1"), ("package", "x", "x"), ("lock", "0a1b", "12"), ("lock", "x", "x"), ("missing", "x", "x"),
    ("undecided", "x", "x"), ("said", "x", "x", "x"), ("said", "static", "error", "SCH002"), ("document", "{}"),
    ("document", "x"), ("attempt", "x", "x", "x", "x", "x"), ("other", "x"), ("platform", "x"), ("x", "x"),
)  # fmt: skip


def _event(numbers, cell):
    """An event as a run writes them, each value of which may be any that its place allows."""
    one = event(numbers)
    one["cell"], one["layer"] = numbers.choice((cell.id, cell.id, "other")), numbers.choice(sorted(BY_NAME))
    one["inputs"] = [["layer", one["layer"]], *numbers.choice(([], _pairs(numbers)))]
    one["identity"] = digest(dict(map(tuple, one["inputs"])))
    one["command"], one["run"] = _text(numbers), _text(numbers)
    one["started"] = f"20{numbers.randrange(100):02}-0{numbers.randrange(1, 10)}-01T00:00:00Z"
    one["seconds"] = numbers.choice((0, -1.0, 1e300, 5))
    columns = _texts(numbers)
    answer = {
        "outcome": numbers.choice([str(value) for value in Outcome]),
        "evidence": numbers.choice([str(value) for value in EvidenceLevel]),
        "summary": _text(numbers),
        "codes": numbers.choice(
            ([], ["SCH002"], ["A", "ZZZ999999"], [_text(numbers)][: numbers.random() < 0.1])
        ),
        "signs": _texts(numbers),
        "facts": numbers.choice(([], [], [], [_fact(numbers)], [_fact(numbers), _fact(numbers)])),
        "details": _texts(numbers),
        "grids": [
            {"title": _text(numbers), "columns": columns, "rows": numbers.choice(([], [_texts(numbers)]))}
        ],
        "curve": numbers.choice(([], [1.0, -1e300, 0])),
        "ran_with": _pairs(numbers),
        "excerpt": _text(numbers),
        "log": f"logs/{numbers.choice((cell.id, 'cell', 'logs'))}/{numbers.choice(NAMES)}",
    }
    one["answer"] = {key: value for key, value in answer.items() if key in _NEEDED or numbers.random() < 0.9}
    return one


_NEEDED = {"outcome", "evidence", "summary", "grids", "ran_with"}


def merged(numbers, folder):
    """Another store's events to our own store, and from there into every report."""
    outside = folder / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(b"secret")
    cell = _cell()
    events = [_event(numbers, cell) for _ in range(numbers.randrange(1, 6))]
    events += [copy.deepcopy(numbers.choice(events)) for _ in range(numbers.choice((0, 0, 2)))]
    for name in ("mine", "theirs"):
        (folder / name).mkdir()
        if name == "theirs" or numbers.random() < 0.2:
            _mischief(numbers, folder / name, outside)
    for one in events:
        _log(numbers, folder / "theirs" / one["answer"].get("log", "logs/a/b"), outside)
    (folder / "theirs" / "store.jsonl").write_text("".join(json.dumps(one) + "\n" for one in events))
    known = took_in(folder, outside).read()
    latest(known)
    flaky(known)
    if numbers.random() < 0.05:
        _shown(folder, cell, known)


def _log(numbers, path, outside):
    """A log where an event says; a link to what is no business of anybody's, at times."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if os.path.lexists(path) or outside in (path.parent.resolve(), *path.parent.resolve().parents):
            return
        if numbers.random() < 0.05:
            path.symlink_to(outside / "secret")
        elif numbers.random() < 0.05:
            os.mkfifo(path)
        elif numbers.random() < 0.8:
            path.write_bytes(b"seen")
    except OSError:
        return  # something of `_mischief` is in the way


class _Page(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        for key, value in attrs:
            assert not key.startswith("on"), key
            assert key not in {"src", "srcset", "action"}, key
            assert key != "href" or str(value).startswith(("#", "https://")), value


def _shown(folder, cell, known):
    """The reports of what was taken in: whole documents, in which nothing acts and nobody is named."""
    # A question is our own: its inputs are none of the store's.
    layers = [BY_NAME[name] for name in sorted(BY_NAME)]
    questions = [Question(cell, layer, (("layer", layer.name),)) for layer in layers]
    made = board(questions, known)
    report.write(folder / "report", made, known)
    told = {path.name: path.read_text() for path in (folder / "report").iterdir()}
    told["digests"] = digests.text(made)
    told["table"] = table.render(report.shareable(made), colour=False)
    for name, text in told.items():
        odd = re.search("[\0-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2028\u2066-\u2069\ufeff]", text)
        assert not odd, (name, odd)
        assert "hf_a1B2" not in text, name
        assert "/home/ada" not in text, name
        assert not re.search(r"##vso\[", text), name
    assert _Page(told["index.html"]).tags.count("script") == 1
    ET.fromstring(told["junit.xml"])
    json.loads(told["report.json"])


def kits(numbers, folder):
    """What a kit brought back, spoiled, or with any text in the place of each of its own."""
    document = spoiled(numbers, GOOD) if numbers.random() < 0.5 else copy.deepcopy(GOOD)
    if numbers.random() < 0.5 and isinstance(document.get("tests"), list):
        document["tests"] += [
            {"name": _text(numbers), "outcome": "skipped", "seconds": 0, "reason": _text(numbers)}
            for _ in range(3)
        ]
        document["command"] = _text(numbers)
    path, kind = folder / "gpu.json", numbers.randrange(30)
    path.write_text(json.dumps(document))
    if kind == 0:
        path.unlink()
        os.mkfifo(path)
    elif kind == 1:
        path.unlink()
        path.symlink_to(numbers.choice(("/dev/zero", "/proc/kmsg", "/proc/self/mem", folder, path)))
    (folder / "store").mkdir()
    with refusing(StoreError):
        found = gpu_runs.read(path)
        gpu_runs.told(found)
        kept = gpu_runs.keep(folder / "store", found)
        assert kept.parent == folder / "store" / gpu_runs.FOLDER
        assert gpu_runs.read(kept) == found
        assert gpu_runs.keep(folder / "store", found) is None
    assert {one.name for one in folder.iterdir()} == {"gpu.json", "store"}


READERS = {merged: 3, kits: 1}

if __name__ == "__main__":
    sys.exit(main(READERS, *sys.argv[1:]))
