"""Takes out of a text what should not be shared: home folders, names of machines and users, addresses, secrets.

No text takes longer than its length: a repetition ends, or begins where no other can and gives nothing back.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable

from diagnostics.facts import late as re
from diagnostics.facts.names import redact
from diagnostics.facts.secrets import EDGE, mask_once, settled
from diagnostics.facts.sought import Sought
from diagnostics.frameworks import FRAMEWORKS

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
_FOUR = re.compile(r"\d\.\d{1,3}\.\d")
_ADDRESS = re.compile(
    r"(?:(?<![\w.=])|(?<=\\[nrt])|(?<=\[\d\dm))(?!127\.|0\.)(?:\d{1,3}\.){3}\d{1,3}(?!\w|\.\w)"
)
# Behind `=`, too, but not behind `==`: that is a release.
_ADDRESS_SET = re.compile(r"(?<=[^=]=)(?!127\.|0\.)(?:\d{1,3}\.){3}\d{1,3}(?!\w|\.\w)")
_ADDRESS6 = re.compile(
    r"(?:(?<![\w:.])|(?<=\\[nrt])|(?<=[a-z]:))[0-9a-f]{0,4}(?::[0-9a-f]{0,4}){2,7}(%[\w.-]{1,15})?(?![\w:])",
    re.IGNORECASE,
)
# Of six bytes, and of twenty, as InfiniBand has it.
_MAC = re.compile(
    r"(?:(?<![\w:-])|(?<=\\[nrt])|(?<=[^\W\d_]:)(?<![0-9a-f]{2}:))[0-9a-f]{2}([:-])(?:[0-9a-f]{2}\1){4,18}[0-9a-f]{2}"
    r"(?![\w-]|:\w)",
    re.IGNORECASE,
)
# As in `scp` and prompts; a data set's split, as name/set@train, is none.
_LOGIN = re.compile(r"(?<![\w/.-])[a-z_][\w.-]{0,31}@(?!sha256:)(?=[\w-]++:)")
_DEVICE = re.compile(r"(?:\b|(?<=\\[nrt]))(GPU|MIG)-[0-9a-f]{8}(?:-[0-9a-f]{4,12}){1,4}", re.IGNORECASE)
# Without its dashes, too, if it says that it is drawn at random.
_UUID = re.compile(
    rf"{EDGE}(?<![0-9a-f]{{4}}-)(?:[0-9a-f]{{8}}-(?:[0-9a-f]{{4}}-){{3}}[0-9a-f]{{12}}(?![A-Za-z0-9-])"
    r"|[0-9a-f]{12}4[0-9a-f]{3}[89ab][0-9a-f]{15}(?![A-Za-z0-9]))",
    re.IGNORECASE,
)
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
_HOST = re.compile(
    r"(?<=//)(?!localhost\b|127\.|0\.0\.0\.0|<|(?:[\w-]++\.){0,4}(?:github|huggingface|pytorch|readthedocs)\b)"
    r"[A-Za-z0-9][\w.-]*(?=[:/])"
)
_HOST_NAMED = re.compile(
    r"((?<![^\W_])(?:host|hostname|server\.address|master_addr|rdzv_endpoint|(?:https?|all)_proxy))(['\"]?\s{0,8}[=:]\s{0,8})"
    r"(?!\[?['\"]?(?:localhost|127\.|0\.0\.0\.0|<))\S++",
    re.IGNORECASE,
)
_NO_MACHINE = r"localhost\b|127\.|0\.0\.0\.0|<|Job\b|error\b)[\w.-]{1,64}(?:\[[\d,-]{1,64}\])?"
# Words of programs that name a machine without a sign that says so.
_MACHINE = re.compile(
    r"(--(?:master|head|node|server)[_-](?:addr(?:ess)?|host|ip)[ =]|--rdzv[_-]endpoint[ =]|--host[ =]"
    r"|NODELIST=|NODENAME=|\bLinux (?!kernel|version)(?=[\w.-]{1,64} \d{1,2}\.\d{1,3}\.)"
    r"|\b(?:resolve|added) '"
    r"|connect to host |failed to connect to \[|\b(?:srun|mpirun|prun): (?:error: )?|\bSTEP [\d.]{1,24} ON "
    rf"|Last login: [^\n]{{1,60}} from )(?!{_NO_MACHINE}"
)
# As Open MPI begins what it says of a signal.
_SIGNALLED = re.compile(r"(?<=\[)[A-Za-z][\w.-]{0,63}(?=:\d{1,8}\] \*{3} )")
_SYSLOG = re.compile(rf"(^[A-Z][a-z]{{2}} {{1,2}}\d{{1,2}} \d\d:\d\d:\d\d )(?!{_NO_MACHINE}", re.MULTILINE)
# NCCL begins each line with machine, process and thread.
_NCCL = re.compile(r"(?<![\w.:/-])[\w.-]{1,64}(?=:\d{1,8}:\d{1,8} \[\d{1,3}\] NCCL )")
_SHARES = re.compile(
    r"(?<=\\\\)[A-Za-z0-9][\w.-]{0,62}(?=\\)|(?<![\w.:/-])(?=[\w-]{0,32}\d"
    r"|[\w-]{1,32}\.)[A-Za-z][\w.-]{1,64}(?=:/(?:export|home|vol|mnt)\b)"
)
_GUID = re.compile(
    r"(?<![\w:.-])(?=[0-9:]{0,19}[a-f])(?:[0-9a-f]{4}:){3}[0-9a-f]{4}(?![\w:-])"
    r"|(?:(?<![\w.])|(?<=\\[nrt]))(?:[0-9a-f]{4}\.){2}[0-9a-f]{4}(?!\w|\.\w)"
    r"|(?i:(?<=serial number: )|(?<=machine-id: ))\w{6,40}"
)
_DOTTED = re.compile(r"(?<![\w.-])[A-Za-z0-9_-]++(?:\.[A-Za-z0-9_-]++)++\.?")
# Endings of names that a cloud or an office gives its machines.
_MACHINES = (
    ".internal", ".local", ".lan", ".intranet", ".corp", ".localdomain", ".amazonaws.com", ".cloudapp.net",
    ".cloudapp.azure.com", ".windows.net", ".azureml.ms", ".googleusercontent.com", ".oraclevcn.com", ".aliyuncs.com",
    ".onion", ".runpod.net", ".vast.ai", ".lambdalabs.com", ".coreweave.cloud", ".cluster",
    ".run.app", ".ngrok.io", ".ngrok-free.app", ".modal.run", ".novalocal", ".home.arpa", ".ts.net",
)  # fmt: skip
# Of three parts and more, and not where the field's own pages are.
_OFFICES = (
    ".com",
    ".edu",
    ".net",
    ".org",
    ".gov",
    ".cn",
    ".de",
    ".fr",
    ".jp",
    ".uk",
    ".ch",
    ".kr",
    ".in",
    ".au",
    ".ca",
)
_KNOWN = ("github", "huggingface", "pytorch", "readthedocs", "nvidia", "python.org", "pypi", "example")
_RELEASE = re.compile(
    r"(?:\b(?:version|release|driver|libcu\w{1,16}|cu[bds]\w{1,16}|cuda\w{0,8}|nccl|nv\w{2,16}|torch"
    r"|[\w-]{1,24}-cu\d\d))[ v\"'=(]{1,3}\Z",
    re.IGNORECASE,
)
# As Amazon's and others' machines are called by their addresses.
_BY_ADDRESS = re.compile(
    rf"{_EDGE}(?:(?:ip|ec2|domU|node|host)-(?:\d{{1,3}}-){{3}}\d{{1,3}}(?!\d)|i-0[0-9a-f]{{16}}(?!\w)"
    r"|gke-[\w-]{4,64}-[0-9a-f]{8}-\w{4}(?!\w)|aks-\w{1,32}-\d{6,10}-vmss\w{6}(?!\w))"
)


def strip(text: str) -> str:
    """The text with placeholders in place of what is personal.

    >>> strip("/home/ada/run.sh on 10.1.2.3, see ada@example.org")
    '/home/<user>/run.sh on <address>, see <mail>'
    """
    return settled(lambda each: _stripped(redact(mask_once(each))), text)


def _stripped(text: str) -> str:
    for sought, by in _BEFORE:
        text = sought.sub(by, text)
    text = folders(text)
    for sought, by in _AFTER:
        text = sought.sub(by, text)
    return text


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


def _address(match: re.Match[str]) -> str:
    """Four numbers behind the name of a library are its release."""
    before = match.string[max(0, match.start() - 32) : match.start()]
    return match[0] if _RELEASE.search(before) else "<address>"


def _machine(match: re.Match[str]) -> str:
    name = match[0].lower().rstrip(".")
    named = name.endswith(_OFFICES) and name.count(".") > 1 and not any(map(name.__contains__, _KNOWN))
    return "<host>" if named or name.endswith(_MACHINES) else match[0]


def _address6(match: re.Match[str]) -> str:
    """Global and local addresses; a time, a slice and a name of C++ are none."""
    text = match[0].partition("%")[0]
    if text.count(":") < 3 and not re.match(r"[23f][0-9a-f]{3}:", text, re.IGNORECASE):
        return match[0]
    try:
        # What a sentence goes on with behind it begins with a colon, too.
        address = ipaddress.IPv6Address(text.removesuffix(":") if not text.endswith("::") else text)
    except ValueError:
        return match[0]
    return match[0] if address.is_loopback or address.is_unspecified else "<address>"


_Each = tuple[tuple[Sought, str | Callable[[re.Match[str]], str]], ...]
_BEFORE: _Each = (
    (
        Sought(
            _WHO,
            starts=re.compile(
                r"[Uu](?=[Ss]|id=)|LOGNAME|HOME=|['\"](?=user)|g(?=id=)|logged in|sudo:|wandb\.ai|git@"
            ),
        ),
        r"\1<user>",
    ),
    (Sought(_LISTED, needs=re.compile("[r-][w-][xsStT-][r-][w-][xsStT-]")), r"\1<user> <user>"),
    (Sought(_PASSWD, needs=re.compile(r":\d{1,9}:\d{1,9}:")), r"<user>\1"),
    (Sought(_AUTHOR, (("Author:",),)), r"\1<user>"),
    (Sought(_AT, (("@",),)), r"\1<user>@<host>"),
    (Sought(_NCCL, (("NCCL ",),)), "<host>"),
    (
        Sought(
            _MACHINE,
            starts=re.compile(
                r"-(?=-(?:master|head|node|server|rdzv|host))|NODE(?=LIST=|NAME=)|Linux |resolve|added|connect to"
                r"|failed to|[smp](?=p?i?run: )|STEP |Last login"
            ),
        ),
        r"\1<host>",
    ),
    (Sought(_SIGNALLED, (("] *** ",),)), "<host>"),
    (Sought(_SYSLOG, needs=re.compile(r" \d\d:\d\d:\d\d ")), r"\1<host>"),
    (Sought(_SHARES, (("\\\\", ":/export", ":/home", ":/vol", ":/mnt"),)), "<host>"),
)
_FOLDERS: _Each = (
    (Sought(_HOMES, (("home", "user", "scratch", "lustre", "nfs", "afs", "tmp/"),)), r"\1<user>"),
    (Sought(_SHARED, (("/",),)), r"\1<user>"),
    (Sought(_TILDE, (("~",),)), "~<user>"),
)
_AFTER: _Each = (
    (Sought(_MAIL, (("@", "%40"),)), _mail),
    (Sought(_HOST, (("//",),)), "<host>"),
    (
        Sought(
            _HOST_NAMED,
            (("host", "server.address", "master_addr", "rdzv_", "_proxy"),),
            starts=re.compile(
                r"h(?=ost(?:name)?['\"]?\s{0,8}[=:]|ttp)|s(?=erver\.)|m(?=aster_)|r(?=dzv_)|a(?=ll_)"
            ),
        ),
        r"\1\2<host>",
    ),
    (Sought(_DOTTED, ((".",),)), _machine),
    (Sought(_BY_ADDRESS, (("ip-", "ec2-", "domU-", "node-", "host-", "i-0", "gke-", "aks-"),)), "<host>"),
    (Sought(_MAC, needs=re.compile(r"[:-][0-9a-f]{2}[:-][0-9a-f]{2}[:-]")), "<address>"),
    (
        Sought(_GUID, needs=re.compile(r"[.:][0-9a-f]{4}[.:]|[Nn][Uu][Mm][Bb][Ee][Rr]: |-[Ii][Dd]: ")),
        "<address>",
    ),
    (Sought(_ADDRESS, needs=_FOUR), _address),
    (Sought(_ADDRESS_SET, needs=_FOUR), "<address>"),
    (Sought(_ADDRESS6, needs=re.compile(":[0-9a-f]{0,4}:")), _address6),
    (Sought(_LOGIN, (("@",),)), "<user>@"),
    (Sought(_DEVICE, (("gpu-", "mig-"),)), r"\1-<uuid>"),
    (Sought(_UUID, needs=re.compile("-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-|[0-9a-f]{32}")), "<uuid>"),
)
