"""What a script asks of Slurm counts as processes and devices of the run, by default: sbatch may be told otherwise."""

import pytest

from diagnostics.lint.sources import slurm
from tests.diagnostics.lint_helpers import codes, plans

TRL = "trl grpo --use_vllm true --vllm_mode colocate --num_generations 8 --per_device_train_batch_size "


def read(text):
    return {each.name.removeprefix("SLURM_"): each.number for each in slurm.asked(text)}


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("-N 2\n#SBATCH -n8", {"NNODES": 2, "NTASKS": 8}),
        ("--nodes=2 --ntasks-per-node=4", {"NNODES": 2, "NTASKS": 8, "NTASKS_PER_NODE": 4}),
        ("--gres=gpu:8", {"NNODES": 1, "NTASKS": 1, "GPUS_ON_NODE": 8}),
        ("--gpus-per-node=a100:4", {"NNODES": 1, "NTASKS": 1, "GPUS_ON_NODE": 4, "GPUS_PER_NODE": 4}),
        ("--gpus=4", {"NNODES": 1, "NTASKS": 1, "GPUS_ON_NODE": 4}),
        ("--gpus=4 --nodes=2", {"NNODES": 2, "NTASKS": 2}),
        ("--nodes=$N --time=10:00 --mem=64G", {}),
    ],
)
def test_the_lines_of_sbatch_are_read(lines, expected):
    """With the variables that Slurm makes of them; what is no plain number is left out."""
    found = read(f"#!/bin/bash\n#SBATCH {lines}\npython x.py\n")
    assert {name: number for name, number in found.items() if name != "JOB_NUM_NODES"} == expected


def test_after_the_first_command_slurm_reads_no_more():
    """Nor does a line that is commented out count."""
    assert read("##SBATCH --nodes=2\necho\n#SBATCH --nodes=3\n") == {}


@pytest.mark.parametrize(
    ("script", "number"),
    [
        ("#SBATCH --ntasks=4\nsrun " + TRL + "1", 4),
        ("#SBATCH --nodes=2 --ntasks-per-node=4\nsrun " + TRL + "1", 8),
        ("#SBATCH --ntasks=4\nsrun -n 2 " + TRL + "1", 2),
        ("#SBATCH --ntasks=4\n" + TRL + "1", None),
        (
            "#SBATCH --nodes=2\naccelerate launch --num_processes $((SLURM_NNODES * 4)) t_grpo.py --num_generations 8",
            8,
        ),
    ],
)
def test_srun_starts_the_tasks_of_the_job(script, number):
    """Where it says no number itself; and a launcher may be told by Slurm's variables."""
    [plan] = plans(script, trl="1.9.0")
    assert plan.get("devices.train") == number


def test_more_processes_than_the_job_has_devices():
    """A warning: sbatch may be told another number."""
    script = (
        "#SBATCH --gres=gpu:{}\ntorchrun --nproc_per_node 8 train_grpo.py --num_generations 8 --use_vllm true"
    )
    assert "warning CFG104" in codes(script.format(4), trl="1.9.0")
    assert codes(script.format(8), trl="1.9.0") & {"warning CFG104", "error CFG104"} == set()
