"""Transform logs as launchers, log collectors, terminals and web pages do.

A transformation takes lines and a random generator, and returns lines with the same meaning. Triage must give the
same verdict before and after those in VERDICT_PRESERVING. After those in LINE_BREAKING it may miss the cause.
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


def add_prefix(prefix: str) -> Transform:
    """Return a transformation that adds the prefix of a launcher, actor, logger or collector to each line."""

    def apply(lines: list[str], numbers: random.Random) -> list[str]:
        mark = fill_prefix(prefix, numbers.randrange(8), numbers)
        return [mark + line for line in lines]

    return apply


def fill_prefix(prefix: str, rank: int, numbers: random.Random) -> str:
    """Fill a prefix with a rank and a random pid and time."""
    return prefix.format(rank=rank, pid=numbers.randrange(1, 10**6), clock=f"{numbers.randrange(60):02d}")


def interleave_ranks(prefix: str, count: int) -> Transform:
    """Return a transformation that interleaves the lines of several ranks with the same log."""

    def apply(lines: list[str], numbers: random.Random) -> list[str]:
        marks = [fill_prefix(prefix, rank, numbers) for rank in range(count)]
        streams = [[mark + line for line in lines] for mark in marks]
        mixed = []
        while any(streams):
            stream = numbers.choice([stream for stream in streams if stream])
            mixed.append(stream.pop(0))
        return mixed

    return apply


def insert_noise(count: int) -> Transform:
    """Return a transformation that inserts unrelated lines at random positions."""

    def apply(lines: list[str], numbers: random.Random) -> list[str]:
        mixed = list(lines)
        for _ in range(count):
            mixed.insert(numbers.randrange(len(mixed) + 1), numbers.choice(NOISE))
        return mixed

    return apply


def add_colours(lines: list[str], numbers: random.Random) -> list[str]:
    """Colour lines as for a terminal."""
    return [f"\x1b[{numbers.choice((1, 31, 36))}m{line}\x1b[0m" for line in lines]


def lose_escapes(lines: list[str], numbers: random.Random) -> list[str]:
    """Add colour codes without their escape character, as on a web page."""
    return [line.replace("\x1b", "") for line in add_colours(lines, numbers)]


def add_carriage_returns(lines: list[str], numbers: random.Random) -> list[str]:
    """End lines as Windows does."""
    del numbers
    return [f"{line}\r" for line in lines]


def put_after_progress_bar(lines: list[str], numbers: random.Random) -> list[str]:
    """Put each line after the output of a progress bar on the same line."""
    return [f"{numbers.randrange(100):>3}%|##   | 3/10 [00:01<00:02]\r{line}" for line in lines]


def move_environment(lines: list[str], numbers: random.Random) -> list[str]:
    """Replace the path of the environment, also by one with a space."""
    where = numbers.choice(("/srv/a b/venv", "/home/user/.conda/envs/rl", "/usr/local", "C:/env"))
    return [line.replace("/opt/env", where) for line in lines]


def quote_as_reply(lines: list[str], numbers: random.Random) -> list[str]:
    """Quote lines as a reply by mail or on GitHub does."""
    mark = numbers.choice(("> ", "> > ", ">"))
    return [mark + line if line else ">" for line in lines]


def put_in_markdown_fence(lines: list[str], numbers: random.Random) -> list[str]:
    """Put the log into a Markdown code block with text around it."""
    fence = numbers.choice(("```", "```python", "~~~", "```shell"))
    return ["### What happens", "My run fails with", "", fence, *lines, fence[:3], "Any idea?"]


def indent_as_code(lines: list[str], numbers: random.Random) -> list[str]:
    """Indent lines by four spaces, as code in Markdown."""
    return [" " * numbers.choice((4, 4, 4)) + line if line else line for line in lines]


def escape_html(lines: list[str], numbers: random.Random) -> list[str]:
    """Escape lines as in the source of an HTML page."""
    return [html.escape(line, quote=numbers.random() < 2) for line in lines]


def format_as_docker_json(lines: list[str], numbers: random.Random) -> list[str]:
    """Format each line as an object of Docker's json-file driver."""
    del numbers
    stamp = "2026-01-31T10:00:00.123456789Z"
    return [json.dumps({"log": f"{line}\n", "stream": "stderr", "time": stamp}) for line in lines]


def format_as_one_json_record(lines: list[str], numbers: random.Random) -> list[str]:
    """Format the whole log as one message of a JSON logger, after another message."""
    key = numbers.choice(("message", "msg", "event", "exception", "exc_info"))
    return [
        json.dumps({"time": 1, "level": "info", "message": "starting"}),
        json.dumps({"time": 2, "level": "error", "rank": numbers.randrange(8), key: "\n".join(lines)}),
    ]


def format_as_json_lines(lines: list[str], numbers: random.Random) -> list[str]:
    """Format each line as a JSON object with the name of the pod, as a collector does."""
    pod = f"trainer-{numbers.randrange(8)}"
    return [
        json.dumps({"severity": "ERROR", "message": line, "pod": pod}, ensure_ascii=False) for line in lines
    ]


def as_repr(lines: list[str], numbers: random.Random) -> list[str]:
    """Write the log as Python's `repr` of a printed text."""
    del numbers
    return ["the remote worker printed:", repr("\n".join(lines))]


def escape_line_ends(lines: list[str], numbers: random.Random) -> list[str]:
    """Write the log as one line with escaped line ends, behind a logger's prefix."""
    mark = fill_prefix("2026-01-31 10:00:{clock},123 - ERROR - ", 0, numbers)
    return [mark + "\n".join(lines).replace("\\", "\\\\").replace("\n", "\\n")]


def break_lines(width: int, *, words: bool) -> Transform:
    """Return a transformation that breaks lines at a width, at spaces or anywhere."""

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


def compress(lines: list[str]) -> bytes:
    """Compress the log with gzip."""
    return gzip.compress(join_lines(lines))


def join_lines(lines: list[str]) -> bytes:
    """Join lines to bytes."""
    return ("\n".join(lines) + "\n").encode("utf-8", "surrogateescape")


VERDICT_PRESERVING: dict[str, Transform] = {
    **{f"prefix {prefix.encode('unicode_escape').decode()}": add_prefix(prefix) for prefix in PREFIXES},
    "coloured": add_colours,
    "escape_lost": lose_escapes,
    "returns": add_carriage_returns,
    "after_bar": put_after_progress_bar,
    "moved": move_environment,
    "quoted": quote_as_reply,
    "fenced": put_in_markdown_fence,
    "indented": indent_as_code,
    "entities": escape_html,
    "docker": format_as_docker_json,
    "json_records": format_as_one_json_record,
    "json_lines": format_as_json_lines,
    "shown": as_repr,
    "escaped_twice": escape_line_ends,
}
# If the line with the cause is broken in two, triage does not always find it.
LINE_BREAKING: dict[str, Transform] = {
    f"broken {width} {'words' if words else 'anywhere'}": break_lines(width, words=words)
    for width in (80, 100, 120)
    for words in (True, False)
}
