"""Audit rollout servers with injected faults, and score the reports: `python -m evaluation.audit.live_bench FOLDER`.

Without --real the servers are fakes (tests/diagnostics/audit/fake_vllm_server.py). With --real URL the server is a real
`vllm serve`: a proxy between server and audit changes requests and answers, and the server reloads its weights if a
case needs others. The thresholds of the audit were chosen on seeds below 100, so published results start at seed 100.
The values of the faults, such as a temperature, are drawn at random for each seed.
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

from diagnostics.audit.live import probe_inputs
from diagnostics.audit.live.checkpoint_tokenizer import Tokenizer
from diagnostics.audit.live.http_client import Client
from diagnostics.audit.live.reference import round_weights
from diagnostics.audit.live.server_audit import audit_server
from diagnostics.audit.live.vllm_server import Server
from diagnostics.audit.results import CLEAN, FAULT
from evaluation.audit import proxy
from evaluation.audit.bench_server import BenchEngine, BenchFaults
from tests.diagnostics.audit import tiny_model
from tests.diagnostics.audit.fake_vllm_server import load_rounded, serving

TOLERANCES = {
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
    """An injected fault, or a healthy server, and the expected report.

    Attributes:
        name: Name in the table.
        families: Families that the report must name. Alternatives are separated by spaces. Empty: a healthy server.
        wrong: The fault of the server.
        values: Expected estimates by name; floats may differ by the value in TOLERANCES.
        folder: Folder of the server's weights, if they are not those of the audited checkpoint.
        trainer: Settings of the trainer that the audit gets.
    """

    name: str
    families: tuple[str, ...]
    wrong: BenchFaults = field(default_factory=BenchFaults)
    values: dict[str, Any] = field(default_factory=dict)
    folder: str = ""
    trainer: dict[str, Any] = field(default_factory=dict)


def _sampling_fault(name: str, value: float) -> Case:
    return Case(name, (f"sampling/{name}",), BenchFaults(sampling={name: value}), {name: value})


def cases(seed: int, folder: Path) -> Iterator[Case]:
    """Yield a healthy server, then each fault once, with values drawn by the seed."""
    draw = random.Random(seed)
    sign = draw.choice((-1, 1))
    yield Case("nothing wrong", ())
    yield _sampling_fault(
        "temperature", round(draw.choice((draw.uniform(0.5, 0.95), draw.uniform(1.06, 1.5))), 4)
    )
    yield _sampling_fault("top_p", round(draw.uniform(0.6, 0.985), 4))
    yield _sampling_fault("top_k", draw.randrange(3, 60))
    yield _sampling_fault("min_p", round(draw.uniform(0.01, 0.2), 4))
    yield _sampling_fault("repetition_penalty", round(draw.uniform(1.03, 1.4), 4))
    yield _sampling_fault("presence_penalty", round(sign * draw.uniform(0.2, 1.5), 4))
    yield _sampling_fault("frequency_penalty", round(sign * draw.uniform(0.2, 1.5), 4))
    yield Case(
        "bias on an id",
        ("sampling/law",),
        BenchFaults(bias=(_most_likely_id(folder), round(draw.uniform(-5, -1), 2))),
    )
    yield Case("greedy", ("sampling/greedy",), BenchFaults(greedy=True))
    yield Case("one seed", ("sampling/seed",), BenchFaults(one_seed=True))
    yield Case("log-probs shifted", ("sampling/law",), BenchFaults(shift=sign))
    yield Case("beside another token", ("logprobs/token",), BenchFaults(argmax_logprobs=True))
    yield Case("samples beside other prompts", ("sampling/law",), BenchFaults(permuted=True))
    yield Case("a second BOS", ("ids/special",), BenchFaults(double_bos=True))
    heat = round(draw.uniform(0.5, 0.75), 3)
    yield Case(
        "raw log-probs",
        ("logprobs/raw",),
        BenchFaults(raw=True, settings=None),
        trainer={"temperature": heat},
    )
    for name, of in (("older by one", "checkpoint-280"), ("much older", "checkpoint-20"), ("base", "base")):
        yield Case(name, ("weights/version",), values={"version": of}, folder=of)
    part = draw.choice(("layer 0", "layer 1", "layer 2", "embedding", "head and last norm"))
    yield Case(
        "tensors missing",
        ("weights/partial",),
        values={"tensors": (part,)},
        folder=write_mixed_checkpoint(folder, part),
    )
    yield Case("weights 1 % off", ("weights/unknown",), folder=write_noisy_checkpoint(folder, seed))
    older = load_rounded(folder / "checkpoint-20", "float32")
    yield Case("replicas", ("replicas/weights",), BenchFaults(second=older))
    yield Case("stale keys", ("cache/stale",), BenchFaults(stale_cache=older))
    top = round(draw.uniform(0.7, 0.95), 4)
    both = {"temperature": heat, "top_p": top}
    yield Case(
        "pair: temperature, top_p",
        ("sampling/temperature", "sampling/top_p"),
        BenchFaults(sampling=both),
        both,
    )
    both = {"temperature": heat, "repetition_penalty": round(draw.uniform(1.05, 1.3), 4)}
    yield Case(
        "pair: temperature, repetition",
        ("sampling/temperature", "sampling/repetition_penalty"),
        BenchFaults(sampling=both),
        both,
    )
    yield Case(
        "pair: older, temperature",
        ("weights/version", "sampling/temperature"),
        BenchFaults(sampling={"temperature": heat}),
        {"version": "checkpoint-280", "temperature": heat},
        "checkpoint-280",
    )


def healthy_cases(seed: int, dtype: str) -> Iterator[Case]:
    """Yield healthy servers, among them those that differ from the checkpoint within what is allowed."""
    draw = random.Random(seed)
    floor = 2e-6 if dtype == "float32" else 0.011
    yield Case("nothing wrong", ())
    yield Case("nothing wrong: batches of other sizes", (), BenchFaults(batches=True))
    yield Case("nothing wrong: other kernels", (), BenchFaults(noise=draw.uniform(0.1, 0.5) * floor))


def _most_likely_id(folder: Path) -> int:
    """Return the token id with the highest mean probability: a bias on it has a visible effect."""
    engine = BenchEngine(folder / "checkpoint-300", "float32")
    ids = engine.tokenizer(tiny_model.corpus()[:600])["input_ids"][:200]
    return int(engine.logits(ids).softmax(-1).mean(0).argmax())


def write_mixed_checkpoint(
    folder: Path, part: str, old: str = "checkpoint-280", new: str = "checkpoint-300"
) -> str:
    """Write a checkpoint with a part of an older one if it does not exist; return its path relative to `folder`."""
    name = f"mixed-{part.replace(' ', '-')}"
    if not (folder.parent / name).exists():
        marks = {"embedding": ("embed",), "head and last norm": ("lm_head", "model.norm")}
        inside = marks.get(part, (f".layers.{part[-1]}.",))
        older, newer = (load_rounded(folder / checkpoint, "float32") for checkpoint in (old, new))
        state = newer.state_dict()
        state.update(
            {key: tensor for key, tensor in older.state_dict().items() if any(mark in key for mark in inside)}
        )
        newer.load_state_dict(state)
        _write(newer, folder / new, folder.parent / name)
    return f"../{name}"


def write_noisy_checkpoint(folder: Path, seed: int, source: str = "checkpoint-300") -> str:
    """Write a checkpoint with noise of 1 % of each tensor's deviation; return its path relative to `folder`."""
    name = f"off-{seed}"
    if not (folder.parent / name).exists():
        model = load_rounded(folder / source, "float32")
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.01 * parameter.std() * torch.randn(parameter.shape, generator=generator))
        _write(model, folder / source, folder.parent / name)
    return f"../{name}"


def _write(model: Any, source: Path, folder: Path) -> None:
    model.save_pretrained(shutil.copytree(source, folder))


@contextlib.contextmanager
def stand_in_server(case: Case, folder: Path, dtype: str, seed: int) -> Iterator[str]:
    """Serve a case by a stand-in server; yield its URL."""
    for name in ("second", "stale_cache"):
        if model := getattr(case.wrong, name):
            setattr(case.wrong, name, round_weights(model, getattr(torch, dtype)))
    with serving(BenchEngine(folder / (case.folder or "checkpoint-300"), dtype, case.wrong, seed)) as url:
        yield url


def real_server(url: str) -> Callable[..., Any]:
    """Return a context manager that serves a case by the running server at `url`, behind a proxy.

    The server must have been started with checkpoint-300. The context manager reloads its weights if a case needs other
    ones, and raises NotImplementedError for faults that need another server.
    """
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
    """Replace the weights of the server by those of a folder."""
    kwargs = {"weights_path": str(folder.resolve())}
    body = {"method": "reload_weights", "kwargs": kwargs, "timeout": 300}
    status, reply = proxy.forward(url, "POST", "/collective_rpc", body)
    if status != 200:
        raise NotImplementedError(f"{folder}: not loaded: {reply!r}")


def _fill_cache(url: str, folder: Path) -> None:
    """Fill the prefix cache of the server with the audit's long prompt, before new weights are loaded."""
    endpoint = Server(Client(url, 500))
    words = Tokenizer(folder / "checkpoint-300")
    endpoint.next_ids(probe_inputs.long_prompt(words, words.size, 256, words.bos))


def judge_audit(case: Case, found: Any) -> tuple[bool, bool | None, list[str]]:
    """Return whether exactly the injected faults were reported, whether values are right, and the reported families.

    The second value is None if the case has no expected values, or if a fault was not reported.
    """
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
            abs(values.get(name, 9) - value) <= TOLERANCES[name]
            if isinstance(value, float)
            else values.get(name) == value
            for name, value in case.values.items()
        )
    return all_named and not extra, right, sorted(faults)


def main(arguments: list[str] | None = None) -> int:
    """Run the cases; print one line of JSON for each audit, then the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "folder", type=Path, help="folder of the models, which are trained here if they are missing"
    )
    parser.add_argument("--real", default="", metavar="URL")
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), default="bfloat16")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first", type=int, default=100)
    parser.add_argument("--only", default="", help="only cases whose name contains this text")
    parser.add_argument(
        "--healthy",
        type=int,
        default=0,
        metavar="N",
        help="number of audits of each kind of healthy server",
    )
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    if not (options.folder / "world" / "checkpoint-300").exists():
        tiny_model.train_checkpoints(options.folder / "world", keep=(20, 260, 280, 300))
    folder = options.folder / "world"
    server = real_server(options.real) if options.real else stand_in_server
    rows: dict[str, list[tuple[bool, bool | None]]] = {}
    for seed in range(options.first, options.first + options.seeds):
        chosen = [case for case in cases(seed, folder) if options.only in case.name]
        for case in chosen:
            run_case(case, server, folder, options.dtype, seed, rows)
    for seed in range(options.first, options.first + options.healthy):
        for case in healthy_cases(seed, options.dtype):
            if options.only in case.name:
                run_case(case, server, folder, options.dtype, seed + 1000, rows)
    print(render_table(rows))
    return 0


def run_case(case: Case, server: Any, folder: Path, dtype: str, seed: int, rows: dict[str, Any]) -> None:
    """Serve and audit one case; add its result to `rows`, and print it as a line of JSON."""
    began = time.monotonic()
    trainer = folder.parent / "trainer.json"
    trainer.write_text(json.dumps(case.trainer))
    try:
        with server(case, folder, dtype, seed) as url:
            audit = audit_server(
                url, folder / "checkpoint-300", trainer=trainer if case.trainer else None, timeout_s=500
            )
    except NotImplementedError as error:
        print(json.dumps({"case": case.name, "seed": seed, "left out": str(error)}), flush=True)
        return
    all_named, right, reported = judge_audit(case, audit)
    if not case.families:
        all_named = audit.outcome == CLEAN
    rows.setdefault(case.name, []).append((all_named, right))
    reported_values = {
        estimate.name: estimate.value for fault in audit.select(FAULT) for estimate in fault.estimates
    }
    line = {
        "case": case.name, "seed": seed, "dtype": dtype, "named": all_named, "right": right, "told": reported,
        "wanted": case.values, "values": reported_values, "outcome": audit.outcome, "tokens": audit.tokens,
        "requests": audit.requests, "seconds": round(time.monotonic() - began, 1),
        "open": [answer.family for answer in audit.results if answer.outcome == "not_decided"],
    }  # fmt: skip
    print(json.dumps(line), flush=True)


def render_table(rows: dict[str, list[tuple[bool, bool | None]]]) -> str:
    """Render a Markdown table: a row per case, then the share of all named faults with its 95 % interval."""
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
    clean_outcomes = [
        clean for name, outcomes in rows.items() if name.startswith("nothing wrong") for clean, _ in outcomes
    ]
    if clean_outcomes:
        lines.append(f"| all healthy | {sum(clean_outcomes)} of {len(clean_outcomes)} clean | |")
    return "\n".join(lines)


def wilson(hits: int, count: int) -> tuple[float, float]:
    """Return the 95 % interval of a share (Wilson).

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
