"""What lint could not judge: said, with its place, under the check it concerns, and never taken for fine."""

import ast
from importlib import import_module

import pytest

from diagnostics.lint import judge, known, reading, unjudged
from diagnostics.output.findings import Report, Severity
from tests.diagnostics.lint_helpers import codes, plans, versions
from tests.diagnostics.programs import option_names

TRL = "trl grpo --use_vllm true --num_generations 8 "
VERL = "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo "


def report(text, syntax="shell", **releases):
    made = plans(text, syntax, **releases)
    checks = (*judge.judge(made, versions(**releases)), *unjudged.of_reading(made))
    return Report("lint", {}, checks)


def told(text, syntax="shell", **releases):
    return {
        (check.check, each.what, each.decides)
        for check in report(text, syntax, **releases).checks
        for each in check.not_judged
    }


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        (TRL + "--per_device_train_batch_size 3", ("batches and groups", "process count", True)),
        (TRL + "--vllm_gpu_memory_utilization $SHARE", ("memory and sleep", "vllm_gpu_memory_utilization", True)),
        (TRL + "--top_p 1 --repetition_penalty $P", ("sampling", "repetition_penalty", False)),
        (TRL + "$MORE", (unjudged.READING, "more options", True)),
        (TRL + '"$@"', (unjudged.READING, '"$@"', False)),
        (TRL + "--num_generationz 8", (unjudged.READING, "num_generationz", True)),
        ("python3 -m verl.trainer.main_ppo trainer.nnodez=1", (unjudged.READING, "trainer.nnodez", True)),
        ("python3 -m verl.trainer.main_ppo +trainer.mine=1", None),
        ("python3 -m verl.trainer.main_ppo +trainer.nnodes=1", (unjudged.READING, "+trainer.nnodes", True)),
        ("vllm serve M --gpu-memory-utilisation 0.8", (unjudged.READING, "gpu_memory_utilisation", True)),
        ("vllm serve M -tp 2 -O3 --hf-overrides.x 3 --no-enable-log-requests --api-key K", None),
        (TRL + "--per_device_train_batch_size 8 --model_name_or_path $MODEL --run_name $NAME", None),
    ],
)  # fmt: skip
def test_what_could_not_be_judged_is_said_where_it_matters(script, expected):
    """A rule that asked and got no answer; a name that nobody knows; nothing where no rule asks."""
    found = told(script)
    assert expected in found if expected else found == set()


def test_where_a_fault_could_hide_the_code_is_3():
    """And 0 where everything that decides was read."""
    assert report(TRL + "--per_device_train_batch_size 3").exit_code(Severity.ERROR) == 3
    assert report(TRL + "--per_device_train_batch_size 8").exit_code(Severity.ERROR) == 0
    assert report(TRL + '--per_device_train_batch_size 8 "$@"').exit_code(Severity.ERROR) == 0


def test_the_nearest_known_name_is_offered():
    """With file and line."""
    [gap] = [
        each
        for check in report(TRL + "\\\n --num_generationz 8").checks
        for each in check.not_judged
        if each.what == "num_generationz"
    ]
    assert "did you mean num_generations?" in gap.text
    assert "run:2" in gap.text


@pytest.mark.parametrize(
    ("script", "releases", "wrong"),
    [
        ("python3 -m verl.trainer.main_ppo actor_rollout_ref.rollout.nn=8", {"verl": "0.6.1"}, True),
        ("python3 -m verl.trainer.main_ppo +actor_rollout_ref.rollout.nn=8", {"verl": "0.6.1"}, False),
        ("python3 -m verl.trainer.main_ppo actor_rollout_ref.rollout.n=8", {"verl": "0.6.1"}, False),
        ("python3 -m verl.trainer.main_ppo --config-path=c actor_rollout_ref.mine=8", {"verl": "0.6.1"}, False),
        ("python3 -m verl.trainer.main_ppo actor_rollout_ref.rollout.nn=8", {"verl": "0.6.99"}, False),
        (TRL + "--num_generationz 8", {"trl": "1.9.0"}, True),
        ("accelerate launch mine.py --num_generations 8 --flavour 8", {"trl": "1.9.0"}, False),
        ("python3 -m openrlhf.cli.train_ppo_ray --actor.adam.lr 1e-6", {"openrlhf": "0.10.4"}, False),
        ("python3 -m openrlhf.cli.train_ppo_ray --actor.adam.lr 1e-6", {"openrlhf": "0.10.1"}, True),
        (VERL + "actor_rollout_ref.actor.mindspeed.sizes=1", {"verl": "0.9.0"}, True),
        (VERL + "model_engine=mindspeed actor_rollout_ref.actor.mindspeed.sizes=1", {"verl": "0.9.0"}, False),
        (VERL + "model_engine=mindspeed actor_rollout_ref.actor.sizes=1", {"verl": "0.9.0"}, True),
        (VERL + "model_engine=megatron actor_rollout_ref.actor.megatron.sizes=1", {"verl": "0.9.0"}, True),
    ],
)  # fmt: skip
def test_a_name_that_the_release_does_not_have_is_refused(script, releases, wrong):
    """CFG113, where the release was read and the framework's own parser takes the options."""
    codes = {finding.code for finding in report(script, **releases).findings}
    assert ("CFG113" in codes) is wrong


def test_options_that_a_parser_adds_in_a_loop_are_read():
    """As OpenRLHF adds those of its optimizers."""
    text = 'for one in ("a", "b"):\n    p.add_argument(f"--{one}.lr")\n    p.add_argument(f"--{other}.lr")\n'
    assert option_names.of_python(ast.parse(text)) == {"a.lr", "b.lr"}


def test_an_engine_whose_config_was_not_read_is_said():
    """verl's `model_engine=mindspeed`: none of the configs whose names were read has its keys."""
    run = VERL + "model_engine=mindspeed actor_rollout_ref.actor.mindspeed.param_offload=True"
    assert (unjudged.READING, "the config of model_engine=mindspeed", True) in told(run, verl="0.9.0")


def test_a_section_for_a_role_of_rays_is_said():
    """ms-swift's YAML for Ray: which keys a section takes was read from no release."""
    text = "rlhf_type: grpo\nuse_vllm: true\nnum_generations: 8\ntrain:\n  gpus: 4\nrollout:\n  gpus: 4\n"
    releases = {"ms-swift": "4.5.2"}
    assert (unjudged.READING, "its sections for roles", True) in told(text, "yaml", **releases)
    assert "CFG113" not in {finding.code for finding in report(text, "yaml", **releases).findings}


def test_a_config_of_ones_own_may_have_options_of_its_own():
    """`GRPOConfig` that is not TRL's."""
    call = "GRPOConfig(output_dir='x', flavour=8)\n"
    assert "CFG113" in {
        f.code for f in report("from trl import GRPOConfig\n" + call, "python", trl="1.9.0").findings
    }
    assert report("from mine import GRPOConfig\n" + call, "python", trl="1.9.0").findings == []


@pytest.mark.parametrize("framework", ["trl", "ms-swift", "verl", "openrlhf", "easyr1"])
def test_the_names_that_a_plan_is_made_of_are_known(framework):
    """What the dialects read is there, or no config with it could be judged."""
    names = known.names(framework)
    read = import_module(f"diagnostics.lint.dialects.{framework.removeprefix('ms-')}").NAMES
    assert len([name for name in read if known.takes(name, names)]) > 0.8 * len(read)


def test_what_a_script_is_given_is_not_taken_for_a_value():
    """`--flag "$@"`: the flag is there; what follows is another matter."""
    [made] = reading.read_text('trl grpo --use_vllm "$@"\n', "run.sh")
    assert made.items["use_vllm"].data is True
    assert made.passes


def test_what_the_options_rule_out_is_not_warned_of():
    """A release that refuses one of the run's options is not the one it is for, whatever else that release refuses."""
    long = "data.max_prompt_length=8192 data.max_response_length=512"
    script = f"python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo {long}"
    newer = "reward.custom_reward_function.path=reward.py"
    assert "warning CFG103" in codes(script)
    assert "warning CFG103" not in codes(f"{script} {newer}")
    # What is given counts, and what nobody has read may be newer still.
    assert "error CFG103" in codes(f"{script} {newer}", verl="0.6.0")
    (plan,) = plans(f"{script} {newer}")
    assert plan.versions.within("verl", "<0.7") is False
    assert plan.versions.within("verl", ">=0.7") is None
    assert plan.versions.within("verl", ">=9") is None
