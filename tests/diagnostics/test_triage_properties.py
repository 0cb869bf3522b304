"""Whatever is around a failure, the verdict is the same; whatever the bytes, triage comes to an end."""

import random
import re
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diagnostics import catalogue
from diagnostics.triage import evaluate
from diagnostics.triage.command import triage
from diagnostics.triage.rules import Rules
from diagnostics.triage.scan import scan
from diagnostics.triage.sources import Block
from diagnostics.triage.verdict import judge

LOGS = Path(__file__).parent / "logs"
NOISE = (
    "  3%|3         | 3/100 [00:10<05:00,  3.1s/it]\r",
    "{'loss': 0.01, 'grad_norm': 0.3, 'learning_rate': 1e-06, 'reward': 0.25}",
    "INFO 01-31 10:00:00 [loggers.py:123] Engine 000: Avg prompt throughput: 10.0 tokens/s, Running: 1 reqs",
    "[rank0]:[W131 10:00:00.1 ProcessGroupNCCL.cpp:1496] Warning: destroy_process_group() was not called",
    "For debugging consider passing CUDA_LAUNCH_BLOCKING=1",
    "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.",
    "If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
    "UserWarning: TRL currently supports vLLM versions from 0.22.0 to 0.31.0. You have version 0.33.0 installed.",
    "wandb: WARNING Failed to upload, retrying",
    "\x1b[36m(raylet)\x1b[0m Spilled 10 MiB, 3 objects, write throughput 5 MiB/s.",
    "",
)
PREFIXES = (
    "[rank{rank}]: ",
    "[default{rank}]:",
    "(WorkerDict pid={pid}, ip=10.0.0.{rank}) ",
    "\x1b[36m(TaskRunner pid={pid})\x1b[0m ",
    "2026-01-31 10:00:{clock}.123 ",
    "2026-01-31T10:00:{clock}Z [rank{rank}]: ",
    "(Worker_TP{rank} pid={pid}) ERROR 01-31 10:00:{clock} [a.py:7] ",
    "{rank}: ",
    "trainer-{rank}  | ",
)


class Memory:
    """A log that is not in a file."""

    def __init__(self, data, name="log"):
        self.data, self.name, self.path = data, name, None

    def blocks(self):
        if self.data:
            yield Block(self.data, 1)


@pytest.fixture(scope="module")
def rules():
    return Rules(catalogue.load())


def codes(verdict):
    return [candidate.issue.code for candidate in verdict.candidates][:1]


def failing():
    """One log for each code of the corpus: its short ones, with what was said of them as they are."""
    chosen = {}
    for path in sorted(LOGS.glob("*/*.log")):
        if path.parent.name not in {"clean", "unknown"} and path.stat().st_size < 6000:
            chosen.setdefault(path.parent.name, path)
    return list(chosen.values())


FAILING = failing()


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    path=st.sampled_from(FAILING), seed=st.integers(0, 10**6), prefix=st.sampled_from(PREFIXES),
    ranks=st.integers(1, 4), noise=st.integers(0, 12),
)  # fmt: skip
def test_ranks_pids_clocks_and_noise_change_nothing(rules, path, seed, prefix, ranks, noise):
    """Several ranks fail alike, their lines fall between each other's and between others."""
    numbers = random.Random(seed)
    if "{rank}" not in prefix and "{pid}" not in prefix:
        ranks = 1  # nothing tells the lines of one from those of another
    lines = path.read_text().splitlines()
    expected = codes(triage([Memory("\n".join(lines).encode())], rules))
    marks = [
        prefix.format(rank=rank, pid=numbers.randrange(1, 10**6), clock=f"{numbers.randrange(60):02d}")
        for rank in range(ranks)
    ]
    streams = [[f"{mark}{line}" for line in lines] for mark in marks]
    mixed = []
    while any(streams):
        stream = numbers.choice([stream for stream in streams if stream])
        mixed.append(stream.pop(0))
    for _ in range(noise):
        mixed.insert(numbers.randrange(len(mixed) + 1), numbers.choice(NOISE))
    assert codes(triage([Memory("\n".join(mixed).encode())], rules)) == expected


@settings(max_examples=40, deadline=None, derandomize=True)
@given(path=st.sampled_from(FAILING), before=st.floats(0, 1), after=st.floats(0, 1))
def test_a_head_or_a_tail_that_is_cut_off(rules, path, before, after):
    """As long as the line that tells is left."""
    lines = path.read_text().splitlines()
    whole = triage([Memory("\n".join(lines).encode())], rules)
    first, last = whole.candidates[0].first.line, max(hit.line for hit in whole.candidates[0].hits)
    cut = lines[int(before * (first - 1)) : last + int(after * (len(lines) - last))]
    assert codes(triage([Memory("\n".join(cut).encode())], rules)) == codes(whole)


@settings(max_examples=20, deadline=None, derandomize=True)
@given(path=st.sampled_from(FAILING), order=st.permutations(range(4)), other=st.sampled_from(FAILING))
def test_the_order_of_the_ranks_files_changes_nothing(rules, path, order, other):
    """Nor where the environment lies."""
    texts = [path.read_bytes(), b"started\n", other.read_bytes().replace(b"/opt/env", b"/srv/a b/venv"), b""]
    seen = [scan(Memory(text, f"rank_{rank}.log"), rules) for rank, text in enumerate(texts)]
    assert judge([seen[rank] for rank in order], rules) == judge(seen, rules)


@settings(max_examples=80, deadline=None, derandomize=True)
@given(
    data=st.one_of(
        st.binary(max_size=4000), st.text(max_size=2000).map(lambda text: text.encode("utf-8", "replace"))
    )
)
def test_any_bytes_come_to_an_end(rules, data):
    """Binary, broken UTF-8, control characters: a verdict, and no exception."""
    verdict = triage([Memory(data)], rules)
    assert verdict.state in {"known", "wrapper", "unknown", "clean", "empty"}


@settings(max_examples=60, deadline=None, derandomize=True)
@given(path=st.sampled_from(FAILING), seed=st.integers(0, 10**6))
def test_bytes_flipped_in_a_log_do_no_harm(rules, path, seed):
    """A log that was damaged is read all the same."""
    numbers = random.Random(seed)
    data = bytearray(path.read_bytes())
    for _ in range(max(1, len(data) // 50)):
        data[numbers.randrange(len(data))] = numbers.randrange(256)
    assert triage([Memory(bytes(data))], rules).lines >= 0


@pytest.mark.parametrize(
    "data",
    [
        b"x" * 10_000_000,
        b"\r".join([b" 50%|#####     | 5/10"] * 500_000),
        b"Error: " * 300_000,
        b"Traceback (most recent call last):\n" * 20_000,
        b"(" * 2_000_000 + b"\n" + b"[rank" * 1_000_000,
        b"ValueError: Token id 9 is out of vocabulary\n" * 200_000,
    ],
    ids=["long", "returns", "anchors", "heads", "brackets", "hits"],
)
def test_what_is_long_takes_no_longer_than_its_length(rules, data):
    """Ten megabytes in a line, thousands of anchors: seconds at most."""
    start = time.process_time()
    triage([Memory(data)], rules)
    assert time.process_time() - start < 5


@pytest.mark.slow
@pytest.mark.heavy
def test_a_hundred_thousand_damaged_lines(rules):
    """Lines of the corpus, cut, joined and flipped at random."""
    numbers = random.Random(1)
    lines = [line for path in FAILING for line in path.read_bytes().splitlines()]
    for _ in range(100):
        mixed = []
        for _ in range(1000):
            one, two = numbers.choice(lines), numbers.choice(lines)
            line = bytearray(one[: numbers.randrange(len(one) + 1)] + two[numbers.randrange(len(two) + 1) :])
            if line:
                line[numbers.randrange(len(line))] = numbers.randrange(256)
            mixed.append(bytes(line))
        assert triage([Memory(b"\n".join(mixed))], rules).lines > 0


def test_the_corpus_is_judged_as_labelled():
    """The goals of the evaluation hold on the logs of the repository, and clean logs are clean."""
    told = evaluate.figures(evaluate.evaluate(LOGS))
    assert evaluate.good(told), told["wrong"]


def test_the_corpus_names_nobody():
    """No home folder, no workplace, no address but those for examples."""
    for path in LOGS.glob("*/*.log"):
        text = path.read_text()
        assert not re.search(r"/home/(?!user)|/root/|/work/|/tmp/(?!ray|torch|vllm_dist)\w", text), path
        addresses = re.findall(r"\b\d{1,3}(?:\.\d{1,3}){3}\b", text)
        assert all(address.startswith(("127.", "10.0.0.", "0.")) for address in addresses), path
