"""`python -m tests.diagnostics.audit.bench_engines WORLD ADAPTERS`: what takes more than one server, or adapters.

All are real `vllm serve` of checkpoint-300 of WORLD, as `policy`: --served has the adapters of ADAPTERS
(`python -m tests.diagnostics.audit.lora`; right, twice, half, stale) beside it, --other is another of the same, --raw
reports raw log-probs. A line of JSON an audit; what takes a server that is not named is left out.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from diagnostics.audit.live.probe_plan import LiveAuditOptions, audit_server
from diagnostics.audit.results import FAULT, AuditError, NotAvailableError
from evaluation.audit import proxy
from tests.diagnostics.audit.standin import ServerFaults


def print_audit(case: str, wanted: str, **asked: Any) -> None:
    """One audit."""
    began, used = time.monotonic(), time.process_time()
    try:
        audit = audit_server(LiveAuditOptions(timeout_s=500, **asked))
    except (NotAvailableError, AuditError) as error:
        faults: dict[str, Any] = {type(error).__name__: str(error)}
        outcome, tokens = "-", 0
    else:
        faults = {
            answer.family: [estimate.value for estimate in answer.estimates] for answer in audit.select(FAULT)
        }
        outcome, tokens = audit.outcome, audit.tokens
    # The server's own settings are reported together with the sampling checks.
    families = [*faults.keys() - {"settings/logprobs_mode"}]
    line = {
        "case": case, "named": families == ([wanted] if wanted else []), "told": faults, "outcome": outcome,
        "tokens": tokens, "seconds": round(time.monotonic() - began, 1), "cpu": round(time.process_time() - used, 1),
    }  # fmt: skip
    print(json.dumps(line), flush=True)


def main(arguments: list[str] | None = None) -> int:
    """Each case a few times."""
    parser = argparse.ArgumentParser()
    parser.add_argument("world", type=Path)
    parser.add_argument("adapters", type=Path)
    parser.add_argument("--served", default="", metavar="URL")
    parser.add_argument("--other", default="", metavar="URL")
    parser.add_argument("--raw", default="", metavar="URL")
    parser.add_argument("--times", type=int, default=3)
    options = parser.parse_args(arguments)
    for _ in range(options.times):
        if options.served:
            adapters(options.served, options.adapters / "checkpoint-60")
        if options.served and options.other:
            two(options.served, options.other, options.world)
        if options.raw:
            audit_raw_logprobs(options.raw, options.world / "checkpoint-300")
    if options.raw:
        manners(options.raw, options.world / "checkpoint-300")
    return 0


def adapters(url: str, checkpoint: Path) -> None:
    """Audit LoRA adapters by the names under which they are served."""
    for model, expected in (
        ("right", ""),
        ("twice", "weights/adapter"),
        ("half", "weights/adapter"),
        ("stale", "weights/version"),
        ("policy", "weights/version"),
    ):
        print_audit(f"adapter: {model}", expected, server=url, checkpoint=checkpoint, model=model)


def two(url: str, other: str, world: Path) -> None:
    """One of two replicas behind one address has older weights."""
    checkpoint = world / "checkpoint-300"
    _load_weights(other, world / "checkpoint-280")
    with proxy.run_proxy(url, ServerFaults(), other) as address:
        print_audit(
            "replicas: one stale, one address", "replicas/weights", server=address, checkpoint=checkpoint
        )
    _load_weights(other, checkpoint)


def audit_raw_logprobs(url: str, checkpoint: Path) -> None:
    """At temperature 1 raw log-probs are right."""
    with tempfile.TemporaryDirectory() as folder:
        for heat, expected in ((0.6, "logprobs/raw"), (0.83, "logprobs/raw"), (1.0, "")):
            trainer = Path(folder) / "trainer.json"
            trainer.write_text(json.dumps({"temperature": heat}))
            print_audit(f"raw at {heat}", expected, server=url, checkpoint=checkpoint, trainer=trainer)


def manners(url: str, checkpoint: Path) -> None:
    """A paused server is not audited."""
    proxy.forward(url, "POST", "/pause", {})
    print_audit("paused", "NotAskedError", server=url, checkpoint=checkpoint)
    proxy.forward(url, "POST", "/resume", {})
    print_audit("resumed", "", server=url, checkpoint=checkpoint)


def _load_weights(url: str, folder: Path) -> None:
    body = {"method": "reload_weights", "kwargs": {"weights_path": str(folder.resolve())}, "timeout": 300}
    status, reply = proxy.forward(url, "POST", "/collective_rpc", body)
    if status != 200:
        raise RuntimeError(f"{folder}: not loaded: {reply!r}")
    proxy.forward(url, "POST", "/reset_prefix_cache", {})


if __name__ == "__main__":
    sys.exit(main())
