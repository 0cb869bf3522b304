"""Takes secrets out of a text, by their shape and by the name they stand under, whoever issued them.

Each pattern is bounded: every repetition has an end, or begins where no other can, so that no text takes longer than
its length (Python's own engine, since nodes have nothing else, and 3.10's, which has no possessive repetition).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnostics.facts import late as re
from diagnostics.facts.sought import Sought

if TYPE_CHECKING:
    from collections.abc import Callable

MASK = "<secret>"
# Where a word may begin: also behind an end of line or a colour that is spelled out, as in the form of a text in a log.
EDGE = r"(?:(?<![A-Za-z0-9])|(?<=\\[nrt])|(?<=\[\dm)|(?<=\[\d\dm))"
# Who issued it shows at its beginning.
_ISSUED = re.compile(
    rf"{EDGE}(?:"
    r"(?:hf|api_org|gh[oprsu]|github_pat|gl(?:pat|dt|ptt|rt|soat|cbt|ft|oas|sa|c)|xox[a-z]|xapp|sk|rk|gsk|nvapi"
    r"|pypi|npm"
    r"|r8|dckr_pat|shp(?:at|ss|ca)|dop_v1|doo_v1|(?:wandb|tgp)_v\d|tskey|lin_api|fw|pplx|xai|ATATT3x\w{4}|GOCSPX|rpa|csk|tvly"
    r"|pcsk|lsv2_[a-z]{2}|jina|whsec|HRKU|ntn|figd|PMAK|pscale_tkn|rubygems|KGAT|NRAK|sntrys|nfp)"
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
_WORDS = (
    r"(?:token|secret|passw(?:or[dt])?d?(?![a-z])|passphrase|pass(?=\\{0,3}['\"]?\s{0,4}[=:])"
    r"|(?<=[_;-])pwd?(?=\\{0,3}['\"]?\s{0,4}[=:])|(?<=_)pwd\b|bindpw"
    # What is called so alone is mostly the folder that a program runs in.
    r"|(?<![a-z_])pwd(?=\\{0,3}['\"]?\s{0,4}[=:]\s{0,4}\\{0,3}['\"]?(?![a-z]:)[^\s/~.$'\"<\\]{4})"
    r"|requirepass|(?:api|access|account|private|signing|encryption|auth|subscription|master|push|kaggle|storage)"
    r"[ _-]?key|client-(?:key|certificate)-data|wandb[._]key|credential|x-(?:amz|goog|oss)-(?:signature|credential"
    r"|security-token)"
    r"|(?<=_)(?:sk|pat)(?=\s{0,4}[=:])|(?<![a-z])_auth(?=\s{0,4}[=:])|contrase\xf1a|mot de passe|\u5bc6\u7801"
    r"|\u5bc6\u94a5|\u53e3\u4ee4"
    r"|(?<=[?&;])(?:sig(?:nature)?|key|auth|q-ak)(?==)|(?<![a-z])cookie)(?!s\b|s?iz|_id|\w{0,32}length)"
)
# What a value of such a name is when it is none: a switch, a number, what this tool says itself, a call.
_HARMLESS = r"(?!true\b|false\b|null\b|none\b|\d{1,19}\b|\(not known|\(set;|<)"
_WHOLE = r"(?:(?<=[^\\]\")(?:[^\"\\\n]|\\[^\n]){4,512}(?=\")|(?<=[^\\]')(?:[^'\\\n]|\\[^\n]|''){4,512}(?='))"
_VALUE = r"[^\s,;&`'\"\])\\]{4,}"
# The rest of a name, of which nothing is given back: what goes on with a letter more is none of these.
_REST = r"(?=(?P<rest>[\w.-]{0,64}))(?P=rest)"
# What stands between a name and its value: in a list as vLLM prints its arguments, escaped within a text, in bytes.
_QUOTE = r"(?:\\{0,3}['\"])?"
_NAMED = re.compile(
    rf"({_WORDS}{_REST}{_QUOTE}\]?\s{{0,4}}(?:=>|[=:\uff1d\uff1a])(?:\s{{0,4}}|\s{{5,64}}(?=['\"]))(?:["
    rf"|>\\][+-]?\s{{1,16}})?(?:[\w.]{{1,48}}\((?=b?['\"]))?[\[({{]?b?{_QUOTE}){_HARMLESS}(?:{_WHOLE}|{_VALUE})",
    re.IGNORECASE,
)
# `password is hunter2`, `password -> hunter2`, `password%3Dhunter2`: only where the value is no word of a sentence.
_SAID = re.compile(
    rf"({_WORDS}{_REST}{_QUOTE}(?:\t{{1,4}}|\s{{0,4}}(?:->|:=|(?<=\s)\|(?=\s)|%3[ad]|&#(?:61|58);)\s{{0,4}}"
    r"|\s(?:is|was|for [^\s:]{1,64}:|provided:)\s|\s(?=['\"])|\s{1,4})['\"]?)"
    rf"{_HARMLESS}(?=[^\s'\"]{{0,64}}?\d)(?=[^\s'\"]{{0,64}}?[a-z])(?![\w]{{0,32}}[(\[.])[^\s,;&`'\"\])\\%]{{8,}}",
    re.IGNORECASE,
)
# As `['--api-key', 'value']` and `('password', 'value')`: the words of a command, the pairs of a header.
_PAIR = re.compile(
    rf"((?:['\"]--?(?=[\w-]{{0,64}}?{_WORDS})[\w-]{{1,96}}|\(b?['\"](?=[\w-]{{0,64}}?{_WORDS})[\w-]{{1,96}})['\"],\s{{0,4}}b?['\"])"
    rf"{_HARMLESS}(?!--)[^\n'\"]{{4,}}",
    re.IGNORECASE,
)
_ELEMENT = re.compile(
    rf"(<(?=[\w:-]{{0,64}}?{_WORDS})[\w:-]{{1,96}}>){_HARMLESS}[^<\n]{{4,}}(?=</)", re.IGNORECASE
)
# `--hub_token VALUE`; a flag is read from its dashes on.
_FLAG = re.compile(
    rf"((?<![\w-])--(?=([\w.-]{{1,96}}))(?=[\w.-]{{0,64}}?{_WORDS})\2\s{{1,4}}['\"]?){_HARMLESS}(?!-)[^\s,;&`'\"\])]{{4,}}",
    re.IGNORECASE,
)
# As Kubernetes and XML write an entry: its name, and what it is beside it.
_ENTRY = re.compile(
    rf"(\b(?:name|key)['\"]?\s{{0,2}}[=:]\s{{0,2}}['\"]?(?=[\w.-]{{0,64}}?{_WORDS})[\w.-]{{1,96}}['\"]?[,\s]{{1,32}}"
    rf"['\"]?value['\"]?\s{{0,2}}[=:]\s{{0,2}}['\"]?){_HARMLESS}{_VALUE}",
    re.IGNORECASE,
)
# What is passed on to a program that asks for a password.
_PIPED = re.compile(
    r"(\becho\s(?:-n\s)?['\"]?)(?!<)[^\s|'\"]{4,256}(?=['\"]?\s{0,4}\|[^\n|]{0,80}(?:--password-stdin|sudo -S))"
)
# A program that is given a password by a letter of its own.
_GIVEN = re.compile(
    r"(\bcurl\b[^\n|;]{0,200}?\s(?:-u|--user)[\s=]{1,4}['\"]?[^\s:'\"]{1,64}:"
    r"|\b(?:sshpass|docker login|mysql(?:dump|admin)?|unzip|7z|swanlab login|openssl|ssh-keygen)\b[^\n|;]{0,120}?"
    r"\s(?:-[pPkN]\s?|-p(?=\w)|-pass(?:in|out)?\s{1,4}pass:)['\"]?|\bAUTH\s(?=[^\s]{0,64}?\d)"
    r"|\b(?:IDENTIFIED BY|PASSWORD)\s{1,4}')"
    rf"(?![-<]){_VALUE}"
)
_PROGRAMS = (
    "curl", "sshpass", "docker login", "mysql", "unzip", "7z", "swanlab", "openssl", "ssh-keygen", "AUTH", "IDENTIFIED",
    "PASSWORD",
)  # fmt: skip
# Under a name that says little: only what cannot be a word.
_OPAQUE = re.compile(
    r"((?<![\w-])[\w-]{0,48}?(?:key|auth|session(?:_?id)?|sid|sk|ak|pat|credentials?)['\"]?\s{0,4}[=:]\s{0,4}['\"]?)"
    r"([A-Za-z0-9_+=-]{16,512})(?![\w.])",
    re.IGNORECASE,
)
_OPAQUE_NAME = re.compile(r"(?:key|auth|sess|sid|sk|ak|pat|cred)[a-z_]{0,9}['\"]?\s{0,4}[=:]")
_OPAQUE_BEGINNING = re.compile(r"(?<![\w-])[\w-]+(?=['\"]?\s{0,4}[=:])")
# Whatever the scheme, and whatever the cookie: all behind it, up to the quote that closes it.
_HEADER = re.compile(
    r"((?:(?:proxy-)?authorization|x-api-key|x-auth-token|x-hub-signature(?:-256)?|(?:set-)?cookie)\\?['\"]?\s{0,4}[:=,]\s{0,4}"
    r"(?:b(?=['\"]))?\\?['\"]?)"
    r"(?!<secret>|[\w.]{1,48}\(b?['\"]|[|>][+-]?\n)[^\s'\"][^\n'\"]{0,4096}(?:''[^\n'\"]{0,512}){0,8}"
    r"(?:\"[^\"\n]{0,512}\"[^\n'\"]{0,512}){0,32}",
    re.IGNORECASE,
)
_COOKIES = re.compile(r"(\bcookies\s{0,4}=\s{0,4}\{)(?!<secret>)[^}\n]{1,4096}", re.IGNORECASE)
_BEARER = re.compile(r"\b(bearer\s{1,4})(?=[^\s\d]{0,256}\d)[\w.~+/=-]{8,}", re.IGNORECASE)
_BASIC = re.compile(
    r"\b(Basic\s{1,4})(?=[^\s\d]{0,256}\d)(?=[^\sA-Z]{0,256}[A-Z])[A-Za-z0-9+/]{16,}={0,2}(?![\w.-])"
)
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
# As `user:password@host`, without a scheme before it; a digest behind an image's tag is none.
_LOGIN = re.compile(r"(?<![\w:/.+-])[\w.+-]{1,64}:(?!//)[^\s@/:'\"<>]{3,128}@(?=[\w\[])(?!sha256:)")
# A line of a key without its head: long, and of all three kinds of letters.
_LONG = re.compile(r"(?<![A-Za-z0-9+/=_.-])[A-Za-z0-9+/]{60,}={0,2}")
# What nobody could say; but names of C++ as compilers write them, hashes of files, folders of uv's cache.
_RANDOM = re.compile(
    rf"{EDGE}(?:_Z\w{{1,4096}}|sha(?:1|256|512)[=:-][\w+/=-]{{1,128}}|archive-v\d/[\w-]{{1,64}}|[A-Za-z0-9]{{20,}})",
)
_SWITCH = re.compile(r"(?<=[a-z])(?=[A-Z0-9])|(?<=[A-Z])(?=[a-z0-9])|(?<=[0-9])(?=[A-Za-z])")
_SPOKEN = re.compile(r"[a-z]{3,}")


def mask(text: str) -> str:
    """The text with a placeholder in place of every secret.

    >>> mask("Authorization: Digest abc; --hub_token s3cr3tvalue")
    'Authorization: <secret>'
    """
    return settled(mask_once, text)


def settled(change: Callable[[str], str], text: str) -> str:
    """The text changed until it stays: what is taken out can lay bare the beginning of what stood behind it."""
    for _ in range(5):
        before, text = text, change(text)
        if text == before:
            break
    return text


def mask_once(text: str) -> str:
    """One pass of `mask`, for what goes on until nothing changes itself."""
    for sought, by in _EACH:
        text = sought.sub(by, text)
    return text


def _issued(match: re.Match[str]) -> str:
    revision = len(match[0]) == 40 and _REVISION.search(
        match.string, max(0, match.start() - 24), match.start()
    )
    return match[0] if revision else MASK


def _opaque(match: re.Match[str]) -> str:
    value = match[2]
    digits = len(value) >= 32 and not value.strip("0123456789abcdef")
    return match[1] + MASK if digits or any(map(_unspoken, re.split(r"[_+=-]+", value))) else match[0]


def _random(match: re.Match[str]) -> str:
    return MASK if _unspoken(match[0]) else match[0]


def _unspoken(word: str) -> bool:
    """Whether a word is long, of all three kinds of letters, and has none of the syllables that a name has."""
    if len(word) < 16 or not all(any(map(kind, word)) for kind in (str.isdigit, str.isupper, str.islower)):
        return False
    spoken = sum(map(len, _SPOKEN.findall(word)))
    return word.isalnum() and len(_SWITCH.findall(word)) >= 0.4 * len(word) and spoken <= len(word) / 3


def _long(match: re.Match[str]) -> str:
    """A path is long, too; what is between two slashes of it is not."""
    part = max(match[0].split("/"), key=len)
    kinds = (str.isdigit, str.isupper, str.islower)
    random = len(part) >= 20 and all(any(map(kind, part)) for kind in kinds)
    return MASK if random else match[0]


# What each of the names begins with, and what stands in each of them.
_BEGINNING = re.compile(
    r"t(?=oken)|s(?=ecret|ig|k\s{0,4}[=:]|ubscription|torage)|p(?=ass|wd?|at\s{0,4}[=:]|rivate|ush)|b(?=indpw)"
    r"|r(?=equirepass)|a(?=pi|ccess|ccount|uth)|e(?=ncryption)|m(?=aster|ot de)|k(?=aggle|ey=)"
    r"|c(?=lient-|redential|ontrase|ookie)|w(?=andb[._]key)|x(?=-(?:amz|goog|oss)-)|_(?=auth)|q(?=-ak)|\u5bc6|\u53e3"
)
_STEMS = (
    "token", "secret", "pass", "pw", "bindpw", "key", "client-", "credential", "x-amz", "x-goog", "x-oss", "sk", "pat",
    "_auth", "contrase", "mot de", "\u5bc6", "\u53e3", "sig", "auth=", "q-ak", "cookie",
)  # fmt: skip
_EACH: tuple[tuple[Sought, str | Callable[[re.Match[str]], str]], ...] = (
    (Sought(_PRIVATE, (("PRIVATE KEY",),)), MASK),
    (
        Sought(
            _HEADER,
            (("authorization", "x-api-key", "x-auth-token", "x-hub-", "cookie"),),
            starts=re.compile(
                r"a(?=uthorization)|p(?=roxy-auth)|x(?=-api-key|-auth-token|-hub-)|s(?=et-cookie)|c(?=ookie)"
            ),
        ),
        rf"\1{MASK}",
    ),
    (Sought(_COOKIES, (("cookies",),)), rf"\1{MASK}"),
    (Sought(_HOOK, (("://", "/bot", "/webhook", "/hook/"),)), rf"\1{MASK}"),
    (Sought(_URL, (("://",), ("@",))), f"{MASK}@"),
    (Sought(_ENCODED, (("%3a%2f%2f",), ("%40",))), f"{MASK}@"),
    (Sought(_LOGIN, ((":",), ("@",))), f"{MASK}@"),
    (
        Sought(
            _JWT,
            (("eyJ",),),
            starts=re.compile(
                r"eyJ(?:(?<![A-Za-z0-9]eyJ)|(?<=\\[nrt]eyJ)|(?<=\[\dmeyJ)|(?<=\[\d\dmeyJ))[A-Za-z0-9_-]*"
            ),
        ),
        MASK,
    ),
    (Sought(_ISSUED), _issued),
    (Sought(_BEARER, (("bearer",),)), rf"\1{MASK}"),
    (Sought(_BASIC, (("Basic",),)), rf"\1{MASK}"),
    (Sought(_PIPED, (("echo",),)), rf"\1{MASK}"),
    (Sought(_ENTRY, (_STEMS, ("value",))), rf"\1{MASK}"),
    (Sought(_NAMED, (_STEMS, ("=", ":", "\uff1d", "\uff1a")), starts=_BEGINNING), rf"\1{MASK}"),
    (Sought(_PAIR, (_STEMS, ("',", '",'))), rf"\1{MASK}"),
    (Sought(_ELEMENT, (_STEMS, ("</",))), rf"\1{MASK}"),
    (Sought(_FLAG, (_STEMS, ("--",))), rf"\1{MASK}"),
    (Sought(_GIVEN, (_PROGRAMS,)), rf"\1{MASK}"),
    (Sought(_SAID, (_STEMS,), starts=_BEGINNING), rf"\1{MASK}"),
    (Sought(_OPAQUE, needs=_OPAQUE_NAME, starts=_OPAQUE_BEGINNING), _opaque),
    (Sought(_LONG), _long),
    (Sought(_RANDOM), _random),
)
