"""Audit of a live server: the sequence of probes, in which each rules out one class of faults for the next."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from diagnostics.audit import checkpoint_validation
from diagnostics.audit.live import cache_replicas, probe_inputs, sampling_checks, servers
from diagnostics.audit.live.checkpoint_identification import Identification, allow_staleness, identify_weights
from diagnostics.audit.live.client import Client
from diagnostics.audit.live.precision import ALARM
from diagnostics.audit.live.probe_inputs import MIN_TOKENS, REPLICA_IDS, Budget
from diagnostics.audit.live.reference import Reference, sibling_checkpoints
from diagnostics.audit.live.sampling_distribution import Completion
from diagnostics.audit.live.server_settings import TrainerSettings, check_settings, read_trainer_settings
from diagnostics.audit.live.servers import Server, VllmServe
from diagnostics.audit.live.tokenization import check_tokenization
from diagnostics.audit.model import (
    CLEAN,
    FAULT,
    LIVE,
    MASKED,
    Audit,
    AuditError,
    Estimate,
    NotAvailableError,
    Result,
    RunnerUp,
    skipped,
)
from diagnostics.output import progress

# prompt_logprobs of a long prompt take memory for a row of the vocabulary for each of its ids.
_LONGEST = 256
_COPIES, _PROMPTS, _CACHE_PROMPTS = 4, 4, 3


@dataclass(frozen=True)
class LiveAudit:
    """Options of a live audit.

    Attributes:
        server: Address.
        checkpoint: The folder whose weights it should hold.
        against: Other folders that it may hold; empty for those next to the checkpoint.
        trainer: Settings file of the trainer; None for temperature 1.
        replicas: Addresses of servers that should be equal.
        tokens: Prompt and sampled tokens at most.
        timeout_s: Deadline of one call.
        model: Name of the model to audit; empty for the first.
    """

    server: str
    checkpoint: Path
    against: tuple[Path, ...] = ()
    trainer: Path | None = None
    replicas: tuple[str, ...] = ()
    tokens: int = probe_inputs.DEFAULT_TOKENS
    timeout_s: float = 60.0
    model: str = ""


@dataclass
class _Session:
    """What is known so far."""

    server: Server
    reference: Reference
    trainer: TrainerSettings
    tokenizer: Any
    settings: dict[str, Any]
    budget: Budget
    results: list[Result] = field(default_factory=list)

    @property
    def first_id(self) -> int:
        """Return the id that the tokenizer begins a sequence with; -1 for none."""
        return (
            -1
            if self.tokenizer is None or self.tokenizer.bos_token_id is None
            else int(self.tokenizer.bos_token_id)
        )

    @property
    def vocabulary(self) -> int:
        """Return the number of ids that both sides have."""
        size = self.reference.vocabulary
        return size if self.tokenizer is None else min(size, len(self.tokenizer))


def audit_server(options: LiveAudit) -> Audit:
    """Audit a server; what costs nothing is checked first.

    Raises:
        AuditError: An input cannot be used.
        NotAvailableError: The server may not be audited now.
    """
    began = time.monotonic()
    if options.tokens < MIN_TOKENS:
        raise AuditError(f"--tokens {options.tokens}: an audit of a server takes {MIN_TOKENS} at least")
    reference = Reference(options.checkpoint)
    trainer = read_trainer_settings(options.trainer)
    client = Client(options.server, options.timeout_s)
    progress.update(client.address)
    server = servers.identify_server(client, options.model)
    version = servers.check_awake(client)
    _check_dependencies()  # imports take seconds, so after the server was found
    settings = server.settings()
    tokenizer, problem = _load_tokenizer(reference)
    longest = min(_LONGEST, int(settings.get("max_model_len") or _LONGEST) - 2)
    prompts = len(trainer.prompts[:_CACHE_PROMPTS]) or 1
    session = _Session(server, reference, trainer, tokenizer, settings,
                       Budget(options.tokens, longest, len(options.replicas), prompts))  # fmt: skip
    session.results += check_settings(settings, trainer, options.checkpoint)
    session.results += check_tokenization(server, tokenizer, problem)
    replicas = [
        servers.identify_server(Client(url, options.timeout_s), options.model) for url in options.replicas
    ]
    for replica in replicas:
        servers.check_awake(replica.client)
    against = [Reference(path) for path in options.against or sibling_checkpoints(options.checkpoint)]
    progress.update("which weights it holds")
    identified = _check_weights(session, against, replicas)
    progress.update("how it samples")
    _check_sampling(session, identified, against)
    if (now := servers.check_awake(client)) != version:
        raise NotAvailableError(
            f"{client.address}: its weights changed from {version} to {now} meanwhile; audit again"
        )
    subject = {"server": f"{server.name} {settings.get('release', '')}".strip(), "address": client.address,
               "checkpoint": str(options.checkpoint)}  # fmt: skip
    clients = [client, *(replica.client for replica in replicas)]
    return Audit(
        LIVE, subject, tuple(session.results), sum(each.tokens for each in clients),
        sum(each.requests for each in clients), time.monotonic() - began, identified.pictures if identified else {},
    )  # fmt: skip


def _check_dependencies() -> None:
    try:
        import torch  # noqa: F401
        import transformers  # noqa: F401
    except ImportError as error:
        fix = "pip install 'grpo-doctor[audit]', or run it with the trainer's Python"
        raise AuditError(f"{error.name} is not installed here: {fix}") from error


def _load_tokenizer(reference: Reference) -> tuple[Any, str]:
    """Load the tokenizer of the checkpoint, or of an adapter's base."""
    has_own = any(reference.folder.glob("tokenizer*"))
    try:
        return checkpoint_validation.load_tokenizer(reference.folder if has_own else reference.weights), ""
    except AuditError as error:
        return None, str(error)


def _check_weights(
    session: _Session, others: list[Reference], replicas: list[Server]
) -> Identification | None:
    """Run P1 to P4, P2 and P14; return None if the server cannot score ids."""
    server, budget = session.server, session.budget
    if lacks := server.lacks.get("scores"):
        session.results += [
            skipped("weights", "P1", "endpoint_lacks", "{lacks}", lacks=lacks),
            skipped("cache", "P2", "endpoint_lacks", "{lacks}", lacks=lacks),
            cache_replicas.replicas_skipped(lacks),
        ]
        return None
    twins = _probe_cache(session)
    before = server.client.tokens
    identified, first = _identify(session, others)
    cost = server.client.tokens - before
    same = _check_replicas(session, identified, replicas, first[:REPLICA_IDS])
    if cache_replicas.hides_weights(same, identified.result):
        identified.result = Result("weights", MASKED, "P1", masked_by=same.family, decisive=True)
        identified.weights = None
    session.results.append(replace(identified.result, tokens=cost))
    if twins is not None:
        session.results.append(cache_replicas.check_cache(twins, identified.floor))
    elif budget.cache_prompts:
        lacks = server.lacks.get("cache", "a cache_salt")
        session.results.append(skipped("cache", "P2", "endpoint_lacks", "{lacks}", lacks=lacks))
    else:
        session.results.append(_needs_tokens("cache", "P2", budget))
    session.results.append(same)
    return identified


def _identify(session: _Session, others: list[Reference]) -> tuple[Identification, list[int]]:
    """Identify the weights, with more ids if a first comparison is not clean; return the first sequence."""
    import torch

    server, budget, reference = session.server, session.budget, session.reference
    before = server.client.tokens
    scores: list[float] = []

    def identify(new: list[list[int]]) -> Identification:
        scores.extend(score for ids in new for score in server.score(ids))
        engine = torch.tensor(scores, dtype=torch.float64)
        dtype = str(session.settings.get("dtype", ""))
        return identify_weights(reference, others, sequences, engine, dtype, session.trainer.max_staleness)

    sequences = probe_inputs.score_sequences(
        session.tokenizer, session.vocabulary, budget.longest, budget.first, session.first_id
    )
    identified = identify(list(sequences))
    left = budget.second(server.client.tokens - before)
    # A large model's second comparison takes four times as long, and a version that explains all is already known.
    is_known = reference.large and identified.explained and identified.result.family == "weights/version"
    if identified.result.outcome != CLEAN and not is_known and left > budget.longest:
        more = probe_inputs.score_sequences(None, session.vocabulary, budget.longest, left, session.first_id)
        sequences += more
        identified = identify(more)
    return identified, sequences[0]


def _needs_tokens(family: str, probe: str, budget: Budget) -> Result:
    return skipped(family, probe, "more_tokens", "--tokens {tokens}", tokens=budget.needed_for_all)


def _probe_cache(session: _Session) -> cache_replicas.Twins | None:
    """Send the trainer's prompts twice, or one that every audit sends, which a second audit finds in the cache."""
    most, longest = session.budget.cache_prompts, session.budget.longest
    if not isinstance(session.server, VllmServe) or not most:
        return None
    if session.trainer.prompts and session.tokenizer is not None:
        texts = session.trainer.prompts[:most]
        prompts = [list(session.tokenizer(text)["input_ids"])[:longest] for text in texts]
    else:
        prompts = [probe_inputs.long_prompt(session.tokenizer, session.vocabulary, longest, session.first_id)]
    return cache_replicas.probe_cache(session.server, prompts)


def _check_replicas(
    session: _Session, identified: Identification, replicas: list[Server], ids: Sequence[int]
) -> Result:
    if not session.budget.replica_calls:
        return _needs_tokens("replicas", "P14", session.budget)
    if lacking := [replica for replica in replicas if "scores" in replica.lacks]:
        return cache_replicas.replicas_skipped(lacking[0].lacks["scores"])
    exact = identified.weights.scores([ids], identified.dtype) if identified.weights else None
    alarm = 2 * ALARM[identified.dtype] * identified.floor
    return cache_replicas.check_replicas(session.server, replicas, ids, exact, identified.floor, alarm)


def _check_sampling(session: _Session, identified: Identification | None, against: list[Reference]) -> None:
    """Run P5, P6, P8 and P9 with the weights that the engine holds."""
    server = session.server
    before = server.client.tokens
    prompts = probe_inputs.sample_prompts(session.tokenizer, session.vocabulary, session.first_id, _PROMPTS)
    room = session.budget.sampling - sum(map(len, prompts))
    size = max(4, room // (_COPIES * _PROMPTS) - len(prompts[0]))
    longest = int(session.settings.get("max_model_len") or 0)
    size = min(size, longest - len(prompts[0])) if longest else size
    completions = server.sample(prompts, size, session.trainer.request, _COPIES)
    cost = server.client.tokens - before
    known = [
        each for each in completions if probe_inputs.in_vocabulary(each.ids, session.reference.vocabulary)
    ]
    results = sampling_checks.check_vocabulary(
        completions, len(session.tokenizer) if session.tokenizer is not None else 0
    )
    if identified is not None and identified.weights is None:
        results += sampling_checks.hidden_by(identified.result.masked_by or identified.result.family)
    elif known:
        weights = identified.weights if identified else session.reference
        sampling = _judge_samples(
            session, weights or session.reference, identified.dtype if identified else "", known
        )
        if identified is None and any(result.family == "sampling/law" for result in sampling):
            sampling = _identify_by_samples(session, sampling, against, known)
        results += sampling
    session.results += [replace(result, tokens=cost) for result in results]


def _identify_by_samples(
    session: _Session, results: list[Result], against: list[Reference], completions: list[Completion]
) -> list[Result]:
    """Try other checkpoints' weights, if none can be scored and no parameters fit the checkpoint's."""
    before = next(result for result in results if result.family == "sampling/law")
    for other in filter(session.reference.fits, against):
        candidate = _judge_samples(session, other, "", completions)
        other.release()
        sampling = next((result for result in candidate if result.topic == "sampling"), None)
        if sampling is None or sampling.alarm is None or sampling.family == "sampling/law":
            continue
        if sampling.residual is not None and sampling.residual > sampling.alarm:
            continue
        version = Result(
            "weights/version", FAULT, "P5", f"the engine holds the weights of {other.name}, not the checkpoint's",
            "SYN003" if other.name == "base" else "", {"name": other.name},
            (Estimate("version", other.name, expected=session.reference.name),), sampling.residual, sampling.floor,
            sampling.alarm, RunnerUp("the checkpoint", before.residual or 0.0), sampling.count, decisive=True,
        )  # fmt: skip
        return [allow_staleness(version, against, session.trainer.max_staleness), *candidate]
    return results


def _judge_samples(
    session: _Session, weights: Reference, dtype: str, completions: list[Completion]
) -> list[Result]:
    """Judge the samples in the type that fits best, if the scores did not show which."""
    mode = str(session.settings.get("logprobs_mode", ""))
    types = [dtype] if dtype else list(dict.fromkeys((weights.dtype, "float32", "bfloat16")))
    judged = [
        sampling_checks.check_sampling(weights, completions, kind, session.trainer.sampling, mode)
        for kind in types
    ]

    def badness(results: list[Result]) -> tuple[int, float]:
        faults = sum(result.outcome == FAULT for result in results)
        return faults, sum(result.residual for result in results if result.residual is not None)

    return min(judged, key=badness)
