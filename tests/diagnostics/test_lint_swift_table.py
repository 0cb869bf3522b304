"""`lint` reports an error for each recorded command line that ms-swift refuses, and for none that it accepts.

The runs in diagnostics/data/swift.json stop after ms-swift's argument classes. Cases of REFUSED_LATER, which these
classes accept, count as refused, because the trainer refuses them later.
"""

import json
from pathlib import Path

import pytest
from packaging.version import Version

from diagnostics.lint.settings_reader import read_command_line
from diagnostics.lint.steps import check_plans, plans_of
from evaluation.repro.swift_arguments import CASES
from tests.diagnostics.lint_reports import versions

TABLE = json.loads(Path(__file__).parents[2].joinpath("diagnostics", "data", "swift.json").read_text())
ANSWERS = [
    (release, case, answer["said"])
    for group in TABLE["groups"]
    for release in group["releases"]
    for case, answer in group["cases"].items()
    if answer["said"] in {"accepts", "warns", "refuses"}
]
COMMON_OPTIONS = {
    "rlhf_type": "grpo", "reward_funcs": "format", "per_device_train_batch_size": 8, "per_device_eval_batch_size": 8,
    "gradient_accumulation_steps": 1, "num_generations": 8, "max_completion_length": 8,
}  # fmt: skip
REFUSED_LATER = {"mode_colocate_parallel"}


def command(name, release):
    """Return a case of the table as a command line for a release."""
    case = CASES[name]
    options = COMMON_OPTIONS | dict(case.options)
    if case.server:
        options |= {"use_vllm": True, "vllm_server_host": case.server}
        # These releases require vllm_mode with a server address.
        options |= {"vllm_mode": "server"} if Version(release) >= Version("3.11.1") else {}
    devices = ",".join(map(str, range(case.devices)))
    words = [word for key, value in options.items() for word in (f"--{key}", str(value).lower())]
    return [f"CUDA_VISIBLE_DEVICES={devices}", f"NPROC_PER_NODE={case.ranks}", "swift", "rlhf", *words]


def test_table_has_every_verdict():
    """The table has more than 200 answers, with the verdicts accepts, warns and refuses."""
    assert len(ANSWERS) > 200
    assert {verdict for _release, _case, verdict in ANSWERS} == {"accepts", "warns", "refuses"}


@pytest.mark.parametrize("release", sorted({release for release, _case, _answer in ANSWERS}))
def test_lint_reports_errors_exactly_where_the_release_refuses(release):
    """Cases of REFUSED_LATER count as refused."""
    known = versions(ms_swift=release)
    for _release, case, verdict in (answer for answer in ANSWERS if answer[0] == release):
        checks = check_plans(plans_of(read_command_line(command(case, release)), known))
        errors = [f.detail for check in checks for f in check.findings if f.severity.word == "error"]
        expected = verdict == "refuses" or case in REFUSED_LATER
        assert bool(errors) is expected, (case, verdict, errors)
