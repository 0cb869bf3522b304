"""Transformations of a log between program and reader: prefixes, collectors, terminals, pastes.

Each takes lines and a source of random numbers and returns lines that mean the same. Logs that show a failure must be
judged alike before and after, and logs that show none as well.
"""

from __future__ import annotations

import gzip
import html
import json
import textwrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    Transform = Callable[[list[str], random.Random], list[str]]

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
    "Map:  42%|####2     | 420/1000 [00:01<00:01, 400.00 examples/s]",
    "/opt/env/lib/python3.12/site-packages/torch/nn/modules/module.py:7: UserWarning: a hook was ignored",
    "  warnings.warn(",
    "Speicherzugriff ist langsam: prüfen Sie die Einstellung",
    "警告: 磁盘空间不足",
    "Предупреждение: файл не найден, пропущен",
    "2026-01-31 10:00:00 | INFO     | rewards:score:12 - 8 of 8 answers parsed",
    '{"level": "info", "message": "step 3", "reward": 0.25}',
    "(WorkerDict pid=77) step:3 - actor/entropy:0.31 - actor/kl:0.001",
    "0: step 7 reward 0.5",
)
PREFIXES = (
    "[rank{rank}]: ",
    "[rank{rank}]:",
    "[default{rank}]:",
    "[default{rank}]:[rank{rank}]: ",
    "(WorkerDict pid={pid}, ip=10.0.0.{rank}) ",
    "(pid={pid}) ",
    "\x1b[36m(TaskRunner pid={pid})\x1b[0m ",
    "(EngineCore_{rank} pid={pid}) ",
    "(EngineCore_DP{rank} pid={pid}) ERROR 01-31 10:00:{clock} [core.py:708] ",
    "(Worker_TP{rank} pid={pid}) ERROR 01-31 10:00:{clock} [a.py:7] ",
    "(APIServer pid={pid}) ",
    "2026-01-31 10:00:{clock}.123 ",
    "2026-01-31 10:00:{clock},123 - ERROR - ",
    "2026-01-31T10:00:{clock}Z [rank{rank}]: ",
    "2026-01-31T10:00:{clock}.123456789Z stderr F ",
    "2026-01-31T10:00:{clock}.1234567Z ",
    "[2026-01-31 10:00:{clock},123] [ERROR] [config.py:17:print] [Rank {rank}] ",
    "[10:00:{clock}] ",
    "{rank}: ",
    " {rank}: ",
    "10.0.0.{rank}: ",
    "worker-{rank}: ",
    "trainer-{rank}  | ",
    "[pod/trainer-{rank}/main] ",
    "[1,{rank}]<stderr>:",
    "Jan 31 10:00:{clock} node{rank} train[{pid}]: ",
    "2026-01-31T10:00:{clock}+0100 node{rank} train[{pid}]: ",
    "2026-01-31 10:00:{clock}.123 | ERROR    | rollout:run:17 - ",
    "ERROR:root:",
    "[ERROR:swift] ",
    "##[error]",
    "[E131 10:00:{clock}.123 worker.cpp:17] ",
)


def prefixed(prefix: str) -> Transform:
    """The prefix of a launcher, an actor, a logger or a collector before each line."""

    def apply(lines: list[str], numbers: random.Random) -> list[str]:
        mark = marked(prefix, numbers.randrange(8), numbers)
        return [mark + line for line in lines]

    return apply


def marked(prefix: str, rank: int, numbers: random.Random) -> str:
    """A prefix with values."""
    return prefix.format(rank=rank, pid=numbers.randrange(1, 10**6), clock=f"{numbers.randrange(60):02d}")


def ranks(prefix: str, count: int) -> Transform:
    """Several ranks fail alike, and their lines fall between each other's."""

    def apply(lines: list[str], numbers: random.Random) -> list[str]:
        marks = [marked(prefix, rank, numbers) for rank in range(count)]
        streams = [[mark + line for line in lines] for mark in marks]
        mixed = []
        while any(streams):
            stream = numbers.choice([stream for stream in streams if stream])
            mixed.append(stream.pop(0))
        return mixed

    return apply


def noise(count: int) -> Transform:
    """Lines of others between them."""

    def apply(lines: list[str], numbers: random.Random) -> list[str]:
        mixed = list(lines)
        for _ in range(count):
            mixed.insert(numbers.randrange(len(mixed) + 1), numbers.choice(NOISE))
        return mixed

    return apply


def coloured(lines: list[str], numbers: random.Random) -> list[str]:
    """Colour lines as a terminal shows them."""
    return [f"\x1b[{numbers.choice((1, 31, 36))}m{line}\x1b[0m" for line in lines]


def escape_lost(lines: list[str], numbers: random.Random) -> list[str]:
    """Leave colour codes without their escape character, as a web page does."""
    return [line.replace("\x1b", "") for line in coloured(lines, numbers)]


def returns(lines: list[str], numbers: random.Random) -> list[str]:
    """End lines as Windows does."""
    del numbers
    return [f"{line}\r" for line in lines]


def after_bar(lines: list[str], numbers: random.Random) -> list[str]:
    """After what a progress bar wrote on the same line."""
    return [f"{numbers.randrange(100):>3}%|##   | 3/10 [00:01<00:02]\r{line}" for line in lines]


def moved(lines: list[str], numbers: random.Random) -> list[str]:
    """Another environment, also with a space in its path."""
    where = numbers.choice(("/srv/a b/venv", "/home/user/.conda/envs/rl", "/usr/local", "C:/env"))
    return [line.replace("/opt/env", where) for line in lines]


def quoted(lines: list[str], numbers: random.Random) -> list[str]:
    """Quote lines as a reply by mail or on GitHub does."""
    mark = numbers.choice(("> ", "> > ", ">"))
    return [mark + line if line else ">" for line in lines]


def fenced(lines: list[str], numbers: random.Random) -> list[str]:
    """In Markdown, with words around."""
    fence = numbers.choice(("```", "```python", "~~~", "```shell"))
    return ["### What happens", "My run fails with", "", fence, *lines, fence[:3], "Any idea?"]


def indented(lines: list[str], numbers: random.Random) -> list[str]:
    """Indent lines as code in Markdown, or below a list item."""
    return [" " * numbers.choice((4, 4, 4)) + line if line else line for line in lines]


def entities(lines: list[str], numbers: random.Random) -> list[str]:
    """Escape lines as a page's source has them."""
    return [html.escape(line, quote=numbers.random() < 2) for line in lines]


def docker(lines: list[str], numbers: random.Random) -> list[str]:
    """Docker's json-file: each line an object."""
    del numbers
    stamp = "2026-01-31T10:00:00.123456789Z"
    return [json.dumps({"log": f"{line}\n", "stream": "stderr", "time": stamp}) for line in lines]


def json_records(lines: list[str], numbers: random.Random) -> list[str]:
    """A logger that writes the whole as one object with the line ends written out."""
    key = numbers.choice(("message", "msg", "event", "exception", "exc_info"))
    return [
        json.dumps({"time": 1, "level": "info", "message": "starting"}),
        json.dumps({"time": 2, "level": "error", "rank": numbers.randrange(8), key: "\n".join(lines)}),
    ]


def json_lines(lines: list[str], numbers: random.Random) -> list[str]:
    """Format a log like a collector that makes a JSON object of each line, with the pod's name."""
    pod = f"trainer-{numbers.randrange(8)}"
    return [
        json.dumps({"severity": "ERROR", "message": line, "pod": pod}, ensure_ascii=False) for line in lines
    ]


def as_repr(lines: list[str], numbers: random.Random) -> list[str]:
    """Write lines as Python's `repr` shows a printed text."""
    del numbers
    return ["the remote worker printed:", repr("\n".join(lines))]


def escaped_twice(lines: list[str], numbers: random.Random) -> list[str]:
    """Write the log as one line with escaped line ends, behind a logger's prefix."""
    mark = marked("2026-01-31 10:00:{clock},123 - ERROR - ", 0, numbers)
    return [mark + "\n".join(lines).replace("\\", "\\\\").replace("\n", "\\n")]


def broken(width: int, *, words: bool) -> Transform:
    """Broken at the width of a terminal, anywhere or at spaces."""

    def apply(lines: list[str], numbers: random.Random) -> list[str]:
        del numbers
        pieces = []
        for line in lines:
            if len(line) <= width:
                pieces.append(line)
            elif words:
                pieces += textwrap.wrap(line, width, drop_whitespace=True, break_on_hyphens=False)
            else:
                pieces += [line[start : start + width] for start in range(0, len(line), width)]
        return pieces

    return apply


def packed(lines: list[str]) -> bytes:
    """Compress with gzip."""
    return gzip.compress(joined(lines))


def joined(lines: list[str]) -> bytes:
    """Join lines to bytes."""
    return ("\n".join(lines) + "\n").encode("utf-8", "surrogateescape")


PLAIN: dict[str, Transform] = {
    **{f"prefix {prefix.encode('unicode_escape').decode()}": prefixed(prefix) for prefix in PREFIXES},
    "coloured": coloured,
    "escape_lost": escape_lost,
    "returns": returns,
    "after_bar": after_bar,
    "moved": moved,
    "quoted": quoted,
    "fenced": fenced,
    "indented": indented,
    "entities": entities,
    "docker": docker,
    "json_records": json_records,
    "json_lines": json_lines,
    "shown": as_repr,
    "escaped_twice": escaped_twice,
}
# A root line broken in two is searched; it is not always found.
BROKEN: dict[str, Transform] = {
    f"broken {width} {'words' if words else 'anywhere'}": broken(width, words=words)
    for width in (80, 100, 120)
    for words in (True, False)
}
