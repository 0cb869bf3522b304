"""Summarise the published results for pairs of vLLM and TRL releases, and print or export them for `versions`.

`published_pairs` returns the pairs; `render` prints them, `document` exports them. The command recommends the best pair
that ran (`best_pair`). Without --all it prints SELECTED_PAIRS, as the README's table does. The row of a pair with the
state `fails` is "does not work together".
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from packaging.version import Version
from rich.console import Console

from diagnostics.compat_table import PASSED, Cell, Compat
from diagnostics.fixes import quote_command, uv_pip
from diagnostics.output.terminal import print_command, print_text

SCHEMA = "grpo-doctor.versions.v1"
# The pairs in the README and on the first screen: those with which our trainer was run, and an earlier one.
SELECTED_PAIRS = (
    "vllm-0.7.3+trl-0.16.1", "vllm-0.8.5+trl-0.17.0", "vllm-0.10.2+trl-0.25.1", "vllm-0.11.0+trl-0.26.2",
    "vllm-0.31.0+trl-1.16.0", "vllm-0.32.0+trl-1.16.0",
)  # fmt: skip
_MAX_REASONS = 3


class Question(NamedTuple):
    """A question about a pair, with its column heading and the matrix layers that answer it."""

    text: str
    head: tuple[str, str]
    layers: tuple[str, ...]


QUESTIONS = (
    Question("TRL trains by itself", ("TRL", "alone"), ("peer:alone",)),
    Question("TRL trains with this vLLM", ("TRL and", "vLLM"), ("peer:vllm",)),
    Question("vLLM samples, log-probs agree", ("log-", "probs"), ("engine", "logprobs")),
    Question(
        "our trainer, three modes", ("our", "trainer"), ("train:colocate", "train:async", "train:server")
    ),
    Question("`vllm serve`", ("vllm", "serve"), ("serve:vllm",)),
    Question("`trl vllm-serve`", ("trl", "serve"), ("serve:trl",)),
)


@dataclass(frozen=True)
class PublishedPair:
    """A pair of vLLM and TRL releases in the published table.

    Attributes:
        state: The outcome: `ran`, `fails` or `part`.
        declared: Whether the declared requirements of both releases can be met together.
        answers: For each question: ✔, ✘ with the codes of known issues, or empty if it was not run.
        crashes: Codes of the known scheduler crashes that occurred.
        failed: The question and reason of each failed layer.
        install: The command that installs the pair.
    """

    id: str
    vllm: str
    trl: str
    state: str
    declared: bool
    answers: tuple[str, ...]
    crashes: tuple[str, ...]
    failed: tuple[str, ...]
    install: str


def published_pairs(cells: Iterable[Cell]) -> list[PublishedPair]:
    """Return the published pairs, newest first."""
    result = [_pair(cell) for cell in cells]
    return sorted(result, key=lambda pair: (Version(pair.vllm), Version(pair.trl)), reverse=True)


def _pair(cell: Cell) -> PublishedPair:
    """Return the pair of a cell of the published table."""
    answers, reasons = [], []
    for question in QUESTIONS:
        ran = any(name in cell.layers and cell.layers[name].has_run for name in question.layers)
        failed = cell.failed_layers(question.layers)
        codes = dict.fromkeys(code for layer in failed for code in layer.codes)
        answers.append(" ".join(["✘", *codes]) if failed else "✔" if ran else "")
        # The expected reason, else the summary of the run.
        reasons += [f"{' '.join(question.head)}: {layer.reason or layer.summary}" for layer in failed]
    scheduler, resolve = cell.layers.get("scheduler"), cell.layers.get("resolve")
    versions = {"vllm": cell.vllm, "trl": cell.trl}
    versions |= {
        "transformers": cell.ran_with("transformers") or cell.transformers or "",
        "torch": cell.torch or "",
    }
    pins = [f"{name}=={version}" for name, version in versions.items() if version]
    return PublishedPair(
        cell.id,
        cell.vllm,
        cell.trl,
        cell.outcome,
        declared=bool(resolve and resolve.verdict in PASSED),
        answers=tuple(answers),
        crashes=tuple(scheduler.codes if scheduler and scheduler.verdict == "expected_fail" else ()),
        failed=tuple(reasons),
        install=quote_command(uv_pip("install", *pins)),
    )


def best_pair(pairs: Iterable[PublishedPair]) -> PublishedPair | None:
    """Return the best pair that ran: without a failure if there is one, then with met requirements, then the first."""
    ran = [pair for pair in pairs if pair.state == "ran"]
    return min(ran, key=lambda pair: (bool(pair.failed), not pair.declared), default=None)


def headline(pairs: Sequence[PublishedPair]) -> str:
    """Summarise the pairs in one line, and name the one to install."""
    count = Counter(pair.state for pair in pairs)
    counts = f"{count['ran']} of {len(pairs)} pairs ran, {count['part']} in part"
    best = best_pair(pairs)
    if best is None:
        return counts
    complete = "" if best.failed else ", the newest pair whose runs all passed"
    return f"{counts}; install vLLM {best.vllm} with TRL {best.trl}{complete}"


def document(pairs: Sequence[PublishedPair], published: Compat) -> dict[str, Any]:
    """Return the table as JSON data; the key `only_read` remains for earlier readers, and its list is empty."""
    best = best_pair(pairs)
    questions = [question.text.replace("`", "") for question in QUESTIONS]
    return {
        "schema": SCHEMA,
        "published": published.generated,
        "take": {name: getattr(best, name) for name in ("vllm", "trl", "install")} if best else None,
        "pairs": [
            {name: getattr(pair, name) for name in ("vllm", "trl", "state", "declared")}
            | {"answers": dict(zip(questions, pair.answers, strict=True)), "crashes": list(pair.crashes)}
            for pair in pairs
        ],
        "only_read": [],
    }


def render(console: Console, pairs: Sequence[PublishedPair], published: Compat, *, every: bool) -> None:
    """Print the recommended pair and its install command, then the pairs with their results.

    Args:
        console: Console to print on.
        pairs: All published pairs.
        published: The published table.
        every: Whether to print all pairs instead of SELECTED_PAIRS.
    """
    print_text(console, f"versions: {headline(pairs)}", "bold")
    if recommended := best_pair(pairs):
        print_command(console, recommended.install)
    printed = pairs if every else [pair for pair in pairs if pair.id in SELECTED_PAIRS]
    _print_table(console, printed)
    for reason in list(dict.fromkeys(reason for pair in printed for reason in pair.failed))[:_MAX_REASONS]:
        print_text(console, f"✘ {reason.split('. ')[0].rstrip('.')}", "dim")
    more = "" if every else f"; --all shows {len(pairs)}"
    hint = "your releases: versions vllm==0.10 trl"
    print_text(console, f"published {published.generated}{more}; {hint}", "dim")


def _print_table(console: Console, pairs: Sequence[PublishedPair]) -> None:
    """Print a row for each pair, a legend, and the known crashes."""
    heads = [("vLLM", ""), ("TRL", ""), *(question.head for question in QUESTIONS)]
    rows = [[head[line] for head in heads] for line in (0, 1)]
    rows += [[pair.vllm, pair.trl, *pair.answers] for pair in pairs]
    widths = [max(len(row[column]) for row in rows) + 2 for column in range(len(heads))]
    # A pair that cannot be installed or imported has no other result.
    rows[2:] = [
        [pair.vllm, pair.trl, "✘ does not work together"] if pair.state == "fails" else row
        for pair, row in zip(pairs, rows[2:], strict=True)
    ]
    print_text(console, "")
    for number, row in enumerate(rows):
        line = "".join(text.ljust(width) for text, width in zip(row, widths, strict=False)).rstrip()
        print_text(console, line, "bold" if number < 2 else "", whole=True)
    print_text(console, "✔ passed  ✘ failed  blank: no result; on CPUs, real code of both packages", "dim")
    if crashes := [f"vLLM {pair.vllm}: {', '.join(pair.crashes)}" for pair in pairs if pair.crashes]:
        print_text(console, f"known crashes seen in {'; in '.join(crashes)}", "dim")
