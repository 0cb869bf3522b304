"""Serve a small model over HTTP as `vllm serve` does, with selectable faults for the audit to find.

`serving` starts the server in a thread of this process; `Engine` answers with transformers in the engine's dtype, and
`ServerFaults` selects the faults. test_audit_real_vllm.py audits the real server.
"""

import contextlib
import http.server
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from diagnostics.audit.live.reference import round_weights
from diagnostics.audit.live.sampling_distribution import NAMES, Sampling
from tests.processes import run_server


@dataclass
class ServerFaults:
    """Faults of the fake server; with the defaults it is healthy.

    Attributes:
        sampling: Sampling parameters that override those of the request.
        bias: A token id, and the number that is added to its logit.
        raw: Reported log-probs are those of the unchanged logits, without bias, penalties, temperature and truncation.
        greedy: Every sampled token is the likeliest.
        one_seed: All samples of a prompt use the same seed, so that they are equal.
        argmax_logprobs: Log-probs are those of the likeliest token, not of the sampled one.
        stale_cache: Model that gives the top log-probs without a cache salt, as a stale prefix cache does.
        second: Model of a second replica, which answers every other call.
        double_bos: `/tokenize` adds a second BOS token.
        template: Chat template of the server, if it differs from the checkpoint's.
        no_logprobs: Samples have no log-probs.
        paused: The server reports that it is paused.
        versions: Weight versions that the server reports, one per request; the last one repeats.
        max_model_len: The token limit that `/v1/models` reports.
        settings: Model settings in the response of /server_info; None: 404.
    """

    sampling: dict[str, Any] = field(default_factory=dict)
    bias: tuple[int, float] | None = None
    raw: bool = False
    greedy: bool = False
    one_seed: bool = False
    argmax_logprobs: bool = False
    stale_cache: Any = None
    second: Any = None
    double_bos: bool = False
    template: str = ""
    no_logprobs: bool = False
    paused: bool = False
    versions: list[str] = field(default_factory=list)
    max_model_len: int = 320
    settings: dict[str, Any] | None = field(default_factory=lambda: {"logprobs_mode": "processed_logprobs"})


class Engine:
    """Compute completions, scores and token ids with the weights of a folder, with the selected faults."""

    def __init__(self, folder: Path, dtype: str, faults: ServerFaults | None = None, seed: int = 0) -> None:
        self.dtype, self.faults = dtype, faults or ServerFaults()
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.model = load_rounded(folder, dtype)
        self.generator = torch.Generator().manual_seed(seed)
        self.calls = 0

    @torch.inference_mode()
    def logits(self, ids: list[int], *, plain: bool = False) -> torch.Tensor:
        """Return the logits after each token of one sequence; `plain` for a request without a cache salt."""
        model = self.model
        if self.faults.second is not None and self.calls % 2:
            model = self.faults.second
        if plain and self.faults.stale_cache is not None:
            model = self.faults.stale_cache
        return self.forward(model, [ids])[0]

    @torch.inference_mode()
    def last_logits(self, sequences: list[list[int]]) -> torch.Tensor:
        """Return the logits after the last token of each sequence; equally long ones are one batch."""
        if len({len(ids) for ids in sequences}) > 1:
            return torch.stack([self.logits(ids)[-1] for ids in sequences])
        is_second = self.faults.second is not None and self.calls % 2
        model = self.faults.second if is_second else self.model
        return self.forward(model, sequences)[:, -1]

    def forward(self, model: Any, sequences: list[list[int]]) -> torch.Tensor:
        """Return the logits of equally long sequences."""
        ids = torch.tensor(sequences, device=model.device)
        logits: torch.Tensor = model(input_ids=ids, use_cache=False).logits.cpu().double()
        return logits

    def score(self, ids: list[int]) -> list[Any]:
        """Return the `prompt_logprobs` of a sequence."""
        rows = zip(self.logits(ids)[:-1].log_softmax(-1), ids[1:], strict=True)
        return [None, *({str(token): {"logprob": float(row[token]), "rank": 1}} for row, token in rows)]

    def sample(self, prompts: list[list[int]], count: int, sampling: Sampling) -> list[tuple[Any, Any, Any]]:
        """Sample `count` tokens per prompt; return ids, reported log-probs, and the ids of those log-probs."""
        ids: list[list[int]] = [[] for _ in prompts]
        values: list[list[float]] = [[] for _ in prompts]
        reported: list[list[int]] = [[] for _ in prompts]
        generators = [self.generator] * len(prompts)
        if self.faults.one_seed:
            generators = [torch.Generator().manual_seed(sum(prompt)) for prompt in prompts]
        for _ in range(count):
            rows = self.last_logits([[*prompt, *new] for prompt, new in zip(prompts, ids, strict=True)])
            for place, row in enumerate(rows):
                full = distribution(row, sampling, prompts[place], ids[place], self.faults.bias)
                token = int(torch.multinomial(full.exp(), 1, generator=generators[place]))
                token = int(full.argmax()) if self.faults.greedy else token
                reported_row = row.log_softmax(-1) if self.faults.raw else full
                scored = int(reported_row.argmax()) if self.faults.argmax_logprobs else token
                values[place].append(float(reported_row[scored]))
                reported[place].append(scored)
                ids[place].append(token)
        return list(zip(ids, values, reported, strict=True))

    def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return the response to a completions request."""
        self.calls += 1
        prompts = body["prompt"] if isinstance(body["prompt"][0], list) else [body["prompt"]]
        settings = {**body, **self.faults.sampling}
        values = {name: settings[name] for name in NAMES if settings.get(name) is not None}
        sampling = Sampling(**values)
        copies = body.get("n", 1)
        owners = [prompt for prompt in prompts for _ in range(copies)]
        choices: list[dict[str, Any]] = []
        samples = self.sample(owners, body["max_tokens"], sampling)
        for prompt, (ids, values, reported) in zip(owners, samples, strict=True):
            choice: dict[str, Any] = {"index": len(choices), "finish_reason": "length", "token_ids": ids}
            if not self.faults.no_logprobs and "logprobs" in body:
                names = [f"token_id:{token}" for token in reported]
                choice["logprobs"] = {"token_logprobs": values, "tokens": names}
                if body["logprobs"]:
                    row = self.logits(prompt, plain=not body.get("cache_salt"))[-1].log_softmax(-1)
                    best = row.topk(body["logprobs"])
                    pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
                    choice["logprobs"]["top_logprobs"] = [{f"token_id:{i}": value for i, value in pairs}]
            if "prompt_logprobs" in body:
                choice["prompt_logprobs"] = self.score(prompt)
            choices.append(choice)
        return {"choices": choices}

    def tokenize(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return the response to a tokenize request for a prompt or chat messages."""
        if "messages" in body:
            options = {"add_generation_prompt": True, "tokenize": True, "return_dict": True}
            template = self.faults.template or None
            built = self.tokenizer.apply_chat_template(body["messages"], chat_template=template, **options)
            return {"tokens": list(built["input_ids"])}
        return {"tokens": [0] * self.faults.double_bos + list(self.tokenizer(body["prompt"])["input_ids"])}


def distribution(
    row: torch.Tensor,
    sampling: Sampling,
    prompt: list[int],
    before: list[int],
    bias: tuple[int, float] | None = None,
) -> torch.Tensor:
    """Return the log-probs of the next token in vLLM's order: penalties, bias, temperature, min-p, top-k, top-p."""
    row = row.clone()
    if (sampling.repetition_penalty, sampling.frequency_penalty, sampling.presence_penalty) != (1, 0, 0):
        counts = torch.bincount(torch.tensor(before, dtype=torch.long), minlength=len(row))
        repeated = counts > 0
        repeated[prompt] = True
        scaled = torch.where(row > 0, row / sampling.repetition_penalty, row * sampling.repetition_penalty)
        row = torch.where(repeated, scaled, row)
        row = row - sampling.frequency_penalty * counts - sampling.presence_penalty * (counts > 0)
    if bias:
        row[bias[0]] += bias[1]
    if (sampling.min_p, sampling.top_k, sampling.top_p) == (0, 0, 1):
        return (row / sampling.temperature).log_softmax(-1)
    row, order = (row / sampling.temperature).sort(descending=True)
    shares = row.softmax(-1)
    is_kept = shares >= sampling.min_p * shares[0]
    is_kept[sampling.top_k or len(row) :] = False
    shares = shares * is_kept / (shares * is_kept).sum()
    is_kept &= shares.cumsum(-1) - shares < sampling.top_p
    truncated = row.masked_fill(~is_kept, -torch.inf).log_softmax(-1)
    return torch.empty_like(truncated).scatter_(0, order, truncated)


def load_rounded(folder: Path, dtype: str) -> Any:
    """Load a model and round it to a dtype as vLLM does: rotary frequencies stay in float32."""
    return round_weights(AutoModelForCausalLM.from_pretrained(folder), getattr(torch, dtype)).eval()


@contextlib.contextmanager
def serving(engine: Engine) -> Iterator[str]:
    """Serve the engine over HTTP; yield the address."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            answers: dict[str, Any] = {
                "/v1/models": {"data": [{"id": "policy", "max_model_len": engine.faults.max_model_len}]},
                "/is_paused": {"is_paused": engine.faults.paused},
                "/version": {"version": "0.32.0"},
            }
            if engine.faults.versions and path == "/weight_info":
                several = len(engine.faults.versions) > 1
                version = engine.faults.versions.pop(0) if several else engine.faults.versions[0]
                answers["/weight_info"] = {"weight_version": version}
            if engine.faults.settings is not None:
                answers["/server_info"] = {"vllm_config": {"model_config": engine.faults.settings}}
            self._reply(answers.get(path))

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            answers = {"/v1/completions": engine.complete, "/tokenize": engine.tokenize}
            self._reply(answers[self.path](body) if self.path in answers else None)

        def _reply(self, answer: Any) -> None:
            reported = answer if answer is not None else {"detail": "Not Found"}
            content = (reported if isinstance(reported, str) else json.dumps(reported)).encode()
            self.send_response(200 if answer is not None else 404)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    with run_server(Handler) as address:
        yield address
