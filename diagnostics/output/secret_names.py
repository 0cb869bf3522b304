"""Decide by the words of a name, such as `judge_api_key`, whether its value is a secret.

The lists of words are in redaction.toml. The module runs on remote hosts, so it imports only the standard library.
"""

import enum
import functools
import json
import re
import sys
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):  # noqa: UP036 - a remote host may have Python 3.10
    import tomllib


class Kind(enum.IntEnum):
    """What a name says about its value."""

    HARMLESS = 0  # no secret
    AMBIGUOUS = 1  # a secret after an option or in a URL, such as `auth` and `key`
    SHORT = 2  # also in quotation marks, or with a value that is no common word, such as `pass`
    LOOSE = 3  # a secret unless the value is a common word or a path, such as `api_keys` and `password_for_x`
    SECRET = 4


def read_table() -> dict[str, Any]:
    """Read redaction.toml; on a remote host it arrives as JSON."""
    path = Path(__file__).with_name("redaction.json")
    if path.exists():
        document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return document
    return tomllib.loads(path.with_suffix(".toml").read_text(encoding="utf-8"))


_WORDS = {name: frozenset(text.split()) for name, text in read_table()["words"].items()}
_OWNERS = _WORDS["key_owners"] | _WORDS["services"]
_LONG_OWNERS = tuple(owner for owner in _OWNERS if len(owner) > 2)
_ESCAPED = re.compile(r"\\u([0-9a-fA-F]{4})")
# A word: capitals (API in APIKey), a capitalised or small one, a number, letters that are not ASCII.
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|[^\W\d_A-Za-z]+")
_PART = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_COMMON = re.compile(r"(?:[~.$]{0,2}/|\.{1,2}$|~|\$|[A-Za-z]:)\S*|[\w.-]+(?:/[\w.-]+)+/?|[\d.,:%+-]+\W*")


@functools.lru_cache(4096)
def name_kind(name: str) -> Kind:
    """Return what the words of a name say about its value.

    >>> [name_kind(name).name for name in ("judgeApiKeyProd", "pad_token", "password_file", "db.pass", "pass", "key")]
    ['SECRET', 'HARMLESS', 'HARMLESS', 'SECRET', 'SHORT', 'AMBIGUOUS']
    """
    words = [
        word.lower() for word in _WORD.findall(_ESCAPED.sub(lambda match: chr(int(match[1], 16)), name[-96:]))
    ]
    if "".join(words[-3:]).endswith(tuple(_WORDS["phrases"])):
        return Kind.SECRET
    while len(words) > 1 and (words[-1].isdigit() or words[-1] in _WORDS["qualifiers"]):
        words.pop()
    kind = _ending_kind(words)
    if name.isupper() and len(words) > 1 and words[-1] == "key":
        kind = max(kind, Kind.LOOSE)  # a variable of the environment
    for end in range(len(words) - 1, 0, -1):
        if kind or words[end] in _WORDS["harmless_endings"] or words[end][:-1] in _WORDS["harmless_endings"]:
            break
        before = _ending_kind(words[:end])
        is_password = end == 1 and before == Kind.SHORT and words[1] in _WORDS["password_owners"]
        if before and end == 1 and words[1] in _WORDS["services"]:
            return Kind.LOOSE
        if before >= Kind.LOOSE or is_password:
            return Kind.HARMLESS if end == 1 and words[0] in ("token", "cookie") else Kind.LOOSE
    return kind


def _ending_kind(words: list[str]) -> Kind:
    """Return the kind that the last words of a name decide."""
    last, owner = words[-1] if words else "", words[-2] if len(words) > 1 else ""
    singular = last if last.endswith("ss") else last.removesuffix("s")
    secret, joined = Kind.SECRET if singular == last else Kind.LOOSE, "".join([*words[-4:-1], singular])
    if joined.endswith(tuple(_WORDS["secret"])):
        return Kind.HARMLESS if singular == "secret" and owner in _WORDS["no_secret"] else secret
    for ending in ("token", "key"):
        if singular.endswith(ending):
            owner = singular.removesuffix(ending) or owner
            if owner in _OWNERS or owner.endswith(_LONG_OWNERS):
                return secret
            is_token = ending == "token" and singular == last and owner not in _WORDS["token_parts"]
            return Kind.LOOSE if is_token else Kind.AMBIGUOUS if singular == "key" else Kind.HARMLESS
    return _short_kind(last, owner)


def _short_kind(last: str, owner: str) -> Kind:
    """Return the kind of a name that ends in a word such as `pass`, which has other meanings."""
    short = next((word for word in _WORDS["short"] if last == word or _is_run(last, word)), "")
    if not short:
        is_secret = last == "auth" and owner in _OWNERS
        return Kind.SECRET if is_secret else Kind.AMBIGUOUS if last in _WORDS["ambiguous"] else Kind.HARMLESS
    owner = last.removesuffix(short) or owner
    if owner in _WORDS["no_password"]:
        return Kind.HARMLESS
    alone = Kind.AMBIGUOUS if short in _WORDS["ambiguous"] else Kind.SHORT
    return Kind.SECRET if owner and not owner.isdigit() else alone


def _is_run(word: str, ending: str) -> bool:
    """Return whether a word runs a password's owner and its short name together, as `dbpass` does."""
    return word.endswith(ending) and (
        word.removesuffix(ending) in _WORDS["password_owners"] or ending == "pass"
    )


def is_secret_name(name: str) -> bool:
    """Return whether the value of a name is a secret, unless the value shows that it is none."""
    return name_kind(name) >= Kind.SHORT


def is_password_name(name: str) -> bool:
    """Return whether a number can be the value, as of a password; others of this name have counts and places."""
    return bool(re.search("(?i)pass|pwd?|pswd|contrase|密|口令", name)) and is_secret_name(name)


@functools.cache
def known_words() -> frozenset[str]:
    """Return the words of messages, options and documents; none where the file is missing, as on a remote host."""
    path = Path(__file__).with_name("known_words.txt")
    return frozenset(path.read_text(encoding="utf-8").split() if path.exists() else ())


def is_known(word: str) -> bool:
    """Return whether all parts of a word that have letters are known, but for a few parts of one or two letters."""
    parts = [part.lower() for part in _PART.findall(word)]
    short = sum(len(part) < 3 for part in parts)
    known = sum(len(part) > 2 and part in known_words() for part in parts)
    return short + known == len(parts) and short <= known + 1 and sum(map(str.isdigit, word)) <= 8


def is_common(value: str) -> bool:
    """Return whether a value is a folder, a number, or a word of messages, as in `pass: first`."""
    if len(value) > 64:
        return False
    is_word = not any(map(str.isdigit, value)) and (is_known(value) if known_words() else value.isalpha())
    return is_word or bool(_COMMON.fullmatch(value))
