"""What works with what, at a glance: every pair that was run here, that was published, or that was only read.

A pair stands for what was shown of it, strongest first; what was only read is plainly another thing than what ran.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from packaging.version import Version

from diagnostics.matrix.report import publish
from diagnostics.output.wording import quoted

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from diagnostics.collect.compat import Compat, Read
    from diagnostics.matrix.run.board import Board

# State -> (symbol, class of its colour, in words); the strongest first.
STATES = {
    "ran": ("✔", "pass executed", "ran: the engine of this vLLM, with this TRL beside it"),
    "part": ("◐", "pass declared", "ran in part: not the engine"),
    "read": ("○", "not_run static", "only read: all that TRL takes is there; nothing was run"),
    "open": ("?", "not_run declared", "not judged"),
    "fails": ("✘", "fail executed", "ran, and does not work"),
    "lacks": ("✘", "fail static", "does not work, by its source: what TRL takes is not there"),
    "none": ("∅", "unresolvable static", "cannot be installed together"),
}
_ORDER = tuple(STATES)
_STRONGEST = {"ran": 0, "part": 1, "fails": 2}
_PASSED = {"pass", "unexpected_pass"}
_SHOWN = {
    "peer:vllm": "TRL's own trainer sampled with this vLLM",
    "serve:trl": "trl vllm-serve answered",
    "serve:vllm": "vllm serve answered",
    "engine": "the engine sampled",
    "logprobs": "its log-probs are the trainer's",
    "scheduler": "the scheduler of its wheel, by itself",
    "peer:alone": "TRL's own trainer, without vLLM",
    "import": "both were imported",
}
# What says nothing of the engine, beside what does.
_LESS = {"import", "peer:alone", "scheduler"}
_AGAINST = {"fail", "expected_fail", "flaky", "unresolvable", "not_judged"}
# What a scheduler shows is whether a known issue is there, which stops no pair.
_TOLD = {*_SHOWN, "resolve", "contract"} - {"scheduler"}
_WITH_ENGINE = {"peer:vllm", "serve:trl", "serve:vllm", "engine"}


@dataclass(frozen=True)
class Pair:
    """A release of vLLM and one of TRL, and what is known of them together.

    Attributes:
        state: One of STATES.
        here: Whether this machine's store says so; else it was published.
        ran: What was run of it and passed, in words.
        against: What failed, or was not shown, in words.
        device: Where it ran: cpu, gpu, or nothing.
        install: A command that has the pair; empty where there is none to be had.
        locked: A command that has all its packages as they were locked, from a checkout; empty where there is no lock.
        again: A command that asks again.
        cell: Of a pair with a cell, its name.
        declared: Whether their requirements can be met together.
    """

    vllm: str
    trl: str
    state: str
    here: bool = False
    ran: tuple[str, ...] = ()
    against: tuple[str, ...] = ()
    device: str = ""
    install: str = ""
    locked: str = ""
    again: str = ""
    cell: str = ""
    declared: bool = True


def pairs(board: Board, published: Compat) -> list[Pair]:
    """Every pair that something is known of, one entry each: this machine's word before the published one.

    Args:
        board: What this machine's store says.
        published: The table that is shipped.
    """
    made = publish.document(board, "")["cells"]
    here = {
        (cell["vllm"], cell["trl"]): cell
        for cell in made
        if any(one["date"] for one in cell["layers"].values())
    }
    there = {(cell["vllm"], cell["trl"]): cell for cell in published.cells}
    found = {}
    for names in (*here, *there, *published.pairs()):
        if names in found:
            continue
        ours, theirs = here.get(names), there.get(names)
        told = [_of_cell(cell, here=cell is ours) for cell in (ours, theirs) if cell]
        read = published.read(*names)
        told += [_of_read(*names, read)] if read else []
        # What a run showed anywhere comes before what was read; of two runs this machine's is the first.
        found[names] = min(told, key=lambda pair: _STRONGEST.get(pair.state, len(_STRONGEST)))
    return sorted(found.values(), key=lambda pair: (Version(pair.vllm), Version(pair.trl)), reverse=True)


def _of_cell(cell: Mapping[str, Any], *, here: bool) -> Pair:
    layers = cell["layers"]
    executed = {
        name: one for name, one in layers.items() if one.get("evidence") == "executed" and one["date"]
    }
    passed = [name for name, one in executed.items() if one["verdict"] in _PASSED or name == "scheduler"]
    modes = [name.partition(":")[2] for name in passed if name.startswith("train:")]
    ran = [words for name, words in _SHOWN.items() if name in passed]
    ran += [f"this project's trainer: {', '.join(modes)}"] if modes else []
    against = [
        f"{name}: {(one.get('reason') if one['verdict'] == 'expected_fail' else '') or one.get('summary')}"
        for name, one in layers.items()
        if one["date"] and one["verdict"] in _AGAINST and name in _TOLD
    ]
    wrong = cell["verdict"] in {"fail", "unresolvable"}
    if _WITH_ENGINE & set(passed) or modes:
        state = "ran"
    elif wrong:
        state = "none" if cell["verdict"] == "unresolvable" else "fails" if executed else "lacks"
    else:
        state = "part" if ran else "read" if layers.get("contract", {}).get("verdict") in _PASSED else "open"
    with_what = " ".join(str(one.get("ran_with", {}).get("vllm", "")) for one in executed.values())
    device = ("cpu" if "CPU" in with_what else "gpu") if state == "ran" else ""
    pins = [("vllm", cell["vllm"]), ("trl", cell["trl"])]
    pins += [(name, cell[name]) for name in ("transformers", "torch") if cell.get(name)]
    install = quoted(("uv", "pip", "install", *(f"{name}=={version}" for name, version in pins)))
    sync = quoted(("uv", "pip", "sync", "--require-hashes", f"locks/{cell['id']}.txt"))
    resolves = layers.get("resolve", {}).get("verdict") in _PASSED
    had = not wrong or state == "ran"
    return Pair(
        cell["vllm"],
        cell["trl"],
        state,
        here,
        tuple(ran),
        tuple(against),
        device,
        install if had else "",
        sync if had and resolves else "",
        quoted(("nox", "-s", "matrix", "--", "--cells", cell["id"], "--fresh")),
        cell["id"],
        resolves,
    )


def _of_read(vllm: str, trl: str, read: Read) -> Pair:
    against = []
    if read.contract == "fail":
        against.append(f"TRL takes {read.missing or 'something'}, which this vLLM has not")
    if read.contract == "not_judged":
        against.append(f"could not be decided: {read.missing}")
    if read.resolve == "unresolvable":
        against.append("no set of packages meets what both declare")
    if not read.allowed:
        against.append(f"TRL declares vllm{read.declares}")
    states = {
        "fail": "lacks",
        "not_judged": "open",
        "pass": "none" if read.resolve == "unresolvable" else "read",
    }
    state = states.get(read.contract or "", "none" if read.resolve == "unresolvable" else "open")
    install = quoted(("uv", "pip", "install", f"vllm=={vllm}", f"trl=={trl}")) if state == "read" else ""
    return Pair(vllm, trl, state, against=tuple(against), install=install)


def headline(found: Iterable[Pair]) -> list[str]:
    """What the pairs come to, in sentences: how many ran, and what to take for the newest vLLM."""
    known = list(found)
    tried = [pair for pair in known if pair.cell]
    count = Counter(pair.state for pair in tried)
    lost = count["fails"] + count["lacks"] + count["none"]
    told = [
        f"{count['ran']} of {len(tried)} pairs that were tried ran with their engine, {count['part']} in part;"
        f" {lost} cannot work. {len(known) - len(tried)} more were only read."
    ]
    # One that nobody declares may run; who is asked which to take names one that is declared, where there is one.
    took = [pair for pair in known if pair.state == "ran"]
    if best := next((pair for pair in took if pair.declared), next(iter(took), None)):
        told.append(f"For vLLM {best.vllm} take TRL {best.trl}.")
    return told


def ran(found: Iterable[Pair]) -> list[dict[str, Any]]:
    """The pairs that ran, each with its square of the map, and what of their engine was shown."""
    less = {_SHOWN[name] for name in _LESS}
    return [
        {
            "pair": pair,
            "shown": [words for words in pair.ran if words not in less],
            "vllm": line(pair.vllm),
            "trl": line(pair.trl),
            "anchor": _anchor(pair),
        }
        for pair in found
        if pair.state == "ran"
    ]


def _anchor(pair: Pair) -> str:
    return f"pair.{line(pair.vllm)}_{line(pair.trl)}"


def line(version: str) -> str:
    """The minor release that a version belongs to, as 0.11.

    >>> line("0.10.1.1")
    '0.10'
    """
    return ".".join(map(str, Version(version).release[:2]))


def grid(found: Iterable[Pair]) -> dict[str, Any]:
    """The pairs as a map, the newest first, minor releases of TRL down, of vLLM across; of a square the best pair."""
    squares: dict[tuple[str, str], list[Pair]] = {}
    for pair in found:
        squares.setdefault((line(pair.trl), line(pair.vllm)), []).append(pair)
    rows, columns = ({names[place] for names in squares} for place in (0, 1))
    inorder = sorted(columns, key=Version, reverse=True)
    return {
        "columns": inorder,
        "rows": [
            {"name": trl, "squares": [_square(trl, vllm, squares.get((trl, vllm), [])) for vllm in inorder]}
            for trl in sorted(rows, key=Version, reverse=True)
        ],
        "states": [
            {"symbol": symbol, "style": style, "words": words} for symbol, style, words in STATES.values()
        ],
    }


def _square(trl: str, vllm: str, members: list[Pair]) -> dict[str, Any] | None:
    if not members:
        return None
    members = sorted(members, key=lambda pair: _ORDER.index(pair.state))
    symbol, style, words = STATES[members[0].state]
    # Pairs that were only read say the same by the dozen: one entry, with the newest one's command.
    alike: dict[tuple[Any, ...], list[Pair]] = {}
    for pair in members:
        alike.setdefault((pair.cell, pair.state, pair.trl, pair.against), []).append(pair)
    return {
        "trl": trl, "vllm": vllm, "symbol": symbol, "style": style, "words": words, "device": members[0].device,
        "here": any(pair.here for pair in members), "anchor": _anchor(members[0]), "state": members[0].state,
        "pairs": [
            {
                "pair": several[0], "vllm": ", ".join(pair.vllm for pair in several),
                **dict(zip(("symbol", "style", "words"), STATES[several[0].state], strict=True)),
            }
            for several in alike.values()
        ],
    }  # fmt: skip
