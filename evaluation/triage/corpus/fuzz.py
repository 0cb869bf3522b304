"""Fuzz triage with damaged lines and files: `python evaluation/triage/corpus/fuzz.py --lines 100000 --files 2000`.

Triage must give a verdict for every log without an exception. Prints CPU time and peak memory as JSON.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from diagnostics import catalog
from diagnostics.triage.command import triage
from diagnostics.triage.report import report
from diagnostics.triage.rules import Rules
from diagnostics.triage.sources import LogSource
from evaluation.triage.corpus import transforms
from evaluation.triage.corpus.sweep import LOGS, MemoryLog

HEADER = b"Traceback (most recent call last):\n"
FRAME = b'  File "/opt/env/lib/python3.12/site-packages/vllm/a.py", line 7, in f\n'
CHAIN = b"During handling of the above exception, another exception occurred:\n\n"
STATES = {"known", "wrapper", "hypothesis", "unknown", "not_judged", "clean", "empty"}


def damaged_line(lines: list[bytes], numbers: random.Random) -> bytes:
    """Join parts of two random lines, change up to two bytes, and sometimes insert hostile bytes."""
    first, second = numbers.choice(lines), numbers.choice(lines)
    line = bytearray(
        first[: numbers.randrange(len(first) + 1)] + second[numbers.randrange(len(second) + 1) :]
    )
    for _ in range(numbers.randrange(3)):
        if line:
            line[numbers.randrange(len(line))] = numbers.randrange(256)
    if numbers.random() < 0.1:
        place = numbers.randrange(len(line) + 1)
        line[place:place] = numbers.choice(HOSTILE)
    return bytes(line)


HOSTILE = (
    b"\0" * 50, b"\xff\xfe\xfd", b"\xed\xa0\x80", b"\r" * 50, b"\x1b[" * 50, b"\x1b]" + b"x" * 300, b"[" * 200,
    b"(" * 200, b"{" * 200, b'{"a":' * 100, b"9" * 5000, b'{"rank": ' + b"9" * 5000 + b"}", b"\\n" * 200, b"&lt;" * 100,
    b"> " * 200, b"pid=" * 100, b"[rank" * 100, b"a.b" * 2000, b"_" * 3000, b"Error: " * 100, HEADER.strip(),
    FRAME.strip(), b'"' * 99, "\u2028\u0085\u202e\U0001f600".encode(), b"\x0b\x0c\x1c\x1d\x85",
)  # fmt: skip


def hostile_files(numbers: random.Random, size: int):
    """Yield the name and content of hostile files; most have about `size` bytes."""
    yield "random", numbers.randbytes(size)
    yield "zeros", b"\0" * size
    yield "newlines", b"\n" * size
    yield "one line", b"x" * size
    yield "one line of errors", b"ValueError: No available memory for the cache blocks " * (size // 53)
    yield (
        "one line of JSON",
        b'{"message": "' + b"a\\n" * (size // 3) + b'Traceback (most recent call last)"}',
    )
    yield "deep JSON", b'{"a":' * (size // 6) + b"1" + b"}" * (size // 6)
    yield "deep JSON lines", (b'{"a":' * 800 + b'"Error: "' + b"}" * 800 + b"\n") * (size // 5000)
    yield "deep lists", b'{"Error: ":' + b"[" * size + b"]" * size + b"}"
    yield "huge integers", (b'{"Error: x": ' + b"9" * 9000 + b"}\n") * (size // 9000)
    yield "heads", HEADER * (size // len(HEADER))
    yield "frames", FRAME * (size // len(FRAME))
    yield "tracebacks", (HEADER + FRAME + b"KeyError: %d\n" % numbers.randrange(99)) * (size // 120)
    yield "chain", (HEADER + FRAME + b"KeyError: 1\n\n" + CHAIN) * (size // 200)
    yield "streams", b"".join(b"(a pid=%d) " % n + HEADER for n in range(size // 48))
    yield "groups", b"  " * 400 + b"| Traceback (most recent call last):\n" * (size // 40)
    yield (
        "boxes",
        "╭─── Traceback (most recent call last) ───╮\n│ /a/b.py:1 in f │\n╰──╯\nKeyError: 1\nx\n".encode()
        * (size // 130),
    )
    yield "returns", b" 50%|#####     | 5/10 Error: \r" * (size // 30)
    yield "escapes", b"\x1b[31mError: \x1b[0m\x1b]8;;x" * (size // 25)
    yield "quotes", b"> " * (size // 2) + b"Error: "
    yield "prefixes", b"[rank0]: " * (size // 9) + b"Error: \n"
    yield "dots", b"a." * (size // 2) + b"Error: \n"
    yield "versions", b"vllm==0.8.5\ntorch 2.%d\n" % numbers.randrange(99) * (size // 20)
    yield "wrapped", (b"Error: " + b"y" * 73 + b"\n") * (size // 81)
    yield "surrogates", b"\xed\xa0\x80\xff Error: \n" * (size // 13)
    yield "cut gzip", gzip.compress(numbers.randbytes(size))[: size // 2]
    yield "wrong gzip", b"\x1f\x8b" + numbers.randbytes(size)
    yield "bomb", gzip.compress(b"\0" * (size * 20))
    yield "nested gzip", gzip.compress(gzip.compress(b"Error: \n" * size))
    yield "utf16", ("Error: \u20ac\n" * (size // 20)).encode("utf-16")
    yield "half utf16", b"\xff\xfe" + numbers.randbytes(size | 1)


def triage_cpu_s(rules: Rules, source: MemoryLog | LogSource) -> float:
    """Run triage on a log and build its report; return the CPU seconds."""
    start = time.process_time()
    verdict = triage([source], rules)
    assert verdict.state in STATES
    json.dumps(report(verdict, [source.name]).subject)
    return time.process_time() - start


def fuzz_lines(rules: Rules, count: int, numbers: random.Random) -> float:
    """Triage damaged lines of the corpus, 1,000 in each log; return CPU seconds."""
    lines = [line for path in sorted(LOGS.glob("*/*.log")) for line in path.read_bytes().splitlines()]
    spent = 0.0
    for _ in range(0, count, 1000):
        fuzzed = [damaged_line(lines, numbers) for _ in range(1000)]
        spent += triage_cpu_s(rules, MemoryLog(b"\n".join(fuzzed)))
    return spent


def fuzz_files(rules: Rules, count: int, numbers: random.Random) -> float:
    """Triage logs of the corpus with parts removed or replaced, and sometimes transformed; return CPU seconds."""
    paths = sorted(LOGS.glob("*/*.log"))
    names = list(transforms.VERDICT_PRESERVING)
    spent = 0.0
    for _ in range(count):
        data = bytearray(numbers.choice(paths).read_bytes())
        for _ in range(numbers.randrange(1, 20)):
            place = numbers.randrange(len(data) + 1)
            data[place : place + numbers.randrange(200)] = (
                numbers.choice(HOSTILE) if numbers.random() < 0.5 else b""
            )
        lines = bytes(data).decode("utf-8", "surrogateescape").split("\n")
        if numbers.random() < 0.5:
            name = numbers.choice(names)
            lines = transforms.VERDICT_PRESERVING[name](
                [line.encode("utf-8", "replace").decode() for line in lines], numbers
            )
        spent += triage_cpu_s(rules, MemoryLog(transforms.join_lines(lines)))
    return spent


# The peak memory of a child includes that of its parent at the fork, so start it from a small process.
MEASURE_PROGRAM = """\
import os, sys
actions = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
pid = os.posix_spawn(sys.executable, [sys.executable, *sys.argv[1:]], os.environ, file_actions=actions)
_, status, used = os.wait4(pid, 0)
print(os.waitstatus_to_exitcode(status), used.ru_maxrss)
"""


def peak_memory_mb(path: Path) -> int:
    """Run `triage` on a file in a separate process; return its peak memory in MB."""
    command = [sys.executable, "-c", MEASURE_PROGRAM, "-m", "diagnostics", "triage", str(path)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    code, used = map(int, done.stdout.split())
    assert code in {0, 1, 3}, path
    return used // 1000


def main() -> None:
    """Fuzz with hostile files, lines and logs, and print the costs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lines", type=int, default=100_000)
    parser.add_argument("--files", type=int, default=2000)
    parser.add_argument("--size", type=int, default=10_000_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    rules, numbers = Rules(catalog.load()), random.Random(options.seed)
    figures: dict[str, object] = {"lines": options.lines, "files": options.files, "size": options.size}
    figures["hostile_cpu_s"] = {}
    most = 0
    with tempfile.TemporaryDirectory() as folder:
        for name, data in hostile_files(numbers, options.size):
            path = Path(folder) / "a.log"
            path.write_bytes(data)
            del data
            most = max(most, peak_memory_mb(path))
            figures["hostile_cpu_s"][name] = round(triage_cpu_s(rules, LogSource(name, path)), 2)
    figures["most_mb"] = most
    figures["lines_cpu_s"] = round(fuzz_lines(rules, options.lines, numbers), 1)
    figures["files_cpu_s"] = round(fuzz_files(rules, options.files, numbers), 1)
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
