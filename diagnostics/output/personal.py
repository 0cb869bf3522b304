"""Takes out of a text what should not be shared: home folders, names of machines and users, addresses, secrets.

No text takes longer than its length: a repetition ends, or begins where no other can and gives nothing back.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from diagnostics.collect import late as re
from diagnostics.collect.names import redact
from diagnostics.collect.secrets import CHANGES, EDGE
from diagnostics.collect.sought import Sought, first_letters, settled
from diagnostics.frameworks import FRAMEWORKS
from diagnostics.output.machines import BUILT_IN, NAMED, TOLD, Table

if TYPE_CHECKING:
    from collections.abc import Callable

_NAME = r"[^/\\\s:`'\",;()\[\]<>%]++"
# As `EDGE`, where a dot or a dash goes on with a word, too.
_EDGE = EDGE.replace("A-Za-z0-9", r"\w.-")
# A folder of homes may lie anywhere; what lies beside one on the same disk is found before its own name is taken for a
# user's. A file of Python below `users` is a program's.
_HOMES = re.compile(
    rf"({_EDGE}(?:[A-Za-z]:)?[/\\]{{1,4}}(?:home\d{{0,2}}|Users)[/\\]{{1,4}}(?:users[/\\]{{1,4}})?(?!\.)"
    rf"|(?<=[\w-])[/\\]{{1,4}}home\d{{0,2}}[/\\]{{1,4}}(?:users[/\\]{{1,4}})?(?!\.)"
    rf"|[/\\]{{1,4}}users?[/\\]{{1,4}}(?=[^/\\\s:]++[/\\\s'\"]|[^/\\\s:.]++\Z)(?:[a-z]/[a-z]{{2}}/)?"
    rf"|{_EDGE}/(?:(?:net|cluster|global|p)/scratch\d?|scratch\d?|lustre|nfs|afs|dfs/scratch\d?)/(?!(?:home\d{{0,2}}"
    rf"|users?)/)(?![\w.-]+\.(?:edu|org|com)/)"
    r"|%(?:2F|5C)(?:home|users)%(?:2F|5C)(?=\w)"
    rf"|/tmp/(?:torchinductor|triton|hsperfdata|pytest-of|ray|krb5cc)[_-](?!session))(?![\w.-]*+\.py\b){_NAME}",
    re.IGNORECASE,
)
# Folders in which each user has one, where other things lie, too: a file stays, and so does what no user is called.
_USUAL = (
    rf"(?:{'|'.join(FRAMEWORKS)}|models?|datasets?|checkpoints?|ckpts?|data|cache|\.cache|huggingface|hub|logs?|runs?"
    r"|outputs?|results?|shared|tmp|users?|home|src|code|train|test|eval|envs?|\.?venv|projects?|repos?|scripts?"
    r"|configs?|examples?|grpo|rlhf|conda|miniconda3?|lib|bin|opt|mnt|fsx|nfs|efs|nvme\d*|ssd\d*|disks?\d*"
    r"|local|scratch\d*"
    r"|volumes?|storage|workspace|weights|home\d*|[a-z]|wheels|<user>)(?![\w.-])"
)
_SHARED = re.compile(
    rf"{_EDGE}(/(?:u|media|fsx|workspace|data|efs|gpfs|work|storage|projects?|shared|userdata|Volumes|ceph(?:fs)?"
    rf"|jfs|dfs"
    rf"|mnt(?:/(?:data|fsx|nfs|efs))?)/)(?!{_USUAL})"
    rf"(?:{_NAME}(?=/)|[^/\\\s:`'\",;()\[\].]++(?!\w|\.\w))"
)
_TILDE = re.compile(r"(?:(?<![\w/.~-])|(?<=\\[nrt]))~[A-Za-z_][\w.-]*+(?=/)")
# As in `scp` and prompts; a data set's split, as name/set@train, is none.
_LOGIN = re.compile(r"(?<![\w/.-])[a-z_][\w.-]{0,31}@(?!sha256:)(?=[\w-]++:)")
_MAIL = re.compile(
    r"(?:(?<![\w.+%-])[\w.+%-]++|\"[^\"\n@]{1,64}\")@[\w-]++(?:\.[\w-]++)++"
    r"|(?<![\w.+%-])[\w.+-]{1,64}%40[\w-]++(?:\.[\w-]++)++"
)
# Who runs it: variables and fields that say so, what `id` and `git log` print, prompts, the user of another machine.
_WHO = re.compile(
    r"((?<![a-z])(?:USER|LOGNAME|USERNAME)['\"]?\s{0,2}[=:]\s{0,2}['\"]?"
    r"|(?<![\w])(?i:user_?name)['\"]?\s{0,2}[=:]\s{0,2}['\"]?"
    r"|['\"]user['\"]\s{0,2}:\s{0,2}['\"](?=[\w.-]{1,32}['\"])"
    r"|\bHOME=(?:/[\w.-]{1,32}){1,4}/(?=[\w.-]{1,32}(?![\w./-]))"
    r"|\b[ug]id=\d{1,9}\(|\blogged in as:?\s|\bsudo: {1,4}(?=[\w.-]{1,32} :)|(?:wandb\.ai"
    r"|git@[\w.-]{1,64}:)/?(?!<))"
    r"(?!<|none\b|null\b|assistant\b|user\b|system\b)[\w.-]{1,64}"
)
# A line of `ls -l`, and one of the list of users.
_LISTED = re.compile(
    r"(^[dl-](?:[r-][w-][xsStT-]){3}[.+@]?\s{1,4}\d{1,6}\s{1,8})(?!root\b|<)[\w.-]{1,32}\s{1,8}[\w.-]{1,32}(?=\s)",
    re.MULTILINE,
)
_PASSWD = re.compile(r"^(?!<|root:)[\w.-]{1,32}(:[x*!]?:\d{1,9}:\d{1,9}:)[^:\n]{0,128}(?=:/)", re.MULTILINE)
_AUTHOR = re.compile(r"(\bAuthor:\s{1,4})[^<\n]{1,80}(?= <)")
_AT = re.compile(
    r"(\b(?:ssh|scp|rsync|sftp)\b(?:\s-{1,2}[\w=-]{1,32}(?:\s\d{1,5})?){0,8}\s(?:[^\s@]{1,64}\s)?|(?<=\[)|(?<=\) ))"
    r"[a-z_][\w.-]{0,31}@[\w.-]{1,64}(?![\w.@-])"
)


def strip(text: str) -> str:
    """The text with placeholders in place of what is personal.

    >>> strip("/home/ada/run.sh on 10.1.2.3, see ada@example.org")
    '/home/<user>/run.sh on <address>, see <mail>'
    """
    return settled(_CHANGES, text)


def folders(path: str) -> str:
    """A path with placeholders for users alone: before it is cut to its end, in which a name looks like any other.

    >>> folders("/home/ada/run/train.py")
    '/home/<user>/run/train.py'
    """
    for sought, by in _FOLDERS:
        path = sought.sub(by, path)
    return path


def _mail(match: re.Match[str]) -> str:
    """A release behind a name (`numpy@1.26`) is no machine, nor is an attribute of one letter (`A@B.T`)."""
    return "<mail>" if len(last := match[0].rpartition(".")[2]) > 1 and not last.isdigit() else match[0]


_FOLDERS: Table = (
    (
        Sought(
            _HOMES,
            (("home", "user", "scratch", "lustre", "nfs", "afs", "tmp/"),),
            starts=(
                *first_letters(
                    r"/(?=[/\\]{0,3}(?:home\d{0,2}|users?)[/\\]{1,4}[^/\\\s:`'\",;()\[\]<>%]|tmp/[tkhpr]"
                    r"|(?:(?<![\w.-].)|(?<=\\[nrt].)|(?<=\[\dm.)|(?<=\[\d\dm.))"
                    r"(?:(?:net|cluster|global|p|dfs)/scratch|scratch\d?/|(?:lustre|nfs|afs)/))",
                    r"\\(?=[/\\]{0,3}(?:home\d{0,2}|users?)[/\\]{1,4}[^/\\\s:`'\",;()\[\]<>%])",
                    "%(?=(?:2f|5c)(?:home|users)%)",
                    r":(?=[/\\]{1,4}(?:home|users))(?<=([a-z]):)",
                ),
            ),
        ),
        r"\1<user>",
    ),
    (
        Sought(
            _SHARED,
            starts=(
                re.compile(
                    "/(?=(?:u|media|fsx|workspace|data|efs|gpfs|work|storage|projects?|shared|userdata|Volumes|ceph(?:fs)?"
                    "|jfs|dfs|mnt)/)"
                ),
            ),
        ),
        r"\1<user>",
    ),
    (Sought(_TILDE, starts=("~",)), "~<user>"),
)
EACH: Table = (
    (
        Sought(
            _WHO,
            starts=(
                *first_letters(r"U(?=SER|(?i:ser_?name))", r"u(?=id=|(?i:ser_?name))"),
                *("LOGNAME", "HOME=", "'user", '"user', "gid=", "logged in", "sudo:", "wandb.ai", "git@"),
            ),
        ),
        r"\1<user>",
    ),
    (
        Sought(
            _LISTED,
            starts=first_letters(*(rf"{kind}(?<![^\n]{kind})(?=[r-][w-][xsStT-][r-][w-])" for kind in "dl-")),
        ),
        r"\1<user> <user>",
    ),
    (Sought(_PASSWD, needs=re.compile(r":\d{1,9}:\d{1,9}:")), r"<user>\1"),
    (Sought(_AUTHOR, starts=first_letters(r"A(?=uthor:\s\s{0,3}+[^<\n]{0,81}+<)")), r"\1<user>"),
    (
        Sought(
            _AT,
            (("@",),),
            starts=(
                *("ssh", "scp", "sftp", "rsync"),
                *first_letters(r"\[()(?=[a-z_])", r"\) ()(?=[a-z_])"),
            ),
        ),
        r"\1<user>@<host>",
    ),
    *TOLD,
    *_FOLDERS,
    (
        Sought(
            _MAIL,
            (("@", "%40"),),
            ends=(
                re.compile(r"@(?:[\w.+%-]+|\"[^\"\n@]{1,64}\")"),
                re.compile(r"04%[\w.+-]{1,64}(?![\w.+%-])"),
            ),
        ),
        _mail,
    ),
    *NAMED,
    (Sought(_LOGIN, (("@",),), ends=(re.compile(r"@[\w.-]{0,31}[a-z_](?![\w/.-])"),)), "<user>@"),
    *BUILT_IN,
)
_CHANGES: tuple[Callable[[str], str], ...] = (
    *CHANGES,
    redact,
    *(partial(sought.sub, by) for sought, by in EACH),
)
