"""Secrets by the name they stand under: a variable's, a field's, an option's, a program's.

Each pattern is bounded, as those of `secrets`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnostics.collect import late as re
from diagnostics.collect.sought import Sought, Starts, first_letters

if TYPE_CHECKING:
    from collections.abc import Callable

MASK = "<secret>"
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
    rf"((?:['\"]--?|\(b?['\"])(?=[\w-]{{1,96}}['\"],)(?=[\w-]{{0,64}}?{_WORDS})[\w-]{{1,96}}['\"],\s{{0,4}}b?['\"])"
    rf"{_HARMLESS}(?!--)[^\n'\"]{{4,}}",
    re.IGNORECASE,
)
_ELEMENT = re.compile(
    rf"(<(?=[\w:-]{{1,96}}>)(?=[\w:-]{{0,64}}?{_WORDS})[\w:-]{{1,96}}>){_HARMLESS}[^<\n]{{4,}}(?=</)",
    re.IGNORECASE,
)
# `--hub_token VALUE`; a flag is read from its dashes on.
_FLAG = re.compile(
    rf"((?<![\w-])--(?=([\w.-]{{1,96}})\s)(?=[\w.-]{{0,64}}?{_WORDS})\2\s{{1,4}}['\"]?){_HARMLESS}(?!-)[^\s,;&`'\"\])]{{4,}}",
    re.IGNORECASE,
)
# As Kubernetes and XML write an entry: its name, and what it is beside it.
_ENTRY = re.compile(
    rf"(\b(?:name|key)['\"]?\s{{0,2}}[=:]\s{{0,2}}['\"]?(?=[\w.-]{{1,96}}['\"]?[,\s])(?=[\w.-]{{0,64}}?{_WORDS})[\w.-]{{1,96}}['\"]?[,\s]{{1,32}}"
    rf"['\"]?value['\"]?\s{{0,2}}[=:]\s{{0,2}}['\"]?){_HARMLESS}{_VALUE}",
    re.IGNORECASE,
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
    "curl", "sshpass", "docker login", "mysql", "unzip", "7z", "swanlab login", "openssl", "ssh-keygen", "AUTH",
    "IDENTIFIED", "PASSWORD",
)  # fmt: skip
# Under a name that says little: only what cannot be a word.
_OPAQUE = re.compile(
    r"((?<![\w-])[\w-]{0,48}?(?:key|auth|session(?:_?id)?|sid|sk|ak|pat|credentials?)['\"]?\s{0,4}[=:]\s{0,4}['\"]?)"
    r"([A-Za-z0-9_+=-]{16,512})(?![\w.])",
    re.IGNORECASE,
)
# The same from its sign back to where the name begins.
_OPAQUE_ENDS = first_letters(
    *(
        rf"{sign}\s{{0,4}}['\"]?(?:yek|htua|(?:di_?)?noisses|dis|ks|ka|tap|s?laitnederc)[\w-]{{0,48}}(?![\w-])"
        for sign in "=:"
    )
)
_SWITCH = re.compile(r"(?<=[a-z])(?=[A-Z0-9])|(?<=[A-Z])(?=[a-z0-9])|(?<=[0-9])(?=[A-Za-z])")
_SPOKEN = re.compile(r"[a-z]{3,}")
# Where each of the names begins; a key's is found by its end.
_KEYS = (
    "api", "access", "account", "private", "signing", "encryption", "auth", "subscription", "master", "push", "kaggle",
    "storage",
)  # fmt: skip
_BEGINNINGS: Starts = (
    *("token", "secret", "pass", "pw", "bindpw", "requirepass", "client-", "credential", "cookie", "contrase"),
    *("mot de", "_auth", "x-amz-", "x-goog-", "x-oss-", "\u5bc6\u7801", "\u5bc6\u94a5", "\u53e3\u4ee4"),
    *first_letters(
        rf"k(?=ey)(?:{'|'.join(rf'(?<=({word})k)|(?<=({word})[ _-]k)' for word in _KEYS)}|(?<=(wandb)[._]k))",
        *(rf"{sign}()(?=sig|key=|auth=|q-ak=)" for sign in (r"\?", "&", ";")),
        r"_()(?=(?:sk|pat)\s{0,4}[=:])",
    ),
)  # fmt: skip
_STEMS = (
    "token", "secret", "pass", "pw", "bindpw", "key", "client-", "credential", "x-amz", "x-goog", "x-oss", "sk", "pat",
    "_auth", "contrase", "mot de", "\u5bc6\u7801", "\u5bc6\u94a5", "\u53e3\u4ee4", "sig", "auth=", "q-ak", "cookie",
)  # fmt: skip


def _opaque(match: re.Match[str]) -> str:
    value = match[2]
    digits = len(value) >= 32 and not value.strip("0123456789abcdef")
    return match[1] + MASK if digits or any(map(unspoken, re.split(r"[_+=-]+", value))) else match[0]


def unspoken(word: str) -> bool:
    """Whether a word is long, of all three kinds of letters, and has none of the syllables that a name has."""
    if len(word) < 16 or not all(any(map(kind, word)) for kind in (str.isdigit, str.isupper, str.islower)):
        return False
    spoken = sum(map(len, _SPOKEN.findall(word)))
    return word.isalnum() and len(_SWITCH.findall(word)) >= 0.4 * len(word) and spoken <= len(word) / 3


BY_NAME: tuple[tuple[Sought, str | Callable[[re.Match[str]], str]], ...] = (
    (Sought(_ENTRY, (_STEMS, ("value",)), starts=("name", "key")), rf"\1{MASK}"),
    (Sought(_NAMED, (_STEMS, ("=", ":", "\uff1d", "\uff1a")), starts=_BEGINNINGS), rf"\1{MASK}"),
    (
        Sought(_PAIR, (_STEMS, ("',", '",')), starts=("'-", '"-', "('", '("', "(b'", '(b"')),
        rf"\1{MASK}",
    ),
    (
        Sought(_ELEMENT, (_STEMS, ("</",)), starts=(re.compile(r"<(?=[\w:-]{1,96}>[^<\n]{4,}</)"),)),
        rf"\1{MASK}",
    ),
    (
        Sought(_FLAG, (_STEMS, ("--",)), starts=(re.compile(r"-(?<![\w-]-)(?=-[\w.-]{1,96}\s)"),)),
        rf"\1{MASK}",
    ),
    (Sought(_GIVEN, starts=_PROGRAMS), rf"\1{MASK}"),
    (Sought(_SAID, (_STEMS,), starts=_BEGINNINGS), rf"\1{MASK}"),
    (Sought(_OPAQUE, ends=_OPAQUE_ENDS), _opaque),
)
