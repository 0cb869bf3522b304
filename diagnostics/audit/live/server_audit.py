"""Audit a live server with a sequence of probes; each rules out a class of faults for the next.

The order is: settings and tokenizer, requests for the prefix cache, weights, replicas, sampling, verdict on the prefix
cache. A fault that makes another check undecidable masks it. `audit_server` compares with the checkpoint, loads torch
and transformers, and stays within the token limit. It refuses a server that is not ready, or whose reported weight
version changes meanwhile.
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from diagnostics.audit.live import cache_and_replicas, probe_inputs, sampling_checks, server_settings
from diagnostics.audit.live.checkpoint_identification import Identification, identify_weights
from diagnostics.audit.live.checkpoint_tokenizer import Tokenizer
from diagnostics.audit.live.http_client import Client
from diagnostics.audit.live.probe_inputs import DEFAULT_TOKENS, REPLICA_IDS, Budget
from diagnostics.audit.live.reference import Reference, sibling_checkpoints
from diagnostics.audit.live.server_settings import TrainerSettings
from diagnostics.audit.live.vllm_server import Server, check_awake
from diagnostics.audit.live.weight_comparison import ALARM
from diagnostics.audit.results import LIVE, Audit, AuditError, NotAvailableError, Result, masked
from diagnostics.output import progress

# prompt_logprobs of a long prompt take memory for a row of the vocabulary for each of its ids.
_LONGEST, _SHORTEST = 256, 8
_COPIES, _PROMPTS, _CACHE_PROMPTS = 4, 4, 3


def audit_server(
    address: str,
    checkpoint: Path,
    *,
    against: Sequence[Path] = (),
    trainer: Path | None = None,
    tokens: int = DEFAULT_TOKENS,
    timeout_s: float = 60.0,
    model: str = "",
) -> Audit:
    """Audit a server with all probes; the checks that cost no tokens run first.

    Args:
        address: Address of the server.
        checkpoint: The folder whose weights the server should have.
        against: Other folders whose weights it may have; empty for those next to the checkpoint.
        trainer: Settings file of the trainer; None for temperature 1.
        tokens: Limit on prompt and sampled tokens.
        timeout_s: Deadline of one call.
        model: Name of the model to audit; empty for the first.

    Raises:
        AuditError: An input cannot be used, or torch or transformers is not installed.
        NotAvailableError: The server is asleep, paused or busy, or its weights changed during the audit.
    """
    began = time.monotonic()
    reference, settings = Reference(checkpoint), server_settings.read_trainer_settings(trainer)
    client = Client(address, timeout_s)
    progress.update(client.address)
    server = Server(client, model)
    version = check_awake(client)
    _check_dependencies()  # imports take seconds, so after the server was found
    probes = _Probes(server, reference, settings, tokens)
    siblings = [Reference(folder) for folder in against or sibling_checkpoints(checkpoint)]
    progress.update("which weights it holds")
    identified = probes.check_weights(siblings)
    progress.update("how it samples")
    probes.check_sampling(identified)
    probes.check_cache(identified.floor)
    if (now := check_awake(client)) != version:
        reason = f"its weights changed from {version} to {now} meanwhile; audit again"
        raise NotAvailableError(f"{client.address}: {reason}")
    server_name = f"vllm serve {probes.settings.get('release', '')}".strip()
    subject = {"server": server_name, "address": client.address, "checkpoint": str(checkpoint)}
    seconds = time.monotonic() - began
    return Audit(LIVE, subject, tuple(probes.results), client.tokens, client.requests, seconds)


def _check_dependencies() -> None:
    """Raise AuditError if torch or transformers is not installed."""
    try:
        import torch  # noqa: F401
        import transformers  # noqa: F401
    except ImportError as error:
        fix = "pip install torch transformers, or run it with the trainer's Python"
        raise AuditError(f"{error.name} is not installed here: {fix}") from error


def _load_tokenizer(reference: Reference) -> tuple[Tokenizer | None, str]:
    """Return (tokenizer of the checkpoint or its adapter's base, ""), or (None, the problem)."""
    folder = reference.folder if any(reference.folder.glob("tokenizer*")) else reference.weights_folder
    try:
        return Tokenizer(folder), ""
    except AuditError as error:
        return None, str(error)


class _Probes:
    """The probes of one server with their inputs, and the results so far.

    Attributes:
        settings: The server's settings.
        budget: The number of tokens that each probe may cost.
        bos: The tokenizer's begin-of-sequence id, in a list; empty for none.
        vocabulary: Number of ids that both the tokenizer and the checkpoint have.
    """

    def __init__(self, server: Server, reference: Reference, trainer: TrainerSettings, tokens: int) -> None:
        """Choose the inputs, and compare settings and token ids (P0, P10)."""
        self.server, self.reference, self.trainer = server, reference, trainer
        self.settings = server.settings()
        longest = min(_LONGEST, int(self.settings.get("max_model_len") or _LONGEST) - 2)
        if longest < _SHORTEST:  # a server may also report a negative length
            raise AuditError(f"{server.client.address}: max_model_len {longest + 2} is too short to audit")
        self.budget = Budget(tokens, longest, len(trainer.prompts[:_CACHE_PROMPTS]) or 1)
        if tokens < self.budget.needed:
            raise AuditError(f"--tokens {tokens}: this audit takes {self.budget.needed} at least")
        self.tokenizer, problem = _load_tokenizer(reference)
        size, self.bos = reference.vocabulary, self.tokenizer.bos if self.tokenizer else []
        self.vocabulary = size if self.tokenizer is None else min(size, self.tokenizer.size)
        if self.vocabulary < 1:
            raise AuditError("the checkpoint's config.json has no vocab_size, or its tokenizer has no ids")
        self.results = server_settings.check_settings(self.settings, trainer)
        self.results += server_settings.check_tokenization(server, self.tokenizer, problem)

    def check_weights(self, siblings: Sequence[Reference]) -> Identification:
        """Check weights and replicas with the cache requests (P1 to P4, P14), and return the identified weights.

        The weights are compared again with more ids if the first comparison finds a difference that no known
        checkpoint explains. A fault of the replicas may mask the result.
        """
        import torch

        client, budget, scores = self.server.client, self.budget, list[float]()
        dtype = str(self.settings.get("dtype", ""))

        def identify(new: list[list[int]]) -> Identification:
            scores.extend(score for ids in new for score in self.server.score(ids))
            engine = torch.tensor(scores, dtype=torch.float64)
            return identify_weights(self.reference, siblings, sequences, engine, dtype)

        self._cache = cache_and_replicas.probe_cache(self.server, self._cache_prompts())
        before = client.tokens
        sequences = self._score_sequences(self.tokenizer, budget.first_comparison)
        identified = identify(list(sequences))
        remaining = budget.second_comparison(client.tokens - before)
        # Skip the second comparison (four times as long for a large model) if another version explains all differences.
        is_known = identified.result.is_clean or identified.result.family == "weights/version"
        if not is_known and remaining > budget.longest:
            more = self._score_sequences(None, remaining)
            sequences += more
            identified = identify(more)
        cost = client.tokens - before
        replicas = self._check_replicas(identified, sequences[0][:REPLICA_IDS])
        if cache_and_replicas.hides_weights(replicas, identified.result):
            identified.result, identified.weights = masked("weights", replicas.family, decisive=True), None
        self.results += [replace(identified.result, tokens=cost), replicas]
        return identified

    def check_cache(self, floor: float) -> None:
        """Repeat a request of the cache probe at the end, and check server and prefix cache (P2, P14).

        If the server changed during the audit, that masks faults of sampling and log-probs.
        """
        faults = [result for result in self.results if result.is_fault and result.topic == "replicas"]
        if not faults and (changed := cache_and_replicas.check_unchanged(self.server, self._cache, floor)):
            # What was sampled before and after the change cannot be compared.
            for index, result in enumerate(self.results):
                if result.is_fault and result.topic in {"sampling", "logprobs"}:
                    self.results[index] = masked(result.topic, changed.family, decisive=True)
            self.results.insert(0, changed)
            faults = [changed]
        hiding = faults[0].family if faults else ""
        self.results.append(cache_and_replicas.check_cache(self._cache, floor, hiding))

    def _score_sequences(self, tokenizer: Tokenizer | None, count: int) -> list[list[int]]:
        return probe_inputs.score_sequences(tokenizer, self.vocabulary, self.budget.longest, count, self.bos)

    def _cache_prompts(self) -> list[list[int]]:
        """Return long prompts: the trainer's, or a fixed one."""
        longest, texts = self.budget.longest, self.trainer.prompts[:_CACHE_PROMPTS]
        if texts and self.tokenizer is not None:
            return [self.tokenizer.encode(text)[:longest] for text in texts]
        return [probe_inputs.long_prompt(self.tokenizer, self.vocabulary, longest, self.bos)]

    def _check_replicas(self, identified: Identification, ids: Sequence[int]) -> Result:
        """Check the replicas (P14) with the identified weights, if they are known."""
        exact = identified.weights.scores([ids], identified.dtype) if identified.weights else None
        floor, alarm = identified.floor, 2 * ALARM[identified.dtype] * identified.floor
        return cache_and_replicas.check_replicas(self.server, ids, exact, floor, alarm)

    def check_sampling(self, identified: Identification) -> None:
        """Check sampled ids and log-probs with the weights that the engine has (P5, P6, P8, P10).

        Without known weights, the checks of parameters and log-probs are masked.
        """
        client, tokenizer, weights = self.server.client, self.tokenizer, identified.weights
        before, size = client.tokens, self.reference.vocabulary
        prompts = probe_inputs.sample_prompts(tokenizer, self.vocabulary, self.bos, _PROMPTS)
        remaining, start = self.budget.sampling - sum(map(len, prompts)), len(prompts[0])
        count = max(4, remaining // (_COPIES * _PROMPTS) - start)
        if longest := int(self.settings.get("max_model_len") or 0):
            count = min(count, longest - start)
        completions = self.server.sample(prompts, count, self.trainer.request, _COPIES)
        known = [entry for entry in completions if all(0 <= token < size for token in entry.ids)]
        results = sampling_checks.check_vocabulary(completions, tokenizer.size if tokenizer else 0)
        results += sampling_checks.check_ends(completions, count, self.reference.stop_ids)
        if weights is None:
            hiding = identified.result.masked_by or identified.result.family
            results += [masked(topic, hiding, decisive=True) for topic in ("sampling", "logprobs")]
        elif known:
            settings = (identified.dtype, self.trainer, str(self.settings.get("logprobs_mode", "")))
            results += sampling_checks.check_sampling(weights, known, *settings)
        self.results += [replace(result, tokens=client.tokens - before) for result in results]
