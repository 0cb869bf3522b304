"""Read a script's `#SBATCH` lines, and return the environment variables that Slurm sets for its nodes and devices.

The sbatch command line can request something else, so all of them are defaults.
"""

from __future__ import annotations

import re
from itertools import islice

_LINE = re.compile(r"#SBATCH\s+(.*)")
_OPTION = re.compile(r"--?([A-Za-z][\w-]*)(?:[= ]\s*|(?=\d))([^\s#]+)")
_LONG_NAMES = {"N": "nodes", "G": "gpus"}
# A type may precede the number of devices: gpu:a100:4.
_NUMBER = re.compile(r"(?:gpu:)?(?:[A-Za-z_][\w.-]*:)?(\d{1,4})(?:\(.*\))?$")
_MAX_LINES = 200


def job_variables(text: str, first_line: int = 1) -> list[tuple[str, int, int]]:
    r"""Return the variables that Slurm sets for a script's requests, each with its number and its line.

    >>> job_variables("#SBATCH --nodes=2\n#SBATCH --gres=gpu:a100:4\nrun")
    [('SLURM_NNODES', 2, 1), ('SLURM_JOB_NUM_NODES', 2, 1), ('SLURM_GPUS_ON_NODE', 4, 2)]
    """
    options: dict[str, tuple[int, int]] = {}
    for number, line in enumerate(islice(text.splitlines(), _MAX_LINES), first_line):
        stripped = line.strip()
        if stripped and not stripped.startswith("#"):
            break  # Slurm reads no further than the first command.
        match = _LINE.match(stripped)
        for name, value in _OPTION.findall(match[1]) if match else ():
            if parsed := _NUMBER.match(value):
                options[_LONG_NAMES.get(name, name)] = int(parsed[1]), number
    if not options:
        return []
    nodes = options.get("nodes", (1, next(iter(options.values()))[1]))
    devices = options.get("gpus-per-node") or options.get("gres")
    if devices is None and nodes[0] == 1:
        devices = options.get("gpus")
    variables = [("SLURM_NNODES", *nodes), ("SLURM_JOB_NUM_NODES", *nodes)]
    return variables + ([("SLURM_GPUS_ON_NODE", *devices)] if devices is not None else [])
