"""Audit real vLLM servers in cases that need LoRA adapters, two replicas, raw log-probs or a paused server.

usage: python -m evaluation.audit.live_engines WORLD ADAPTERS [--served URL] [--other URL] [--raw URL] [--times N]

Each URL is a `vllm serve` of WORLD/checkpoint-300 under the name `policy`. --served also has the adapters of ADAPTERS
(written by evaluation.audit.make_adapters) under these names: `right` (checkpoint-60), `twice` and `half` (the same
with another lora_alpha), `stale` (checkpoint-40). --other is a second replica, --raw reports raw log-probs. Cases whose
servers are not given are skipped. Prints a line of JSON for each audit.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from diagnostics.audit.live.server_audit import audit_server
from diagnostics.audit.results import FAULT, AuditError, NotAvailableError
from evaluation.audit import proxy
from tests.diagnostics.audit.fake_vllm_server import ServerFaults


def print_audit(case: str, wanted: str, **options: Any) -> None:
    """Audit with options of `audit_server`, and print a line of JSON; `wanted` is the expected family, or none."""
    began, used = time.monotonic(), time.process_time()
    try:
        audit = audit_server(timeout_s=500, **options)
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
    """Audit each case `--times` times, and the paused server once."""
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
            audit_adapters(options.served, options.adapters / "checkpoint-60")
        if options.served and options.other:
            audit_stale_replica(options.served, options.other, options.world)
        if options.raw:
            audit_raw_logprobs(options.raw, options.world / "checkpoint-300")
    if options.raw:
        audit_paused_server(options.raw, options.world / "checkpoint-300")
    return 0


def audit_adapters(url: str, checkpoint: Path) -> None:
    """Audit each served adapter, and the base model, against the adapter checkpoint."""
    for model, expected in (
        ("right", ""),
        ("twice", "weights/adapter"),
        ("half", "weights/adapter"),
        ("stale", "weights/version"),
        ("policy", "weights/version"),
    ):
        print_audit(f"adapter: {model}", expected, address=url, checkpoint=checkpoint, model=model)


def audit_stale_replica(url: str, other: str, world: Path) -> None:
    """Audit two replicas behind one address, one of which has older weights."""
    checkpoint = world / "checkpoint-300"
    _load_weights(other, world / "checkpoint-280")
    with proxy.run_proxy(url, ServerFaults(), other) as address:
        print_audit(
            "replicas: one stale, one address", "replicas/weights", address=address, checkpoint=checkpoint
        )
    _load_weights(other, checkpoint)


def audit_raw_logprobs(url: str, checkpoint: Path) -> None:
    """Audit the server with raw log-probs at three temperatures; at 1.0 raw log-probs are correct."""
    with tempfile.TemporaryDirectory() as folder:
        for heat, expected in ((0.6, "logprobs/raw"), (0.83, "logprobs/raw"), (1.0, "")):
            trainer = Path(folder) / "trainer.json"
            trainer.write_text(json.dumps({"temperature": heat}))
            print_audit(f"raw at {heat}", expected, address=url, checkpoint=checkpoint, trainer=trainer)


def audit_paused_server(url: str, checkpoint: Path) -> None:
    """Check that a paused server is not audited, and that it is audited after it resumes."""
    proxy.forward(url, "POST", "/pause", {})
    print_audit("paused", "NotAvailableError", address=url, checkpoint=checkpoint)
    proxy.forward(url, "POST", "/resume", {})
    print_audit("resumed", "", address=url, checkpoint=checkpoint)


def _load_weights(url: str, folder: Path) -> None:
    body = {"method": "reload_weights", "kwargs": {"weights_path": str(folder.resolve())}, "timeout": 300}
    status, reply = proxy.forward(url, "POST", "/collective_rpc", body)
    if status != 200:
        raise RuntimeError(f"{folder}: not loaded: {reply!r}")
    proxy.forward(url, "POST", "/reset_prefix_cache", {})


if __name__ == "__main__":
    sys.exit(main())
