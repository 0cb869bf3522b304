"""Read a script's `#SBATCH` lines, and return the environment variables that Slurm sets for them.

The sbatch command line can request something else, so all of them are defaults.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import islice

_LINE = re.compile(r"#SBATCH\s+(.*)")
_OPTION = re.compile(r"--?([A-Za-z][\w-]*)(?:[= ]\s*|(?=\d))([^\s#]+)")
_LONG_NAMES = {"N": "nodes", "n": "ntasks", "G": "gpus"}
# A type may precede the number of devices: gpu:a100:4.
_DEVICES = re.compile(r"(?:gpu:)?(?:[A-Za-z_][\w.-]*:)?(\d{1,4})(?:\(.*\))?$")
_NUMBER = re.compile(r"\d{1,5}$")
_MAX_LINES = 200


@dataclass(frozen=True)
class JobVariable:
    """A variable of the job, and the line of the `#SBATCH` option that decides it."""

    name: str
    number: int
    line: int


def job_variables(text: str, first_line: int = 1) -> list[JobVariable]:
    r"""Return the variables that Slurm sets for a script's requests.

    >>> [(each.name, each.number) for each in job_variables("#SBATCH --nodes=2\n#SBATCH --gres=gpu:a100:4\nrun")]
    [('SLURM_NNODES', 2), ('SLURM_JOB_NUM_NODES', 2), ('SLURM_NTASKS', 2), ('SLURM_GPUS_ON_NODE', 4)]
    """
    options: dict[str, tuple[int, int]] = {}
    for number, line in enumerate(islice(text.splitlines(), _MAX_LINES), first_line):
        stripped = line.strip()
        if stripped and not stripped.startswith("#"):
            break  # Slurm reads no further than the first command.
        match = _LINE.match(stripped)
        for name, value in _OPTION.findall(match[1]) if match else ():
            key = _LONG_NAMES.get(name, name)
            devices = key == "gres" or key.startswith("gpus")
            parsed = _DEVICES.match(value) if devices and "," not in value else _NUMBER.match(value)
            if parsed:
                options[key] = int(parsed[parsed.lastindex or 0]), number
    return _to_variables(options) if options else []


def _to_variables(options: dict[str, tuple[int, int]]) -> list[JobVariable]:
    first = min(line for _number, line in options.values())
    nodes, nodes_line = options.get("nodes", (1, first))
    per_node, per_node_line = options.get("ntasks-per-node", (0, first))
    # Without a request for tasks there is one on each node.
    tasks, tasks_line = options.get(
        "ntasks", (nodes * (per_node or 1), per_node_line if per_node else nodes_line)
    )
    variables = [
        JobVariable("SLURM_NNODES", nodes, nodes_line),
        JobVariable("SLURM_JOB_NUM_NODES", nodes, nodes_line),
        JobVariable("SLURM_NTASKS", tasks, tasks_line),
    ]
    if per_node:
        variables.append(JobVariable("SLURM_NTASKS_PER_NODE", per_node, per_node_line))
    devices = next((options[key] for key in ("gpus-per-node", "gres") if key in options), None)
    if devices is None and nodes == 1:
        devices = options.get("gpus")
    if devices is not None:
        variables.append(JobVariable("SLURM_GPUS_ON_NODE", *devices))
        if "gpus-per-node" in options:
            variables.append(JobVariable("SLURM_GPUS_PER_NODE", *devices))
    return variables
