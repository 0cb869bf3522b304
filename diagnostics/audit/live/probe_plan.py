"""Audit a live server: run the probes in an order in which each rules out one class of faults for the next.

`audit_server` is the plan: settings and tokenizer, prefix cache, weights, replicas, sampling.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from diagnostics.audit import checkpoint_validation
from diagnostics.audit.live import cache_replicas, probe_inputs, sampling_checks, server_settings, servers
from diagnostics.audit.live.checkpoint_identification import Identification, identify_weights
from diagnostics.audit.live.client import Client
from diagnostics.audit.live.probe_inputs import REPLICA_IDS, Budget
from diagnostics.audit.live.reference import Reference, sibling_checkpoints
from diagnostics.audit.live.servers import Server
from diagnostics.audit.live.weight_comparison import ALARM
from diagnostics.audit.results import (
    LIVE,
    Audit,
    AuditError,
    NotAvailableError,
    Result,
    masked,
)
from diagnostics.output import progress

# prompt_logprobs of a long prompt take memory for a row of the vocabulary for each of its ids.
_LONGEST, _SHORTEST = 256, 8
_COPIES, _PROMPTS, _CACHE_PROMPTS = 4, 4, 3


@dataclass(frozen=True)
class LiveAuditOptions:
    """Options of a live audit.

    Attributes:
        server: Address of the server.
        checkpoint: The folder whose weights the server should have.
        against: Other folders whose weights it may have; empty for those next to the checkpoint.
        trainer: Settings file of the trainer; None for temperature 1.
        tokens: Limit on prompt and sampled tokens.
        timeout_s: Deadline of one call.
        model: Name of the model to audit; empty for the first.
    """

    server: str
    checkpoint: Path
    against: tuple[Path, ...] = ()
    trainer: Path | None = None
    tokens: int = probe_inputs.DEFAULT_TOKENS
    timeout_s: float = 60.0
    model: str = ""


@dataclass
class _Session:
    """The inputs of the probes, and the results so far.

    Attributes:
        bos_id: The tokenizer's begin-of-sequence id; -1 for none.
        vocabulary: Number of ids that both the tokenizer and the checkpoint have.
    """

    server: Server
    reference: Reference
    trainer: server_settings.TrainerSettings
    tokenizer: Any
    settings: dict[str, Any]
    budget: Budget
    against: list[Reference] = field(default_factory=list)
    results: list[Result] = field(default_factory=list)

    def __post_init__(self) -> None:
        bos = getattr(self.tokenizer, "bos_token_id", None)
        self.bos_id = -1 if bos is None else int(bos)
        size = self.reference.vocabulary
        self.vocabulary = size if self.tokenizer is None else min(size, len(self.tokenizer))


def audit_server(options: LiveAuditOptions) -> Audit:
    """Audit a server; checks that need no tokens run first.

    Raises:
        AuditError: An input cannot be used.
        NotAvailableError: The server is asleep, paused or busy, or its weights changed during the audit.
    """
    began = time.monotonic()
    reference, trainer = Reference(options.checkpoint), server_settings.read_trainer_settings(options.trainer)
    client = Client(options.server, options.timeout_s)
    progress.update(client.address)
    server = Server(client, options.model)
    version = servers.check_awake(client)
    _check_dependencies()  # imports take seconds, so after the server was found
    settings = server.settings()
    tokenizer, problem = _load_tokenizer(reference)
    longest = min(_LONGEST, int(settings.get("max_model_len") or _LONGEST) - 2)
    if longest < _SHORTEST:  # a server may also report a negative length
        raise AuditError(f"{client.address}: max_model_len {longest + 2} is too short to audit")
    prompts = len(trainer.prompts[:_CACHE_PROMPTS]) or 1
    budget = Budget(options.tokens, longest, prompts)
    if options.tokens < budget.needed:
        raise AuditError(f"--tokens {options.tokens}: this audit takes {budget.needed} at least")
    session = _Session(server, reference, trainer, tokenizer, settings, budget)
    session.results += server_settings.check_settings(settings, trainer)
    session.results += server_settings.check_tokenization(server, tokenizer, problem)
    session.against += map(Reference, options.against or sibling_checkpoints(options.checkpoint))
    progress.update("which weights it holds")
    identified = _check_weights(session)
    progress.update("how it samples")
    _check_sampling(session, identified)
    if (now := servers.check_awake(client)) != version:
        reason = f"its weights changed from {version} to {now} meanwhile; audit again"
        raise NotAvailableError(f"{client.address}: {reason}")
    server_name = f"vllm serve {settings.get('release', '')}".strip()
    subject = {"server": server_name, "address": client.address, "checkpoint": str(options.checkpoint)}
    seconds = time.monotonic() - began
    return Audit(LIVE, subject, tuple(session.results), client.tokens, client.requests, seconds)


def _check_dependencies() -> None:
    try:
        import torch  # noqa: F401
        import transformers  # noqa: F401
    except ImportError as error:
        fix = "pip install 'grpo-doctor[audit]', or run it with the trainer's Python"
        raise AuditError(f"{error.name} is not installed here: {fix}") from error


def _load_tokenizer(reference: Reference) -> tuple[Any, str]:
    """Return (tokenizer of the checkpoint or its adapter's base, ""), or (None, the problem)."""
    has_own = any(reference.folder.glob("tokenizer*"))
    try:
        return checkpoint_validation.load_tokenizer(reference.folder if has_own else reference.weights), ""
    except AuditError as error:
        return None, str(error)


def _check_weights(session: _Session) -> Identification:
    """Compare the prefix cache, the weights and the replicas, and add their results (P1 to P4, P14)."""
    server = session.server
    comparison = _probe_cache(session)
    before = server.client.tokens
    identified, first = _identify(session)
    cost = server.client.tokens - before
    same = _check_replicas(session, identified, first[:REPLICA_IDS])
    if cache_replicas.hides_weights(same, identified.result):
        identified.result, identified.weights = masked("weights", same.family, decisive=True), None
    cache = cache_replicas.check_cache(comparison, identified.floor)
    session.results += [replace(identified.result, tokens=cost), cache, same]
    return identified


def _identify(session: _Session) -> tuple[Identification, list[int]]:
    """Identify the weights, by a second comparison if the first finds a difference; also return the first sequence."""
    import torch

    server, budget = session.server, session.budget
    before, vocabulary, bos_id = server.client.tokens, session.vocabulary, session.bos_id
    dtype, staleness = str(session.settings.get("dtype", "")), session.trainer.max_staleness
    scores: list[float] = []

    def identify(new: list[list[int]]) -> Identification:
        scores.extend(score for ids in new for score in server.score(ids))
        engine = torch.tensor(scores, dtype=torch.float64)
        return identify_weights(session.reference, session.against, sequences, engine, dtype, staleness)

    sequences = probe_inputs.score_sequences(
        session.tokenizer, vocabulary, budget.longest, budget.first_comparison, bos_id
    )
    identified = identify(list(sequences))
    remaining = budget.second_comparison(server.client.tokens - before)
    # Skip the second comparison (four times as long for a large model) if another version explains all differences.
    is_known = identified.result.family == "weights/version" and identified.result.is_explained
    if not identified.result.is_clean and not is_known and remaining > budget.longest:
        more = probe_inputs.score_sequences(None, vocabulary, budget.longest, remaining, bos_id)
        sequences += more
        identified = identify(more)
    return identified, sequences[0]


def _probe_cache(session: _Session) -> cache_replicas.CacheComparison:
    """Score long prompts with and without the prefix cache: the trainer's prompts, or a fixed one."""
    longest, tokenizer, texts = session.budget.longest, session.tokenizer, session.trainer.prompts
    prompts = [probe_inputs.long_prompt(tokenizer, session.vocabulary, longest, session.bos_id)]
    if texts and tokenizer is not None:
        prompts = [list(tokenizer(text)["input_ids"])[:longest] for text in texts[:_CACHE_PROMPTS]]
    return cache_replicas.probe_cache(session.server, prompts)


def _check_replicas(session: _Session, identified: Identification, ids: Sequence[int]) -> Result:
    exact = identified.weights.scores([ids], identified.dtype) if identified.weights else None
    floor, alarm = identified.floor, 2 * ALARM[identified.dtype] * identified.floor
    return cache_replicas.check_replicas(session.server, ids, exact, floor, alarm)


def _check_sampling(session: _Session, identified: Identification) -> None:
    """Check sampled ids and log-probs with the weights that the engine has, and add the results (P5, P6, P8, P9)."""
    server, tokenizer, weights = session.server, session.tokenizer, identified.weights
    before = server.client.tokens
    prompts = probe_inputs.sample_prompts(tokenizer, session.vocabulary, session.bos_id, _PROMPTS)
    remaining = session.budget.sampling - sum(map(len, prompts))
    size = max(4, remaining // (_COPIES * _PROMPTS) - len(prompts[0]))
    longest = int(session.settings.get("max_model_len") or 0)
    size = min(size, longest - len(prompts[0])) if longest else size
    completions = server.sample(prompts, size, session.trainer.request, _COPIES)
    vocabulary = session.reference.vocabulary
    known = [entry for entry in completions if all(0 <= token < vocabulary for token in entry.ids)]
    results = sampling_checks.check_vocabulary(completions, 0 if tokenizer is None else len(tokenizer))
    if weights is None:
        hiding = identified.result.masked_by or identified.result.family
        results += [masked(topic, hiding, decisive=True) for topic in ("sampling", "logprobs")]
    elif known:
        mode, expected = str(session.settings.get("logprobs_mode", "")), session.trainer.sampling
        results += sampling_checks.check_sampling(weights, known, identified.dtype, expected, mode)
    cost = server.client.tokens - before
    session.results += [replace(result, tokens=cost) for result in results]
