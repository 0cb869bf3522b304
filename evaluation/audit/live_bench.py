"""`python -m evaluation.audit.live_bench`: audit rollout servers with injected faults, and score the reports.

Without --real the servers are stand-ins (tests/diagnostics/audit/standin.py). With it it is one of a cell, between
which and the audit a proxy changes requests and answers, and whose weights are loaded anew. Thresholds were chosen on
seeds below 100; what is counted starts at 100. Values are drawn for each seed, and stand on no grid.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import random
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from diagnostics.audit.checkpoint_validation import load_tokenizer
from diagnostics.audit.live import probe_inputs
from diagnostics.audit.live.client import Client
from diagnostics.audit.live.probe_plan import LiveAuditOptions, audit_server
from diagnostics.audit.live.reference import round_weights
from diagnostics.audit.live.servers import Server
from diagnostics.audit.results import CLEAN, FAULT
from evaluation.audit import proxy
from tests.diagnostics.audit import tiny_model
from tests.diagnostics.audit.standin import Engine, ServerFaults, load_rounded, serving

NEAR = {
    "temperature": 0.02,
    "top_p": 0.005,
    "top_k": 0,
    "min_p": 0.005,
    "repetition_penalty": 0.01,
    "presence_penalty": 0.01,
    "frequency_penalty": 0.01,
}


@dataclass
class Case:
    """A fault.

    Attributes:
        name: What it is called in the table.
        wrong: What the server does wrong.
        families: Which families must be told; each of several of a pair. A family may be one of a few.
        values: What their values must be, by name, with how near.
        folder: The weights that the server holds, where they are not the checkpoint's.
        trainer: The trainer's settings.
    """

    name: str
    families: tuple[str, ...]
    wrong: ServerFaults = field(default_factory=ServerFaults)
    values: dict[str, Any] = field(default_factory=dict)
    folder: str = ""
    trainer: dict[str, Any] = field(default_factory=dict)


def _law(name: str, value: float) -> Case:
    return Case(name, (f"sampling/{name}",), ServerFaults(law={name: value}), {name: value})


def cases(seed: int, folder: Path) -> Iterator[Case]:
    """Each fault once, with the values of a seed."""
    draw = random.Random(seed)
    sign = draw.choice((-1, 1))
    yield Case("nothing wrong", ())
    yield _law("temperature", round(draw.choice((draw.uniform(0.5, 0.95), draw.uniform(1.06, 1.5))), 4))
    yield _law("top_p", round(draw.uniform(0.6, 0.985), 4))
    yield _law("top_k", draw.randrange(3, 60))
    yield _law("min_p", round(draw.uniform(0.01, 0.2), 4))
    yield _law("repetition_penalty", round(draw.uniform(1.03, 1.4), 4))
    yield _law("presence_penalty", round(sign * draw.uniform(0.2, 1.5), 4))
    yield _law("frequency_penalty", round(sign * draw.uniform(0.2, 1.5), 4))
    yield Case(
        "bias on an id",
        ("sampling/bias",),
        ServerFaults(bias=(_frequent(folder), round(draw.uniform(-5, -1), 2))),
    )
    yield Case("greedy", ("sampling/greedy",), ServerFaults(greedy=True))
    yield Case("one seed", ("sampling/seed",), ServerFaults(one_seed=True))
    yield Case("log-probs shifted", ("logprobs/shift",), ServerFaults(shift=sign))
    yield Case("beside another token", ("logprobs/token",), ServerFaults(neighbour=True))
    yield Case("samples beside other prompts", ("pairing",), ServerFaults(permuted=True))
    yield Case("a second BOS", ("ids/special",), ServerFaults(double_bos=True))
    heat = round(draw.uniform(0.5, 0.75), 3)
    yield Case(
        "raw log-probs",
        ("logprobs/raw",),
        ServerFaults(raw=True, settings=None),
        trainer={"temperature": heat},
    )
    for name, of in (("older by one", "checkpoint-280"), ("much older", "checkpoint-20"), ("base", "base")):
        yield Case(name, ("weights/version",), values={"version": of}, folder=of)
    part = draw.choice(("layer 0", "layer 1", "layer 2", "embedding", "head and last norm"))
    yield Case(
        "tensors missing", ("weights/partial",), values={"tensors": (part,)}, folder=mixed(folder, part)
    )
    yield Case("weights 1 % off", ("weights/unknown",), folder=off(folder, seed))
    older = load_rounded(folder / "checkpoint-20", "float32")
    yield Case("replicas", ("replicas/weights",), ServerFaults(second=older))
    yield Case("stale keys", ("cache/stale",), ServerFaults(stale_cache=older))
    top = round(draw.uniform(0.7, 0.95), 4)
    both = {"temperature": heat, "top_p": top}
    yield Case(
        "pair: temperature, top_p", ("sampling/temperature", "sampling/top_p"), ServerFaults(law=both), both
    )
    both = {"temperature": heat, "repetition_penalty": round(draw.uniform(1.05, 1.3), 4)}
    yield Case(
        "pair: temperature, repetition",
        ("sampling/temperature", "sampling/repetition_penalty"),
        ServerFaults(law=both),
        both,
    )
    yield Case(
        "pair: older, temperature",
        ("weights/version", "sampling/temperature"),
        ServerFaults(law={"temperature": heat}),
        {"version": "checkpoint-280", "temperature": heat},
        "checkpoint-280",
    )
    yield Case(
        "pair: shift, temperature",
        ("logprobs/shift", "sampling/temperature"),
        ServerFaults(law={"temperature": heat}, shift=sign),
        {"temperature": heat},
    )


def healthy(seed: int, dtype: str) -> Iterator[Case]:
    """Nothing wrong, in each of the ways in which an engine is not the checkpoint and still right."""
    draw = random.Random(seed)
    floor = 2e-6 if dtype == "float32" else 0.011
    yield Case("nothing wrong", ())
    yield Case("nothing wrong: batches of other sizes", (), ServerFaults(batches=True))
    yield Case("nothing wrong: other kernels", (), ServerFaults(noise=draw.uniform(0.1, 0.5) * floor))
    for count, name in ((1, "checkpoint-280"), (2, "checkpoint-260")):
        yield Case(
            f"nothing wrong: {count} behind, as allowed", (), folder=name, trainer={"max_staleness": count}
        )


def _frequent(folder: Path) -> int:
    """The id that is likely in most places: a bias on it shows."""
    engine = Engine(folder / "checkpoint-300", "float32")
    ids = engine.words(tiny_model.corpus()[:600])["input_ids"][:200]
    return int(engine.logits(ids).softmax(-1).mean(0).argmax())


def mixed(folder: Path, part: str) -> str:
    """checkpoint-300 with a part of checkpoint-280."""
    name = f"mixed-{part.replace(' ', '-')}"
    if not (folder.parent / name).exists():
        marks = {"embedding": ("embed",), "head and last norm": ("lm_head", "model.norm")}
        inside = marks.get(part, (f".layers.{part[-1]}.",))
        older, newer = (
            load_rounded(folder / name, "float32") for name in ("checkpoint-280", "checkpoint-300")
        )
        state = newer.state_dict()
        state.update(
            {key: tensor for key, tensor in older.state_dict().items() if any(mark in key for mark in inside)}
        )
        newer.load_state_dict(state)
        _write(newer, folder, name)
    return f"../{name}"


def off(folder: Path, seed: int) -> str:
    """checkpoint-300 with every weight off by 1 % of its tensor's deviation."""
    name = f"off-{seed}"
    if not (folder.parent / name).exists():
        model = load_rounded(folder / "checkpoint-300", "float32")
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.01 * parameter.std() * torch.randn(parameter.shape, generator=generator))
        _write(model, folder, name)
    return f"../{name}"


def _write(model: Any, folder: Path, name: str) -> None:
    shutil.copytree(folder / "checkpoint-300", folder.parent / name)
    model.save_pretrained(folder.parent / name)


@contextlib.contextmanager
def stand_in(case: Case, folder: Path, dtype: str, seed: int) -> Iterator[str]:
    """Start a stand-in server with the fault."""
    for name in ("second", "stale_cache"):
        if model := getattr(case.wrong, name):
            setattr(case.wrong, name, round_weights(model, getattr(torch, dtype)))
    with serving(Engine(folder / (case.folder or "checkpoint-300"), dtype, case.wrong, seed)) as url:
        yield url


def real(url: str) -> Callable[..., Any]:
    """Start a real server with checkpoint-300 behind a proxy; reload it if another case's weights are loaded."""
    loaded_names = ["checkpoint-300"]

    def load_weights_once(folder: Path, name: str) -> None:
        if loaded_names != [name]:
            _load_weights(url, folder / name)
            loaded_names[:] = [name]

    @contextlib.contextmanager
    def serve_case(case: Case, folder: Path, dtype: str, seed: int) -> Iterator[str]:
        if case.wrong.second is not None or case.wrong.raw or case.wrong.noise or case.wrong.batches:
            raise NotImplementedError("it takes another server")
        if case.wrong.stale_cache is not None:
            load_weights_once(folder, "checkpoint-20")
            proxy.forward(url, "POST", "/reset_prefix_cache", {})
            _fill_cache(url, folder)
        load_weights_once(folder, case.folder or "checkpoint-300")
        if case.wrong.stale_cache is None:
            proxy.forward(url, "POST", "/reset_prefix_cache", {})
        with proxy.run_proxy(url, case.wrong) as address:
            yield address

    return serve_case


def _load_weights(url: str, folder: Path) -> None:
    """Load only the weights of a folder into the server."""
    kwargs = {"weights_path": str(folder.resolve())}
    body = {"method": "reload_weights", "kwargs": kwargs, "timeout": 300}
    status, reply = proxy.forward(url, "POST", "/collective_rpc", body)
    if status != 200:
        raise NotImplementedError(f"{folder}: not loaded: {reply!r}")


def _fill_cache(url: str, folder: Path) -> None:
    """Fill the server's prefix cache, as an audit before the new weights would."""
    endpoint = Server(Client(url, 500))
    words = load_tokenizer(folder / "checkpoint-300")
    endpoint.next_ids(probe_inputs.long_prompt(words, len(words), 256, words.bos_token_id))


def judge_audit(case: Case, found: Any) -> tuple[bool, bool | None, list[str]]:
    """Return whether exactly the injected faults were reported, whether the values are right, and the report."""
    faults = {answer.family: answer for answer in found.select(FAULT)}
    expected_families = [family.split() for family in case.families]
    all_named = all(any(name in faults for name in family) for family in expected_families)
    allowed = {name for family in expected_families for name in family}
    # Two causes of one symptom may be reported together: raw log-probs also fit temperature 1.
    extra = faults.keys() - allowed - ({"sampling/temperature"} if case.name == "raw log-probs" else set())
    values = {estimate.name: estimate.value for fault in faults.values() for estimate in fault.estimates}
    right: bool | None = None
    if case.values and all_named:
        right = all(
            abs(values.get(name, 9) - value) <= NEAR[name]
            if isinstance(value, float)
            else values.get(name) == value
            for name, value in case.values.items()
        )
    return all_named and not extra, right, sorted(faults)


def main(arguments: list[str] | None = None) -> int:
    """Run it; print one line of JSON a case, then the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path, help="of the models, made here where they are not there")
    parser.add_argument("--real", default="", metavar="URL")
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), default="bfloat16")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first", type=int, default=100)
    parser.add_argument("--only", default="", help="cases whose name has this")
    parser.add_argument(
        "--healthy",
        type=int,
        default=0,
        metavar="N",
        help="so many more audits of each kind of nothing wrong",
    )
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    if not (options.folder / "world" / "checkpoint-300").exists():
        tiny_model.train_checkpoints(options.folder / "world", keep=(20, 260, 280, 300))
    folder = options.folder / "world"
    server = real(options.real) if options.real else stand_in
    rows: dict[str, list[tuple[bool, bool | None]]] = {}
    for seed in range(options.first, options.first + options.seeds):
        chosen = [case for case in cases(seed, folder) if options.only in case.name]
        for case in chosen:
            run(case, server, folder, options.dtype, seed, rows)
    for seed in range(options.first, options.first + options.healthy):
        for case in healthy(seed, options.dtype):
            if options.only in case.name:
                run(case, server, folder, options.dtype, seed + 1000, rows)
    print(render_table(rows))
    return 0


def run(case: Case, server: Any, folder: Path, dtype: str, seed: int, rows: dict[str, Any]) -> None:
    """One audit of one case."""
    began = time.monotonic()
    trainer = folder.parent / "trainer.json"
    trainer.write_text(json.dumps(case.trainer))
    try:
        with server(case, folder, dtype, seed) as url:
            audit = audit_server(
                LiveAuditOptions(
                    url, folder / "checkpoint-300", trainer=trainer if case.trainer else None, timeout_s=500
                )
            )
    except NotImplementedError as error:
        print(json.dumps({"case": case.name, "seed": seed, "left out": str(error)}), flush=True)
        return
    all_named, right, reported = judge_audit(case, audit)
    if not case.families:
        all_named = audit.outcome == CLEAN
    rows.setdefault(case.name, []).append((all_named, right))
    told_values = {
        estimate.name: estimate.value for fault in audit.select(FAULT) for estimate in fault.estimates
    }
    line = {
        "case": case.name, "seed": seed, "dtype": dtype, "named": all_named, "right": right, "told": reported,
        "wanted": case.values, "values": told_values, "outcome": audit.outcome, "tokens": audit.tokens,
        "requests": audit.requests, "seconds": round(time.monotonic() - began, 1),
        "open": [answer.family for answer in audit.results if answer.outcome == "not_decided"],
    }  # fmt: skip
    print(json.dumps(line), flush=True)


def render_table(rows: dict[str, list[tuple[bool, bool | None]]]) -> str:
    """Render the faults by report outcome, with 95 % intervals (Wilson)."""
    lines = ["| fault | named, of | value right, of |", "|---|---|---|"]
    for name, outcomes in rows.items():
        values = [right for _, right in outcomes if right is not None]
        right_values = f"{sum(values)} of {len(values)}" if values else "-"
        lines.append(
            f"| {name} | {sum(all_named for all_named, _ in outcomes)} of {len(outcomes)} | {right_values} |"
        )
    faults = [
        pair for name, outcomes in rows.items() if not name.startswith("nothing wrong") for pair in outcomes
    ]
    if faults:
        hits = sum(all_named for all_named, _ in faults)
        low, high = wilson(hits, len(faults))
        lines.append(f"| all faults | {hits} of {len(faults)} ({low:.0%} to {high:.0%}) | |")
    healthy = [
        clean for name, outcomes in rows.items() if name.startswith("nothing wrong") for clean, _ in outcomes
    ]
    if healthy:
        lines.append(f"| all healthy | {sum(healthy)} of {len(healthy)} clean | |")
    return "\n".join(lines)


def wilson(hits: int, count: int) -> tuple[float, float]:
    """The interval of a share.

    >>> wilson(0, 0)
    (0.0, 1.0)
    """
    if not count:
        return 0.0, 1.0
    z, share = 1.96, hits / count
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    width = z * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count)) / (1 + z * z / count)
    return max(0.0, middle - width), min(1.0, middle + width)


if __name__ == "__main__":
    sys.exit(main())
