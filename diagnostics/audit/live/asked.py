"""What a server is asked, in which order, and what comes of it: each question leaves one class of faults less."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from diagnostics.audit import folders
from diagnostics.audit.errors import AuditError, NotAskedError
from diagnostics.audit.live import (
    cache,
    ids,
    instead,
    material,
    precision,
    replicas,
    sampling,
    settings,
    trainer,
    weights,
)
from diagnostics.audit.live import endpoints as servers
from diagnostics.audit.live.budget import LEAST, REPLICA, Budget
from diagnostics.audit.live.client import Client
from diagnostics.audit.live.reference import Reference, siblings
from diagnostics.audit.model import (
    CLEAN,
    FAULT,
    LIVE,
    MASKED,
    NOT_ASKED,
    Audit,
    Estimate,
    Fact,
    ProbeAnswer,
    RunnerUp,
)
from diagnostics.output import pulse

if TYPE_CHECKING:
    from pathlib import Path

    from diagnostics.audit.live.endpoints import Drawn, Endpoint
    from diagnostics.audit.live.weights import Weighed

# Of one call: prompt_logprobs of a long prompt take memory for a row of the vocabulary for each of its ids.
_LONGEST = 256
_COPIES, _PROMPTS = 4, 4
# Prompts of the trainer's own that are asked about the cache.
_LONG = 3


@dataclass(frozen=True)
class Asked:
    """What a live audit is given.

    Attributes:
        server: Its address.
        checkpoint: The folder whose weights it should hold.
        against: Other folders that it may hold; none: those beside the checkpoint.
        trainer: What the trainer samples and computes with, as JSON or TOML; None: temperature 1, and nothing said.
        replicas: Addresses of servers that should be the same.
        tokens: At most so many, prompts and samples together.
        timeout_s: Of one call.
        model: Which of the models that the server has, as an adapter's name; empty: the first.
    """

    server: str
    checkpoint: Path
    against: tuple[Path, ...] = ()
    trainer: Path | None = None
    replicas: tuple[str, ...] = ()
    tokens: int = 4000
    timeout_s: float = 60.0
    model: str = ""


@dataclass
class _Work:
    """What is known so far."""

    endpoint: Endpoint
    reference: Reference
    side: trainer.TrainerSide
    words: Any
    unread: str
    told: dict[str, Any]
    budget: Budget
    answers: list[ProbeAnswer] = field(default_factory=list)

    @property
    def first(self) -> int:
        """What a sequence begins with: as the tokenizer's own."""
        return -1 if self.words is None or self.words.bos_token_id is None else int(self.words.bos_token_id)

    @property
    def vocabulary(self) -> int:
        """Ids that both sides have."""
        return (
            min(self.reference.vocabulary, len(self.words))
            if self.words is not None
            else self.reference.vocabulary
        )


def audit_server(asked: Asked) -> Audit:
    """Asks a server.

    Raises:
        AuditError: What was given can't be used.
        NotAskedError: It may not be asked now.
    """
    began = time.monotonic()
    if asked.tokens < LEAST:
        raise AuditError(f"--tokens {asked.tokens}: an audit of a server takes {LEAST} at least")
    for name in ("torch", "transformers"):
        if find_spec(name) is None:
            raise _lacking(name)
    reference = Reference(asked.checkpoint)
    side = trainer.read(asked.trainer)
    client = Client(asked.server, asked.timeout_s)
    pulse.asking(client.address)
    endpoint = servers.identified(client, asked.model)
    version = servers.check_awake(client)
    # Loading what computes takes seconds: a server that is not there is told before.
    _check_extra()
    words, unread = _tokenizer(reference)
    told = endpoint.settings()
    longest = min(_LONGEST, int(told.get("max_model_len") or _LONGEST) - 2)
    budget = Budget(asked.tokens, longest, len(asked.replicas), len(side.prompts[:_LONG]) or 1)
    work = _Work(endpoint, reference, side, words, unread, told, budget)
    work.answers += settings.asked(work.told, side, asked.checkpoint)
    work.answers += ids.asked(endpoint, words, unread)
    others = [servers.identified(Client(url, asked.timeout_s), asked.model) for url in asked.replicas]
    for other in others:
        servers.check_awake(other.client)
    against = [Reference(path) for path in asked.against or siblings(asked.checkpoint)]
    pulse.asking("which weights it holds")
    weighed = _weights(work, against, others)
    pulse.asking("what it samples by")
    _law(work, weighed, against)
    if (now := servers.check_awake(client)) != version:
        raise NotAskedError(
            f"{client.address}: its weights went from {version} to {now} while it was asked; ask again"
        )
    subject = {"server": f"{endpoint.name} {work.told.get('release', '')}".strip(), "address": client.address,
               "checkpoint": str(asked.checkpoint)}  # fmt: skip
    pictures = weighed.pictures if weighed else {}
    clients = [client, *(each.client for each in others)]
    return Audit(
        LIVE, subject, tuple(work.answers), sum(each.tokens for each in clients),
        sum(each.requests for each in clients), time.monotonic() - began, pictures,
    )  # fmt: skip


def _check_extra() -> None:
    try:
        import torch  # noqa: F401
        import transformers  # noqa: F401
    except ImportError as error:
        raise _lacking(error.name) from error


def _lacking(name: str | None) -> AuditError:
    return AuditError(
        f"{name} is not installed here: pip install 'grpo-doctor[audit]', or take the trainer's Python"
    )


def _tokenizer(reference: Reference) -> tuple[Any, str]:
    """Of an adapter its own, or its base's."""
    here = any(reference.folder.glob("tokenizer*"))
    try:
        return folders.tokenizer(reference.folder if here else reference.weights), ""
    except AuditError as error:
        return None, str(error)


def _weights(work: _Work, others: list[Reference], replica: list[Endpoint]) -> Weighed | None:
    """P1 to P4, P2 and P14; None where the endpoint scores no ids."""
    import torch

    if "scores" in work.endpoint.why_not:
        lacks = work.endpoint.why_not["scores"]
        wanted = (Fact("endpoint_lacks", {"lacks": lacks}),)
        work.answers.append(
            ProbeAnswer("weights", NOT_ASKED, "P1", wanted=wanted, facts=(Fact("by_samples"),))
        )
        work.answers += [ProbeAnswer("cache", NOT_ASKED, "P2", wanted=wanted), replicas.missing(lacks)]
        return None
    budget = work.budget
    chosen = material.sequences(work.words, work.vocabulary, budget.longest, budget.first, work.first)
    scores: list[float] = []
    twins = _cached(work)
    before = work.endpoint.client.tokens

    def weighed(more: list[list[int]]) -> Weighed:
        scores.extend(value for one in more for value in work.endpoint.score(one))
        engine = torch.tensor(scores, dtype=torch.float64)
        return weights.weigh(
            work.reference, others, chosen, engine, str(work.told.get("dtype", "")), work.side.max_staleness
        )

    found = weighed(chosen)
    left = budget.second(work.endpoint.client.tokens - before)
    # Of a large one the second look takes four times as long as the first, and a version that explains all is named.
    named = work.reference.large and found.explained and found.answers[0].family == "weights/version"
    if found.answers[0].outcome != CLEAN and not named and left > budget.longest:
        # Whose the weights are instead, and which tensors, takes more than to know that something is off.
        more = material.sequences(None, work.vocabulary, budget.longest, left, work.first)
        chosen += more
        found = weighed(more)
    cost = work.endpoint.client.tokens - before
    same = _replicas(work, found, replica, chosen[0][:REPLICA])
    if replicas.hides(same, found.answers[0]):
        hidden = ProbeAnswer("weights", MASKED, "P1", by=same.family, decisive=True)
        found.answers, found.holds = [hidden], None
    work.answers += [replace(each, tokens=cost) for each in found.answers]
    if twins is not None:
        work.answers.append(cache.judged(twins, found.floor))
    else:
        unsalted = Fact("endpoint_lacks", {"lacks": work.endpoint.why_not.get("cache", "a cache_salt")})
        lacking = unsalted if budget.cached else _more(budget)
        work.answers.append(ProbeAnswer("cache", NOT_ASKED, "P2", wanted=(lacking,)))
    work.answers.append(same)
    return found


def _more(budget: Budget) -> Fact:
    return Fact("more_tokens", {"tokens": budget.with_all})


def _cached(work: _Work) -> cache.Twins | None:
    """Of the trainer's own prompts, or of one that every audit asks: who audits again finds it in the cache."""
    most, longest = work.budget.cached, work.budget.longest
    if not isinstance(work.endpoint, servers.VllmServe) or not most:
        return None
    if work.side.prompts and work.words is not None:
        given = [list(work.words(text)["input_ids"])[:longest] for text in work.side.prompts[:most]]
    else:
        given = [material.long(work.words, work.vocabulary, longest, work.first)]
    return cache.looked(work.endpoint, given)


def _replicas(work: _Work, found: Weighed, others: list[Endpoint], chosen: list[int]) -> ProbeAnswer:
    if not work.budget.same:
        return ProbeAnswer("replicas", NOT_ASKED, "P14", wanted=(_more(work.budget),))
    if lacking := [each for each in others if "scores" in each.why_not]:
        return replicas.missing(lacking[0].why_not["scores"])
    exact = found.holds.scores([chosen], found.dtype) if found.holds else None
    alarm = precision.ALARM[found.dtype] * found.floor
    return replicas.asked(work.endpoint, others, chosen, exact, found.floor, 2 * alarm)


def _law(work: _Work, weighed: Weighed | None, against: list[Reference]) -> None:
    """P5, P6, P8, P9."""
    before = work.endpoint.client.tokens
    prompts = material.prompts(work.words, work.vocabulary, work.first, _PROMPTS)
    size = max(4, (work.budget.law - sum(map(len, prompts))) // (_COPIES * _PROMPTS) - len(prompts[0]))
    drawn = work.endpoint.draw(prompts, size, work.side.request, _COPIES)
    cost = work.endpoint.client.tokens - before
    known = [each for each in drawn if material.known(each.ids, work.reference.vocabulary)]
    answers = sampling.vocabulary(drawn, len(work.words) if work.words is not None else 0)
    if weighed is not None and weighed.holds is None:
        first = weighed.answers[0]
        answers += sampling.hidden_by(first.by or first.family)
    elif known:
        holds, dtype = (weighed.holds, weighed.dtype) if weighed else (work.reference, "")
        told = _judged(work, holds or work.reference, dtype, known)
        if weighed is None and any(each.family == "sampling/law" for each in told):
            told = _by_samples(work, told, against, known)
        answers += told
    work.answers += [replace(each, tokens=cost) for each in answers]


def _by_samples(
    work: _Work, told: list[ProbeAnswer], against: list[Reference], drawn: list[Drawn]
) -> list[ProbeAnswer]:
    """Where no law fits the checkpoint's weights and none can be scored: whether one fits another checkpoint's."""
    before = next(each for each in told if each.family == "sampling/law")
    for other in filter(work.reference.fits, against):
        found = _judged(work, other, "", drawn)
        other.release()
        law = next((each for each in found if each.family.partition("/")[0] == "sampling"), None)
        # A law that is told, too, has to explain all of it.
        if law is None or law.residual is None or law.alarm is None or law.family == "sampling/law":
            continue
        if law.outcome != CLEAN and law.residual > law.alarm:
            continue
        version = ProbeAnswer(
            "weights/version", FAULT, "P5", code="SYN003" if other.name == "base" else "", values={"name": other.name},
            estimates=(Estimate("version", other.name, expected=work.reference.name),), residual=law.residual,
            floor=law.floor, alarm=law.alarm, runner_up=RunnerUp("the checkpoint", before.residual or 0.0),
            count=law.count, decisive=True,
        )  # fmt: skip
        return [instead.allowed(version, against, work.side.max_staleness), *found]
    return told


def _judged(work: _Work, holds: Reference, dtype: str, drawn: list[Drawn]) -> list[ProbeAnswer]:
    """Under the type that fits best, where scores did not tell which."""
    mode = str(work.told.get("logprobs_mode", ""))
    types = [dtype] if dtype else list(dict.fromkeys((holds.dtype, "float32", "bfloat16")))
    told = [sampling.judged(holds, drawn, each, work.side.computes, mode) for each in types]

    def faults(answers: list[ProbeAnswer]) -> tuple[int, float]:
        off = [each.residual for each in answers if each.residual is not None]
        return sum(each.outcome == FAULT for each in answers), sum(off)

    return min(told, key=faults)
