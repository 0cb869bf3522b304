"""Replace secrets, and data that identifies a person or a machine, by placeholders.

Rules recognise secrets by their shape and by their key's name. Identities are users, hosts, mail, IP and hardware
addresses, UUIDs, and this user's home folder. `mask` is for the user's own screen, `redact` for shared output, and
`redact_path` for a path alone. Mask a text before truncating it (`mask_and_cut`), because half of a secret is not
recognised.

No pattern may take time quadratic in the length of the text; tests/diagnostics/test_redact.py measures the time.
The module runs on remote hosts, so it supports Python 3.10 and imports only the standard library and
`diagnostics.frameworks`.
"""

from __future__ import annotations

import functools
import ipaddress
import os
import re
import sys
from collections.abc import Callable

from diagnostics.frameworks import FRAMEWORKS

Match = re.Match[str]
MASK = "<secret>"
_POSSESSIVE = re.compile(r"(?<=[*+?}])\+")


class Rule:
    """A pattern and the replacement of its matches.

    Attributes:
        needs: Texts in lower case of which every match contains one; empty if unknown.
    """

    def __init__(
        self, pattern: str, replacement: str | Callable[[Match], str] = MASK, flags: int = 0, needs: str = ""
    ) -> None:
        self._source, self.replacement, self._flags = pattern, replacement, flags
        self.needs = tuple(needs.split())

    @functools.cached_property
    def pattern(self) -> re.Pattern[str]:
        """The pattern, compiled when first used: compiling all would take half of a command's start.

        Python 3.10 has no possessive quantifiers; there they are replaced by greedy ones.
        """
        if sys.version_info < (3, 11):  # noqa: UP036 - it travels to remote hosts
            return re.compile(_POSSESSIVE.sub("", self._source), self._flags)
        return re.compile(self._source, self._flags)


def _labelled_rule(needs: str, pattern: str) -> Rule:
    """Return a rule for secrets whose label (the pattern's first group) stays; case is ignored."""
    return Rule(pattern, rf"\1{MASK}", re.IGNORECASE, needs)


# Beginning of a word: also after an escaped line end or colour in quoted text.
EDGE = r"(?=[\w$/\\])(?:(?<![A-Za-z0-9])|(?<=\\[nrt])|(?<=\[\dm)|(?<=\[\d\dm))"
# Prefixes of issued tokens that a dash or an underscore ends.
_ISSUERS = (
    r"lsv2_[a-z]{2}", "hf", "api_org", "gh[oprsu]", "github_pat", "glpat", "gldt", "glptt", "glrt",
    "glsoat", "glcbt", "glft", "gloas", "glsa", "glc", "xox[a-z]", "xapp", "sk", "rk", "gsk", "nvapi", "pypi", "npm",
    "r8", "dckr_pat", "shpat", "shpss", "shpca", "dop_v1", "doo_v1", r"wandb_v\d", r"tgp_v\d", "tskey",
    "lin_(?:api|oauth)", "fw",
    "pplx", "xai", "GOCSPX", "rpa", "csk", "tvly", "pcsk", "jina", "whsec", "HRKU", "ntn", "figd", "PMAK",
    "pscale_tkn", "rubygems", "KGAT", "NRAK", "sntrys", "nfp", "sq0[a-z]{3}", "CFPAT",
)  # fmt: skip
# A git revision has the shape of a W&B key, but follows one of these words.
_REVISION = re.compile(
    r"(?i)(?:\b(?:commit|checkout|revision|rev|sha1?|head|detached at|snapshots|tree|blob|ref)\b|@)\W{0,4}\Z"
)
# Texts of which each name in _SECRET_NAMES contains one.
_KEY_TEXTS = "token secret pass pw key cred cookie signature sig= sk pat auth jwt contrase mot \u5bc6 \u53e3"
# Endings of names whose value is no secret, such as token_count.
_HARMLESS_ENDINGS = (
    r"(?!s\b|s?iz|_id|[\w-]{0,32}length|[_-]?(?:file|path|dir|name|type|level|mode|count)s?(?![a-z]))"
)
# Names of keys with a secret value.
_SECRET_NAMES = (
    # No name begins with another letter, so most positions of a text fail at once.
    r"(?=[ptsabcejklmoqrwxh\u5bc6\u53e3])(?:token|secret|(?<!/etc/)passw(?:or[dt])?d?(?![a-z])|pass(?:phrase|code)"
    r"|(?<!com)(?<!by)pass(?=\\{0,3}['\"]?\s{0,4}[=:])"
    r"|(?:(?<=[_;-])pwd|(?<![a-z])pw)(?=\\{0,3}['\"]?[ \t]{0,64}(?:[=:|\u2502]|\.{2}))|(?<=_)pwd\b|bindpw"
    r"|(?<![a-z])(?:jwt|psk)(?=[=:])|(?<![a-z_])pwd(?=\\{0,3}['\"]?\s{0,4}[=:]\s{0,4}\\{0,3}['\"]?(?![a-z]:)[^\s/~.$'\"<\\]{4})"
    r"|requirepass|(?:api|access|account|private|signing|encryption|auth|subscription|master|push|kaggle|storage"
    r"|license|admin|service|ssh|client|webhook|hmac|wandb|swanlab|litellm|comet|openai|anthropic)[ ._-]?key"
    r"|client-(?:key|certificate)-data|credential(?:s?(?=['\"]?\s{0,4}[=:]\s{0,4}['\"]?[^\s:/'\"]{1,64}:[^\s/]))?"
    r"|x-(?:amz|goog|oss)-(?:signature|credential|security-token)|(?<=_)(?:(?:sk|pat)(?=\s{0,4}[=:])|creds?(?=['\"]?\s{0,4}[=:]\s{0,4}['\"]?[^\s:/'\"]{1,64}:[^\s/]))|(?<![a-z])_auth(?=\s{0,4}[=:])"
    r"|contrase\xf1a|mot de passe|\u5bc6\u7801|\u5bc6\u94a5|\u53e3\u4ee4"
    rf"|(?<=[?&;])(?:sig(?:nature)?|key|auth|q-ak)(?==)|(?<![a-z])cookie){_HARMLESS_ENDINGS}"
)
# Values that are no secret: a state, a placeholder, a variable's name, a type, a release, and a number unless it is a
# password.
_STATE = (
    r"(?:true|false|null|none|required|optional|missing|unexpected|invalid|expired|enabled|disabled)"
    r"(?=[\s,;&)\]}'\"`\\<|#]|\.?(?:\s|\Z))"
)
_TYPE = r"(?:str|bytes|Any|SecretStr|Optional\[\w{1,16}\])(?:\s?\|\s?None)?\s{0,4}="
_HARMLESS = (
    rf"(?!{_STATE}|{_TYPE}|\(not known|\(set;|<(?:secret|user|host|mail|address|uuid)>"
    r"|(?:<[^\s<>]{1,64}>|\$\{\{[\w. -]{1,64}\}\}|\$\{(?:oc\.env:)?\w{1,64}(?:,\w{0,4}|:?[-?=])?\}"
    r"|(?-i:\$[A-Z_][A-Z0-9_]{0,64})|=\d{1,4}(?:\.\w{1,8}){1,4})[,;)\]}]{0,3}(?:[\s'\"`\\<|]|\Z))"
)
_NO_NUMBER = r"(?!\d{1,19}\b)"
_NUMBER = re.compile(r"\d[\d.,:/%eE+-]*(?:[;)\]}]{0,3}\Z|[,;&)\]}]{1,3}[a-zA-Z]\w{1,64}[=:])")
_NO_OPTION = r"(?!--?[a-zA-Z][\w.-]{0,64}(?:[\s=,'\"\]]|\Z)|<\s?[\w./-]{1,256}(?:\s|\Z))"
_WHOLE = r"(?:(?<=[^\\]\")(?:[^\"\\\n]|\\[^\n]){4,512}(?=\")|(?<=[^\\]')(?:[^'\\\n]|\\[^\n]|''){4,512}(?='))"
# An unquoted value where punctuation can end it, and where only a blank, a quotation mark, a colour code or an escaped
# line end does.
_VALUE = r"[^\s,;&`'\"\])\\]{4,}"
_UNQUOTED = r"[^\s`'\"\x1b]{4}[^\s`'\"\x1b\\]*(?:\\(?![nrt'\"\\]|x1b|u001b)[^\s`'\"\x1b\\]*)*"
_COLOUR = r"(?:(?:\x1b|\\(?:x1b|u001b|033|e))\[[\d;]{0,16}m){0,3}"
_REST = r"(?=(?P<rest>[\w.-]{0,64}))(?P=rest)"
_QUOTE = r"(?:\\{0,3}['\"]|&quot;|&#3[49];)?"
# Prefix and opening quotation mark of a text: b'x', f"x", $'x'.
_OPENED = rf"(?:[bruf]{{0,2}}(?=['\"])|\$(?='))?(?:\"{{3}}|'{{3}}(?!')|{_QUOTE})"
# Between two arguments of a command: blanks, a continued line, or the next item of a list in Python, JSON or YAML.
_GAP = rf"{_QUOTE}(?:\s{{0,4}},\s{{0,32}}|\s{{1,4}}(?:\\?\n\s{{0,16}})?(?:- )?){_OPENED}"
_IN_QUERY = re.compile(r"(?:[?&]|://|\\u0026|%26|%3f)[\w.;:/@#%-]{0,96}\Z", re.IGNORECASE)
_SYLLABLE = re.compile(r"[a-z]{3,}")
_CHANGE_OF_KIND = re.compile(r"(?<=[a-z])(?=[A-Z0-9])|(?<=[A-Z])(?=[a-z0-9])|(?<=[0-9])(?=[A-Za-z])")


def _mask_unless_revision(match: Match) -> str:
    """Mask a token, unless it is a git revision: 40 characters after a word such as `commit`."""
    before = match.string[max(0, match.start() - 24) : match.start()]
    return match[0] if len(match[0]) == 40 and _REVISION.search(before) else MASK


def _mask_if_random_part(match: Match) -> str:
    """Mask a long word, unless it is a path in which no part between slashes is random."""
    part = max(match[0].split("/"), key=len)
    kinds = (str.isdigit, str.isupper, str.islower)
    return MASK if len(part) >= 20 and all(any(map(kind, part)) for kind in kinds) else match[0]


def _is_random(word: str) -> bool:
    """Return whether a word is long, mixes digits and both cases often, and has few syllables of a name."""
    if len(word) < 16 or not all(any(map(kind, word)) for kind in (str.isdigit, str.isupper, str.islower)):
        return False
    syllables = sum(map(len, _SYLLABLE.findall(word)))
    return (
        word.isalnum()
        and len(_CHANGE_OF_KIND.findall(word)) >= 0.4 * len(word)
        and syllables <= len(word) / 3
    )


# Options of programs that take a password, or a login with its password, in a short option.
_LOGIN = r"[^\s:'\"]{0,64}:"
_OPTIONS = {
    "curl wget http https xh": rf"(?:-\w{{0,6}}[uUaE]|--(?:proxy-)?user|--auth|--cert)(?:=|{_GAP}|{_OPENED}){_LOGIN}"
    rf"|(?:-b|--cookie)(?:=|{_GAP}|{_OPENED})[^\s='\";]{{1,64}}=",
    "skopeo podman": rf"--(?:src-|dest-)?creds(?:=|{_GAP}){_LOGIN}",
    "login upload mysql mysqldump mysqladmin mariadb sshpass mongo mongosh mongodump 7z useradd": "-p",
    "unzip zip sqlcmd bcp ipmitool": "-P",
    "redis-cli": "-a",
    "ldapsearch ldapadd ldapmodify ldapwhoami ldapdelete ldapcompare ldappasswd": "-w",
    "snmpget snmpwalk snmpset": "-[cAX]",
    "xfreerdp xfreerdp3 wfreerdp": "/p:",
    "openssl": rf"-k|-pass(?:in|out)?{_GAP}pass:",
    "ssh-keygen": "-N",
    "publish": "-[pt]",
    "smbclient lftp": r"-[uU]\s[^\s%,]{1,64}[%,]",
    "chpasswd": rf"<<<\s?{_OPENED}{_LOGIN}",
    "htpasswd": r"-(?=\w{0,4}n)\w{0,4}b\w{0,4}\s\S{1,64}(?=\s)|-(?!\w{0,4}n)\w{0,4}b\w{0,4}(?:\s\S{1,64}){2}(?=\s)",
    "wpa_passphrase": r"\s\S{1,64}(?=\s)",
}
_PROGRAMS = {
    name: Rule(
        rf"(?<![\w-])((?:{options})(?:=|{_GAP}{_NO_OPTION}|{_OPENED}))(?!\d{{1,5}}(?:[\s'\"]|\Z))"
        rf"{_HARMLESS}(?:{_WHOLE}|{_UNQUOTED})",
        rf"\1{MASK}",
    )
    for names, options in _OPTIONS.items()
    for name in names.split()
}


def _mask_options(match: Match) -> str:
    """Mask the passwords among the arguments of a program."""
    rule = _PROGRAMS[match["program"]]
    return match["program"] + rule.pattern.sub(rule.replacement, match["arguments"])


def _mask_value(match: Match) -> str:
    """Mask a value; under a name that is not of a password, numbers and words after a weak separator stay."""
    label, value = match["label"], match["value"]
    is_harmless = _NUMBER.match(value) or (match.groupdict().get("weak") and value.isalpha())
    return match[0] if is_harmless and "pass" not in label.lower() else f"{label}{MASK}"


def _mask_unquoted(match: Match) -> str:
    """Mask a value up to the next blank, unless it is in a URL or in brackets, where punctuation can end it."""
    start, value_start = match.span("label")
    before = match.string[max(0, start - 256) : start].rpartition("\n")[2]
    line = (before + match.string[start:value_start]).rstrip("[({")
    for quote in "'\"":
        if line.count(quote) % 2:
            line = line.rpartition(quote)[2]
    in_brackets = sum(map(line.count, "([{")) > sum(map(line.count, ")]}"))
    return match[0] if in_brackets or _IN_QUERY.search(before) else _mask_value(match)


def _value_rules(label: str) -> tuple[Rule, Rule]:
    """Return the rules for the values after a label: unquoted ones up to a blank, and those in URLs and brackets."""
    label = rf"(?P<label>{label}){_HARMLESS}"
    return (
        Rule(rf"{label}(?P<value>{_WHOLE}|{_UNQUOTED})", _mask_unquoted, re.IGNORECASE, _KEY_TEXTS),
        Rule(rf"{label}(?P<value>{_WHOLE}|{_VALUE})", _mask_value, re.IGNORECASE, _KEY_TEXTS),
    )


_SECRETS: tuple[Rule, ...] = (
    Rule(
        r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY[A-Z ]{0,10}-----"
        r"(?:(?!-----BEGIN)[\s\S]){0,20000}?(?:-----END [A-Z0-9 ]{0,60}-----|(?=-----BEGIN)|\Z)",
        needs="private",
    ),
    _labelled_rule(
        "authorization x- cookie",
        # A header's value ends at the closing quote. The last lines keep the next value's quotes out of it.
        r"((?:(?:proxy-)?authorization|x-api-key|x-auth-token|x-hub-signature(?:-256)?|(?:set-)?cookie)\\?['\"]?\s{0,4}[:=,]\s{0,4}"
        r"(?:b(?=['\"]))?\\?['\"]?)"
        r"(?!<secret>|"
        + _STATE
        + r"|[\w.]{1,48}\(b?['\"]|[|>][+-]?\n)[^\s'\"][^\n'\"]{0,4096}(?:''[^\n'\"]{0,512}){0,8}"
        r"(?:(?:\"[^\"\n]{0,512}\"|(?:(?<=[:=])|(?<=[:=] ))'[^'\n]{0,512}')[^\n'\"]{0,512}){0,32}",
    ),
    # All values of a collection.
    _labelled_rule(
        "cookie password secret credential key token",
        r"((?:\bcookies|passwords|secrets|credentials|(?:password|secret|(?:api|access|auth|hf)[_-]?(?:key|token))"
        r"(?:s|(?=['\"]?\s{0,4}[=:]\s{0,4}\[)))(?:['\"]?\s{0,4}[=:]\s{0,4}(?:[\[{]|dict\()"
        r"|(?<!secrets):(?=[ \t]{0,4}\r?\n[ \t]{0,32}- )))(?!<secret>)"
        r"(?:(?:\"[^\"\n]{0,512}\"|'[^'\n]{0,512}'|[^\]})\n]){1,4096}|(?:[ \t]{0,4}\r?\n[ \t]{0,32}- [^\n]+){1,64})",
    ),
    # Also the signature at the end of an AWS header.
    _labelled_rule(
        "cookies: signature=", r"(\bcookies:\s{0,4}\w{1,64}=|\bsignature=(?=[0-9a-f]{40}))[^\s'\"]{4,}"
    ),
    # The address of a webhook is a secret: anybody who has the address can post to the webhook.
    Rule(
        r"(://(?:hooks?|maker|sctapi|api\.day|outlook|[\w-]{1,64}\.webhook)\.[\w.-]{1,64}/|/bot(?=\d{6})"
        r"|/webhooks?(?:b2)?/|/hook/|://[\w.-]{1,64}/t/(?=[\w-]{16}))(?!<secret>)[^\s'\"<>)\]]{6,512}",
        rf"\1{MASK}",
        needs="hook maker sctapi api.day outlook /bot /t/",
    ),
    # In a URL up to the last @ of the authority, as a password may contain one; `user:password@host` without a scheme.
    Rule(
        r"(?<=://)[^/\s'\"]{1,512}@|(?<=://)[^\s'\"/:@]{1,64}:(?!\d{1,5}(?:[/?#]))[^\s'\"<>@]{1,256}@(?=[\w\[])"
        r"|(?:(?<![\w:/.+-])|(?<=:/))[\w.+-]{1,64}:(?!//)[^\s@/:'\"<>]{3,128}@(?=[\w\[])(?!sha256:)"
        r"|(?i:(?<=%3A%2F%2F)[\w.~-]{0,64}%3A[\w.~%!*^-]{1,128}%40)",
        f"{MASK}@",
        needs="@ %40",
    ),
    Rule(
        rf"{EDGE}eyJ[A-Za-z0-9_-]{{8,}}(?:\.[A-Za-z0-9_-]*){{0,4}}",
        lambda match: MASK if len(match[0].partition(".")[2]) >= 8 else match[0],
        needs="eyj",
    ),
    # Tokens whose prefix shows the issuer.
    Rule(
        rf"{EDGE}(?:(?:{'|'.join(_ISSUERS)})"
        r"[_-][A-Za-z0-9_-]{16,}|(?:secret|sess)[_-](?=[\w-]{0,24}\d)[A-Za-z0-9_-]{24,}|ATATT3[\w=-]{20,}"
        r"|a[ks]-[A-Za-z0-9]{22}(?![\w-])|fc-[0-9a-f]{32}(?![0-9a-f])|[0-9a-f]{32}\.[A-Za-z0-9]{16}(?!\w|\.\w)"
        r"|ms-[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}(?![\w-])"
        r"|(?:hv[sb]|dp\.[a-z]{2}|pat\w{14}|amzn\.mws)\.[A-Za-z0-9_-]{24,}|[A-Za-z0-9]{14}\.atlasv1\.[A-Za-z0-9_-]{24,}"
        r"|(?:key-|SK)[0-9a-f]{32}(?![0-9a-f])|v1\.0-[0-9a-f]{24}-[0-9a-f]{64,}|LTAI[A-Za-z0-9]{12,28}(?![A-Za-z0-9])"
        r"|AIza[A-Za-z0-9_-]{20,}|(?:AKIA|ASIA|ABIA|ACCA|AROA)[0-9A-Z]{16}|dapi[0-9a-f]{32}(?:-\d)?"
        r"|1//0[A-Za-z0-9_-]{30,}|ya29\.[A-Za-z0-9._-]{16,}"
        r"|SG\.[A-Za-z0-9_-]{16,64}\.[A-Za-z0-9_-]{16,64}|[0-9a-f]{40}(?![A-Za-z0-9])|AGE-SECRET-KEY-1[0-9A-Z]{40,}"
        r"|\$(?:apr1|2[abxy]|[156y]|argon2\w{1,2})\$[\w./$=,+-]{8,256}"
        r"|\d{6,12}:AA[A-Za-z0-9_-]{30,})",
        _mask_unless_revision,
    ),
    # `bearer TOKEN`, `Basic TOKEN`, `echo PASSWORD | docker login`.
    _labelled_rule(
        "bearer basic",
        r"((?:\b|(?<=%20))bearer(?:\s{1,4}|%20)|\bbasic\s{1,4}(?=[a-z0-9+/]{16,}={0,2}(?![\w.-]))(?-i:(?=[^\sA-Z]{0,256}[A-Z])))"
        r"(?=[^\s\d]{0,256}\d)[\w.~+/=-]{8,}",
    ),
    Rule(
        rf"(\b(?:echo|printf)\s(?:-n\s|'%s(?:\\n)?'\s)?{_OPENED}(?:[\w.-]{{1,64}}:(?=[^|\n]{{1,256}}chpasswd))?)(?!<)"
        r"(?:(?<=\")[^\"\n]{4,256}|(?<=')[^'\n]{4,256}|[^\s|'\"]{4,256})"
        r"(?=['\"]?\s{0,4}\|[^\n|]{0,80}(?:--password-stdin|--with-token|sudo -S|chpasswd))"
        rf"|((?:--password-stdin|--with-token|sudo -S)[^\n|;<]{{0,80}}<<<\s?{_OPENED}){_VALUE}",
        rf"\1\2{MASK}",
        needs="stdin sudo --with-token chpasswd",
    ),
    Rule(
        rf"(?<![\w-])(?P<program>{'|'.join(_PROGRAMS)})(?![\w:-])"
        rf"(?P<arguments>(?:(?!\b(?:{'|'.join(_PROGRAMS)})(?![\w:-]))[^\n;|]|[;|](?=\S)|(?<=[\\,])\n){{4,1024}})",
        _mask_options,
        needs=" ".join(_PROGRAMS),
    ),
    # Arguments of functions, of SQL statements, and in netrc files.
    _labelled_rule(
        "set_cookie auth login",
        r"(\b(?:set_cookie|login|\w{0,16}auth)\s{0,2}=?\s{0,2}\(\s{0,4}(?:key=)?['\"][^'\"\n]{1,64}['\"],\s{0,4}(?:\w{1,9}=)?['\"])"
        r"(?!<)[^'\"\n]{4,}",
    ),
    _labelled_rule(
        "login",
        r"(\blogin\(\s{0,4}(?:(?:key|token)=)?['\"])(?!<)(?=[^'\"\s\d]{0,64}\d)[^'\"\s]{8,}(?=['\"]\s{0,4}[,)])",
    ),
    # The lines of a key in PuTTY's format.
    _labelled_rule(
        "private-lines",
        r"(private-lines:\s{1,4}\d{1,4}\s{1,4})(?!<)[a-z0-9+/=]{4,128}(?:\s{1,4}[a-z0-9+/=]{4,128}(?![\w+/=:-])){0,512}",
    ),
    Rule(
        rf"(\bAUTH\s(?=[^\s]{{0,64}}?\d)|\b(?:vault|swanlab) login\s"
        rf"|\b(?:IDENTIFIED BY|PASSWORD)\s{{1,4}}['\"])(?![-<]){_VALUE}",
        rf"\1{MASK}",
        needs="auth identified password login",
    ),
    _labelled_rule(
        "machine login account default",
        r"(\b(?:machine|login|account|default)(?:\s{1,8}[^\s<]{1,128})?\s{1,8}passw(?:or)?d\s{1,8}['\"]?)(?![<=:])[^\s'\"]{4,}",
    ),
    # `name: API_KEY` and then `value: SECRET`.
    _labelled_rule(
        "value",
        rf"(\b(?:name|key)['\"]?\s{{0,2}}[=:]\s{{0,2}}['\"]?(?=[\w.-]{{1,96}}['\"]?[,\s])(?=[\w.-]{{0,64}}?{_SECRET_NAMES})[\w.-]{{1,96}}['\"]?[,\s]{{1,32}}"
        rf"['\"]?value['\"]?\s{{0,2}}[=:]\s{{0,2}}['\"]?){_HARMLESS}{_VALUE}",
    ),
    # `value: SECRET` and then `name: API_KEY`.
    _labelled_rule(
        "value",
        rf"(\bvalue['\"]?\s{{0,2}}[=:]\s{{0,2}}['\"]?){_HARMLESS}{_VALUE}(?=['\"]?[,\s]{{1,32}}['\"]?(?:name|key)['\"]?\s{{0,2}}[=:]\s{{0,2}}['\"]?"
        rf"(?=[\w.-]{{0,64}}?{_SECRET_NAMES}))",
    ),
    # `password=SECRET` in all languages of configs, `| password | SECRET |` and `password ..... SECRET`.
    *_value_rules(
        rf"{_SECRET_NAMES}{_REST}{_QUOTE}\]?{_COLOUR}[ \t]{{0,64}}+(?:"
        rf"\s{{0,4}}(?:=>|:\s{{0,4}}{_TYPE}|[=:\uff1d\uff1a]){_COLOUR}(?:\s{{0,64}}(?=['\"])|[ \t]{{0,64}}+\s{{0,4}})"
        rf"|(?P<weak>(?<=\s)(?:\.{{2,80}}|[|\u2502\u2503])[ \t]{{1,64}})){_COLOUR}"
        rf"(?:[|>\\][+-]?\s{{1,16}})?(?:[!&]\S{{1,32}}\s)?(?:[\w.]{{1,48}}\((?=b?['\"]))?[\[({{]?{_OPENED}"
    ),
    # `--token SECRET`, `["--token", "SECRET"]`, `('token', 'SECRET')`.
    *_value_rules(
        rf"(?:(?<![\w-])--?|\(b?['\"])(?=(?P<flag>[\w.-]{{1,96}})[\s'\",\\])"
        rf"(?=[\w.-]{{0,64}}?(?:{_SECRET_NAMES}|(?:pass|pwd?|auth|creds?)[\s'\",\\]))"
        rf"(?P=flag){_GAP}{_NO_OPTION}(?![=:]\s)"
    ),
    # `<password>SECRET</password>`, `<entry key="password">SECRET</entry>`.
    _labelled_rule(
        "</",
        rf"(<(?=\w[^<>\n]{{0,128}}>)(?=[^<>\n]{{0,128}}?{_SECRET_NAMES})[^<>\n]{{0,128}}>){_HARMLESS}{_NO_NUMBER}[^<\n]{{4,}}(?=</)",
    ),
    # Under a name that says little: only a hexadecimal number that is long enough, or a random word.
    _labelled_rule(
        "key auth session sid sk ak pat cred sess salt",
        r"((?=[kaspjc])(?<![a-z])(?:key|auth|session(?:[_-]?id)?|sid|sk|ak|pat|cred(?:ential)?s?|(?:j|php)sess(?:ion)?id|salt)['\"]?"
        r"(?:\s{0,4}[=:]\s{0,4}|\s(?=[0-9a-f]{32}))['\"]?)"
        r"(?:[0-9a-f]{32,512}|(?-i:(?=[^\s\d]{0,64}\d)(?=[^\sA-Z]{0,64}[A-Z])(?=[^\sa-z]{0,64}[a-z])[\w!^*+-]{12,}))(?![\w.(/])",
    ),
    # `password is x1`: only a value with a digit, which is no word of a sentence.
    _labelled_rule(
        _KEY_TEXTS,
        rf"({_SECRET_NAMES}{_REST}{_QUOTE}(?:\t{{1,4}}|\s{{0,4}}(?:->|:=|(?<=\s)\|(?=\s)|%3[ad]|&#(?:61|58);)\s{{0,4}}"
        r"|\s(?:is|was|for [^\s:]{1,64}:|provided:)\s|\s(?=['\"])|\s{1,4}|[ \t]{5,64})['\"]?)"
        rf"{_HARMLESS}{_NO_NUMBER}(?=[^\s'\"]{{0,64}}?\d)(?=[^\s'\"]{{0,64}}?[a-z])(?![\w]{{0,32}}[(\[.])[^\s,;&`'\"\])\\%]{{8,}}",
    ),
    # Key material without its header line, and random words.
    Rule(r"(?<![A-Za-z0-9+/=_.-])[A-Za-z0-9+/]{60,}={0,2}", _mask_if_random_part),
    Rule(
        rf"{EDGE}(?:_Z\w{{1,4096}}|sha(?:1|256|512)[=:-][\w+/=-]{{1,128}}|archive-v\d/[\w-]{{1,64}}|[A-Za-z0-9]{{20,}})",
        lambda match: MASK if _is_random(match[0]) else match[0],
    ),
)

_NAME = r"[^/\\\s:`'\",;()\[\]<>%]++"
_PATH_EDGE = EDGE.replace("A-Za-z0-9", r"\w.-")
# Folders with one folder per user, and names in them that are no user.
_NOT_A_USER = (
    rf"(?:{'|'.join(FRAMEWORKS)}|models?|datasets?|checkpoints?|ckpts?|data|cache|\.cache|huggingface|hub|logs?|runs?"
    r"|outputs?|results?|shared|tmp|users?|home|src|code|train|test|eval|envs?|\.?venv|projects?|repos?|scripts?"
    r"|configs?|examples?|grpo|rlhf|conda|miniconda3?|lib|bin|opt|mnt|fsx|nfs|efs|nvme\d*|ssd\d*|disks?\d*"
    r"|local|scratch\d*|volumes?|storage|workspace|weights|home\d*|[a-z]|wheels|tokens?|tokeni[sz]e(?:d|rs?)|<user>)(?![\w.-])"
)
_FOLDERS: tuple[Rule, ...] = (
    Rule(
        rf"({_PATH_EDGE}(?:[A-Za-z]:)?[/\\]{{1,4}}(?:home\d{{0,2}}|Users)[/\\]{{1,4}}(?:users[/\\]{{1,4}})?(?!\.)"
        rf"|(?<=[\w-])[/\\]{{1,4}}home\d{{0,2}}[/\\]{{1,4}}(?:users[/\\]{{1,4}})?(?!\.)"
        rf"|[/\\]{{1,4}}users?[/\\]{{1,4}}(?=[^/\\\s:]++[/\\\s'\"]|[^/\\\s:.]++\Z)(?:[a-z]/[a-z]{{2}}/)?"
        rf"|{_PATH_EDGE}/(?:(?:net|cluster|global|p)/scratch\d?|scratch\d?|lustre|nfs|afs|dfs/scratch\d?)/(?!(?:home\d{{0,2}}"
        rf"|users?)/)(?![\w.-]+\.(?:edu|org|com)/)"
        r"|%(?:2F|5C)(?:home|users)%(?:2F|5C)(?=\w)"
        rf"|/tmp/(?:torchinductor|triton|hsperfdata|pytest-of|ray|krb5cc)[_-](?!session))(?![\w.-]*+\.py\b){_NAME}",
        r"\1<user>",
        re.IGNORECASE,
        "home user scratch lustre nfs afs /tmp/",
    ),
    Rule(
        rf"{_PATH_EDGE}(/(?:u|media|fsx|workspace|data\d{{0,2}}|efs|gpfs|work|storage|projects?|shared|userdata|Volumes|ceph(?:fs)?"
        rf"|jfs|dfs|raid\d?|ssd\d?|nvme\d?|hdd\d?|disks?\d{{0,2}}|nas|mnt(?:/(?:data|fsx|nfs|efs|nvme\d?))?)/)(?!{_NOT_A_USER})"
        rf"(?:{_NAME}(?=/)|[^/\\\s:`'\",;()\[\].]++(?!\w|\.\w))",
        r"\1<user>",
        needs="/",
    ),
    Rule(r"(?:(?<![\w/.~-])|(?<=\\[nrt]))~[A-Za-z_][\w.-]*+(?=/)", "~<user>", needs="~"),
)
_NO_MACHINE = r"localhost\b|127\.|0\.0\.0\.0|<|Job\b|Node\b|error\b)[\w.-]{1,64}(?:\[[\d,-]{1,64}\])?"
_MACHINES = (
    ".internal", ".local", ".lan", ".intranet", ".corp", ".localdomain", ".amazonaws.com", ".cloudapp.net",
    ".cloudapp.azure.com", ".windows.net", ".azureml.ms", ".googleusercontent.com", ".oraclevcn.com", ".aliyuncs.com",
    ".onion", ".runpod.net", ".vast.ai", ".lambdalabs.com", ".coreweave.cloud", ".cluster",
    ".run.app", ".ngrok.io", ".ngrok-free.app", ".modal.run", ".novalocal", ".home.arpa", ".ts.net",
)  # fmt: skip
_COMPANY_DOMAINS = (
    ".com", ".edu", ".net", ".org", ".gov", ".cn", ".de", ".fr", ".jp", ".uk", ".ch", ".kr", ".in", ".au", ".ca",
)  # fmt: skip
_PUBLIC_SITES = ("github", "huggingface", "pytorch", "readthedocs", "nvidia", "python.org", "pypi", "example")
_RELEASE = re.compile(
    r"(?i)(?:\b(?:version|release|driver|libcu\w{1,16}|cu[bds]\w{1,16}|cuda\w{0,8}|nccl|nv\w{2,16}|torch"
    r"|[\w-]{1,24}-cu\d\d))[ v\"'=(]{1,3}\Z",
)
_ROUTED = re.compile("[23f][0-9a-f]{3}:", re.IGNORECASE)


def _redact_mail(match: Match) -> str:
    """Redact a mail address, but keep `numpy@1.26` (a release) and `A@B.T` (an expression)."""
    last = match[0].rpartition(".")[2]
    return "<mail>" if len(last) > 1 and not last.isdigit() else match[0]


def _redact_ipv4(match: Match) -> str:
    """Redact an IPv4 address, but keep four numbers after a library's name, which are its release."""
    before = match.string[max(0, match.start() - 32) : match.start()]
    return match[0] if _RELEASE.search(before) else "<address>"


def _redact_host(match: Match) -> str:
    """Redact a name below a domain of machines or companies, but keep well-known public sites."""
    name = match[0].removesuffix(".").lower()
    at_company = (
        name.endswith(_COMPANY_DOMAINS)
        and name.count(".") > 1
        and not any(map(name.__contains__, _PUBLIC_SITES))
    )
    return "<host>" if at_company or name.endswith(_MACHINES) else match[0]


def _redact_ipv6(match: Match) -> str:
    """Redact IPv6 addresses, but keep times, slices, C++ names and longer lists."""
    text = match[0].partition("%")[0]
    if text.count(":") > 8 or (text.count(":") < 3 and not _ROUTED.match(text)):
        return match[0]
    try:
        address = ipaddress.IPv6Address(text if text.endswith("::") else text.removesuffix(":"))
    except ValueError:
        return match[0]
    return match[0] if address.is_loopback or address.is_unspecified else "<address>"


_IDENTITY: tuple[Rule, ...] = (
    Rule(
        r"((?:(?<![a-z])(?:USER|LOGNAME|USERNAME)|(?<!\w)(?i:user_?name|owner))['\"]?\s{0,2}[=:]\s{0,2}['\"]?"
        r"|['\"]user['\"]\s{0,2}:\s{0,2}['\"](?=[\w.-]{1,32}['\"])"
        r"|\bHOME=(?:~|(?:/[\w.-]{1,32}){1,4})/(?=[\w.-]{1,32}(?![\w./-]))"
        r"|\b[ug]id=\d{1,9}\(|\b(?:User|Group)Id=|\bswanlab\b[^\n]{0,60}?\bHi |\b[Ll]ogged in as:?\s"
        r"|\bsudo: {1,4}(?=[\w.-]{1,32} :)|(?:wandb\.ai"
        r"|git@[\w.-]{1,64}:)/?(?!<))"
        r"(?!<|none\b|null\b|assistant\b|user\b|system\b|root\b)[\w.-]{1,64}",
        r"\1<user>",
        needs="user owner logname home= uid= gid= groupid= swanlab logged sudo: wandb.ai git@",
    ),
    Rule(
        r"(^[dl-](?:[r-][w-][xsStT-]){3}[.+@]?\s{1,4}\d{1,6}\s{1,8})(?!root\b|<)[\w.-]{1,32}\s{1,8}[\w.-]{1,32}(?=\s)",
        r"\1<user> <user>",
        re.MULTILINE,
    ),
    Rule(
        r"^(?!<|root:)[\w.-]{1,32}(:[x*!]?:\d{1,9}:\d{1,9}:)[^:\n]{0,128}(?=:/)",
        r"<user>\1",
        re.MULTILINE,
        ":/",
    ),
    Rule(
        r"(\b(?:Author|Committer|[A-Z][\w-]{2,20}-by):\s{1,4})[^<\n]{1,80}(?= <)",
        r"\1<user>",
        needs="author: committer: -by:",
    ),
    # `ssh user@host` and prompts.
    Rule(
        r"(\b(?:ssh|scp|rsync|sftp)\b(?:\s-{1,2}[\w=-]{1,32}(?:\s\d{1,5})?){0,8}\s(?:[^\s@]{1,64}\s)?|(?<=\[)|(?<=\) )"
        r"|\bPermission denied: |^(?=[^\s@]{1,32}@[\w.-]{1,64}:(?:[~/][^\n]{0,256}?[$#]| Permission denied)))"
        r"[a-z_][\w.-]{0,31}@[\w.-]{1,64}(?![\w.@-])",
        r"\1<user>@<host>",
        re.MULTILINE,
        needs="@",
    ),
    # Servers of shared folders, also with each backslash doubled; no other part of a path and no pattern.
    Rule(
        r"(?:(?<=(?<![\w:\\}).*+\]])\\\\)|(?<=(?<![\w:\\}).*+\]])\\{4}))[A-Za-z0-9][\w.-]{2,62}(?=\\)|(?<![\w.:/-])(?=[\w-]{0,32}\d|[\w-]{1,32}\.)[A-Za-z][\w.-]{1,64}"
        r"(?=:/(?:export|home|vol|mnt)\b)",
        "<host>",
        needs="\\\\ :/",
    ),
    Rule(
        r"(--(?:master|head|node|server)[_-](?:addr(?:ess)?|host|ip)[ =]|--rdzv[_-]endpoint[ =]|--host[ =]"
        r"|NODELIST=|NODENAME=|\bLinux (?!kernel|version)(?=[\w.-]{1,64} \d{1,2}\.\d{1,3}\.)"
        r"|\b(?:resolve|added) '|connect to host |\bconnect to \[|\b(?:srun|mpirun|prun): (?:error: )?"
        r"|(?i:\brank \d{1,6} on |\bnode['\"]?\s{0,2}[=:]\s{0,2}['\"]?)(?=[a-z]{2}[\w.-]{0,62}\d)(?!cuda|gpu:)"
        r"|\b(?:STEP|JOB) [\d.]{1,24} ON |\bStepId=[\d.]{1,24} on |\bNode failure on "
        r"|\bon node (?=[A-Za-z][\w.-]{0,62}\d)"
        r"|\b(?:cluster|GCS) at (?=[\w.-]{1,64}:\d)|\bhostname (?=[\w.-]{1,64}:)"
        r"|\b(?:NodeList|BatchHost|RAY_ADDRESS)=(?!auto\b)"
        r"|vllm_server_host(?:=|[ ](?=[\w.-]{0,62}[\d.]))"
        r"|\b(?:connect to|addresses? of) \((?=[\w.-]{1,64}, \d{3,5}\))"
        rf"|Last login: [^\n]{{1,60}} from )(?!{_NO_MACHINE}",
        r"\1<host>",
        needs="addr host ip endpoint nodelist= linux resolve added connect run: step job login: rank node gcs cluster",
    ),
    Rule(
        r"(?:(?<![\w.:/-])|(?<=\]:))[\w.-]{1,64}"
        r"(?=:\d{1,8}(?::\d{1,8} \[\d{1,3}\] (?:[\w/.:-]{1,64} )?NCCL |\] \*{3} ))",
        "<host>",
        needs="nccl ***",
    ),
    Rule(
        r"(^[A-Z][a-z]{2} {1,2}\d{1,2} \d\d:\d\d:\d\d |(?<!\S)\d{4}-\d\d-\d\dT[\d:.]{8,15}(?:Z|[+-]\d\d:\d\d) "
        r"(?=[\w.-]{1,64} [\w.-]{1,32}(?:\[\d{1,9}\])?: ))"
        rf"(?!{_NO_MACHINE}",
        r"\1<host>",
        re.MULTILINE,
    ),
    # Names that machines with GPUs often have.
    Rule(
        r"(?<![\w./-])(?:dgx|hgx|gpu-?node|nid)[\w-]{0,40}\d[\w-]{0,20}", "<host>", needs="dgx hgx node nid"
    ),
    *_FOLDERS,
    Rule(
        r"(?:(?<![\w.+%-])[\w.+%-]++|\"[^\"\n@]{1,64}\")@[\w-]++(?:\.[\w-]++)++"
        r"|(?<![\w.+%-])[\w.+-]{1,64}%40[\w-]++(?:\.[\w-]++)++",
        _redact_mail,
        needs="@ %40",
    ),
    Rule(
        r"(?<=//)(?!localhost\b|127\.|0\.0\.0\.0|<|(?:[\w-]++\.){0,4}(?:github|huggingface|pytorch|readthedocs)\b)"
        r"[A-Za-z0-9][\w.-]*(?=[:/])",
        "<host>",
        needs="//",
    ),
    Rule(
        r"((?<![^\W_])(?:host|hostname|server\.address|master_addr|rdzv_endpoint|(?:https?|all)_proxy))(['\"]?\s{0,8}[=:]\s{0,8})"
        r"(?!\[?['\"]?(?:localhost|127\.|0\.0\.0\.0|<))\S++",
        r"\1\2<host>",
        re.IGNORECASE,
        "host address addr endpoint proxy",
    ),
    Rule(r"(?<![\w.-])[A-Za-z0-9_-]++(?:\.[A-Za-z0-9_-]++)++\.?", _redact_host, needs="."),
    Rule(
        rf"{_PATH_EDGE}(?:(?:ip|ec2|domU|node|host)-(?:\d{{1,3}}-){{3}}\d{{1,3}}(?!\d)|i-0[0-9a-f]{{16}}(?!\w)"
        r"|gke-[\w-]{4,64}-[0-9a-f]{8}-\w{4}(?!\w)|aks-\w{1,32}-\d{6,10}-vmss\w{6}(?!\w))",
        "<host>",
        needs="ip- ec2- domu- node- host- i-0 gke- aks-",
    ),
    Rule(
        r"(?i:(?:(?<![\w:-])|(?<=\\[nrt])|(?<=[^\W\d_]:)(?<![0-9a-f]{2}:))[0-9a-f]{2}([:-])(?:[0-9a-f]{2}\1){4,18}[0-9a-f]{2}"
        r"(?![\w-]|:\w))|(?<![\w:.-])(?=[0-9a-f]{4}:)(?=[0-9:]{0,19}[a-f])(?:[0-9a-f]{4}:){3}[0-9a-f]{4}(?![\w:-])"
        r"|(?:(?<![\w.])|(?<=\\[nrt]))(?:[0-9a-f]{4}\.){2}[0-9a-f]{4}(?!\w|\.\w)"
        r"|(?i:(?<=serial number: )|(?<=machine-id: ))\w{6,40}",
        "<address>",
        needs=": - .",
    ),
    Rule(
        r"(?:(?<![\w.=])|(?<=\\[nrt])|(?<=\[\d\dm)|(?<=[^=]=))(?!127\.|0\.)(?:\d{1,3}\.){3}\d{1,3}(?!\w|\.\w)",
        _redact_ipv4,
        needs=".",
    ),
    Rule(
        r"(?:(?<![\w:.])|(?<=\\[nrt])|(?<=[a-z]:))[0-9a-f]{0,4}(?::[0-9a-f]{0,4}){2,}+(?:%[\w.-]{1,15})?\w?",
        _redact_ipv6,
        re.IGNORECASE,
        ":",
    ),
    # As in `scp` and prompts; a split of a data set, name/set@train, is none.
    Rule(r"(?<![\w/.-])[a-z_][\w.-]{0,31}@(?!sha256:)(?=[a-zA-Z][\w-]*+:)", "<user>@", needs="@"),
    Rule(
        rf"{EDGE}(?<![0-9a-f]{{4}}-)(?:[0-9a-f]{{8}}-(?:[0-9a-f]{{4}}-){{3}}[0-9a-f]{{12}}(?![A-Za-z0-9-])"
        r"|[0-9a-f]{12}4[0-9a-f]{3}[89ab][0-9a-f]{15}(?![A-Za-z0-9]))",
        "<uuid>",
        re.IGNORECASE,
    ),
)
# One round finds every secret; the others make redaction idempotent, which texts of this length don't need.
_ROUNDS, _LONG = 4, 1 << 16


def _redact_own_names(text: str) -> str:
    """Replace this user's home folder and this machine's name."""
    home, host = os.path.expanduser("~"), os.uname().nodename  # noqa: PTH111 - as a string
    text = text.replace(home, "~") if len(home) > 1 else text
    return text.replace(host, "<host>") if len(host) > 3 else text


def mask(text: str) -> str:
    """Replace the secrets that the rules recognise, for the user's own screen.

    >>> mask("Authorization: Digest abc; --hub_token s3cr3tvalue")
    'Authorization: <secret>'
    """
    return _apply(_SECRETS, text)


def mask_and_cut(text: str, length: int) -> str:
    """Replace secrets and truncate, if the text is longer than `length`; a shorter text is returned with its secrets.

    >>> mask_and_cut("key " + "0a1b2c3d" * 5, 24)
    'key <secret>'
    """
    if len(text) <= length:
        return text
    # A secret that the first cut divides is in the part that is not shown.
    masked = _apply(_SECRETS, text[: length + 20_000], 1)
    return (masked if len(masked) > length + 10_000 else _apply(_SECRETS, text, 1))[:length]


def redact(text: str) -> str:
    """Replace what the rules recognise as a secret, a person or a machine, for a text that is shared.

    >>> redact("/home/ada/run.sh on 10.1.2.3, see ada@example.org")
    '/home/<user>/run.sh on <address>, see <mail>'
    """
    return _apply(_IDENTITY, _redact_own_names(_apply(_SECRETS, text)))


def redact_path(path: str) -> str:
    """Replace the user names in a path.

    >>> redact_path("/home/ada/run/train.py")
    '/home/<user>/run/train.py'
    """
    return _apply(_FOLDERS, path)


@functools.lru_cache(2048)
def _apply(rules: tuple[Rule, ...], text: str, rounds: int = _ROUNDS) -> str:
    """Apply all rules until nothing changes: at most `rounds` times, and once to a long text."""
    for _ in range(rounds if len(text) < _LONG else 1):
        before, lowered = text, text.lower()
        for rule in rules:
            if not rule.needs or any(map(lowered.__contains__, rule.needs)):
                text = rule.pattern.sub(rule.replacement, text)
        if text == before:
            break
    return text
