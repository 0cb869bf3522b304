"""Names and addresses of machines, and of what is built into them.

Patterns as those of `personal`: a repetition ends, or begins where no other can and gives nothing back.
"""

from __future__ import annotations

from collections.abc import Callable

from diagnostics.collect import late as re
from diagnostics.collect.secrets import EDGE
from diagnostics.collect.sought import Run, Sought, first_letters

# As `EDGE`, where a dot or a dash goes on with a word, too.
_EDGE = EDGE.replace("A-Za-z0-9", r"\w.-")
_ADDRESS = re.compile(
    r"(?:(?<![\w.=])|(?<=\\[nrt])|(?<=\[\d\dm))(?!127\.|0\.)(?:\d{1,3}\.){3}\d{1,3}(?!\w|\.\w)"
)
# Behind `=`, too, but not behind `==`: that is a release.
_ADDRESS_SET = re.compile(r"(?<=[^=]=)(?!127\.|0\.)(?:\d{1,3}\.){3}\d{1,3}(?!\w|\.\w)")
_ADDRESS6 = re.compile(
    r"(?:(?<![\w:.])|(?<=\\[nrt])|(?<=[a-z]:))[0-9a-f]{0,4}(?::[0-9a-f]{0,4}){2,7}(%[\w.-]{1,15})?(?![\w:])",
    re.IGNORECASE,
)
_ROUTED = re.compile("[23f][0-9a-f]{3}:", re.IGNORECASE)
# The same from its last colon on, which its last part and nothing of a word more stand behind.
_LAST_PART = "|".join(rf"(?<=(?<![\w:])[0-9a-f]{{{size}}}:)" for size in range(5))
_ADDRESS6_END = re.compile(
    rf":(?:{_LAST_PART})(?:(?:[0-9a-f]{{0,4}}:){{2,6}}[0-9a-f]{{0,4}}|[0-9a-f]{{0,4}}:[0-9a-f]{{3}}[23f])"
    r"(?:(?![\w:.])|(?=[nrt]\\)|(?=:[a-z]))"
)
# Of six bytes, and of twenty, as InfiniBand has it.
_MAC = re.compile(
    r"(?:(?<![\w:-])|(?<=\\[nrt])|(?<=[^\W\d_]:)(?<![0-9a-f]{2}:))[0-9a-f]{2}([:-])(?:[0-9a-f]{2}\1){4,18}[0-9a-f]{2}"
    r"(?![\w-]|:\w)",
    re.IGNORECASE,
)
_DEVICE = re.compile(r"(?:\b|(?<=\\[nrt]))(GPU|MIG)-[0-9a-f]{8}(?:-[0-9a-f]{4,12}){1,4}", re.IGNORECASE)
# Without its dashes, too, if it says that it is drawn at random.
_UUID = re.compile(
    rf"{EDGE}(?<![0-9a-f]{{4}}-)(?:[0-9a-f]{{8}}-(?:[0-9a-f]{{4}}-){{3}}[0-9a-f]{{12}}(?![A-Za-z0-9-])"
    r"|[0-9a-f]{12}4[0-9a-f]{3}[89ab][0-9a-f]{15}(?![A-Za-z0-9]))",
    re.IGNORECASE,
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
    ".com", ".edu", ".net", ".org", ".gov", ".cn", ".de", ".fr", ".jp", ".uk", ".ch", ".kr", ".in", ".au", ".ca",
)  # fmt: skip
_LAST = {ending.rpartition(".")[2] for ending in _MACHINES + _OFFICES}
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


# One of these stands in each of `_RELEASE`.
_RELEASES = ("cu", "nv", "version", "release", "driver", "nccl", "torch")


def _address(match: re.Match[str]) -> str:
    """Four numbers behind the name of a library are its release."""
    before = match.string[max(0, match.start() - 32) : match.start()]
    named = not before.isascii() or any(map(before.lower().__contains__, _RELEASES))
    return match[0] if named and _RELEASE.search(before) else "<address>"


def _machine(match: re.Match[str]) -> str:
    name = match[0].removesuffix(".")
    if name.rpartition(".")[2].lower() not in _LAST:
        return match[0]
    name = name.lower()
    named = name.endswith(_OFFICES) and name.count(".") > 1 and not any(map(name.__contains__, _KNOWN))
    return "<host>" if named or name.endswith(_MACHINES) else match[0]


def _address6(match: re.Match[str]) -> str:
    """Global and local addresses; a time, a slice and a name of C++ are none."""
    text = match[0].partition("%")[0]
    if text.count(":") < 3 and not _ROUTED.match(text):
        return match[0]
    # What a sentence goes on with behind it begins with a colon, too.
    text = text.removesuffix(":") if not text.endswith("::") else text
    head, gap, tail = text.partition("::")
    parts = [*head.split(":"), *tail.split(":")] if gap else text.split(":")
    if gap:
        # Of `::` at either end nothing is beside it; between them they leave out one part or more.
        fits = len(parts) - (not head) - (not tail) < 8 and "::" not in tail
        fits = fits and (all(head.split(":")) or not head) and (all(tail.split(":")) or not tail)
    else:
        fits = len(parts) == 8 and all(parts)
    local = not text.rpartition(":")[0].strip("0:") and parts[-1].lstrip("0") in {"", "1"}
    return match[0] if local or not fits else "<address>"


Table = tuple[tuple[Sought, str | Callable[[re.Match[str]], str]], ...]
# What programs say of machines, each in its way.
TOLD: Table = (
    (
        Sought(_NCCL, (("NCCL ",),), ends=(re.compile(r" LCCN \]\d{1,3}\[ \d{1,8}:\d{1,8}:[\w.-]{1,64}"),)),
        "<host>",
    ),
    (
        Sought(
            _MACHINE,
            starts=(
                *first_letters("-(?=-(?:master|head|node|server|rdzv|host))"),
                "NODELIST=",
                "NODENAME=",
                "Linux ",
                "resolve",
                "added",
                "connect to",
                "failed to",
                "srun: ",
                "mpirun: ",
                "prun: ",
                "STEP ",
                "Last login",
            ),
        ),
        r"\1<host>",
    ),
    (Sought(_SIGNALLED, (("] *** ",),), starts=(re.compile(r"\[()(?=[A-Za-z])"),)), "<host>"),
    (Sought(_SYSLOG, needs=re.compile(r" \d\d:\d\d:\d\d ")), r"\1<host>"),
    (
        Sought(
            _SHARES,
            (("\\\\", ":/export", ":/home", ":/vol", ":/mnt"),),
            starts=(re.compile(r"\\(?<=\\\\)()(?=[A-Za-z0-9])"),),
            ends=(re.compile(r"/:[\w.-]{2,65}(?![\w.:/-])"),),
        ),
        "<host>",
    ),
)
NAMED: Table = (
    (Sought(_HOST, (("//",),), starts=(re.compile(r"/(?<=//)()(?=[A-Za-z0-9])"),)), "<host>"),
    (
        Sought(
            _HOST_NAMED,
            starts=(
                *first_letters(r"h(?=ost(?:name)?['\"]?\s{0,8}[=:]|ttp)"),
                "server.",
                "master_",
                "rdzv_",
                "all_",
            ),
        ),
        r"\1\2<host>",
    ),
    (
        Sought(_DOTTED, ends=first_letters(r"\.[A-Za-z0-9_-]++(?:\.[A-Za-z0-9_-]++)*+(?![\w.-])")),
        _machine,
    ),
    (
        Sought(
            _BY_ADDRESS,
            starts=("ip-", "i-0", "ec2-", "domU-", "node-", "host-", "gke-", "aks-"),
        ),
        "<host>",
    ),
    (
        Sought(
            _MAC,
            ends=first_letters(
                *(
                    rf"{sign}(?=[0-9a-f]{{2}}{sign}[0-9a-f]{{2}}{sign}([0-9a-f]{{2}})(?!{sign}[0-9a-f]{{2}}))"
                    for sign in ":-"
                )
            ),
        ),
        "<address>",
    ),
    (
        Sought(
            _GUID,
            starts=(re.compile(r": (?:(?<=(?i:number: ))|(?<=(?i:-id: )))()"),),
            ends=first_letters(r"\.(?=[0-9a-f]{4}[.:]([0-9a-f]{4}))", ":(?=[0-9a-f]{4}[.:]([0-9a-f]{4}))"),
        ),
        "<address>",
    ),
    (Sought(_ADDRESS, ends=(re.compile(r"\.(?=\d{1,3}\.\d{1,3}\.(\d{1,3}))"),)), _address),
    (Sought(_ADDRESS_SET, starts=(re.compile(r"=()(?=\d{1,3}\.\d)"),)), "<address>"),
    (
        Sought(
            _ADDRESS6,
            needs=re.compile(":[0-9a-f]{0,4}:"),
            ends=(_ADDRESS6_END,),
        ),
        _address6,
    ),
)
BUILT_IN: Table = (
    (Sought(_DEVICE, starts=("gpu-", "mig-")), r"\1-<uuid>"),
    (
        Sought(
            _UUID,
            starts=(Run("0123456789abcdef", 32),),
            ends=(re.compile("-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{8}"),),
        ),
        "<uuid>",
    ),
)
