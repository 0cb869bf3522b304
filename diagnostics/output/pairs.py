"""Which releases work together, out of the published table: the rows, the headline, and both on a screen."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from packaging.version import Version

from diagnostics.output.formats.finding import Line, command_lines, write_lines
from diagnostics.output.wording import quoted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from diagnostics.collect.compat import Compat
    from diagnostics.output.paper import Paper

SCHEMA = "grpo-doctor.versions.v1"
# The rows of the README and of the first screen: the oldest, those in which TRL itself trains, the newest, one between.
SHOWN = (
    "vllm-0.7.3+trl-0.16.1", "vllm-0.8.5+trl-0.17.0", "vllm-0.10.2+trl-0.25.1", "vllm-0.11.0+trl-0.26.2",
    "vllm-0.31.0+trl-1.16.0", "vllm-0.32.0+trl-1.16.0",
)  # fmt: skip
_WITH_ENGINE = {"peer:vllm", "serve:trl", "serve:vllm", "engine"}
_PASSED = {"pass", "unexpected_pass"}
# Of releases that were only read: so many are named.
_NAMED = 6
# Lines of a reason on a screen.
_LINES = 3


class Question(NamedTuple):
    """What a user wants to know of a pair: as a whole, as the head of a column, and the layers that answer it."""

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
class TriedPair:
    """A published pair that somebody ran, or tried to.

    Attributes:
        state: `ran` with its engine, ran in `part`, or `fails`.
        declared: Whether their requirements can be met together.
        answers: Of each question: ✔, ✘ with its codes, or nothing where it was not asked.
        crashes: Known crashes of the scheduler that were seen.
        failed: Of each question that did not hold, why.
        install: The command that has the pair.
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


def tried(cells: Iterable[Mapping[str, Any]]) -> list[TriedPair]:
    """The published pairs, the newest first."""
    found = [_pair(cell) for cell in cells]
    return sorted(found, key=lambda pair: (Version(pair.vllm), Version(pair.trl)), reverse=True)


def _pair(cell: Mapping[str, Any]) -> TriedPair:
    layers = cell["layers"]
    asked = [[layers[name] for name in question.layers if name in layers] for question in QUESTIONS]
    ran = {name for name, one in layers.items() if _executed(one) and one["verdict"] in _PASSED}
    engine = ran & _WITH_ENGINE or any(name.startswith("train:") for name in ran)
    scheduler = layers.get("scheduler", {})
    crashes = scheduler.get("codes", ()) if scheduler.get("verdict") == "expected_fail" else ()
    wrong = cell["verdict"] in {"fail", "unresolvable"}
    pins = [(name, cell[name]) for name in ("vllm", "trl", "transformers", "torch") if cell.get(name)]
    return TriedPair(
        cell["id"], cell["vllm"], cell["trl"], "ran" if engine else "fails" if wrong else "part",
        declared=layers.get("resolve", {}).get("verdict") in _PASSED,
        answers=tuple(_told(of) for of in asked), crashes=tuple(crashes), failed=tuple(_why(asked)),
        install=quoted(("uv", "pip", "install", *(f"{name}=={version}" for name, version in pins))),
    )  # fmt: skip


def _executed(layer: Mapping[str, Any]) -> bool:
    ran: bool = layer["evidence"] == "executed" and layer["verdict"] != "not_run"
    return ran


def _told(layers: list[Mapping[str, Any]]) -> str:
    """✔ where every layer of a question ran and passed; ✘ with the codes where one did not; nothing where none ran."""
    ran = [layer for layer in layers if _executed(layer)]
    if failed := [layer for layer in ran if layer["verdict"] != "pass"]:
        return " ".join(["✘", *dict.fromkeys(code for layer in failed for code in layer["codes"])])
    return "✔" if ran else ""


def _why(asked: Iterable[Iterable[Mapping[str, Any]]]) -> Iterator[str]:
    """Why a question did not hold: what was expected of it, else what was seen."""
    for question, layers in zip(QUESTIONS, asked, strict=True):
        for layer in layers:
            if _executed(layer) and layer["verdict"] != "pass":
                yield f"{' '.join(question.head)}: {layer.get('reason') or layer.get('summary', '')}"


def best(pairs: Iterable[TriedPair]) -> TriedPair | None:
    """The newest pair that ran with its engine, and that its packages declare, where there is one."""
    ran = [pair for pair in pairs if pair.state == "ran"]
    return next((pair for pair in ran if pair.declared), next(iter(ran), None))


def headline(pairs: Sequence[TriedPair]) -> str:
    """What the pairs come to, and which to take."""
    count = Counter(pair.state for pair in pairs)
    told = (
        f"{count['ran']} of {len(pairs)} pairs that were tried ran with their engine, {count['part']} in part"
    )
    taken = best(pairs)
    return f"{told}; for vLLM {taken.vllm} take TRL {taken.trl}" if taken else told


def chosen(pairs: Iterable[TriedPair], vllm: str, trl: str) -> list[TriedPair]:
    """The pairs of a release of vLLM, of TRL, or of both; 0.10 is every 0.10.x."""
    return [pair for pair in pairs if _is_of(pair.vllm, vllm) and _is_of(pair.trl, trl)]


def _is_of(version: str, asked: str) -> bool:
    return not asked or version == asked or version.startswith(f"{asked}.")


def only_read(published: Compat, vllm: str, trl: str) -> list[tuple[str, str]]:
    """The pairs of these releases that nobody ran and whose sources and requirements fit, the newest first."""
    fitting = [
        names
        for names in published.pairs()
        if _is_of(names[0], vllm) and _is_of(names[1], trl)
        for read in [published.read(*names)]
        if read and read.promising
    ]
    return sorted(fitting, key=lambda names: (Version(names[0]), Version(names[1])), reverse=True)


def document(pairs: Sequence[TriedPair], published: Compat, vllm: str, trl: str) -> dict[str, Any]:
    """The answer for programs."""
    kept = chosen(pairs, vllm, trl)
    taken = best(kept)
    return {
        "schema": SCHEMA,
        "published": published.generated,
        "take": {"vllm": taken.vllm, "trl": taken.trl, "install": taken.install} if taken else None,
        "pairs": [
            {
                "vllm": pair.vllm, "trl": pair.trl, "state": pair.state, "declared": pair.declared,
                "answers": dict(zip((one.text.replace("`", "") for one in QUESTIONS), pair.answers, strict=True)),
                "crashes": list(pair.crashes),
            }
            for pair in kept
        ],
        "only_read": [
            {"vllm": one, "trl": other} for one, other in (only_read(published, vllm, trl) if vllm or trl else ())
        ],
    }  # fmt: skip


def render(
    paper: Paper, pairs: Sequence[TriedPair], published: Compat, asked: tuple[str, str], *, every: bool
) -> None:
    """Writes which pair to take and the command that has it, then the pairs by what was asked of each.

    Args:
        paper: Where it goes.
        pairs: All that were tried.
        published: The table that they are from.
        asked: The releases of vLLM and of TRL that were asked for; empty for any.
        every: Whether all of them are shown; else the README's.
    """
    kept = chosen(pairs, *asked)
    taken = best(kept)
    if not any(asked):
        paper.print(f"versions: {headline(pairs)}", "bold")
    else:
        paper.print(f"versions: {_of(*asked)}: {_answer(kept, taken)}", "bold" if taken else "bold yellow")
        if not taken:
            _write_read(paper, only_read(published, *asked))
    if taken:
        write_lines(paper, command_lines(paper, taken.install))
    shown = kept if every or any(asked) else [pair for pair in kept if pair.id in SHOWN]
    if shown:
        paper.print()
        _write_table(paper, shown)
        paper.print("✔ ran and held  ✘ ran and failed  blank: no result; on CPUs, real code of both", "dim")
        seen = [f"vLLM {pair.vllm}: {', '.join(pair.crashes)}" for pair in shown if pair.crashes]
        if seen:
            paper.print(f"known crashes seen in {'; in '.join(seen)}", "dim")
    for told in taken.failed if taken else ():
        write_lines(paper, [Line([(line, "")], "dim") for line in _shortened(paper, f"✘ {told}")])
    more = [f"--all shows {len(kept)}"] if len(shown) < len(kept) else []
    more += [] if any(asked) else ["--vllm 0.10 and --trl 0.25 ask for yours"]
    paper.print("; ".join([f"published {published.generated}", *more]), "dim")


def _shortened(paper: Paper, text: str) -> list[str]:
    """A text in three lines, where somebody looks."""
    lines = paper.wrapped(text, paper.width)
    return [*lines[: _LINES - 1], " ".join(lines[_LINES - 1 :])] if paper.is_terminal else [text]


def _of(vllm: str, trl: str) -> str:
    return " with ".join([*([f"vLLM {vllm}"] if vllm else []), *([f"TRL {trl}"] if trl else [])])


def _answer(kept: list[TriedPair], taken: TriedPair | None) -> str:
    if taken:
        return f"take vLLM {taken.vllm} with TRL {taken.trl}, which ran{'' if taken.declared else ' (not declared)'}"
    if any(pair.state == "part" for pair in kept):
        return "ran in part, without the engine"
    return "was tried, and does not work" if kept else "was never run"


def _write_read(paper: Paper, read: list[tuple[str, str]]) -> None:
    """What was only read is another thing than what ran, and says so."""
    if not read:
        paper.print("by its sources and requirements no pair of it fits, or none was read")
        return
    named = ", ".join(f"vLLM {vllm} with TRL {trl}" for vllm, trl in read[:_NAMED])
    more = f" and {len(read) - _NAMED} more" if len(read) > _NAMED else ""
    paper.print(f"only read, never run: by their sources these fit: {named}{more}")


def _write_table(paper: Paper, pairs: Sequence[TriedPair]) -> None:
    heads = [("vLLM", ""), ("TRL", ""), *(question.head for question in QUESTIONS)]
    rows = [[head[line] for head in heads] for line in (0, 1)]
    rows += [[pair.vllm, pair.trl, *pair.answers] for pair in pairs]
    wide = [max(len(row[column]) for row in rows) + 2 for column in range(len(heads))]
    # Of what can't be installed together, or not imported, nothing else was to be asked.
    rows[2:] = [
        [pair.vllm, pair.trl, "✘ does not work together"] if pair.state == "fails" else row
        for pair, row in zip(pairs, rows[2:], strict=True)
    ]
    for number, row in enumerate(rows):
        told = "".join(text.ljust(width) for text, width in zip(row, wide, strict=False)).rstrip()
        paper.print(told, "bold" if number < 2 else "", crop=paper.is_terminal, whole=not paper.is_terminal)
