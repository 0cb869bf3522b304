"""P10: whether the server makes the same ids of a text and of a chat as the checkpoint's own tokenizer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from diagnostics.audit import folders
from diagnostics.audit.errors import AuditError
from diagnostics.audit.live.material import CHAT, TEXTS
from diagnostics.audit.model import CLEAN, FAULT, NOT_ASKED, Fact, ProbeAnswer

if TYPE_CHECKING:
    from diagnostics.audit.live.endpoints import Endpoint


def asked(endpoint: Endpoint, words: Any, unread: str) -> list[ProbeAnswer]:
    """One answer of the text, one of the template.

    Args:
        endpoint: The server.
        words: The checkpoint's tokenizer, None where it can't be read.
        unread: Why it can't.
    """
    if words is None:
        return [_missing("ids", Fact("tokenizer_unread", {"told": unread}), decisive=True)]
    if "ids" in endpoint.why_not:
        return [_missing("ids", Fact("endpoint_lacks", {"lacks": endpoint.why_not["ids"]}))]
    theirs = endpoint.ids_of(TEXTS[0])
    if theirs is None:
        return [_missing("ids", Fact("endpoint_lacks", {"lacks": "/tokenize"}))]
    return [_text(words, theirs), _chat(endpoint, words)]


def _text(words: Any, theirs: list[int]) -> ProbeAnswer:
    ours = list(words(TEXTS[0])["input_ids"])
    if theirs == ours:
        return ProbeAnswer("ids", CLEAN, "P10", count=len(ours), decisive=True)
    more = next((n for n in range(1, 4) if theirs[n:] == ours), 0)
    if more:
        values = {"count": more, "s": "s" * (more > 1), "ids": ", ".join(map(str, theirs[:more]))}
        return ProbeAnswer("ids/special", FAULT, "P10", values=values, count=len(ours), decisive=True)
    return ProbeAnswer("ids/text", FAULT, "P10", values=_differ(ours, theirs), count=len(ours), decisive=True)


def _chat(endpoint: Endpoint, words: Any) -> ProbeAnswer:
    if not getattr(words, "chat_template", None):
        return _missing("ids/template", Fact("no_template"))
    theirs = endpoint.ids_of_chat([dict(each) for each in CHAT])
    if theirs is None:
        return _missing("ids/template", Fact("endpoint_lacks", {"lacks": "/tokenize with messages"}))
    try:
        ours = folders.chat(words, [dict(each) for each in CHAT])
    except AuditError as error:
        return _missing("ids/template", Fact("tokenizer_unread", {"told": str(error)}))
    if theirs == ours:
        return ProbeAnswer("ids/template", CLEAN, "P10", count=len(ours))
    seen = Fact(
        "template_differs",
        {"ours": words.decode(_around(ours, theirs)), "theirs": words.decode(_around(theirs, ours))},
    )
    doubled = ours[:1] and theirs == [ours[0], *ours]
    family = "ids/special" if doubled else "ids/template"
    values = {"count": 1, "s": "", "ids": str(ours[0])} if doubled else _differ(ours, theirs)
    return ProbeAnswer(family, FAULT, "P10", values=values, facts=(seen,), count=len(ours))


def _differ(ours: list[int], theirs: list[int]) -> dict[str, Any]:
    place = next(
        (n for n, (one, other) in enumerate(zip(ours, theirs, strict=False)) if one != other),
        min(len(ours), len(theirs)),
    )
    return {"place": place, "ours": len(ours), "theirs": len(theirs)}


def _around(ids: list[int], others: list[int]) -> list[int]:
    place = int(_differ(ids, others)["place"])
    return ids[max(0, place - 2) : place + 6]


def _missing(family: str, fact: Fact, *, decisive: bool = False) -> ProbeAnswer:
    return ProbeAnswer(family, NOT_ASKED, "P10", wanted=(fact,), decisive=decisive)
