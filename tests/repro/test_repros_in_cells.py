"""Repros give the recorded outcomes, locations and counts in environments with the released packages.

Besides cells, variables name environments: GRPO_DOCTOR_PEERS is a Python of `nox -s tests-cells`, GRPO_DOCTOR_FASTAPI a
Python with repro/fastapi.txt, GRPO_DOCTOR_MATH a folder of environments with repro/math.txt, named by the release of
math-verify; GRPO_DOCTOR_TRL_1_9_2 is the folder of `uv pip install --no-deps --target FOLDER trl==1.9.2`.
"""

from __future__ import annotations

import os
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from repro.issues import ray001
from tests.cells import cell_python, read_attempts, run_with

NEWEST = "vllm-0.31.0+trl-1.16.0"
# Lines at which `is_async_output_supported` raises in vllm/platforms/interface.py of each release.
CMP001_LINES = {
    "vllm-0.6.6.post1+trl-0.14.0": 165,
    "vllm-0.7.2+trl-0.15.2": 201,
    "vllm-0.7.3+trl-0.16.1": 204,
    "vllm-0.8.5.post1+trl-0.17.0": 214,
}
CMP001 = {
    "detect_platform": "mitigated *CpuPlatform*",
    "async_output_off": "mitigated *UnspecifiedPlatform*",
    "unnamed_device": "not_mitigated *Failed to infer device type*",
}
REWARDED = dict.fromkeys(("main_thread", "own_process"), "mitigated 8 of 8 *")
SILENT = {None: "reproduced 0 of 8 *", "no_timeout": "not_mitigated 0 of 8 *", **REWARDED}
RAISING = {None: "reproduced * in parse: *", "no_timeout": "mitigated 8 of 8 *", **REWARDED}


def case(environment, command, lines, *, marks="vllm slow heavy", trl=""):
    """Return the parameters of a test.

    Args:
        environment: A cell, or an environment variable and the path of a Python below it.
        command: Arguments of `repro run`.
        lines: Expected pattern of the attempt with each mitigation, or with each pair of trigger and mitigation.
        marks: Names of pytest's marks.
        trl: Release of TRL that precedes the cell's own on the path.
    """
    found = [getattr(pytest.mark, name) for name in marks.split()]
    return pytest.param(environment, command, lines, trl, marks=found, id=f"{command} {environment}")


CASES = [
    *(
        case(
            cell,
            "CMP001 --timeout 200",
            CMP001 | {None: f"reproduced * at vllm/platforms/interface.py:{line} in is_async_*"},
            marks="vllm slow",
        )
        for cell, line in CMP001_LINES.items()
    ),
    # The method exists, but no engine argument reaches it.
    case(
        "vllm-0.10.2+trl-0.24.0", "CMP001", {None: "inapplicable *DeviceConfig(device=*"}, marks="vllm slow"
    ),
    case(
        "GRPO_DOCTOR_FASTAPI",
        "NET001",
        {
            None: "reproduced * in _get_route_name: *",
            "excluded_handlers": "not_mitigated *",
            "no_middleware": "mitigated 3 of 3 *",
            "routes_on_app": "mitigated 3 of 3 *",
        },
        marks="slow heavy",
    ),
    case(
        "GRPO_DOCTOR_PEERS",
        "NUM004",
        {(loss, None): "reproduced 0 of *0.2500" for loss in ("dapo", "cispo")}
        | {
            (loss, name): "mitigated *1.0000"
            for loss in ("dapo", "cispo")
            for name in ("equal_settings", "grpo")
        },
        marks="slow heavy",
    ),
    *(
        case(
            f"GRPO_DOCTOR_MATH/{release}/bin/python", f"REW001 --trigger {trigger}", lines, marks="slow heavy"
        )
        for trigger, lines, releases in (
            ("false_in_thread", SILENT, ("0.4.0", "0.7.0")),
            ("raises_in_thread", RAISING, ("0.8.0", "0.9.0")),
        )
        for release in releases
    ),
    *(
        case(
            environment,
            "RAY001 --trigger no_address --mitigation explicit_address --timeout 500",
            {
                None: f"reproduced * at {ray001.FILE}:{place}: the engine process is in another cluster than *",
                "explicit_address": "mitigated 1 of 1 *",
            },
            marks="ray vllm slow",
        )
        for environment, place in (
            ("verl-0.4.1", "57 in _init_executor"),
            ("verl-0.5.0", "61 in _get_model_runner_workers"),
        )
    ),
    case(
        NEWEST,
        "SYN002 --timeout 200",
        {None: "reproduced 1 of 2 *by the old weights, then*"}
        | dict.fromkeys(("abort", "await_requests", "enough_cache"), "mitigated 2 of 2 *"),
    ),
    case(NEWEST, "SYN003", {None: "inapplicable *does not contain `collective_rpc(*"}),
    case(
        NEWEST,
        "SYN003 --timeout 280",
        {None: "reproduced *72 of 72 are the base model's"}
        | dict.fromkeys(("sleep_off", "checkpoint_on_disk"), "mitigated 72 of 72 *"),
        trl="1.9.2",
    ),
    case(
        NEWEST,
        "TOK001 --mitigation trimmed_model --timeout 250",
        {
            ("sampled", None): "reproduced 64 of 72 *",
            ("re_encoded", None): "reproduced *72 tokens sampled, 64 came back*",
            ("fed_back", None): "inapplicable *",
            ("sampled", "trimmed_model"): "mitigated *",
            ("re_encoded", "trimmed_model"): "mitigated *",
        },
    ),
    # This TRL declares support of vLLM 0.10.2, and misreads the suffix of its version.
    case(
        "vllm-0.10.2+trl-0.25.1",
        "CMP002 --trigger trainer --timeout 220",
        {None: "reproduced *StructuredOutputsParams*", "matching_release": "inapplicable *"},
        trl="0.28.0",
    ),
    *(
        case(
            NEWEST,
            f"{code} --mitigation {name} --timeout 250",
            {None: "reproduced 0 of *", name: "mitigated *"},
            marks="vllm",
        )
        for code, name in (("NUM001", "processed_logprobs"), ("SYN025", "all_names"))
    ),
]


def environment_python(environment):
    """Return the Python of a cell or of a variable's environment; skip the test if there is none."""
    variable, _, path = environment.partition("/")
    if not variable.startswith("GRPO_DOCTOR_"):
        return cell_python(environment)
    return existing_path(variable, path)


def existing_path(variable, path=""):
    """Return a path below the folder that a variable names; skip the test if there is none."""
    found = Path(os.environ.get(variable, "/nowhere"), path)
    if not found.exists():
        pytest.skip(f"no {found}: {variable} is described in {__name__}")
    return found


@pytest.mark.parametrize(("environment", "command", "lines", "trl"), CASES)
def test_repro_has_its_recorded_outcomes(environment, command, lines, trl):
    """Each attempt matches its line; an attempt is mitigated only if all its work was finished."""
    path = [str(existing_path(f"GRPO_DOCTOR_TRL_{trl.replace('.', '_')}"))] if trl else []
    arguments = ["-m", "repro", "run", *command.split(), "--json"]
    done = run_with(environment_python(environment), *arguments, timeout_s=1500, path=path)
    observed = {}
    for pair, attempt in read_attempts(done, command.split()[0]).items():
        place = f"at {attempt['where']} in {attempt['function']}: {attempt['detail']}"
        line = f"{attempt['outcome']} {attempt['finished']} of {attempt['expected']} {place}"
        observed |= {pair: line, pair[1]: line}
    assert {key: observed[key] for key in lines if not fnmatchcase(observed[key], lines[key])} == {}
