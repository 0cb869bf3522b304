"""What a script asks of Slurm: its `#SBATCH` lines, as the variables that Slurm sets for the job.

Whoever submits it may ask for something else on sbatch's command line, so that all of it is a default from outside.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import islice

_LINE = re.compile(r"#SBATCH\s+(.*)")
_OPTION = re.compile(r"--?([A-Za-z][\w-]*)(?:[= ]\s*|(?=\d))([^\s#]+)")
_NAMES = {"N": "nodes", "n": "ntasks", "G": "gpus"}
# What is asked of devices may have a type before the number: gpu:a100:4.
_DEVICES = re.compile(r"(?:gpu:)?(?:[A-Za-z_][\w.-]*:)?(\d{1,4})(?:\(.*\))?$")
_NUMBER = re.compile(r"\d{1,5}$")
_MOST = 200


@dataclass(frozen=True)
class Asked:
    """A variable of the job.

    Attributes:
        line: Of the `#SBATCH` line that decides it.
    """

    name: str
    number: int
    line: int


def asked(text: str, first_line: int = 1) -> list[Asked]:
    r"""The variables that Slurm sets for what a script asks for; none where it asks for nothing.

    >>> [(each.name, each.number) for each in asked("#SBATCH --nodes=2\n#SBATCH --gres=gpu:a100:4\nrun")]
    [('SLURM_NNODES', 2), ('SLURM_JOB_NUM_NODES', 2), ('SLURM_NTASKS', 2), ('SLURM_GPUS_ON_NODE', 4)]
    """
    said: dict[str, tuple[int, int]] = {}
    for number, line in enumerate(islice(text.splitlines(), _MOST), first_line):
        stripped = line.strip()
        if stripped and not stripped.startswith("#"):
            # Slurm reads no further than the first command.
            break
        match = _LINE.match(stripped)
        for name, value in _OPTION.findall(match[1]) if match else ():
            key = _NAMES.get(name, name)
            of_devices = key == "gres" or key.startswith("gpus")
            found = _DEVICES.match(value) if of_devices and "," not in value else _NUMBER.match(value)
            if found:
                said[key] = int(found[found.lastindex or 0]), number
    if not said:
        return []
    return _variables(said)


def _variables(said: dict[str, tuple[int, int]]) -> list[Asked]:
    first = min(line for _number, line in said.values())
    nodes, nodes_line = said.get("nodes", (1, first))
    found = [Asked("SLURM_NNODES", nodes, nodes_line), Asked("SLURM_JOB_NUM_NODES", nodes, nodes_line)]
    each, each_line = said.get("ntasks-per-node", (0, first))
    # Where nothing is said of tasks there is one on each node.
    tasks, tasks_line = said.get("ntasks", (nodes * (each or 1), each_line if each else nodes_line))
    found.append(Asked("SLURM_NTASKS", tasks, tasks_line))
    if each:
        found.append(Asked("SLURM_NTASKS_PER_NODE", each, each_line))
    devices = next((said[key] for key in ("gpus-per-node", "gres") if key in said), None)
    if devices is None and nodes == 1:
        devices = said.get("gpus")
    if devices is not None:
        found.append(Asked("SLURM_GPUS_ON_NODE", *devices))
        if "gpus-per-node" in said:
            found.append(Asked("SLURM_GPUS_PER_NODE", *devices))
    return found
