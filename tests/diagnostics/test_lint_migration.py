"""`lint --from X==1 --to X==2` reports what an upgrade changes for a run, and prints a patch of the certain edits."""

import json
import subprocess
import sys

import pytest

from diagnostics import __main__ as command

TRL = """from trl import GRPOConfig
args = GRPOConfig(
    use_vllm=True,
    vllm_dtype="auto",
    vllm_guided_decoding_regex=r"\\d+",
    scale_rewards=False,
    max_prompt_length=512,
    temperature=0.9,
)
"""
SWIFT = """swift rlhf --rlhf_type grpo --model Qwen/Qwen2.5-7B \\
    --train_type lora \\
    --multi_turn_func math_tip_trick \\
    --top_k 50
"""
VERL = """python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo \\
    actor_rollout_ref.model.path=Qwen/Qwen2.5-7B \\
    reward_model.strategy=fsdp \\
    ray_init.num_cpus=16
"""
OPENRLHF = (
    "python3 -m openrlhf.cli.train_ppo_ray --pretrain m --vllm_num_engines 8 --advantage_estimator gae\n"
)
VLLM = "vllm serve m --swap-space 8 --max-model-len 4096\n"
# File: text, both releases, and the reported options with their severity.
CASES = {
    "train.py": (
        TRL, "trl==0.17", "trl==1.16",
        "error vllm_dtype, error vllm_guided_decoding_regex, error max_prompt_length, warning scale_rewards, "
        "warning vllm_mode, warning max_completion_length, warning top_k, warning beta, warning loss_type, "
        "warning vllm_importance_sampling_correction",
    ),
    "swift.sh": (
        SWIFT, "ms-swift==3.8.0", "ms-swift==4.6.0", "error train_type, error multi_turn_func, warning top_p",
    ),
    "verl.sh": (VERL, "verl==0.4.1", "verl==0.9.1", "error reward_model.strategy, error ray_init.num_cpus"),
    "openrlhf.sh": (
        OPENRLHF, "openrlhf==0.9.0", "openrlhf==0.11.2",
        "error pretrain, error vllm_num_engines, error advantage_estimator, warning prompt_max_len, "
        "warning rollout.micro_batch_size, warning train.micro_batch_size",
    ),
    "vllm.sh": (VLLM, "vllm==0.10.2", "vllm==0.33", "error swap_space, warning gpu_memory_utilization"),
}  # fmt: skip


@pytest.fixture
def migrate(tmp_path, capsys, monkeypatch):
    """Return a function that lints a file with this text and returns exit code, stdout and stderr."""

    def migrate(name, text, *options):
        monkeypatch.chdir(tmp_path)
        (tmp_path / name).write_bytes(text.encode())
        monkeypatch.setattr(sys, "argv", arguments := ["lint", name, *options])
        code = command.main(arguments)
        assert (tmp_path / name).read_bytes() == text.encode()
        return code, *capsys.readouterr()

    return migrate


@pytest.mark.parametrize("name", CASES)
def test_changes_for_a_run_are_reported(migrate, name):
    """Removed options, values of another type, and changed defaults of unset options are reported."""
    text, old, new, expected = CASES[name]
    code, output, _ = migrate(name, text, "--from", old, "--to", new, "--format", "json")
    report = json.loads(output)
    keys = [
        f"{item['severity']} {item['evidence'][0]['text'].split(' = ')[0]}" for item in report["findings"]
    ]
    assert sorted(keys) == sorted(expected.split(", "))
    assert (code, {item["code"] for item in report["findings"]}) == (1, {"CFG113"})
    assert migrate(name, text, "--from", new, "--to", new)[0] == 0


@pytest.mark.parametrize(
    ("name", "removed", "added"),
    [
        (
            "train.py",
            [TRL.splitlines()[3], TRL.splitlines()[4]],
            ['    vllm_structured_outputs_regex=r"\\d+",'],
        ),
        ("swift.sh", ["    --train_type lora \\"], ["    --tuner_type lora \\"]),
        ("verl.sh", ["    ray_init.num_cpus=16"], ["    ray_kwargs.ray_init.num_cpus=16"]),
        ("vllm.sh", [], []),
    ],
)
def test_patch_has_certain_edits_only(migrate, tmp_path, name, removed, added):
    """The patch, which git applies, has exact renames and removes options without effect; lint writes no file."""
    text, old, new, _ = CASES[name]
    code, patch, _ = migrate(name, text, "--from", old, "--to", new, "--diff")
    assert (code, bool(patch)) == (1, bool(removed))
    if patch:
        subprocess.run(["git", "apply", "-p0"], input=patch, text=True, check=True, cwd=tmp_path)
        expected = text.replace("\n".join(removed), "\n".join(added))
        assert (tmp_path / name).read_text() == expected


@pytest.mark.parametrize("text", [TRL.replace("\n", "\r\n"), TRL.replace("use_vllm", "\tuse_vllm")])
def test_patch_is_printed_only_if_it_applies(migrate, tmp_path, text):
    """A patch of a file with CRLF line ends would not apply and is not printed; a tab is kept."""
    _, patch, _ = migrate("train.py", text, "--from", "trl==0.17", "--to", "trl==1.16", "--diff")
    assert bool(patch) == ("\r" not in text)
    if patch:
        subprocess.run(["git", "apply", "-p0"], input=patch, text=True, check=True, cwd=tmp_path)


def test_patch_prints_no_secret(migrate):
    """Lines around an edit are left out if they contain a secret."""
    text = SWIFT.replace(
        "swift rlhf", "export WANDB_API_KEY=0123456789abcdef0123456789abcdef01234567\nswift rlhf"
    )
    _, patch, _ = migrate("swift.sh", text, "--from", "ms-swift==3.8", "--to", "ms-swift==4.6", "--diff")
    assert "tuner_type" in patch
    assert "0123456789" not in patch


def test_command_line_may_abbreviate_an_option(migrate):
    """An abbreviated option is accepted on the command line, as by argparse, and reported in a file."""
    releases = ("--from", "trl==0.15.2", "--to", "trl==1.16")
    line, key = "trl grpo --vllm_max_model_len 4096\n", "use_vllm: true\nvllm_max_model_len: 4096\n"
    assert "vllm_max_model_len" not in migrate("run.sh", line, *releases)[1]
    assert "Use vllm_max_model_length" in migrate("run.yaml", "num_generations: 8\n" + key, *releases)[1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--from", "trl==0.17", "--to", "trl==1.17"], "nearest releases are 1.16.0, 1.15.0"),
        (["--from", "trl==0.17", "--to", "verl==0.9.1"], "two releases of one package"),
        (["--from", "easyr1==1", "--to", "trl==1.16"], "easyr1==1: expected PACKAGE==VERSION"),
        (["--from", "trl==new", "--to", "trl==1.16"], "trl==new: expected PACKAGE==VERSION"),
        (["--from", "trl==0.17"], "expected --from and --to together"),
        (["--diff"], "expected --from and --to together"),
    ],
)
def test_invalid_releases_are_refused(migrate, options, message):
    """The error names the invalid text and what to write instead."""
    code, _, error = migrate("train.py", TRL, *options)
    assert (code, message in error) == (2, True)


def test_run_of_another_framework_is_not_checked(migrate):
    """A run of another framework is not compared, so the exit code is 3."""
    assert migrate("swift.sh", SWIFT, "--from", "trl==0.17", "--to", "trl==1.16")[0] == 3
