"""P10: whether the server makes the same ids of a text and of a chat as the checkpoint's tokenizer."""

from __future__ import annotations

from typing import Any

from diagnostics.audit import checkpoint_validation
from diagnostics.audit.live.probe_inputs import CHAT, TEXTS
from diagnostics.audit.live.servers import Server
from diagnostics.audit.model import CLEAN, AuditError, Result, fault, note, skipped

PROBE = "P10"


def check_tokenization(server: Server, tokenizer: Any, problem: str) -> list[Result]:
    """Check a text and a chat.

    Args:
        server: The server.
        tokenizer: The checkpoint's; None if it cannot be read.
        problem: Why it cannot.
    """
    if tokenizer is None:
        return [skipped("ids", PROBE, "tokenizer_unread", "{problem}", decisive=True, problem=problem)]
    if "ids" in server.lacks:
        return [skipped("ids", PROBE, "endpoint_lacks", "{lacks}", lacks=server.lacks["ids"])]
    theirs = server.tokenize(TEXTS[0])
    if theirs is None:
        return [skipped("ids", PROBE, "endpoint_lacks", "/tokenize")]
    return [_check_text(list(tokenizer(TEXTS[0])["input_ids"]), theirs), _check_chat(server, tokenizer)]


def _check_text(ours: list[int], theirs: list[int]) -> Result:
    if theirs == ours:
        return Result("ids", CLEAN, PROBE, count=len(ours), decisive=True)
    extra = next((count for count in range(1, 4) if theirs[count:] == ours), 0)
    if extra:
        return _special_fault(theirs[:extra], len(ours))
    message = "the server's tokenizer makes other ids than the checkpoint's, from position {place} on"
    return fault("ids/text", PROBE, message, values=_difference(ours, theirs), count=len(ours), decisive=True)


def _special_fault(extra: list[int], count: int, **fields: Any) -> Result:
    values = {"count": len(extra), "ids": ", ".join(map(str, extra))}
    message = "the server's tokenizer adds {count} special token(s) before a text that the trainer's does not: {ids}"
    return fault("ids/special", PROBE, message, values=values, count=count, decisive=True, **fields)


def _check_chat(server: Server, tokenizer: Any) -> Result:
    if not getattr(tokenizer, "chat_template", None):
        return skipped("ids/template", PROBE, "no_template", "a chat template in the checkpoint's folder")
    messages = [dict(message) for message in CHAT]
    theirs = server.tokenize_chat(messages)
    if theirs is None:
        return skipped("ids/template", PROBE, "endpoint_lacks", "/tokenize with messages")
    try:
        ours = checkpoint_validation.chat_ids(tokenizer, messages)
    except AuditError as error:
        return skipped(
            "ids/template", PROBE, "tokenizer_unread", "{problem}", decisive=True, problem=str(error)
        )
    if theirs == ours:
        return Result("ids/template", CLEAN, PROBE, count=len(ours))
    place = _difference(ours, theirs)["place"]
    texts = [tokenizer.decode(ids[max(0, place - 2) : place + 6]) for ids in (ours, theirs)]
    seen = note(
        "template_differs",
        "the checkpoint's: {ours!r}; the server's: {theirs!r}",
        ours=texts[0],
        theirs=texts[1],
    )
    if ours and theirs == [ours[0], *ours]:
        return _special_fault(ours[:1], len(ours), evidence=(seen,))
    message = "the server's chat template makes other ids than the checkpoint's, from position {place} on"
    return fault(
        "ids/template", PROBE, message, values=_difference(ours, theirs), evidence=(seen,), count=len(ours)
    )


def _difference(ours: list[int], theirs: list[int]) -> dict[str, int]:
    pairs = enumerate(zip(ours, theirs, strict=False))
    place = next((place for place, (a, b) in pairs if a != b), min(len(ours), len(theirs)))
    return {"place": place, "ours": len(ours), "theirs": len(theirs)}
