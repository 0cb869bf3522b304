"""Takes secrets out of a text, by their shape and by the name they stand under, whoever issued them.

Each pattern is bounded: every repetition has an end, or begins where no other can, so that no text takes longer than
its length (Python's own engine, since nodes have nothing else, and 3.10's, which has no possessive repetition).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

MASK = "<secret>"
# Who issued it shows at its beginning.
_ISSUED = re.compile(
    r"(?<![A-Za-z0-9])(?:"
    r"(?:hf|api_org|gh[oprsu]|github_pat|gl(?:pat|dt|ptt|rt|soat)|xox[abeoprs]|xapp|sk|rk|gsk|nvapi|pypi|npm|r8|dckr_pat"
    r"|shp(?:at|ss|ca)|dop_v1|doo_v1|wandb_v\d|tskey|lin_api|fw|pplx|xai|ATATT3x\w{4})[_-][A-Za-z0-9_-]{16,}"
    r"|AIza[A-Za-z0-9_-]{20,}|(?:AKIA|ASIA|ABIA|ACCA|AROA)[0-9A-Z]{16}|dapi[0-9a-f]{32}(?:-\d)?|ya29\.[A-Za-z0-9._-]{16,}"
    r"|SG\.[A-Za-z0-9_-]{16,64}\.[A-Za-z0-9_-]{16,64}|[0-9a-f]{40}(?![A-Za-z0-9])|AGE-SECRET-KEY-1[0-9A-Z]{40,}"
    r"|eyJ[A-Za-z0-9_-]{8,4096}\.[A-Za-z0-9_-]{8,8192}(?:\.[A-Za-z0-9_-]{8,4096})?)"
)
_WORDS = (
    r"(?:token|secret|passw(?:or)?d|passphrase|pass(?=\s{0,4}[=:])|[_-]pwd(?=\s{0,4}[=:])|api[_-]?key|access[_-]?key"
    r"|account[_-]?key|private[_-]?key|wandb[._]key|credential|x-(?:amz|goog)-(?:signature|credential|security-token)"
    r"|(?<=[?&;])sig(?:nature)?(?==)|(?<![a-z])cookie)(?!s\b|s?iz|_id|\w{0,32}length)"
)
# What a value of such a name is when it is none: a switch, a number, what this tool says itself, a call.
_HARMLESS = r"(?!true\b|false\b|null\b|none\b|\d{1,19}\b|\(not known|\(set;|<)"
_NAMED = re.compile(
    rf"({_WORDS}[\w.-]{{0,64}}['\"]?\s{{0,4}}[=:]\s{{0,4}}['\"]?){_HARMLESS}[^\s,;&`'\"\])]{{4,}}",
    re.IGNORECASE,
)
# `--hub_token VALUE`; a flag is read from its dashes on.
_FLAG = re.compile(
    rf"((?<![\w-])--(?=([\w.-]{{1,96}}))(?=[\w.-]{{0,64}}?{_WORDS})\2\s{{1,4}}['\"]?){_HARMLESS}(?!-)[^\s,;&`'\"\])]{{4,}}",
    re.IGNORECASE,
)
# Whatever the scheme: all behind it, up to the quote that closes it.
_HEADER = re.compile(
    r"((?:(?:proxy-)?authorization|x-api-key|x-auth-token)\\?['\"]?\s{0,4}[:=,]\s{0,4}\\?['\"]?)"
    r"(?!<secret>)[^\s'\"][^\n'\"]{0,4096}(?:\"[^\"\n]{0,512}\"[^\n'\"]{0,512}){0,32}",
    re.IGNORECASE,
)
_BEARER = re.compile(r"\b(bearer\s{1,4})(?=[^\s\d]{0,256}\d)[\w.~+/=-]{8,}", re.IGNORECASE)
_PRIVATE = re.compile(
    r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY[A-Z ]{0,10}-----"
    r"(?:(?!-----BEGIN)[\s\S]){0,20000}?(?:-----END [A-Z0-9 ]{0,60}-----|(?=-----BEGIN)|\Z)"
)
_URL = re.compile(r"(?<=://)[^/\s@'\"]{1,512}@")
# As `user:password@host`, without a scheme before it; a digest behind an image's tag is none.
_LOGIN = re.compile(r"(?<![\w:/.+-])[\w.+-]{1,64}:(?!//)[^\s@/:'\"<>]{3,128}@(?=[\w\[])(?!sha256:)")
# A line of a key without its head: long, and of all three kinds of letters.
_LONG = re.compile(r"(?<![A-Za-z0-9+/=_.-])[A-Za-z0-9+/]{60,}={0,2}")


def mask(text: str) -> str:
    """The text with a placeholder in place of every secret.

    >>> mask("Authorization: Digest abc; --hub_token s3cr3tvalue")
    'Authorization: <secret>'
    """
    return settled(_masked, text)


def settled(change: Callable[[str], str], text: str) -> str:
    """The text changed until it stays: what is taken out can lay bare the beginning of what stood behind it."""
    for _ in range(5):
        before, text = text, change(text)
        if text == before:
            break
    return text


def _masked(text: str) -> str:
    text = _PRIVATE.sub(MASK, text)
    text = _HEADER.sub(rf"\1{MASK}", text)
    text = _URL.sub(f"{MASK}@", text)
    text = _LOGIN.sub(f"{MASK}@", text)
    text = _ISSUED.sub(MASK, text)
    text = _BEARER.sub(rf"\1{MASK}", text)
    text = _NAMED.sub(rf"\1{MASK}", text)
    text = _FLAG.sub(rf"\1{MASK}", text)
    return _LONG.sub(_long, text)


def _long(match: re.Match[str]) -> str:
    """A path is long, too; what is between two slashes of it is not."""
    part = max(match[0].split("/"), key=len)
    kinds = (str.isdigit, str.isupper, str.islower)
    random = len(part) >= 20 and all(any(map(kind, part)) for kind in kinds)
    return MASK if random else match[0]
