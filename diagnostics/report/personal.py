"""Takes out of a text what should not be shared: home folders, names of machines and users, addresses, secrets.

No text takes longer than its length: a repetition ends, or begins where no other can and gives nothing back.
"""

from __future__ import annotations

import ipaddress
import re

from diagnostics.facts.environment import redact
from diagnostics.facts.secrets import mask, settled
from diagnostics.frameworks import FRAMEWORKS

_NAME = r"[^/\\\s:`'\",;()\[\]]++"
_HOMES = re.compile(
    rf"(/(?:home|Users|scratch|lustre|nfs|(?:mnt|data|fs|fsx|gpfs|nfs|work|lustre|shared)/(?:home|users?))/"
    rf"|\b[A-Z]:\\+Users\\+){_NAME}"
)
# Folders in which each user has one, where other things lie, too: a file stays, and so does what no user is called.
_USUAL = (
    rf"(?:{'|'.join(FRAMEWORKS)}|models?|datasets?|checkpoints?|ckpts?|data|cache|\.cache|huggingface|hub|logs?|runs?"
    r"|outputs?|results?|shared|tmp|users?|home|src|code|train|test|eval|envs?|\.?venv|projects?|repos?|scripts?"
    r"|configs?|examples?|grpo|rlhf|conda|miniconda3?|lib|bin|opt|<user>)(?![\w.-])"
)
_SHARED = re.compile(
    rf"(?<![\w.-])(/(?:u|fsx|workspace|data|efs|gpfs|work|storage|projects|mnt/(?:data|fsx|nfs))/)(?!{_USUAL})"
    rf"(?:{_NAME}(?=/)|[^/\\\s:`'\",;()\[\].]++(?![\w.]))"
)
_TILDE = re.compile(r"(?<![\w/.~-])~[A-Za-z_][\w.-]*+(?=/)")
_ADDRESS = re.compile(r"(?<![\w.=])(?!127\.|0\.)(?:\d{1,3}\.){3}\d{1,3}(?!\w|\.\w)")
# Behind `=`, too, but not behind `==`: that is a release.
_ADDRESS_SET = re.compile(r"(?<=[^=]=)(?!127\.|0\.)(?:\d{1,3}\.){3}\d{1,3}(?!\w|\.\w)")
_ADDRESS6 = re.compile(
    r"(?<![\w:.])[0-9a-f]{0,4}(?::[0-9a-f]{0,4}){2,7}(%[\w.-]{1,15})?(?![\w:])", re.IGNORECASE
)
_MAC = re.compile(r"(?<![\w:-])(?:[0-9a-f]{2}([:-]))(?:[0-9a-f]{2}\1){4}[0-9a-f]{2}(?![\w:-])", re.IGNORECASE)
# As in `scp` and prompts; a data set's split, as name/set@train, is none.
_LOGIN = re.compile(r"(?<![\w/.-])[a-z_][\w.-]{0,31}@(?!sha256:)(?=[\w-]++:)")
_DEVICE = re.compile(r"\b(GPU|MIG)-[0-9a-f]{8}(?:-[0-9a-f]{4,12}){1,4}", re.IGNORECASE)
_UUID = re.compile(r"(?<![\w-])[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}(?![\w-])", re.IGNORECASE)
_MAIL = re.compile(r"(?<![\w.+%-])[\w.+%-]++@[\w-]++(?:\.[\w-]++)++")
_HOST = re.compile(
    r"(?<=//)(?!localhost\b|127\.|0\.0\.0\.0|<|(?:[\w-]++\.){0,4}(?:github|huggingface|pytorch|readthedocs)\b)"
    r"[A-Za-z0-9][\w.-]*(?=[:/])"
)
_HOST_NAMED = re.compile(
    r"((?<![^\W_])(?:host|hostname|server\.address|master_addr|(?:https?|all)_proxy))(['\"]?\s{0,8}[=:]\s{0,8})"
    r"(?!\[?['\"]?(?:localhost|127\.|0\.0\.0\.0|<))\S++",
    re.IGNORECASE,
)
_DOTTED = re.compile(r"(?<![\w.-])[A-Za-z0-9_-]++(?:\.[A-Za-z0-9_-]++)++\.?")
# Endings of names that a cloud or an office gives its machines.
_MACHINES = (
    ".internal", ".local", ".lan", ".intranet", ".corp", ".localdomain", ".amazonaws.com", ".cloudapp.net",
    ".cloudapp.azure.com", ".windows.net", ".azureml.ms", ".googleusercontent.com", ".oraclevcn.com", ".aliyuncs.com",
    ".runpod.net", ".vast.ai", ".lambdalabs.com", ".coreweave.cloud", ".cluster",
)  # fmt: skip
# As Amazon's and others' machines are called by their addresses.
_BY_ADDRESS = re.compile(r"(?<![\w.-])(?:ip|ec2|domU|node|host)-(?:\d{1,3}-){3}\d{1,3}(?!\d)")


def strip(text: str) -> str:
    """The text with placeholders in place of what is personal.

    >>> strip("/home/ada/run.sh on 10.1.2.3, see ada@example.org")
    '/home/<user>/run.sh on <address>, see <mail>'
    """
    return settled(lambda each: _stripped(redact(mask(each))), text)


def _stripped(text: str) -> str:
    text = _HOMES.sub(r"\1<user>", text)
    text = _SHARED.sub(r"\1<user>", text)
    text = _TILDE.sub("~<user>", text)
    text = _MAIL.sub("<mail>", text)
    text = _HOST.sub("<host>", text)
    text = _HOST_NAMED.sub(r"\1\2<host>", text)
    text = _DOTTED.sub(_machine, text)
    text = _BY_ADDRESS.sub("<host>", text)
    text = _MAC.sub("<address>", text)
    text = _ADDRESS_SET.sub("<address>", _ADDRESS.sub("<address>", text))
    text = _ADDRESS6.sub(_address6, text)
    text = _LOGIN.sub("<user>@", text)
    return _UUID.sub("<uuid>", _DEVICE.sub(r"\1-<uuid>", text))


def _machine(match: re.Match[str]) -> str:
    name = match[0].lower().rstrip(".")
    return "<host>" if name.endswith(_MACHINES) else match[0]


def _address6(match: re.Match[str]) -> str:
    """Global and local addresses; a time, a slice and a name of C++ are none."""
    text = match[0].partition("%")[0]
    try:
        address = ipaddress.IPv6Address(text)
    except ValueError:
        return match[0]
    plain = text.count(":") < 3 and not re.match(r"[23f][0-9a-f]{3}:", text, re.IGNORECASE)
    return match[0] if address.is_loopback or address.is_unspecified or plain else "<address>"
