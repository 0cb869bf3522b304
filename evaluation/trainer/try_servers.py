"""Start each kind of real rollout server, run one check against each, and print a table.

    python -m evaluation.trainer.try_servers --cells FOLDER [--trl FOLDER]... [--only PART] [--json FILE]

A server that does not start, or fails the check, gets a row with its error. `--trl FOLDER` is a folder with
another release of TRL, installed without its dependencies (`uv pip install --no-deps --target FOLDER trl==1.10.0`);
its server is run by the newest cell's Python.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from grpo_core.config import ModelConfig, RolloutConfig, TaskConfig
from grpo_core.rollout.engine import EngineError
from grpo_core.rollout.remote_engines import engine_for
from grpo_core.tasks import model
from tests.processes import free_port
from tests.servers import (
    MAX_MODEL_LEN,
    ROOT,
    NotStartedError,
    measure_engine,
    serving,
    trl_command,
    vllm_command,
    write_vllm_metadata,
)

CELL = "vllm-0.31.0+trl-1.16.0"


@dataclass(frozen=True)
class Kind:
    """One way to start a server, and the client for it."""

    name: str
    command: list[str]
    port: int
    server: str
    sync: str
    path: tuple[Path, ...] = (ROOT,)


def server_kinds(cells: Path, model_dir: Path, others: list[Path], stage: Path) -> Iterator[Kind]:
    """Yield all server kinds, each with a separate port."""
    python = cells / CELL / "bin" / "python"
    port = free_port()
    ours = [
        sys.executable,
        "-m",
        "grpo_core",
        "serve",
        "--allow-unauthenticated",
        f"--model.path={model_dir}",
        f"--rollout.port={port}",
    ]
    yield Kind("python -m grpo_core serve", ours, port, "grpo-core", "auto")
    port = free_port()
    yield Kind("vllm serve 0.31.0, files", vllm_command(python, model_dir, port), port, "vllm", "files")
    port = free_port()
    ours = vllm_command(python, model_dir, port)
    yield Kind("vllm serve 0.31.0 with our receiver, shm", ours, port, "vllm", "shm")
    port = free_port()
    yield Kind(
        "trl vllm-serve 1.16.0, as installed", trl_command(python, model_dir, port), port, "vllm", "auto"
    )
    port = free_port()
    trl = trl_command(python, model_dir, port, "--enforce_eager=true", "--no-enable-chunked-prefill")
    # vLLM and TRL read the version of a distribution `vllm`. The CPU build has another name, so add metadata.
    path = (ROOT, write_vllm_metadata(stage, "0.31.0+cpu"))
    yield Kind("trl vllm-serve 1.16.0, with metadata named vllm", trl, port, "vllm", "auto", path)
    for folder in others:
        port = free_port()
        release = next(folder.glob("trl-*.dist-info")).name.removeprefix("trl-").removesuffix(".dist-info")
        trl = trl_command(python, model_dir, port, "--enforce_eager=true")
        path = (folder, ROOT, write_vllm_metadata(stage, "0.31.0+cpu"))
        yield Kind(f"trl vllm-serve {release}, vLLM 0.31.0", trl, port, "vllm", "auto", path)


def try_server(kind: Kind, model_dir: Path, stage: Path, timeout_s: float) -> dict:
    """Start a server and check it; return its row of the table."""
    row: dict = {"server": kind.name}
    log, started = stage / f"{re.sub(r'[^a-z0-9.]+', '-', kind.name)}.log", time.monotonic()
    options = RolloutConfig(server=kind.server, sync=kind.sync, timeout_s=500)
    try:
        with serving(kind.command, log, path=kind.path, timeout_s=timeout_s):
            row["start_s"] = round(time.monotonic() - started)
            engine = engine_for(options, "127.0.0.1", kind.port, stage / "weights")
            capabilities = engine.capabilities
            row["capabilities"] = {k: v for k, v in vars(capabilities).items() if k != "why_not"}
            row["why_not"] = dict(capabilities.why_not)
            row.update(measure_engine(engine, model_dir))
            engine.close()
    except NotStartedError as error:
        row["failure"] = first_failure(log.read_text()) or str(error).splitlines()[0]
    except EngineError as error:
        row["failure"] = str(error)
    return row


def first_failure(text: str) -> str:
    """Return the line of the first exception in a log; empty if there is none."""
    match = re.search(r"^(?:\(\w+[^)]*\) )?((?:\w+\.)*\w*(?:Error|Exception|Exit)\b.*)$", text, re.MULTILINE)
    return match.group(1) if match else ""


def render_table(rows: list[dict]) -> str:
    """Render the rows as the Markdown table of docs/servers.md."""
    lines = [
        "| server | up after | sampled | log-probs differ by | updates: log-probs differ by |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        up = f"{row['start_s']} s" if "start_s" in row else "not up"
        if "failure" in row:
            lines.append(f"| {row['server']} | {up} | `{row['failure']}` | | |")
            continue
        updates = ", ".join(f"{update['difference']:.1e}" for update in row["updates"])
        again = "the same again" if row["repeatable"] else "others when asked again"
        sampled = f"{row['completions']}, {row['different']} of them different, {again}"
        lines.append(
            f"| {row['server']} | {up} | {sampled} | {row['difference']:.1e} | {updates or row['why_not']['update']} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Try the requested servers, and print the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cells", type=Path, required=True)
    parser.add_argument("--trl", type=Path, action="append", default=[])
    parser.add_argument("--only", default="", help="try only servers whose name contains this text")
    parser.add_argument("--timeout", type=float, default=300, help="seconds a server may take to start")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--logs", type=Path, help="folder for the logs of the servers")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        stage = options.logs or Path(folder)
        stage.mkdir(parents=True, exist_ok=True)
        # The maximum length configured in the servers.
        length = ModelConfig(max_length=MAX_MODEL_LEN)
        model.make_tiny(stage / "model", length, TaskConfig().letters, seed=0)
        for kind in server_kinds(options.cells, stage / "model", options.trl, stage / "metadata"):
            if options.only in kind.name:
                rows.append(try_server(kind, stage / "model", stage, options.timeout))
                print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
                if options.json is not None:
                    options.json.write_text(json.dumps(rows, indent=1))
    print(render_table(rows))


if __name__ == "__main__":
    main()
