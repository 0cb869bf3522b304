"""Takes out of a text what should not be shared: home folders, names of machines and users, addresses, secrets."""

from __future__ import annotations

import re

from diagnostics.facts.environment import redact

# Secrets by their shape, whoever issued them, and by the name they stand under.
_SECRETS = re.compile(
    r"\b(?:hf|ghp|gho|ghs|github_pat|glpat|sk|xox[abps]|wandb_v\d)[_-][A-Za-z0-9_-]{16,}|\bAKIA[0-9A-Z]{16}\b"
    r"|\b[0-9a-f]{40}\b|\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}"
)
_WORDS = r"(?:token|secret|passw(?:or)?d|api[_-]?key|access[_-]?key|wandb[._]key)(?!s|iz|_id|\w*length)"
_NAMED = re.compile(
    rf"(?i)((?:--[\w.-]*{_WORDS}[\w.-]*[\s=]\s*)|(?:[\w.-]*{_WORDS}[\w.-]*['\"]?\s*[=:]\s*['\"]?))"
    r"(?!true\b|false\b|null\b|none\b|\d+\b|\(not known)[^\s,;`'\"\])]{4,}"
)
_CREDENTIALS = re.compile(r"(?i)\b([a-z][a-z0-9+.-]*://)[^/\s@]+@")
_HOMES = re.compile(
    r"(/(?:home|Users|scratch|(?:mnt|data|fs|gpfs|nfs|work)/(?:home|users?))/|\b[A-Z]:\\+Users\\+)[^/\\\s:`'\",;()\[\]]+"
)
_ADDRESS = re.compile(r"(?<![\w.])(?!127\.|0\.)(?:\d{1,3}\.){3}\d{1,3}(?!\w|\.\w)")
# Version 6: eight groups, or fewer with a double colon; loopback stays.
_ADDRESS6 = re.compile(
    r"(?<![\w:.])(?:(?:[0-9a-f]{1,4}:){7}[0-9a-f]{1,4}|(?:[0-9a-f]{1,4}:){2,6}:(?:[0-9a-f]{1,4}:?){1,5})(?![\w:.])",
    re.IGNORECASE,
)
# As in `scp` and prompts; a data set's split, as name/set@train, is none.
_LOGIN = re.compile(r"(?<![\w/.-])[a-z_][\w.-]{0,31}@(?=[\w-]+:)")
_DEVICE = re.compile(r"\b(GPU|MIG)-[0-9a-f]{8}(?:-[0-9a-f]{4,12}){1,4}", re.IGNORECASE)
_MAIL = re.compile(r"\b[\w.+-]+@[\w-]+(?:\.[\w-]+)+\b")
_HOST = re.compile(
    r"(?<=//)(?!localhost\b|127\.|0\.0\.0\.0|<|(?:[\w-]+\.)*(?:github|huggingface|pytorch|readthedocs)\b)[A-Za-z0-9][\w.-]*(?=[:/])"
)


_HOST_NAMED = re.compile(
    r"(?i)(?<![\w.])((?:\w+[._])*host|server\.address|master_addr)(\s*[=:]\s*)(?!\[?['\"]?(?:localhost|127\.|0\.0\.0\.0|<))\S+"
)


def strip(text: str) -> str:
    """The text with placeholders in place of what is personal.

    >>> strip("/home/ada/run.sh on 10.1.2.3 with hf_abcdefghijklmnopqrst")
    '/home/<user>/run.sh on <address> with <secret>'
    """
    text = _SECRETS.sub("<secret>", redact(text))
    text = _NAMED.sub(r"\1<secret>", text)
    text = _CREDENTIALS.sub(r"\1<secret>@", text)
    text = _HOMES.sub(r"\1<user>", text)
    text = _MAIL.sub("<mail>", text)
    text = _HOST.sub("<host>", text)
    text = _HOST_NAMED.sub(r"\1\2<host>", text)
    text = _ADDRESS6.sub("<address>", _ADDRESS.sub("<address>", text))
    text = _LOGIN.sub("<user>@", text)
    return _DEVICE.sub(r"\1-<uuid>", text)
