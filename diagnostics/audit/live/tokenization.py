"""P10: whether the server makes the same ids of a text and of a chat as the checkpoint's tokenizer."""

from __future__ import annotations

from typing import Any

from diagnostics.audit import checkpoint_validation
from diagnostics.audit.live.probe_inputs import CHAT, TEXTS
from diagnostics.audit.live.servers import Server
from diagnostics.audit.model import AuditError, Result, clean, fault, note, skipped


def check_tokenization(server: Server, tokenizer: Any, problem: str) -> list[Result]:
    """Check a text and a chat.

    Args:
        server: The server.
        tokenizer: The checkpoint's; None if it cannot be read.
        problem: Why it cannot.
    """
    if tokenizer is None:
        return [skipped("ids", "tokenizer_unread", "{problem}", decisive=True, problem=problem)]
    if "ids" in server.lacks:
        return [skipped("ids", "endpoint_lacks", "{lacks}", lacks=server.lacks["ids"])]
    theirs = server.tokenize(TEXTS[0])
    if theirs is None:
        return [skipped("ids", "endpoint_lacks", "/tokenize")]
    return [_check_text(list(tokenizer(TEXTS[0])["input_ids"]), theirs), _check_chat(server, tokenizer)]


def _check_text(ours: list[int], theirs: list[int]) -> Result:
    if theirs == ours:
        return clean("ids", count=len(ours), decisive=True)
    if extra := next((count for count in range(1, 4) if theirs[count:] == ours), 0):
        return _special_fault(theirs[:extra], len(ours))
    message = "the server's tokenizer makes other ids than the checkpoint's, from position {place} on"
    return fault("ids/text", message, "", _difference(ours, theirs), count=len(ours), decisive=True)


def _special_fault(extra: list[int], count: int, **fields: Any) -> Result:
    values = {"count": len(extra), "ids": ", ".join(map(str, extra))}
    message = "the server's tokenizer adds {count} special token(s) before a text that the trainer's does not: {ids}"
    return fault("ids/special", message, "", values, count=count, decisive=True, **fields)


def _check_chat(server: Server, tokenizer: Any) -> Result:
    if not getattr(tokenizer, "chat_template", None):
        return skipped("ids/template", "no_template", "a chat template in the checkpoint's folder")
    messages = [dict(message) for message in CHAT]
    theirs = server.tokenize(messages)
    if theirs is None:
        return skipped("ids/template", "endpoint_lacks", "/tokenize with messages")
    try:
        ours = checkpoint_validation.chat_ids(tokenizer, messages)
    except AuditError as error:
        return skipped("ids/template", "tokenizer_unread", "{problem}", decisive=True, problem=str(error))
    if theirs == ours:
        return clean("ids/template", count=len(ours))
    values = _difference(ours, theirs)
    start = max(0, values["place"] - 2)
    texts = [tokenizer.decode(ids[start : start + 8]) for ids in (ours, theirs)]
    text = "the checkpoint's: {ours!r}; the server's: {theirs!r}"
    fact = note("template_differs", text, ours=texts[0], theirs=texts[1])
    if ours and theirs == [ours[0], *ours]:
        return _special_fault(ours[:1], len(ours), evidence=(fact,))
    message = "the server's chat template makes other ids than the checkpoint's, from position {place} on"
    return fault("ids/template", message, "", values, evidence=(fact,), count=len(ours))


def _difference(ours: list[int], theirs: list[int]) -> dict[str, int]:
    pairs = enumerate(zip(ours, theirs, strict=False))
    place = next((place for place, (a, b) in pairs if a != b), min(len(ours), len(theirs)))
    return {"place": place, "ours": len(ours), "theirs": len(theirs)}
