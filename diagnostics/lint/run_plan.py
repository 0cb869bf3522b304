"""The run plan: one vocabulary for what five frameworks are told in five ways."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from diagnostics.frameworks import CONFIGURED
from diagnostics.lint.versions import Versions

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from diagnostics.lint.values import Settings, Value

# Every name that a plan may hold. Rules and the catalogue's [[config]] speak of nothing else.
VOCABULARY = {
    "framework": f"{', '.join(CONFIGURED[:-1])} or {CONFIGURED[-1]}",
    "rollout.engine": "what samples: vllm, transformers, sglang ...",
    "rollout.mode": "colocate, server, or async where the engine has devices of its own in the same run",
    "rollout.async": "true where rollouts are made with weights older than the trainer's",
    "rollout.depth": "by how many batches rollouts may run ahead",
    "rollout.partial": "true where a rollout goes on over a weight update",
    "rollout.multi_turn": "true where a scheduler talks to the engine more than once a sample",
    "devices.visible": "number of devices that the command sees",
    "devices.ids": "their numbers",
    "devices.per_node": "devices, or training processes, on each node",
    "devices.nodes": "number of nodes",
    "devices.train": "number of training processes over all nodes",
    "devices.rollout": "number of engines, or of devices for them",
    "engine.tensor_parallel": "devices that share one copy of the model",
    "engine.pipeline_parallel": "stages of one copy",
    "engine.data_parallel": "copies behind one server",
    "engine.expert_parallel": "devices that share the experts",
    "engine.memory_share": "share of a device's memory that the engine takes",
    "engine.sleep": "true where the engine gives its memory back while the trainer works",
    "engine.sleep_level": "1 keeps the weights in host memory, 2 drops them",
    "engine.chunked_prefill": "true where a prompt may be computed in pieces",
    "engine.async_output": "true where the V0 engine applies a step's output while the next one runs",
    "engine.prefix_caching": "true where keys of a common prompt are kept",
    "engine.max_length": "tokens of prompt and completion together",
    "engine.max_batched_tokens": "tokens in one step of the engine",
    "engine.logprobs_mode": "raw_logprobs or processed_logprobs",
    "engine.generation_config": "auto where the model's folder sets sampling, vllm where it does not",
    "engine.executor": "ray, mp, uni or external_launcher",
    "engine.v1": "true or false where VLLM_USE_V1 says so",
    "server.host": "host names or addresses of the server",
    "server.address": "its whole address",
    "server.port": "its port or ports",
    "server.group_port": "port of the weight transfer",
    "server.timeout": "seconds to wait for it",
    "group.size": "completions for each prompt",
    "group.eval_size": "the same in evaluation",
    "batch.per_device": "completions a device takes in one forward pass",
    "batch.eval_per_device": "the same in evaluation",
    "batch.accumulation": "forward passes in one optimizer step",
    "batch.generation": "completions generated at once over all devices",
    "batch.steps_per_generation": "forward passes that one generation serves",
    "batch.prompts": "prompts in one rollout",
    "batch.mini": "prompts in one optimizer step",
    "batch.micro": "sequences in one forward pass, per device",
    "batch.experience_micro": "sequences in one pass that computes log-probs, per device",
    "batch.dynamic": "true where the batch is cut by tokens",
    "data.max_prompt": "tokens of a prompt at the most",
    "data.max_completion": "tokens of a completion at the most",
    "data.max_total": "tokens of both",
    "data.filters_overlong": "true where prompts that are too long are left out",
    "sampling.temperature": "of training's rollouts",
    "sampling.top_p": "1 is neutral",
    "sampling.top_k": "0 or -1 is neutral",
    "sampling.min_p": "0 or null is neutral",
    "sampling.repetition_penalty": "1 is neutral",
    "sampling.truncated": "true where one of them cuts the distribution",
    "train.evaluates": "true where the run evaluates while it trains",
    "train.several_steps_a_generation": "true where dapo or cispo take several optimizer steps on one generation",
    "train.estimator": "how advantages are made: grpo, gae ...",
    "train.correction": "true where trainer and engine log-probs are corrected for",
    "train.sequence_parallel": "devices that share one sequence",
    "train.offloads": "true where the trainer gives its memory back while the engine works",
    "sync.resets_prefix_cache": "whether a weight sync drops cached keys",
    "sync.pause_mode": "what a pause does with requests under way",
    "memory.allocator": "PYTORCH_CUDA_ALLOC_CONF",
    "memory.expandable": "true where it asks for expandable segments",
    "ray.address": "RAY_ADDRESS, or the address given",
    "ray.namespace": "Ray's namespace",
}

# What every run has, said or not.
_ALWAYS = "devices.train"


@dataclass
class RunPlan:
    """What a run is going to be.

    Attributes:
        settings: What was read, in the framework's own words.
        values: Names of VOCABULARY with their values; a name that is not there is not known.
        versions: The releases that it is judged for.
        missed: Names that were asked for and are not known, though the run has them; with what was read, if anything.
    """

    framework: str
    settings: Settings
    values: dict[str, Value] = field(default_factory=dict)
    versions: Versions = field(default_factory=Versions)
    missed: dict[str, Value | None] = field(default_factory=dict)

    @property
    def releases(self) -> Mapping[str, str]:
        """What it is judged for, by package; what is not there is not known."""
        return self.versions.releases

    @property
    def role(self) -> str:
        """`train`, or `serve` for a server that only samples."""
        return self.settings.role

    def get(self, name: str) -> Any:
        """What is known of a name; None where nothing is.

        Raises:
            KeyError: The vocabulary has no such name: a mistake in a rule.
        """
        if name not in VOCABULARY:
            raise KeyError(name)
        value = self.values.get(name)
        if value is None:
            # Every run has some number of these; a name that is merely not set has its default.
            if name == _ALWAYS:
                self.missed[name] = None
            return None
        if not value.known:
            self.missed[name] = value
            return None
        return value.data

    def whole(self, name: str) -> int | None:
        """A whole number, where one is known."""
        data = self.get(name)
        return data if isinstance(data, int) and not isinstance(data, bool) else None

    def number(self, name: str) -> float | None:
        """A number, where one is known."""
        data = self.get(name)
        return float(data) if isinstance(data, int | float) and not isinstance(data, bool) else None

    def put(self, name: str, value: Value | None) -> None:
        """Sets a name of the vocabulary, or leaves it as it is."""
        if value is not None:
            if name not in VOCABULARY:
                raise KeyError(name)
            self.values[name] = value

    def default(self, name: str, value: Value | None) -> None:
        """Sets a name that nothing set."""
        if name not in self.values:
            self.put(name, value)

    def evidence(self, names: Iterable[str]) -> list[Value]:
        """The values behind names, those that are there."""
        return [self.values[name] for name in names if name in self.values]
