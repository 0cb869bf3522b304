"""`lint` reports values and options that it could not check, and exits with 3 if they could hide a fault.

It reports a known option of another framework or release as an error or warning, with the option to write instead if it
is known.
"""

import pytest

from diagnostics.findings import Severity
from diagnostics.lint.settings_reader import read_text
from tests.case_files import each_case, read_cases
from tests.diagnostics.lint_reports import codes, lint, plans, report

CASES = read_cases(__file__, "lint_runs.yaml")

TRL = "trl grpo --use_vllm true --num_generations 8 "
VERL = "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo "


def unknowns(text, syntax="shell", **releases):
    """Return the entries "not checked" of a text: (check, unknown value, whether it decides the exit code)."""
    return {
        (check.check, entry.what, entry.decides)
        for check in report(text, syntax, **releases).checks
        for entry in check.not_judged
    }


@each_case(CASES["unknown_values"])
def test_unknown_value_is_reported_if_a_rule_needs_it(script, expected):
    """Options that the script hides, or that no release has, are reported as well."""
    reported = unknowns(script)
    assert tuple(expected) in reported if expected else reported == set()


def test_unknown_release_has_what_all_releases_with_its_options_have():
    """Of an unknown release, lint reports what follows in each release with the run's options, as warnings."""
    run = TRL + "--vllm_dtype bfloat16 --vllm_enable_prefix_caching true"
    found = {"warning CFG107", "warning NUM002"}
    assert found <= codes(run) & codes(run, trl="0.16.0") & codes(run, trl="0.17.0")
    # Releases before and after 1.0 have all options of this run, and their defaults differ.
    assert "warning CFG107" not in codes(TRL + "--vllm_gpu_memory_utilization 0.9")


def test_exit_code_is_3_if_an_unknown_value_could_hide_a_fault():
    """The exit code is 3 for an unknown value that could hide a fault, and not for an unknown release alone."""
    assert report(TRL + "--per_device_train_batch_size 3").exit_code(Severity.ERROR) == 3
    assert report(TRL + "--per_device_train_batch_size 8").exit_code(Severity.ERROR) == 0
    assert report(TRL + '--per_device_train_batch_size 8 "$@"').exit_code(Severity.ERROR) == 0
    healthy = (
        "NPROC_PER_NODE=4 swift rlhf --rlhf_type grpo --model M --reward_funcs a --use_vllm true --vllm_mode "
    )
    healthy += "colocate --sleep_level 1 --per_device_train_batch_size 8 --num_generations 8"
    assert ("options", "release of ms-swift", False) in unknowns(healthy)
    assert report(healthy).exit_code(Severity.ERROR) == 0
    # No release has both options, so every release refuses one.
    assert report(healthy + " --num_infer_workers 4 --teacher_model t").exit_code(Severity.ERROR) == 3


def test_process_count_is_unknown_only_if_it_matters_and_nothing_else_may_set_it():
    """It is not reported if each count gives whole groups, or if a config that was not read may set it."""
    batch = "--per_device_train_batch_size 4 --gradient_accumulation_steps "
    assert unknowns(TRL + batch + "4", trl="0.26.2") == set()
    assert ("batches and groups", "process count", True) in unknowns(TRL + batch + "3", trl="0.26.2")
    run = "python3 -m verl.trainer.main worker.rollout.n=5 worker.rollout.tensor_parallel_size=2"
    run += " trainer.n_gpus_per_node=8 config=missing.yaml"
    assert unknowns(run) == {("run settings", "missing.yaml", True)}


def test_equal_unknowns_are_grouped(tmp_path):
    for name in ("a.sh", "b.sh", "c.sh", "d.sh", "e.sh"):
        (tmp_path / name).write_text(
            "swift rlhf --rlhf_type grpo --use_vllm true --vllm_mode colocate --reward_funcs a\n"
        )
    [check] = [check for check in lint(tmp_path).checks if check.check == "options"]
    [entry] = check.not_judged
    assert entry.what == "release of ms-swift"
    assert "a.sh:1" in entry.place
    assert entry.place.endswith(" and 2 more")


@each_case(CASES["lacking_options"])
def test_option_that_the_release_lacks_is_refused(script, releases, is_refused):
    """An option that an indexed release lacks is refused; not a `+` key, a script's option, or an unindexed part."""
    assert ("CFG113" in {finding.code for finding in report(script, **releases).findings}) is is_refused


def test_unindexed_config_parts_are_reported():
    """The config of verl's mindspeed engine and the role sections of ms-swift's YAML are reported as not checked."""
    run = VERL + "model_engine=mindspeed actor_rollout_ref.actor.mindspeed.param_offload=True"
    assert ("options", "the config of model_engine=mindspeed", True) in unknowns(run, verl="0.9.0")
    text = "rlhf_type: grpo\nuse_vllm: true\nnum_generations: 8\ntrain:\n  gpus: 4\nrollout:\n  gpus: 4\n"
    assert ("options", "its sections for roles", True) in unknowns(text, "yaml", ms_swift="4.5.2")
    assert "error CFG113" not in codes(text, "yaml", ms_swift="4.5.2")


def test_config_class_of_the_user_may_have_other_options():
    call = "GRPOConfig(output_dir='x', flavour=8)\n"
    assert "error CFG113" in codes("from trl import GRPOConfig\n" + call, "python", trl="1.9.0")
    assert codes("from mine import GRPOConfig\n" + call, "python", trl="1.9.0") == set()


def test_option_that_the_script_does_not_declare_is_reported(tmp_path):
    (tmp_path / "train.py").write_text(
        "from dataclasses import dataclass\nfrom trl import GRPOConfig, GRPOTrainer, TrlParser\n"
        "@dataclass\nclass Mine:\n    mine: int = 1\nTrlParser((Mine, GRPOConfig)).parse_args_and_config()\n"
    )
    (tmp_path / "run.sh").write_text("python train.py --mine 2 --eos_tokem x --num_generations 8\n")
    names = {entry.what for check in lint(tmp_path / "run.sh").checks for entry in check.not_judged}
    assert "eos_tokem" in names
    assert "mine" not in names


@pytest.mark.parametrize(
    ("parser", "is_refused"),
    [
        ("TrlParser((ScriptArguments, Mine, ModelConfig)).parse_args_and_config()", True),
        ("TrlParser((Mine,)).parse_args_and_config(return_remaining_strings=True)", False),
        ("TrlParser((Mine, Other)).parse_args_and_config()", False),
    ],
)
def test_parser_of_known_classes_refuses_unknown_options(tmp_path, parser, is_refused):
    (tmp_path / "train.py").write_text(
        "from trl import GRPOConfig, GRPOTrainer, ModelConfig, ScriptArguments, TrlParser\nfrom lib import Other\n"
        f"class Mine(GRPOConfig):\n    mine: int = 1\n{parser}\n"
    )
    (tmp_path / "run.sh").write_text("python train.py --mine 2 --sleep_level 1 --num_generations 8\n")
    details = [finding.detail for finding in lint(tmp_path / "run.sh", trl="0.23.1").findings]
    assert any("no option sleep_level" in detail for detail in details) is is_refused
    assert not any("mine" in detail for detail in details)


def test_swift_refuses_unknown_keys_of_its_yaml():
    text = "rlhf_type: grpo\nuse_vllm: true\nnum_generations: 8\nmax_prompt_length: 64\n"
    assert "error CFG113" in codes(text, "yaml", ms_swift="3.12.6")
    assert "error CFG113" not in codes(
        text.replace("max_prompt_length", "max_length"), "yaml", ms_swift="3.12.6"
    )


def test_named_framework_counts_for_scripts_without_its_parser():
    """`--framework` decides if only options show the framework; ms-swift's script is known in an unknown folder."""
    run = "python train_grpo.py --use_vllm true --num_generations 8\n"
    assert [plan.framework for plan in plans(run)] == ["trl"]
    assert [plan.framework for plan in plans(run, framework="ms-swift")] == ["ms-swift"]
    run = "torchrun $(python -c 'import swift')/cli/rlhf.py --rlhf_type grpo --num_generations 8 --train_type lora\n"
    assert "error CFG113" in codes(run, ms_swift="4.4.0")


def details(text, syntax="shell", **releases):
    """Return the sentences, fixes and evidence of all findings as one text."""
    return " ".join(
        f"{finding.severity.word} {finding.detail} {finding.remedy} {finding.evidence}"
        for finding in report(text, syntax, **releases).findings
    )


def test_finding_names_the_right_option_and_quotes_the_value():
    """The fix names the option to write, or the detail the last release with it; values are quoted as written."""
    run = "python3 -m openrlhf.cli.train_ppo_ray --num_generations 4 --flash_attn --max_samples 1.28e5"
    text = details(run, openrlhf="0.8.10")
    for expected in (
        "Write n_samples_per_prompt in place of num_generations.",
        "Use --attn_implementation flash_attention_2.",
        "takes a whole number for max_samples, not '1.28e5'.",
    ):
        assert expected in text
    script = (
        "from trl import GRPOConfig\np.add_argument('--n', default=8)\n\nGRPOConfig(num_generation=a.n)\n"
    )
    assert "num_generation = a.n" in details(script, "python", trl="1.9.0")
    run = "swift rlhf --rlhf_type grpo --reward_funcs a --tensor_parallel_size 2"
    assert "no option tensor_parallel_size (last in 3.9.3)" in details(run, ms_swift="3.12.6")
    run = "trl grpo --model m --dataset_name d --num_generations 8"
    assert "Write model_name_or_path in place of model." in details(run, trl="1.16.0")
    run = VERL + "no.such_key=1"
    assert "unless this run is of a fork of verl" in details(f"{run} trainer.no_such_key=2", verl="0.9.0")
    assert "or write +no.such_key if your own code reads it." in details(run, verl="0.9.0")


def test_option_of_easyr1_is_reported_without_the_config_of_verl():
    """A recipe's own config may have other keys than verl's, but none of EasyR1's."""
    run = (
        "python3 -m recipe.dapo.main_dapo actor_rollout_ref.rollout.n=8 worker.rollout.n=4 reward_model.own=1"
    )
    assert "warning worker.rollout.n is an option of EasyR1, not of verl" in details(run, verl="0.4.1")
    assert "reward_model" not in details(run, verl="0.4.1")


def test_processes_in_a_config_are_certain_only_for_the_command_of_trl(tmp_path):
    text = "num_processes: 8\nper_device_train_batch_size: 1\ngradient_accumulation_steps: 1\nnum_generations: 16\n"
    assert "warning One generation makes 8 completions" in details(text, "yaml", trl="0.18.0")
    (tmp_path / "c.yaml").write_text(text)
    (tmp_path / "run.sh").write_text("trl grpo --config c.yaml\n")
    assert "CFG101" in {
        f.code for f in lint(tmp_path / "run.sh", trl="0.18.0").findings if f.severity > Severity.WARNING
    }


def test_option_that_keeps_all_releases_out_is_named():
    run = "python3 -m verl.trainer.main worker.rollout.n=8 trainer.total_episodes=1 trainer.max_try_make_batch=2"
    reasons = [entry.why for check in report(run).checks for entry in check.not_judged]
    assert any("lack only trainer.total_episodes" in reason for reason in reasons), reasons


def test_option_of_an_array_or_a_path_is_known():
    """Known options in an array, and a path without quotes, hide no missing option; other variables do."""
    run = 'A=()\nX=""\nif [ -n "$C" ]; then A=(--resume_from_checkpoint "$C"); X="--seed $S"; fi\n'
    run += 'swift rlhf --rlhf_type grpo --use_vllm true --vllm_mode colocate "${A[@]}" $X\n'
    assert "error CFG111" in codes(run, ms_swift="4.0.4")
    assert "error CFG111" not in codes(run.replace("A=(--r", "A=($E --r"), ms_swift="4.0.4")
    run = "vllm serve $CKPT_PATH --enable-auto-tool-choice\n"
    assert "error CFG111" in codes(run, vllm="0.11.0")
    assert "error CFG111" not in codes(run.replace("CKPT_PATH", "ARGS"), vllm="0.11.0")


def test_added_key_is_new_in_the_config_of_the_release():
    """A `+` key that only another config of the release has is not reported; with an unknown release it is.

    A text in place of a whole number is quoted in the reason.
    """
    run = "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo +actor_rollout_ref.model.lora.merge=True"
    key = "+actor_rollout_ref.model.lora.merge"
    for release, expected in (("0.7.1", False), (None, True)):
        checks = report(run, **({"verl": release} if release else {})).checks
        assert any(entry.what == key for check in checks for entry in check.not_judged) == expected
    checks = report("python3 -m verl.trainer.main worker.rollout.n=8 trainer.n_gpus_per_node=0,1").checks
    assert "its value '0,1' gives no whole number" in {it.why for check in checks for it in check.not_judged}


def test_closed_stream_is_no_file():
    assert [plan.framework for plan in plans("exec >&-\ntrl grpo --num_generations 8 <&-\n")] == ["trl"]


def test_forwarded_arguments_are_no_value_of_a_flag():
    """The forwarded arguments in `--flag "$@"` are not read as the value of the flag."""
    [settings] = read_text('trl grpo --use_vllm "$@"\n', "run.sh")
    assert settings.options["use_vllm"].data is True
    assert settings.forwards_arguments


@pytest.mark.parametrize(("release", "is_unchecked"), [("0.2.0", True), ("0.11.2", False)])
def test_checks_in_the_source_of_an_unindexed_release_are_not_checked(release, is_unchecked):
    """For a release that the index lacks, the checks in its source are reported as not checked."""
    run = "python3 -m openrlhf.cli.train_ppo_ray --pretrain x --prompt_data y"
    texts = [item.text for check in report(run, openrlhf=release).checks for item in check.not_judged]
    entry = "the checks in the source of openrlhf 0.2.0: the index has only 0.3.6.post1 to 0.11.2"
    assert (entry in texts) is is_unchecked
