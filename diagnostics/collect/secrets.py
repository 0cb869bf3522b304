"""Takes secrets out of a text, by their shape and by the name they stand under, whoever issued them.

Each pattern is bounded: every repetition has an end, or begins where no other can, so that no text takes longer than
its length (Python's own engine, since nodes have nothing else, and 3.10's, which has no possessive repetition).
"""

from __future__ import annotations

import string
from functools import partial
from typing import TYPE_CHECKING

from diagnostics.collect import late as re
from diagnostics.collect.secret_names import BY_NAME, MASK, unspoken
from diagnostics.collect.sought import Run, Sought, Starts, first_letters, settled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# Where a word may begin: also behind an end of line or a colour that is spelled out, as in the form of a text in a log.
EDGE = r"(?:(?<![A-Za-z0-9])|(?<=\\[nrt])|(?<=\[\dm)|(?<=\[\d\dm))"
# What a dash or an underscore ends; those first whose end another is called. Each is letters, sets and their counts.
_ISSUERS = (
    r"ATATT3x\w{4}", "lsv2_[a-z]{2}", "hf", "api_org", "gh[oprsu]", "github_pat", "glpat", "gldt", "glptt", "glrt",
    "glsoat", "glcbt", "glft", "gloas", "glsa", "glc", "xox[a-z]", "xapp", "sk", "rk", "gsk", "nvapi", "pypi", "npm",
    "r8", "dckr_pat", "shpat", "shpss", "shpca", "dop_v1", "doo_v1", r"wandb_v\d", r"tgp_v\d", "tskey", "lin_api", "fw",
    "pplx", "xai", "GOCSPX", "rpa", "csk", "tvly", "pcsk", "jina", "whsec", "HRKU", "ntn", "figd", "PMAK",
    "pscale_tkn", "rubygems", "KGAT", "NRAK", "sntrys", "nfp",
)  # fmt: skip
_PART = re.compile(r"(?:\\.|\[[^]]+\]|.)(?:\{\d\})?")
# Who issued it shows at its beginning.
_ISSUED = re.compile(
    rf"{EDGE}(?:"
    rf"(?:{'|'.join(_ISSUERS)})"
    r"[_-][A-Za-z0-9_-]{16,}|(?:secret|sess)[_-](?=[\w-]{0,24}\d)[A-Za-z0-9_-]{24,}"
    r"|(?:hvs|dp\.[a-z]{2}|pat\w{14})\.[A-Za-z0-9_-]{24,}|[A-Za-z0-9]{14}\.atlasv1\.[A-Za-z0-9_-]{24,}"
    r"|(?:key-|SK)[0-9a-f]{32}(?![0-9a-f])|v1\.0-[0-9a-f]{24}-[0-9a-f]{64,}|LTAI[A-Za-z0-9]{12,28}(?![A-Za-z0-9])"
    r"|AIza[A-Za-z0-9_-]{20,}|(?:AKIA|ASIA|ABIA|ACCA|AROA)[0-9A-Z]{16}|dapi[0-9a-f]{32}(?:-\d)?"
    r"|1//0[A-Za-z0-9_-]{30,}|ya29\.[A-Za-z0-9._-]{16,}"
    r"|SG\.[A-Za-z0-9_-]{16,64}\.[A-Za-z0-9_-]{16,64}|[0-9a-f]{40}(?![A-Za-z0-9])|AGE-SECRET-KEY-1[0-9A-Z]{40,}"
    r"|\$(?:apr1|2[abxy]|[156y]|argon2\w{1,2})\$[\w./$=,+-]{8,256}"
    r"|\d{6,12}:AA[A-Za-z0-9_-]{30,})"
)
_JWT = re.compile(
    rf"{EDGE}eyJ[A-Za-z0-9_-]{{8,4096}}\.(?:[A-Za-z0-9_-]{{0,8192}}(?:\.[A-Za-z0-9_-]{{4,4096}}){{1,3}}"
    r"|[A-Za-z0-9_-]{8,8192})"
)
# A revision is what a diagnosis needs, and as long as a key of W&B's; its digits stand behind one of these.
_REVISION = re.compile(
    r"(?:\b(?:commit|revision|rev|sha1?|head|detached at|snapshots|tree|blob|ref)\b|\.git@)\W{0,4}\Z",
    re.IGNORECASE,
)
# What is passed on to a program that asks for a password.
_PIPED = re.compile(
    r"(\becho\s(?:-n\s)?['\"]?)(?!<)[^\s|'\"]{4,256}(?=['\"]?\s{0,4}\|[^\n|]{0,80}(?:--password-stdin|sudo -S))"
)
# Whatever the scheme, and whatever the cookie: all behind it, up to the quote that closes it.
_HEADER = re.compile(
    r"((?:(?:proxy-)?authorization|x-api-key|x-auth-token|x-hub-signature(?:-256)?|(?:set-)?cookie)\\?['\"]?\s{0,4}[:=,]\s{0,4}"
    r"(?:b(?=['\"]))?\\?['\"]?)"
    r"(?!<secret>|[\w.]{1,48}\(b?['\"]|[|>][+-]?\n)[^\s'\"][^\n'\"]{0,4096}(?:''[^\n'\"]{0,512}){0,8}"
    # A quote that a name and its sign stand before is the next value's: without its name nothing takes that out.
    r"(?:(?:\"[^\"\n]{0,512}\"|(?:(?<=[:=])|(?<=[:=] ))'[^'\n]{0,512}')[^\n'\"]{0,512}){0,32}",
    re.IGNORECASE,
)
_COOKIES = re.compile(r"(\bcookies\s{0,4}=\s{0,4}\{)(?!<secret>)[^}\n]{1,4096}", re.IGNORECASE)
_BEARER = re.compile(r"\b(bearer\s{1,4})(?=[^\s\d]{0,256}\d)[\w.~+/=-]{8,}", re.IGNORECASE)
_BASIC = re.compile(
    r"\b(Basic\s{1,4})(?=[^\s\d]{0,256}\d)(?=[^\sA-Z]{0,256}[A-Z])[A-Za-z0-9+/]{16,}={0,2}(?![\w.-])"
)
# Of a signed request, where its header's name was cut off.
_SIGNED = re.compile(r"(\bsignature=)[0-9a-f]{40,128}(?![A-Za-z0-9])", re.IGNORECASE)
_PRIVATE = re.compile(
    r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY[A-Z ]{0,10}-----"
    r"(?:(?!-----BEGIN)[\s\S]){0,20000}?(?:-----END [A-Z0-9 ]{0,60}-----|(?=-----BEGIN)|\Z)"
)
# Up to the last @ of its authority: a password may hold one. With a slash or a hash in it: behind a name and a colon.
_URL = re.compile(
    r"(?<=://)[^/\s'\"]{1,512}@|(?<=://)[^\s'\"/:@]{1,64}:(?!\d{1,5}(?:[/?#]))[^\s'\"<>@]{1,256}@(?=[\w\[])"
)
# The same written for a query: `https%3A%2F%2Fuser%3Apassword%40host`.
_ENCODED = re.compile(r"(?<=%3A%2F%2F)[\w.~-]{1,64}%3A[\w.~-]{1,128}%40", re.IGNORECASE)
# Whoever has the address of a hook may post to it.
_HOOK = re.compile(
    r"(://(?:hooks?|maker|sctapi|api\.day|outlook|[\w-]{1,64}\.webhook)\.[\w.-]{1,64}/|/bot(?=\d{6})"
    r"|/webhooks?(?:b2)?/"
    r"|/hook/|://[\w.-]{1,64}/t/(?=[\w-]{16}))(?!<secret>)[^\s'\"<>)\]]{6,512}"
)
# As `user:password@host`, without a scheme before it, or with one taken for a path; a digest behind a tag is none.
_LOGIN = re.compile(
    r"(?:(?<![\w:/.+-])|(?<=:/))[\w.+-]{1,64}:(?!//)[^\s@/:'\"<>]{3,128}@(?=[\w\[])(?!sha256:)"
)
# A line of a key without its head: long, and of all three kinds of letters.
_LONG = re.compile(r"(?<![A-Za-z0-9+/=_.-])[A-Za-z0-9+/]{60,}={0,2}")
# What nobody could say; but names of C++ as compilers write them, hashes of files, folders of uv's cache.
_RANDOM = re.compile(
    rf"{EDGE}(?:_Z\w{{1,4096}}|sha(?:1|256|512)[=:-][\w+/=-]{{1,128}}|archive-v\d/[\w-]{{1,64}}|[A-Za-z0-9]{{20,}})",
)


def mask(text: str) -> str:
    """The text with a placeholder in place of every secret.

    >>> mask("Authorization: Digest abc; --hub_token s3cr3tvalue")
    'Authorization: <secret>'
    """
    return settled(CHANGES, text)


def cut(text: str, most: int) -> str:
    """The beginning of a text, masked before: half of a secret has no shape.

    >>> cut("key " + "0a1b2c3d" * 5, 24)
    'key <secret>'
    """
    return text if len(text) <= most else mask(text)[:most]


def _issued(match: re.Match[str]) -> str:
    revision = len(match[0]) == 40 and _REVISION.search(
        match.string, max(0, match.start() - 24), match.start()
    )
    return match[0] if revision else MASK


def _random(match: re.Match[str]) -> str:
    return MASK if unspoken(match[0]) else match[0]


def _long(match: re.Match[str]) -> str:
    """A path is long, too; what is between two slashes of it is not."""
    part = max(match[0].split("/"), key=len)
    kinds = (str.isdigit, str.isupper, str.islower)
    random = len(part) >= 20 and all(any(map(kind, part)) for kind in kinds)
    return MASK if random else match[0]


# Where one that somebody issued may begin: its first letter, where the next are its own. Those that begin with any
# letter stand apart.
_ISSUED_STARTS: Starts = (
    *first_letters(
        r"h(?=vs\.)", r"d(?=p\.[a-z]|api[0-9a-f])", r"p(?=at\w{14}\.)", "k(?=ey-)", r"v(?=1\.0-)", "y(?=a29)",
        "A(?=TATT3x|Iza|[KSB]IA|CCA|ROA|GE-S)", r"S(?=K[0-9a-f]|G\.)", "L(?=TAI)", r"\$(?=apr1|2[abxy]|[156y]|argon)",
    ),
    Run("0123456789abcdef", 40),
    re.compile(r"//0(?<=(1)//0)"),
    re.compile(r"\.atlasv1\.(?<=([A-Za-z0-9]{14})\.atlasv1\.)"),
)  # fmt: skip


# Of those whose beginning a dash or an underscore ends: backwards from there, where enough stands behind it.
def _ends() -> Iterator[str]:
    """The names of issuers backwards, those with the same last letter or kind of letters side by side."""
    by_last: dict[str, list[str]] = {}
    for name in (*_ISSUERS[1:], "secret", "sess"):
        last, *rest = _PART.findall(name)[::-1]
        by_last.setdefault(last, []).append("".join(rest))
    for last, rests in by_last.items():
        yield f"{last}(?:{'|'.join(rests)})"


_ISSUED_ENDS = first_letters(
    *(
        rf"{sign}(?<=[\w-]{{16}}{sign})(?:{'|'.join(_ends())})(?:(?![A-Za-z0-9])|(?=[nrt]\\)|(?=m\d\d?\[))"
        for sign in "_-"
    ),
    r"AA:\d{6,12}(?!\d)",
)
_LETTERS = string.ascii_letters + string.digits
# As `EDGE` has it, a run of letters may begin behind what is spelled out.
_RANDOM_STARTS = (
    *("_Z", "sha1", "sha256", "sha512", "archive-v"),
    Run(_LETTERS, 20),
    re.compile(r"\\[nrt]()(?=[A-Za-z0-9]{20})"),
    re.compile(r"\[\d{1,2}m()(?=[A-Za-z0-9]{20})"),
)
EACH: tuple[tuple[Sought, str | Callable[[re.Match[str]], str]], ...] = (
    (Sought(_PRIVATE, (("PRIVATE KEY",),)), MASK),
    (
        Sought(
            _HEADER,
            starts=("authorization", "x-api-key", "x-auth-token", "x-hub-", "cookie"),
        ),
        rf"\1{MASK}",
    ),
    (Sought(_COOKIES, starts=("cookies",)), rf"\1{MASK}"),
    (Sought(_SIGNED, starts=("signature=",)), rf"\1{MASK}"),
    (
        Sought(
            _HOOK,
            (("://", "/bot", "/webhook", "/hook/"),),
            starts=("://", *first_letters(r"/(?=bot\d|webhook|hook/)")),
        ),
        rf"\1{MASK}",
    ),
    (Sought(_URL, (("://",), ("@",)), starts=(re.compile(r"://()"),)), f"{MASK}@"),
    (Sought(_ENCODED, (("%3a%2f%2f",), ("%40",)), starts=(re.compile("%3a%2f%2f()"),)), f"{MASK}@"),
    (
        Sought(
            _LOGIN,
            ((":",), ("@",)),
            ends=(re.compile(r"@[^\s@/:'\"<>]{3,128}:[\w.+-]{1,64}(?:(?![\w:/.+-])|(?=/:))"),),
        ),
        f"{MASK}@",
    ),
    (
        Sought(
            _JWT,
            (("eyJ",),),
            starts=(
                re.compile(
                    r"eyJ(?:(?<![A-Za-z0-9]eyJ)|(?<=\\[nrt]eyJ)|(?<=\[\dmeyJ)|(?<=\[\d\dmeyJ))[A-Za-z0-9_-]*"
                ),
            ),
        ),
        MASK,
    ),
    (Sought(_ISSUED, starts=_ISSUED_STARTS, ends=_ISSUED_ENDS), _issued),
    (Sought(_BEARER, starts=("bearer",)), rf"\1{MASK}"),
    (Sought(_BASIC, starts=("Basic",)), rf"\1{MASK}"),
    (Sought(_PIPED, starts=("echo",)), rf"\1{MASK}"),
    *BY_NAME,
    (Sought(_LONG, starts=(Run(f"{_LETTERS}+/", 60),)), _long),
    (Sought(_RANDOM, starts=_RANDOM_STARTS), _random),
)
CHANGES: tuple[Callable[[str], str], ...] = tuple(partial(sought.sub, by) for sought, by in EACH)
