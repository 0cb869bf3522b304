"""The rules of `lint`: pure functions from a run plan and the releases to findings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnostics.lint.rules import (
    batches,
    engines,
    lengths,
    memory,
    options,
    refusals,
    resources,
    sampling,
    servers,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from diagnostics.lint.plan import RunPlan
    from diagnostics.lint.versions import Versions
    from diagnostics.report.findings import Finding

    Rule = Callable[[RunPlan, Versions], list[Finding]]
    RuleOfMany = Callable[[list[RunPlan], Versions], list[Finding]]

# Each looks at one plan.
RULES: dict[str, tuple[Rule, ...]] = {
    "mode and resources": (resources.swift_workers, resources.swift_modes),
    "devices": (resources.tensor_parallel, resources.openrlhf_colocate, resources.processes_and_devices),
    "batches and groups": (
        batches.whole_groups,
        batches.evaluation_groups,
        batches.whole_steps,
        batches.group_of_one,
        batches.verl_batches,
        batches.easyr1_batches,
        batches.openrlhf_batches,
        batches.deepspeed_batches,
    ),
    "lengths": (lengths.model_length, lengths.batched_tokens),
    "memory and sleep": (
        memory.crowded,
        memory.share_out_of_range,
        memory.sleep_without_effect,
        memory.expandable,
    ),
    "servers and ports": (servers.ignored_options, servers.ports),
    "sampling": (
        sampling.truncated,
        sampling.penalised,
        sampling.greedy,
        sampling.raw_logprobs,
        sampling.raw_logprobs_of_a_server,
    ),
    "options": (
        options.renamed,
        options.verl_sync,
        options.openrlhf_spelling,
        options.exclusive,
        refusals.refused,
        options.lost,
    ),
    "engine": (engines.parked_sequence, engines.shared_evaluation, engines.ray_address),
    "catalogue": (engines.catalogued,),
}
# These look at all plans together: a trainer and the server it uses.
RULES_OF_MANY: dict[str, tuple[RuleOfMany, ...]] = {
    "trainer beside server": (
        resources.shared_devices,
        servers.one_port_for_two,
        servers.found_elsewhere,
        servers.length_of_the_server,
    ),
}
