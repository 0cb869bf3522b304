"""Layers that run the engine, the reference trainer, the cell's own TRL and its servers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from diagnostics.matrix.cells import Cell
from diagnostics.matrix.layers.in_cell import (
    USABLE,
    Reply,
    document_error,
    document_lines,
    executed_answer,
    program_layer,
)
from diagnostics.matrix.verdicts import Answer, Outcome

TRL_ENGINES = {"alone": "sampling with transformers", "vllm": "sampling with vLLM in its own process"}
TRAIN_MODES = {
    "colocate": "trainer and engine take turns",
    "async": "the engine samples in its own process, one policy version ahead",
    "server": "the engine is a server on loopback",
}
SERVERS = {"vllm": "vllm serve", "trl": "trl vllm-serve"}
# Points of a reward curve on the page.
CURVE_POINTS = 50


def _passed(reply: Reply, cell: Cell, summary: str, **more: Any) -> Answer:
    document = reply.document
    details = document_lines(document)
    versions = document.get("versions")
    return executed_answer(reply, cell, Outcome.PASS, summary, versions, details=details, **more)


def _failed(reply: Reply, cell: Cell, *, server: str = "") -> Answer:
    """Return the answer of a document whose outcome is not `ok`; its error is a sign that can be expected."""
    document = reply.document
    error = document_error(document)
    return executed_answer(
        reply,
        cell,
        Outcome.FAIL,
        f"{server}: {error}" if server else error,
        document.get("versions"),
        signs=(error,),
        details=document_lines(document),
    )


def engine_answer(reply: Reply, cell: Cell) -> Answer:
    """Return the answer of the engine probe."""
    document = reply.document
    if document.get("outcome") != "ok":
        return _failed(reply, cell)
    summary = (
        f"{document.get('engine')} {document.get('engine_version') or ''}: {document.get('tokens')} tokens; "
        f"log-probs within {_number(document.get('max_logprob_difference_before'), '.1e')} of the trainer's, "
        f"{_number(document.get('max_logprob_difference_after'), '.1e')} after new weights"
    )
    return _passed(reply, cell, summary)


def logprobs_answer(reply: Reply, cell: Cell) -> Answer:
    """Compare vLLM's log-probs with transformers' and return the answer; the program has the bound."""
    document = reply.document
    if document.get("outcome") != "ok":
        return _failed(reply, cell)
    summary = (
        f"{document['tokens']} tokens in {document['dtype']}: maximum difference {document['max_difference']:.1e}, "
        f"mean {document['mean_difference']:.1e} (bound {document['bound']:.0e})"
    )
    return _passed(reply, cell, summary)


def server_answer(reply: Reply, cell: Cell) -> Answer:
    """Return the answer of starting a rollout server."""
    document = reply.document
    server = str(document.get("server"))
    if document.get("outcome") != "ok":
        return _failed(reply, cell, server=server)
    summary = f"{server}: up, and {document.get('protocol')} answered with {document.get('tokens')} tokens"
    return _passed(reply, cell, summary)


def trl_answer(reply: Reply, cell: Cell) -> Answer:
    """Return the answer of steps with the cell's own TRL; its exception is a sign that an expectation can name."""
    document = reply.document
    logged: Mapping[str, list[float]] = document.get("logged") or {}
    outcome = {"ok": Outcome.PASS, "not_run": Outcome.NOT_RUN}.get(str(document.get("outcome")), Outcome.FAIL)
    if outcome is Outcome.PASS:
        parts = [f"{document.get('steps')} steps in {document.get('seconds')} s"]
        parts.append(f"weights moved by up to {float(document.get('moved') or 0):.1e}")
        mismatch = logged.get("sampling/sampling_logp_difference/mean")
        if mismatch:
            parts.append(
                f"mean log-prob difference of engine and trainer {max(mismatch):.1e}, as TRL logs it"
            )
        summary, signs = "; ".join(parts), tuple[str, ...]()
    else:
        location = f" ({document['where']})" if document.get("where") else ""
        summary = f"{document_error(document)}{location}"
        signs = (summary,)
    lines = document_lines({key: value for key, value in document.items() if key != "logged"})
    details = (*lines, *(f"{key}, by step: {value}" for key, value in logged.items()))
    return executed_answer(
        reply, cell, outcome, summary, document.get("versions"), signs=signs, details=details
    )


def train_answer(reply: Reply, cell: Cell) -> Answer:
    """Return the answer of a training run."""
    document = reply.document
    problem = _train_problem(document)
    if problem:
        details = document_lines(document)
        return executed_answer(reply, cell, Outcome.FAIL, problem, document.get("versions"), details=details)
    summary = (
        f"{document.get('steps')} steps with {document.get('engine')}: "
        f"reward {_number(document.get('reward_first'))} → {_number(document.get('reward_last'))}; "
        f"{document.get('syncs_proven')} of {document.get('syncs')} weight syncs proven; "
        f"staleness ≤ {document.get('max_staleness')}"
    )
    return _passed(reply, cell, summary, curve=reward_curve(reply.folder / str(document.get("metrics"))))


def reward_curve(metrics: Path) -> tuple[float, ...]:
    """Return the mean reward by step, averaged to at most `CURVE_POINTS` points; nothing without a file."""
    try:
        lines = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError):
        return ()
    rewards = [
        float(line["reward/mean"]) for line in lines if isinstance(line, dict) and "reward/mean" in line
    ]
    width = max(1, -(-len(rewards) // CURVE_POINTS))
    windows = (rewards[start : start + width] for start in range(0, len(rewards), width))
    return tuple(round(sum(window) / len(window), 4) for window in windows)


def _train_problem(document: Mapping[str, Any]) -> str:
    """Return why the run does not count as training, '' if it does."""
    if document.get("outcome") != "ok":
        return document_error(document)
    if not document.get("steps"):
        return "no step was taken"
    if document.get("syncs_proven") != document.get("syncs"):
        return f"only {document.get('syncs_proven')} of {document.get('syncs')} weight syncs were proven"
    first, last = document.get("reward_first"), document.get("reward_last")
    if not (isinstance(first, int | float) and isinstance(last, int | float) and last > first):
        return f"the reward did not rise: {_number(first)} to {_number(last)}"
    return ""


def _number(value: object, form: str = ".2f") -> str:
    return f"{value:{form}}" if isinstance(value, int | float) else "?"


_TRAINER = (__name__, "grpo_core")
ENGINE_LAYERS = (
    program_layer(
        "engine",
        "engine",
        "Does the real engine sample, agree with the trainer's log-probs, and take new weights?",
        ("grpo_core", "probe"),
        "grpo-doctor.engine.v1",
        engine_answer,
        code=_TRAINER,
    ),
    program_layer(
        "logprobs",
        "training",
        "Do vLLM's log-probs of its samples equal those of a forward pass in transformers?",
        ("repro.cell_programs.logprob_agreement",),
        "grpo-doctor.logprobs.v1",
        logprobs_answer,
        code=(__name__, "repro.cell_programs.logprob_agreement"),
        needs=(*USABLE, "engine"),
    ),
    *(
        program_layer(
            f"peer:{engine}",
            "training",
            f"Does the cell's own GRPOTrainer of TRL take steps, {about}?",
            ("repro.cell_programs.trl_training", engine),
            "grpo-doctor.peer.v1",
            trl_answer,
            code=(__name__, "repro.cell_programs.trl_training"),
        )
        for engine, about in TRL_ENGINES.items()
    ),
    *(
        program_layer(
            f"train:{mode}",
            "training",
            f"Does the reference trainer train with it when {about}?",
            ("grpo_core", "train", "--rollout.mode", mode),
            "grpo-doctor.train.v1",
            train_answer,
            code=_TRAINER,
            needs=(*USABLE, "engine"),
        )
        for mode, about in TRAIN_MODES.items()
    ),
)
SERVER_LAYERS = tuple(
    program_layer(
        f"serve:{server}",
        "engine",
        f"Does `{command}` of the cell's own packages start and answer a request?",
        ("repro.cell_programs.server_start", server),
        "grpo-doctor.started.v1",
        server_answer,
        code=(__name__, "repro.cell_programs.server_start"),
    )
    for server, command in SERVERS.items()
)
