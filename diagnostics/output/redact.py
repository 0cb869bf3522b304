"""Replace secrets, and data that identifies a person or a machine, by placeholders.

The rules in redaction.toml recognise secrets by their shape and by their name (secret_names). After it, the other words
of the line are masked, too, if they are unknown: known_words.txt has the words of messages, options and documents.
Identities are users, hosts, mail, IP and hardware addresses, UUIDs, and this user's home folder. `mask` is for the
user's own screen, `redact` for shared output, and `redact_path` for a path alone. Half of a secret is not recognised,
so texts are cut by `truncate` or `redact_tail`, not by a slice. A value that `remember_secret` stored is masked under
any name.

No pattern may take time quadratic in the length of the text; tests/diagnostics/test_redact.py measures the time.
The module runs on remote hosts, so it supports Python 3.10 and imports only the standard library,
`diagnostics.frameworks` and `secret_names`.
"""

import functools
import html
import ipaddress
import os
import re
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from diagnostics.frameworks import FRAMEWORKS
from diagnostics.output import secret_names
from diagnostics.output.secret_names import Kind

Match = re.Match[str]
MASK = "<secret>"
_POSSESSIVE = re.compile(r"(?<=[*+?}])\+")
_FRAGMENT = re.compile(r"\{([A-Z_]+)\}")
# A git revision has the shape of a W&B key, but follows one of these words.
_REVISION = re.compile(
    r"(?i)(?:\b(?:commit|checkout|revision|rev|sha1?|head|detached at|snapshots|tree|blob|ref)\b|@)\W{0,4}\Z"
)
_COLOURS = re.compile(r"\x1b\[[\d;]{0,16}m")
_NUMBER = re.compile(r"\d[\d.,:/%eE+-]*(?:[;)\]}]{0,3}\Z|[,;&)\]}]{1,3}[a-zA-Z]\w{1,64}[=:])")
_IN_QUERY = re.compile(r"(?:[?&]|://|\\u0026|%26|%3f)[\w.;:/@#%-]{0,96}\Z", re.IGNORECASE)
_SYLLABLE = re.compile(r"[a-z]{3,}")
_CHANGE_OF_KIND = re.compile(r"(?<=[a-z])(?=[A-Z0-9])|(?<=[A-Z])(?=[a-z0-9])|(?<=[0-9])(?=[A-Za-z])")
_RELEASE = re.compile(
    r"(?i)(?:\b(?:version|release|driver|libcu\w{1,16}|cu[bds]\w{1,16}|cuda\w{0,8}|nccl|nv\w{2,16}|torch"
    r"|[\w-]{1,24}-cu\d\d))[ v\"'=(]{1,3}\Z"
)
_ROUTED = re.compile("[23f][0-9a-f]{3}:", re.IGNORECASE)


class Rule:
    """A pattern and the replacement of its matches.

    Attributes:
        needs: Texts in lower case of which every match contains one; empty if unknown.
        is_path: Whether the rule replaces the name of a user in a path.
        is_token: Whether a match can start at the edge of any word.
    """

    is_token = False

    def __init__(
        self,
        pattern: str,
        replacement: str | Callable[[Match], str] = MASK,
        flags: int = 0,
        needs: str = "",
        *,
        is_path: bool = False,
    ) -> None:
        self._source, self.replacement, self._flags = pattern, replacement, flags
        self.needs, self.is_path = tuple(needs.split()), is_path

    @functools.cached_property
    def pattern(self) -> re.Pattern[str]:
        """The pattern, compiled when first used: compiling all would take half of a command's start.

        Python 3.10 has no possessive quantifiers; there they are replaced by greedy ones.
        """
        if sys.version_info < (3, 11):  # noqa: UP036 - it travels to remote hosts
            return re.compile(_POSSESSIVE.sub("", self._source), self._flags)
        return re.compile(self._source, self._flags)

    def sub(self, text: str) -> str:
        """Replace all matches in a text."""
        return self.pattern.sub(self.replacement, text)


class ValueRule(Rule):
    """A rule for the values after the names of secrets; its pattern is what stands between a name and its value.

    The names are found before this pattern is tried, so a name in another's value is found, too.
    """

    def __init__(self, entry: dict[str, Any]) -> None:
        needs, self._is_plain = _needs(entry, "{KEY_TEXTS}"), "value" not in entry
        ending = entry.get("value", "{WHOLE}|{UNQUOTED}")
        between = f"(?P<label>{_expand(entry['pattern'])})" + _expand("{HARMLESS}")
        super().__init__(f"{between}(?P<value>{_expand(ending)})", flags=re.IGNORECASE, needs=needs)
        self._short = Rule(between + _expand("(?P<value>{WHOLE}|{VALUE})"), flags=re.IGNORECASE)
        self._least = Kind[entry.get("least", "SHORT")]
        self._before = Rule(entry.get("before", ""), flags=re.IGNORECASE)

    def sub(self, text: str) -> str:
        """Replace the values after the names of secrets."""
        parts, done, harmless_end = [], 0, 0
        for start, end, name, kind in _names(text):
            if (
                kind < self._least
                or start < done
                or not self._before.pattern.search(text, max(0, start - 64), start)
            ):
                continue
            # Punctuation ends the values after a harmless one, lest each name there take time for all the rest.
            is_short = self._is_plain and start < harmless_end
            match = whole_match = (self._short if is_short else self).pattern.match(text, end)
            if whole_match and self._is_plain and _is_in_brackets(text, start, whole_match.start("value")):
                match = self._short.pattern.match(text, end)
            if match and (not self._is_plain or _is_value(name, kind, match)):
                parts += [text[done : match.start("value")], MASK]
                done = match.end()
            elif whole_match:
                harmless_end = max(harmless_end, whole_match.end())
        return "".join(parts) + text[done:]


def _mask_unless_revision(match: Match) -> str:
    """Mask a token, unless it is a git revision: 40 characters after a word such as `commit`."""
    before = match.string[max(0, match.start() - 24) : match.start()]
    return match[0] if len(match[0]) == 40 and _REVISION.search(before) else MASK


def _mask_if_random_part(match: Match) -> str:
    """Mask a word if its longest part between slashes has 20 or more characters: digits and letters of both cases."""
    part = max(match[0].split("/"), key=len)
    kinds = (str.isdigit, str.isupper, str.islower)
    return MASK if len(part) >= 20 and all(any(map(kind, part)) for kind in kinds) else match[0]


def _is_random(word: str) -> bool:
    """Return whether a word is long, mixes digits and both cases often, and has few syllables of a name."""
    if len(word) < 16 or not all(any(map(kind, word)) for kind in (str.isdigit, str.isupper, str.islower)):
        return False
    changes, syllables = len(_CHANGE_OF_KIND.findall(word)), sum(map(len, _SYLLABLE.findall(word)))
    return word.isalnum() and changes >= 0.4 * len(word) and syllables <= len(word) / 3


def _mask_if_random(match: Match) -> str:
    """Mask a word if it is random."""
    return MASK if _is_random(match[0]) else match[0]


def _mask_token_with_payload(match: Match) -> str:
    """Mask a JSON Web Token, unless little follows its header."""
    return MASK if len(match[0].partition(".")[2]) >= 8 else match[0]


def _mask_options(match: Match) -> str:
    """Mask the passwords among the arguments of a program."""
    rule = _PROGRAMS[match["program"]]
    return match["program"] + rule.pattern.sub(rule.replacement, match["arguments"])


# What shows before or after a name that it is a name, not a word of a sentence.
_QUOTED = re.compile(r"""(?:<|\b(?:name|key)=\\{0,3}['"]|(?<![:=]['"])(?<![:=] ['"])(?<=['"]))\Z""")
_IN_OPTION = re.compile(r"(?<![\w-])--?\Z|\(b?['\"]\Z")
_AFTER_QUOTE = re.compile(r"""\\{0,3}['"]\s?[=:,>\]](?!\s?(?:true|false|null|\d{1,5}\b))|>""")
_TEXT_AFTER = re.compile(r"""['"]\W{1,5}['"]""")
# The words before a name that can be one word of several, as in `api key`.
_SPLIT_NAME = re.compile(r"(?i)(?:keys?|tokens?|passe|word|phrase|code|pass)\Z")
_WORDS_BEFORE = re.compile(r"(?<![\w.-])(?:[^\W\d_]{2,24}[ ]){1,2}\Z")


@functools.lru_cache(4)
def _names(text: str) -> list[tuple[int, int, str, Kind]]:
    """Return each name in a text that may be that of a secret: its place, the name in small letters, and its kind."""
    names = []
    for match in _NAME.pattern.finditer(text):
        (start, end), name = match.span("name"), match["name"]
        if _SPLIT_NAME.match(name) and (words := _WORDS_BEFORE.search(text, max(0, start - 48), start)):
            name = words[0] + name
        # `-D` is Java's option for a setting.
        name = name[1:] if name[0] == "D" and text[start - 1 : start] == "-" else name
        kind, name = secret_names.name_kind(name), name.lower()
        if kind in (Kind.AMBIGUOUS, Kind.SHORT) and name.isalpha():
            before = text[max(0, start - 12) : start]
            is_option = not name.startswith("key") and _IN_OPTION.search(before)
            is_short = kind == Kind.SHORT or name in ("pat", "ak", "sk")
            is_quoted = is_short and _QUOTED.search(before) and _AFTER_QUOTE.match(text, end)
            kind = Kind.SECRET if before[-1:] in ("?", "&") or is_option or is_quoted else kind
        if kind >= Kind.SHORT or name.endswith("auth"):
            names.append((start, end, name, kind))
    return names


def _is_in_brackets(text: str, start: int, value_start: int) -> bool:
    """Return whether a value is in a URL or in brackets, where punctuation can end it; others end at a blank."""
    before = text[max(0, start - 256) : start].rpartition("\n")[2]
    line = _COLOURS.sub("", before + text[start:value_start]).rstrip("[({")
    for quote in "'\"":
        if line.count(quote) % 2:
            line = line.rpartition(quote)[2]
    return bool(sum(map(line.count, "([{")) > sum(map(line.count, ")]}")) or _IN_QUERY.search(before))


def _is_value(name: str, kind: Kind, match: Match) -> bool:
    """Return whether a value can be a secret: a number only of a password, and a common word of no loose name."""
    value = match["value"]
    if _NUMBER.match(value) or (match.groupdict().get("weak") and value.isalpha()):
        return secret_names.is_password_name(name) and (len(value) > 5 or len(name) > 4)
    return kind == Kind.SECRET or not secret_names.is_common(value)


def _mask_if_named(match: Match) -> str:
    """Mask a value whose name, which stands before or after it, is that of a secret."""
    value = match[0][match.end("label") - match.start() :]
    is_harmless = _NUMBER.match(value) and not secret_names.is_password_name(match["name"])
    is_secret = any(kind >= Kind.SHORT for *_, kind in _names(f"<{match['name']}>"))
    return f"{match['label']}{MASK}" if is_secret and not is_harmless else match[0]


# A word of a line, and what is harmless: a plain word, a number, the date and hour of a log, an address in memory, an
# option, a reference to a variable, and the name of a file.
_LINE_WORD = re.compile(r"""[^\s'"`,;:()\[\]{}<>|=&/\\@\u1680]+""")
_HARMLESS_WORD = re.compile(
    r"[A-Z]?[a-z]*|[\d.+-]{1,14}%?|\d{4}-\d\d-\d\dT\d\d|0x[0-9a-f]{1,16}|--?[A-Za-z][\w.-]*|\$\w+|[\w-]+\.(?:py|sh|log|ya?ml|jsonl?|toml|txt|md|cfg)",
)
# A number that may be a secret after a password's name, and what shows before or after it that it is a count.
_LONG_NUMBER = re.compile(r"(?!\d{4}-\d\d-\d\d\Z)[+-]?\d(?:-?\d){5,}-?")
_COUNTED = re.compile(
    r"""(?i)(?:(?<![\w.-])(?P<name>[\w.-]{1,64})(?:["']?\s?=|["']:)\s?|\b(?:\w{0,16}_?id|pid|job|task|step|line|port|rank|seed|size|count"""
    r"""|length|total|request|code|errno|error|status|epoch|tokens)[\s:#]{1,3}|/)\Z"""
)
_UNIT = re.compile(
    r"(?i)\s?(?:[%/]|(?:[kmgt]i?b?|bytes|tokens?|steps?|samples?|rows?|lines?|files|items|objects|entries|users|params|char\w*|times|attempts|m?s|seconds|minutes)\b)"
)


def _labels(line: str) -> tuple[int, int]:
    """Return where the first name of a secret ends in a line, and the first that a number can follow; -1 if none."""
    first = -1
    for start, end, name, kind in _names(line):
        is_folder = name.endswith("s") and line[end : end + 1] == "/"
        if not is_folder and (kind != Kind.SHORT or name not in ("pass", "pwd")):
            first = end if first < 0 else first
            is_marked = _TEXT_AFTER.match(line, end) or _IN_OPTION.search(line, max(0, start - 4), start)
            if kind >= Kind.SHORT and (is_marked or kind != Kind.LOOSE or not name.endswith("token")):
                return first, end
    return first, -1


def _mask_unknown_words(match: Match) -> str:
    """Mask the words after a name of a secret that are unknown, in its line and in the indented lines below.

    >>> mask("password of ada (staging): Tulip9Kestrel is not valid")
    'password of ada (staging): <secret> is not valid'
    """
    if not secret_names.known_words():
        return match[0]
    lines, remaining, indent, number = match[0].split("\n"), 0, "", -1
    for at, line in enumerate(lines):
        if remaining and line.startswith(indent) and line[len(indent) :].startswith((" ", "\t", "- ")):
            lines[at], remaining = _mask_words(line, 0, min(number, 0)), remaining - 1
            continue
        remaining, lowered = 0, line.lower()
        end, number = _labels(line) if any(map(lowered.__contains__, _KEY_TEXTS)) else (-1, -1)
        if end >= 0:
            lines[at] = _mask_words(line, end, number)
            # A name at the end of its line can be one of a text with line breaks.
            indent = line[: max(0, len(line) - len(line.lstrip(" \t")) - (not line[end:].strip()))]
            remaining = 64 if len(line) - end <= 64 else 0
    return "\n".join(lines)


def _mask_words(line: str, first: int, number: int) -> str:
    """Mask the words of four or more characters after a place that are unknown, and after another also long numbers."""

    def mask_word(word: Match) -> str:
        text = word[0].rstrip(".!?")
        is_harmless = (
            len(text) < 4
            or _HARMLESS_WORD.fullmatch(text)
            or not text.isascii()
            or secret_names.is_known(text)
        )
        if is_harmless and 0 <= number <= first + word.start() and _LONG_NUMBER.fullmatch(text):
            start, end = first + word.start(), first + word.start() + len(text)
            counted = _COUNTED.search(line[max(0, start - 80) : start])
            is_option = counted and not secret_names.is_secret_name(counted["name"] or "")
            is_harmless = bool(is_option or _UNIT.match(line, end))
        return word[0] if is_harmless else MASK + word[0][len(text) :]

    return line[:first] + _LINE_WORD.sub(mask_word, line[first:])


def _redact_mail(match: Match) -> str:
    """Redact a mail address, but keep `numpy@1.26.post1` (a release), `A@B.T` (an expression) and `x@1.service`."""
    last = match[0].rpartition(".")[2]
    is_release = last.isdigit() or (not last.isalpha() and re.search(r"@v?\d+\.", match[0]))
    return match[0] if len(last) == 1 or is_release or last == "service" else "<mail>"


def _redact_ipv4(match: Match) -> str:
    """Redact an IPv4 address, but keep four numbers after a library's name, which are its release."""
    before = match.string[max(0, match.start() - 32) : match.start()]
    return match[0] if _RELEASE.search(before) else "<address>"


def _redact_host(match: Match) -> str:
    """Redact a name below a domain of machines or companies, but keep well-known public sites."""
    name = match[0].removesuffix(".").lower()
    machines, companies, public_sites = (tuple(text.split()) for text in _TABLE["domains"].values())
    at_company = name.count(".") > 1 and name.endswith(companies) and not name.endswith(public_sites)
    return "<host>" if at_company or name.endswith(machines) else match[0]


def _redact_ipv6(match: Match) -> str:
    """Redact IPv6 addresses, but keep this machine's own (::1, ::), times, slices, C++ names and longer lists."""
    text = match[0].partition("%")[0]
    if text.count(":") > 8 or (text.count(":") < 3 and not _ROUTED.match(text)):
        return match[0]
    try:
        address = ipaddress.IPv6Address(text if text.endswith("::") else text.removesuffix(":"))
    except ValueError:
        return match[0]
    return match[0] if address.is_loopback or address.is_unspecified else "<address>"


_TABLE = secret_names.read_table()
_FRAGMENTS = {
    "PROGRAMS": "|".join(name for names in _TABLE["options"] for name in names.split()),
    "FRAMEWORKS": "|".join(FRAMEWORKS),
    "STATES": "|".join(_TABLE["words"]["states"].split()),
}


def _expand(text: str | list[str]) -> str:
    """Join the lines of a pattern, and replace the names of fragments by their patterns."""
    return _FRAGMENT.sub(lambda match: _FRAGMENTS[match[1]], "".join(text))


# A fragment can contain earlier ones.
for _name, _text in _TABLE["fragments"].items():
    _FRAGMENTS[_name] = _expand(_text)
_NAME, _KEY_TEXTS = Rule(_expand("{LABEL}")), tuple(_FRAGMENTS["KEY_TEXTS"].split())
_FUNCTIONS: dict[str, Callable[[Match], str]] = {
    "mask_if_named": _mask_if_named,
    "mask_if_random": _mask_if_random,
    "mask_if_random_part": _mask_if_random_part,
    "mask_options": _mask_options,
    "mask_token_with_payload": _mask_token_with_payload,
    "mask_unknown_words": _mask_unknown_words,
    "mask_unless_revision": _mask_unless_revision,
    "redact_host": _redact_host,
    "redact_ipv4": _redact_ipv4,
    "redact_ipv6": _redact_ipv6,
    "redact_mail": _redact_mail,
}
_PROGRAMS = {
    name: Rule(rf"(?<![\w-])((?:{_expand(options)}){_FRAGMENTS['OPTION_VALUE']}", rf"\1{MASK}")
    for names, options in _TABLE["options"].items()
    for name in names.split()
}


def _needs(entry: dict[str, Any], default: str = "") -> str:
    """Return the texts of which every match of an entry contains one."""
    return _expand(entry.get("needs", default)).replace("|", " ")


def _make_rules(entries: list[dict[str, Any]]) -> tuple[Rule, ...]:
    """Return the rules of a table, in order."""
    rules: list[Rule] = []
    for entry in entries:
        if entry.get("is_label"):
            rules.append(ValueRule(entry))
            continue
        flags = sum({"i": re.IGNORECASE, "m": re.MULTILINE}[name] for name in entry.get("flags", ""))
        replacement = _FUNCTIONS[entry["function"]] if "function" in entry else entry.get("replacement", MASK)
        rules.append(
            Rule(_expand(entry["pattern"]), replacement, flags, _needs(entry), is_path="is_path" in entry)
        )
        rules[-1].is_token = "{EDGE}" in "".join(entry["pattern"])
    return tuple(rules)


_SECRETS, _IDENTITY = _make_rules(_TABLE["secret"]), _make_rules(_TABLE["identity"])
_FOLDERS = tuple(rule for rule in _IDENTITY if rule.is_path)
# One round finds every secret; the others make redaction idempotent, which texts of this length don't need.
_ROUNDS, _LONG = 4, 1 << 16
# A blank that no text needs: to the rules it is also the start of a line.
_SEPARATOR, _ESCAPE = "\u1680", re.compile(_FRAGMENTS["ESCAPE"])
# Colours and other sequences of a terminal around a separator, also as JSON and Python write them.
_CODES = (
    r"(?:(?:(?:\x1b|\\(?:x1b|u001b|033|e(?=\[)))(?:\[[\d;:?]{0,32}[ -/]?[@-~]|[()*+][0-9A-Z])"
    r"|\x9b[\d;:?]{0,32}[@-~]){1,8})"
)
_CODES_AROUND_SEPARATOR = re.compile(
    rf"""(?i){_CODES}(?=\\?["']?[ \t]?[=:|])|(?:(?<=[=:|])|(?<=[=:|][ \t])){_CODES}(?=\S)"""
)


def _redact_own_names(text: str) -> str:
    """Replace this user's home folder and this machine's name."""
    home, host = os.path.expanduser("~"), os.uname().nodename  # noqa: PTH111 - as a string
    text = re.sub(rf"{re.escape(home)}(?![\w-])", "~", text) if len(home) > 1 else text
    return text.replace(host, "<host>") if len(host) > 3 else text


# Values of secrets, and words in them, that have 6 characters or more and no other meaning.
_REMEMBERED: set[str] = set()
_WORD = re.compile(r"""[^\s\x00-\x1f,;=:'"\\]+""")
# A word that may be common, a reference to a variable, or a special token: replacing it would garble the report.
_MEANINGFUL = re.compile(
    r".{0,5}|[A-Z]?[a-z_./-]{0,15}|[A-Z_-]{0,15}|\$(?:[({].*|[A-Z_]\w*|[a-z_]+)|<[^>]*>|os\..*", re.DOTALL
)
# A word that has no meaning of its own in a report only if it is part of a secret; see `remember_line`.
_PLAIN = re.compile(
    r".{0,3}|[A-Z]?[a-z]+|[A-Z]+|[A-Z][A-Za-z]*(?:Error|Exception)|\d{1,5}|<[^>]*>|[\w./-]+\.py"
)
_IDENTIFIER, _BRACKETS = re.compile(r"\w+"), "()[]{}<>.!?`*|"
# Colours, and the escapes of a JSON or Python text.
_CODED = re.compile(
    r"\x1b\[[\d;]{0,16}m|\\(?:(?:u|x(?=[\da-f]{2}[^\da-f]))([\da-fA-F]{2,4})|([\"'\\/])|[nrt])"
)


def remember_secret(name: str, value: Any) -> None:
    """If the rules mask a value under this name, let `mask` replace it under any other name, too, and its words.

    Texts of less than 6 characters, words that may be common, and references to variables are not remembered. In a
    dict or list, each item is tested.

    >>> remember_secret("db.password", "Tulip9Kestrel"); mask("mode = Tulip9Kestrel"); forget_secrets()
    'mode = <secret>'
    """
    if isinstance(value, dict | list):
        for key, item in value.items() if isinstance(value, dict) else ((name, item) for item in value):
            remember_secret(str(key), item)
    elif isinstance(value, str | int | float) and secret_names.is_secret_name(name):
        text = str(value)
        start = text[:100]
        forms = (f"{name}=[{start}]", f"{name}={start!r}")
        masked = (_apply(_SECRETS, form, 1)[: len(name) + len(MASK) + 5] for form in forms)
        if any(MASK in beginning for beginning in masked) and not _MEANINGFUL.fullmatch(text):
            parts = [*_printed_forms(text), *_WORD.findall(text)]
            _REMEMBERED.update(part for part in parts if not _MEANINGFUL.fullmatch(part))


def remember_line(text: str) -> None:
    """Let `mask` replace the words that it masks in a line under any other name, for texts that are made of the line.

    Known words, and numbers of less than six digits, are not remembered. A short word is replaced as a whole word.

    >>> remember_line('{"field": "hf_token", "error": "Kes7!"}'); mask("ValueError: 'Kes7!'"); forget_secrets()
    "ValueError: '<secret>'"
    """
    for form in dict.fromkeys((text, html.unescape(_CODED.sub(_decode, text)))):
        masked = _mask_secrets(form, 1)
        if masked == form:
            continue
        lost = Counter(_IDENTIFIER.findall(form)) - Counter(_IDENTIFIER.findall(masked))
        words = {word for one in (_WORD, _LINE_WORD, _IDENTIFIER) for word in one.findall(form)}
        for word in words | {word.strip(_BRACKETS) for word in words}:
            parts = {*_IDENTIFIER.findall(word)}
            is_common = _PLAIN.fullmatch(word) or (
                secret_names.is_known(word) and not _LONG_NUMBER.fullmatch(word)
            )
            # The name of another secret in the line stays, because the rules need it.
            is_name = secret_names.is_secret_name(word) and re.search(
                rf"{re.escape(word)}['\"]?\s?[=:]", form
            )
            # In `//ada:password@host` the host stays.
            if parts and lost.keys() >= parts and not is_common and not is_name:
                _REMEMBERED.add(word)


def _decode(match: Match) -> str:
    r"""Return the character of an escape such as \u00e9; a blank for the end of a line, and nothing for a colour."""
    return chr(int(match[1], 16)) if match[1] else match[2] or " " * (match[0][0] == "\\")


def remember_token(token: str) -> None:
    """Let `mask` replace a token that this program sends; a short or common one as a whole word.

    >>> remember_token("EMPTY"); mask("key 'EMPTY' of EMPTYLIST"); forget_secrets()
    "key '<secret>' of EMPTYLIST"
    """
    _REMEMBERED.update({*_printed_forms(token)} - {""})


def _printed_forms(text: str) -> list[str]:
    """Return a text as it is, on one line, and escaped, as in messages."""
    lines = [text, " ".join(text.split())]
    return [*lines, *(repr(line)[1:-1] for line in lines)]


def forget_secrets() -> None:
    """Forget the values that `remember_secret` and `remember_host` stored."""
    _REMEMBERED.clear()
    _HOSTS.clear()


# Names of other machines, and names that are words of our reports.
_HOSTS: set[str] = set()
_COMMON_HOSTS = {"localhost", "process", "server", "trainer", "worker", "ray", "host", "node", *FRAMEWORKS}


def remember_host(name: str) -> None:
    """Let `redact` replace the name of a machine where no letter or digit is next to it.

    >>> remember_host("bluefin"); redact("no pod bluefin-0 on bluefin2"); forget_secrets()
    'no pod <host>-0 on bluefin2'
    """
    if 1 < len(name) < 256 and name not in _COMMON_HOSTS and not name.startswith("127."):
        _HOSTS.add(name)


def _redact_hosts(text: str) -> str:
    for name in sorted((name for name in _HOSTS if name in text), key=len, reverse=True):
        text = re.sub(rf"(?<![^\W_]){re.escape(name)}(?![^\W_])", "<host>", text)
    return text


def _mask_secrets(text: str, rounds: int = _ROUNDS) -> str:
    """Mask what was remembered and what the rules recognise.

    Long values are masked before the rules, which may end in them; the others after the rules, because a value such as
    "github" may be part of what a rule recognises. Terminal codes between a name and its value are removed before.
    """
    plain = _CODES_AROUND_SEPARATOR.sub("", text)
    return _replace_remembered(_apply(_SECRETS, _replace_remembered(plain, least=12), rounds))


def _replace_remembered(text: str, least: int = 0) -> str:
    for value in sorted(_REMEMBERED, key=len, reverse=True):
        if len(value) < least:
            break
        if not _MEANINGFUL.fullmatch(value):
            text = text.replace(value, MASK)
        elif value in text:
            text = re.sub(rf"{MASK}|(?<!\w){re.escape(value)}(?!\w)", MASK, text)
    return text


def mask(text: str) -> str:
    """Replace the secrets that the rules recognise, and those remembered, for the user's own screen.

    >>> mask("Authorization: Digest abc; --hub_token s3cr3tvalue")
    'Authorization: <secret>'
    """
    return _mask_secrets(text)


# A space and the part of a word that follows it, at the end of a text.
_LAST_WORD = re.compile(r"(?<=\S)\s+\S{1,100}\Z")


def truncate(text: str, length: int) -> str:
    """Cut a longer text to `length` characters, without part of a secret; any other is returned unchanged, unmasked.

    The secrets of a longer text are replaced before the cut. Half a host's name is not recognised, so the text ends
    before a word of up to 100 characters that it would divide. A longer word that it divides, such as a path, is
    redacted before.

    >>> truncate("key " + "0a1b2c3d" * 5, 24)
    'key <secret>'
    >>> truncate("from node.example.org", 15)
    'from'
    """
    if len(text) <= length:
        return text
    # A secret that the first cut divides is in the part that is not shown.
    masked = _mask_secrets(text[: length + 20_000], 1)
    if len(masked) <= length + 10_000:
        head = text if len(text) < length + _LONG else text[: length + _LONG].rpartition(" ")[0]
        masked = _mask_secrets(head, 1)
    if len(masked) <= length:
        return masked
    if word := _LAST_WORD.search(masked[: length + 1]):
        return masked[: word.start()]
    if masked[length - 1].isspace():
        return masked[:length]
    start = length - len(masked[:length].split()[-1])
    rest = masked[length : length + 1000]
    divided = masked[start:length] + (rest.split()[0] if rest and not rest[0].isspace() else "")
    return masked[:start] + _apply(_IDENTITY, _redact_own_names(divided))[: length - start]


def redact(text: str) -> str:
    """Replace what the rules recognise as a secret, a person or a machine, for a text that is shared.

    >>> redact("/home/ada/run.sh on 10.1.2.3, see ada@example.org")
    '/home/<user>/run.sh on <address>, see <mail>'
    """
    # A host may be called like a word by which the rules recognise a secret or a user.
    return _redact_hosts(_apply(_IDENTITY, _redact_own_names(_mask_secrets(text))))


def redact_tail(text: str, length: int) -> str:
    """Do what `redact` does, then keep the end: half a path or half a secret would not be recognised.

    >>> redact_tail("loaded /home/ada/run.sh", 14)
    '/<user>/run.sh'
    """
    return redact(text)[-length:]


def redact_path(path: str) -> str:
    """Replace the user names in a path.

    >>> redact_path("/home/ada/run/train.py")
    '/home/<user>/run/train.py'
    """
    return _apply(_FOLDERS, _redact_own_names(path))


def name_below(path: Path, folder: Path) -> str:
    """Return the name of a path in a folder for a report: the whole path if only that shows the name of a user."""
    name, real_folder = str(path.relative_to(folder)), os.path.realpath(folder)
    is_whole = redact_path(f"{real_folder}/{name}").endswith("/" + redact_path(name))
    return name if is_whole else f"{real_folder}/{name}"


@functools.lru_cache(2048)
def _apply(rules: tuple[Rule, ...], text: str, rounds: int = _ROUNDS) -> str:
    """Apply all rules until nothing changes: at most `rounds` times, and once to a long text.

    JSON may escape a slash; the slashes of a text in which only then a rule matches are returned without the escape.
    """
    if (plain := text.replace("\\/", "/")) != text and (changed := _apply(rules, plain, rounds)) != plain:
        return changed
    for _ in range(rounds if len(text) < _LONG else 1):
        before, lowered = text, text.lower()
        for rule in rules:
            if not rule.needs or any(map(lowered.__contains__, rule.needs)):
                text = _apply_rule(rule, text)
        if text == before:
            break
    return text


def _apply_rule(rule: Rule, text: str) -> str:
    """Apply a rule to a text and to the same text with separators around its escapes.

    A token that follows an escape must be found before a part of it, but a value may contain an escape.
    """
    for separates in (rule.is_token, not rule.is_token):
        before = _separate(text) if separates else text
        if before != text or not separates:
            changed = rule.sub(before)
            text = text if changed == before else changed.replace(_SEPARATOR, "") if separates else changed
    return text


@functools.lru_cache(2)
def _separate(text: str) -> str:
    """Put separators around escapes."""
    return _ESCAPE.sub(rf"{_SEPARATOR}\g<0>{_SEPARATOR}", text.replace(_SEPARATOR, " "))
