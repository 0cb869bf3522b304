"""Define the layers that run training software in the cell and turn the document that it prints into an answer.

- `engine`, `logprobs`: vLLM's engine, and its log-probs against transformers.
- `peer:ENGINE`: training steps of the cell's own TRL. `train:MODE`: the reference trainer.
- `config`, `loss`: another trainer's own parser, and its loss against that of the reference trainer.
- `serve:SERVER`: `vllm serve` and `trl vllm-serve`.

`programs.toml` defines all but `config` and `loss`.
"""

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from diagnostics.matrix.cells import TRAINERS, Cell, LayerSettings
from diagnostics.matrix.context import ROOT, Context
from diagnostics.matrix.layers import cell_run
from diagnostics.matrix.layers.layer import Layer
from diagnostics.matrix.verdicts import Answer, Outcome

PEER_PROGRAMS = "tests/grpo_core/peer_programs"
LOSS_PROGRAMS = {"verl": "verl_loss", "ms-swift": "swift_loss", "openrlhf": "openrlhf_loss"}
# In float64 both losses agree to 1e-12; some of the trainers' formulas always use float32.
LOSS_BOUND = 1e-6


def _program_answer(completed: cell_run.CellRun, cell: Cell, problem: str, summary: str) -> Answer:
    """Return a pass with the summary, or a failure with the problem, which is also a sign for expectations."""
    outcome = Outcome.FAIL if problem else Outcome.PASS
    details, signs = cell_run.document_lines(completed.document), (problem,) if problem else ()
    versions = completed.document.get("versions")
    return cell_run.executed_answer(
        completed, cell, outcome, problem or summary, versions, signs=signs, details=details
    )


def _problem(document: Mapping[str, Any]) -> str:
    return "" if document.get("outcome") == "ok" else cell_run.document_error(document)


def answer_with_summary(
    template: str, find_problem: Callable[[Mapping[str, Any]], str] = _problem
) -> Callable[[cell_run.CellRun, Cell], Answer]:
    """Return the function that makes the answer of a program.

    Args:
        template: The summary of a pass; a name in braces stands for a value of the program's document.
        find_problem: Function that returns why the document is no pass; '' for a pass.
    """

    def answer(completed: cell_run.CellRun, cell: Cell) -> Answer:
        document = completed.document
        problem = find_problem(document)
        return _program_answer(completed, cell, problem, "" if problem else template.format_map(document))

    return answer


def trl_answer(completed: cell_run.CellRun, cell: Cell) -> Answer:
    """Return the answer of the training steps with the cell's own TRL; NOT_RUN if the program reports that."""
    document = completed.document
    logged: Mapping[str, list[float]] = document.get("logged") or {}
    problem = _problem(document)
    if problem and document.get("where"):
        problem = f"{problem} ({document['where']})"
    parts = [f"{document.get('steps')} steps in {document.get('seconds')} s"]
    parts.append(f"weights moved by up to {_number(document.get('moved') or 0, '.1e')}")
    if mismatch := logged.get("sampling/sampling_logp_difference/mean"):
        parts.append(f"mean log-prob difference of engine and trainer {max(mismatch):.1e}, as TRL logs it")
    answer = _program_answer(completed, cell, problem, "; ".join(parts))
    lines = cell_run.document_lines({key: value for key, value in document.items() if key != "logged"})
    curves = (f"{key}, by step: {value}" for key, value in logged.items())
    outcome = Outcome.NOT_RUN if document.get("outcome") == "not_run" else answer.outcome
    return msgspec.structs.replace(answer, outcome=outcome, details=(*lines, *curves))


def training_problem(document: Mapping[str, Any]) -> str:
    """Return the reason why a run of the reference trainer does not count as training; '' if it does."""
    if document.get("outcome") != "ok":
        return cell_run.document_error(document)
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
    """Compare the trainer's loss, gradient and advantages with grpo_core's, by programs that the tests also run.

    A difference of LOSS_BOUND or more gives FAIL; a program without a comparison gives NOT_RUN.
    """
    program = _loss_program(context.matrix.settings["loss"], cell)
    copy_programs = partial(shutil.copytree, ROOT / PEER_PROGRAMS, dirs_exist_ok=True)
    completed = cell_run.run_in_cell(context, cell, "loss", program, prepare=copy_programs)
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
        return cell_run.executed_answer(completed, cell, Outcome.NOT_RUN, summary, signs=(summary,))
    over_bound = {name: worst for name, worst in differences.items() if not worst < LOSS_BOUND}
    largest = max(differences.values())
    summary = (
        f"{len(differences)} settings of loss, gradient and advantages: largest difference {largest:.1e}"
    )
    signs = tuple(f"{name}: {worst}" for name, worst in over_bound.items())
    outcome = Outcome.FAIL if over_bound else Outcome.PASS
    details = tuple(f"{name}: {worst:.1e}" for name, worst in differences.items())
    return cell_run.executed_answer(completed, cell, outcome, summary, signs=signs, details=details)


def _number(value: object, form: str = ".2f") -> str:
    return f"{value:{form}}" if isinstance(value, int | float) else "?"


class _ProgramTable(Struct, frozen=True, forbid_unknown_fields=True):
    """A table of `programs.toml`: a layer, or a layer for each variant, which is the last word of its program.

    Attributes:
        question: The question; VARIANT stands for the variant's description.
        program: Arguments of `python -m`.
        code: Our own modules and packages behind the answer, besides this module.
        schema: Schema of the program's document.
        summary: The summary of a pass; without it, the answer is made by `trl_answer`.
        needs: Layers that must have passed.
        trainers: Trainers whose cells may have the layer; empty for all.
        variants: Descriptions by name.
    """

    question: str
    program: tuple[str, ...]
    code: tuple[str, ...]
    schema: str
    summary: str = ""
    needs: tuple[str, ...] = cell_run.NEEDED_LAYERS
    trainers: tuple[str, ...] = ()
    variants: dict[str, str] = {}

    def layers(self, name: str) -> Iterator[Layer]:
        """Yield the layers of the table with this name."""
        find_problem = training_problem if name == "train" else _problem
        for variant, about in self.variants.items() or [("", "")]:
            yield cell_run.program_layer(
                f"{name}:{variant}" if variant else name,
                self.question.replace("VARIANT", about),
                (*self.program, variant) if variant else self.program,
                self.schema,
                answer_with_summary(self.summary, find_problem) if self.summary else trl_answer,
                code=(__name__, *self.code),
                needs=self.needs,
                trainers=self.trainers,
            )


TABLES = msgspec.toml.decode(Path(__file__).with_suffix(".toml").read_bytes(), type=dict[str, _ProgramTable])
_LAYERS = [layer for name, table in TABLES.items() for layer in table.layers(name)]
ENGINE_LAYERS = tuple(layer for layer in _LAYERS if not layer.name.startswith("serve:"))
SERVER_LAYERS = tuple(layer for layer in _LAYERS if layer not in ENGINE_LAYERS)
_OTHERS = tuple(name for name in TRAINERS if name != "trl")
OTHER_TRAINER_LAYERS = (
    cell_run.program_layer(
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
        check=_check_loss,
        code=(__name__, PEER_PROGRAMS.replace("/", "."), "grpo_core"),
        needs=("install",),
        inputs=cell_run.program_inputs,
        program=_loss_program,
        trainers=_OTHERS,
    ),
)
