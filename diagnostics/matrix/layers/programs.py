"""Layers that run training software in the cell and turn the document that it prints into an answer.

- `engine`, `logprobs`: vLLM's engine, and its log-probs against transformers.
- `peer:ENGINE`: training steps of the cell's own TRL. `train:MODE`: the reference trainer.
- `config`, `loss`: another trainer's own parser, and its loss against that of the reference trainer.
- `serve:SERVER`: `vllm serve` and `trl vllm-serve`.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from diagnostics.matrix.cells import TRAINERS, Cell, LayerSettings
from diagnostics.matrix.context import ROOT, Context
from diagnostics.matrix.layers.cell_run import (
    USABLE,
    CellRun,
    document_error,
    document_lines,
    executed_answer,
    program_inputs,
    program_layer,
    run_in_cell,
)
from diagnostics.matrix.layers.layer import Layer
from diagnostics.matrix.verdicts import Answer, EvidenceLevel, Outcome

TRL_ENGINES = {"alone": "sampling with transformers", "vllm": "sampling with vLLM in its own process"}
TRAIN_MODES = {
    "colocate": "trainer and engine take turns",
    "async": "the engine samples in its own process, one policy version ahead",
    "server": "the engine is a server on loopback",
}
SERVERS = {"vllm": "vllm serve", "trl": "trl vllm-serve"}
PEER_PROGRAMS = "tests/grpo_core/peer_programs"
LOSS_PROGRAMS = {"verl": "verl_loss", "ms-swift": "swift_loss", "openrlhf": "openrlhf_loss"}
TRAINING_SUMMARY = (
    "{steps} steps with {engine}: reward {reward_first:.2f} → {reward_last:.2f}; "
    "{syncs_proven} of {syncs} weight syncs proven; staleness ≤ {max_staleness}"
)
# In float64 both losses agree to 1e-12; some of the trainers' formulas always use float32.
LOSS_BOUND = 1e-6


def _program_answer(reply: CellRun, cell: Cell, problem: str, summary: str) -> Answer:
    """Return a pass with the summary, or a failure with the problem, which is also a sign for expectations."""
    outcome = Outcome.FAIL if problem else Outcome.PASS
    details, signs = document_lines(reply.document), (problem,) if problem else ()
    versions = reply.document.get("versions")
    return executed_answer(reply, cell, outcome, problem or summary, versions, signs=signs, details=details)


def _problem(document: Mapping[str, Any]) -> str:
    return "" if document.get("outcome") == "ok" else document_error(document)


def answer_with_summary(
    template: str, find_problem: Callable[[Mapping[str, Any]], str] = _problem
) -> Callable[[CellRun, Cell], Answer]:
    """Return the function that makes the answer of a program.

    Args:
        template: The summary of a pass; a name in braces stands for a value of the program's document.
        find_problem: Function that returns why the document is no pass; '' for a pass.
    """

    def answer(reply: CellRun, cell: Cell) -> Answer:
        problem = find_problem(reply.document)
        return _program_answer(reply, cell, problem, "" if problem else template.format_map(reply.document))

    return answer


def trl_answer(reply: CellRun, cell: Cell) -> Answer:
    """Return the answer of the training steps with the cell's own TRL; the error of a failed run is its sign."""
    document = reply.document
    logged: Mapping[str, list[float]] = document.get("logged") or {}
    problem = _problem(document)
    if problem and document.get("where"):
        problem = f"{problem} ({document['where']})"
    parts = [f"{document.get('steps')} steps in {document.get('seconds')} s"]
    parts.append(f"weights moved by up to {_number(document.get('moved') or 0, '.1e')}")
    if mismatch := logged.get("sampling/sampling_logp_difference/mean"):
        parts.append(f"mean log-prob difference of engine and trainer {max(mismatch):.1e}, as TRL logs it")
    answer = _program_answer(reply, cell, problem, "; ".join(parts))
    lines = document_lines({key: value for key, value in document.items() if key != "logged"})
    curves = (f"{key}, by step: {value}" for key, value in logged.items())
    outcome = Outcome.NOT_RUN if document.get("outcome") == "not_run" else answer.outcome
    return msgspec.structs.replace(answer, outcome=outcome, details=(*lines, *curves))


def training_problem(document: Mapping[str, Any]) -> str:
    """Return the reason why a run of the reference trainer does not count as training; '' if it does."""
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


def _loss_program(_settings: LayerSettings, cell: Cell) -> tuple[str, ...]:
    return (LOSS_PROGRAMS[cell.trainer],)


def _check_loss(context: Context, cell: Cell) -> Answer:
    """Compare the trainer's loss, gradient and advantages with grpo_core's, by programs that the tests also run."""

    def copy_programs(folder: Path) -> None:
        shutil.copytree(ROOT / PEER_PROGRAMS, folder, dirs_exist_ok=True)

    program = _loss_program(context.matrix.settings["loss"], cell)
    completed = run_in_cell(context, cell, "loss", program, prepare=copy_programs)
    try:
        document = json.loads(completed.process.output)
        differences = {
            f"{kind} {name}": worst
            for kind in ("losses", "advantages")
            for name, worst in document[kind].items()
        }
    except (ValueError, TypeError, KeyError, AttributeError):
        lines = completed.excerpt.strip().splitlines() or ["no output"]
        summary = f"not compared: {lines[-1]}"
        return executed_answer(completed, cell, Outcome.NOT_RUN, summary, signs=(summary,))
    over_bound = {name: worst for name, worst in differences.items() if not worst < LOSS_BOUND}
    largest = max(differences.values())
    summary = (
        f"{len(differences)} settings of loss, gradient and advantages: largest difference {largest:.1e}"
    )
    signs = tuple(f"{name}: {worst}" for name, worst in over_bound.items())
    outcome = Outcome.FAIL if over_bound else Outcome.PASS
    details = tuple(f"{name}: {worst:.1e}" for name, worst in differences.items())
    return executed_answer(completed, cell, outcome, summary, signs=signs, details=details)


def _number(value: object, form: str = ".2f") -> str:
    return f"{value:{form}}" if isinstance(value, int | float) else "?"


_TRAINER = (__name__, "grpo_core")
ENGINE_LAYERS = (
    program_layer(
        "engine",
        "Does the real engine sample, agree with the trainer's log-probs, and take new weights?",
        ("repro.cell_programs.engine_probe",),
        "grpo-doctor.engine.v1",
        answer_with_summary(
            "{engine} {engine_version}: {tokens} tokens; log-probs within {max_logprob_difference_before:.1e} of the "
            "trainer's, {max_logprob_difference_after:.1e} after new weights"
        ),
        code=(*_TRAINER, "repro.cell_programs.engine_probe"),
    ),
    program_layer(
        "logprobs",
        "Do vLLM's log-probs of its samples equal those of a forward pass in transformers?",
        ("repro.cell_programs.logprob_agreement",),
        "grpo-doctor.logprobs.v1",
        answer_with_summary(
            "{tokens} tokens in {dtype}: maximum difference {max_difference:.1e}, mean {mean_difference:.1e} "
            "(bound {bound:.0e})"
        ),
        code=(__name__, "repro.cell_programs.logprob_agreement"),
        needs=(*USABLE, "engine"),
    ),
    *(
        program_layer(
            f"peer:{engine}",
            f"Does the cell's own GRPOTrainer of TRL take steps, {about}?",
            ("repro.cell_programs.trl_training", engine),
            "grpo-doctor.peer.v1",
            trl_answer,
            code=(__name__, "repro.cell_programs.trl_training"),
            trainers=("trl",),
        )
        for engine, about in TRL_ENGINES.items()
    ),
    *(
        program_layer(
            f"train:{mode}",
            f"Does the reference trainer train with it when {about}?",
            ("grpo_core", "train", "--rollout.mode", mode),
            "grpo-doctor.train.v1",
            answer_with_summary(TRAINING_SUMMARY, training_problem),
            code=_TRAINER,
            needs=(*USABLE, "engine"),
        )
        for mode, about in TRAIN_MODES.items()
    ),
)
_OTHERS = tuple(name for name in TRAINERS if name != "trl")
OTHER_TRAINER_LAYERS = (
    program_layer(
        "config",
        "Does the trainer's own code accept a GRPO configuration, and refuse an option that does not exist?",
        lambda _settings, cell: ("repro.cell_programs.trainer_config", cell.trainer),
        "grpo-doctor.config.v1",
        answer_with_summary("{parser}: accepted {accepted}; refused {refused}"),
        code=(__name__, "repro.cell_programs.trainer_config"),
        needs=("install",),
        trainers=_OTHERS,
    ),
    Layer(
        name="loss",
        question="Do the trainer's loss, its gradient and its advantages equal those of the reference trainer?",
        evidence=EvidenceLevel.EXECUTED,
        check=_check_loss,
        code=(__name__, PEER_PROGRAMS.replace("/", "."), "grpo_core"),
        needs=("install",),
        inputs=program_inputs,
        program=_loss_program,
        trainers=_OTHERS,
    ),
)
SERVER_LAYERS = tuple(
    program_layer(
        f"serve:{server}",
        f"Does `{command}` of the cell's own packages start and answer a request?",
        ("repro.cell_programs.server_start", server),
        "grpo-doctor.started.v1",
        answer_with_summary("{server}: up, and {protocol} answered with {tokens} tokens"),
        code=(__name__, "repro.cell_programs.server_start"),
        trainers=("trl",) if server == "trl" else (),
    )
    for server, command in SERVERS.items()
)
