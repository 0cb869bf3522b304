"""The program of the layer `config` runs a trainer's own parser on a valid and a wrong configuration."""

import json

import pytest

from tests.cells import ROOT
from tests.processes import run_python

MAIN = """
import argparse
import a_module_that_needs_cuda

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for option in ("--pretrain", "--remote_rm_url", "--prompt_data", "--advantage_estimator"):
        parser.add_argument(option, required=True)
    parser.add_argument("--n_samples_per_prompt", type=int)
    args = PARSED
    assert args.n_samples_per_prompt > 1
    TRAIN
"""


@pytest.mark.parametrize(
    ("parsed", "train", "expected"),
    [
        ("parser.parse_args()", "train(args)", (0, 1, 1, None)),
        ("parser.parse_known_args()[0]", "train(args)", (1, 1, 0, "--generations=4 was accepted")),
        ("parser.parse_args()", "pass", (1, 0, 0, "RuntimeError: the main block of train_ppo_ray ended without")),
    ],
)  # fmt: skip
def test_parser_has_to_accept_one_and_refuse_the_other(tmp_path, parsed, train, expected):
    """The program fails if the valid configuration does not reach training, or the wrong one is accepted."""
    cli = tmp_path / "openrlhf" / "cli"
    cli.mkdir(parents=True)
    (tmp_path / "openrlhf" / "__init__.py").write_text("")
    (cli / "train_ppo_ray.py").write_text(MAIN.replace("PARSED", parsed).replace("TRAIN", train))
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    done = run_python("-m", "repro.cell_programs.trainer_config", "openrlhf", "--json", env=environment)
    code, accepted, refused, error = expected
    document = json.loads(done.stdout)
    assert (done.returncode, document["accepted"], document["refused"]) == (code, accepted, refused), (
        done.stderr
    )
    assert str(document["error"]).startswith(str(error))
