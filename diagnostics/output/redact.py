"""Replace secrets, and what identifies a person or a machine, by placeholders.

Secrets are recognised by their shape and by their key's name. `mask` is for the user's own screen,
`redact` for shared output. Mask before cutting: half a secret has no shape, so `mask_and_cut` does both.

Every repetition in a pattern is bounded, so no text takes time quadratic in its length. Standard library only, and
Python 3.10, because it runs on remote hosts.
"""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Callable

from diagnostics.frameworks import FRAMEWORKS

MASK = "<secret>"
# Beginning of a word: also after an escaped line end or colour in quoted text.
EDGE = r"(?:(?<![A-Za-z0-9])|(?<=\\[nrt])|(?<=\[\dm)|(?<=\[\d\dm))"
# Prefixes of issued tokens that a dash or an underscore ends.
_ISSUERS = (
    r"ATATT3x\w{4}", "lsv2_[a-z]{2}", "hf", "api_org", "gh[oprsu]", "github_pat", "glpat", "gldt", "glptt", "glrt",
    "glsoat", "glcbt", "glft", "gloas", "glsa", "glc", "xox[a-z]", "xapp", "sk", "rk", "gsk", "nvapi", "pypi", "npm",
    "r8", "dckr_pat", "shpat", "shpss", "shpca", "dop_v1", "doo_v1", r"wandb_v\d", r"tgp_v\d", "tskey", "lin_api", "fw",
    "pplx", "xai", "GOCSPX", "rpa", "csk", "tvly", "pcsk", "jina", "whsec", "HRKU", "ntn", "figd", "PMAK",
    "pscale_tkn", "rubygems", "KGAT", "NRAK", "sntrys", "nfp",
)  # fmt: skip
# Tokens whose prefix shows the issuer.
_ISSUED = re.compile(
    rf"{EDGE}(?:"
    rf"(?:{'|'.join(_ISSUERS)})"
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
# A revision has the shape of a W&B key; one of these words precedes it.
_REVISION = re.compile(
    r"(?:\b(?:commit|revision|rev|sha1?|head|detached at|snapshots|tree|blob|ref)\b|\.git@)\W{0,4}\Z",
    re.IGNORECASE,
)
_PIPED = re.compile(
    r"(\becho\s(?:-n\s)?['\"]?)(?!<)[^\s|'\"]{4,256}(?=['\"]?\s{0,4}\|[^\n|]{0,80}(?:--password-stdin|sudo -S))"
)
# A header's value ends at the closing quote. The last line keeps the next value's quotes out of it.
_HEADER = re.compile(
    r"((?:(?:proxy-)?authorization|x-api-key|x-auth-token|x-hub-signature(?:-256)?|(?:set-)?cookie)\\?['\"]?\s{0,4}[:=,]\s{0,4}"
    r"(?:b(?=['\"]))?\\?['\"]?)"
    r"(?!<secret>|[\w.]{1,48}\(b?['\"]|[|>][+-]?\n)[^\s'\"][^\n'\"]{0,4096}(?:''[^\n'\"]{0,512}){0,8}"
    r"(?:(?:\"[^\"\n]{0,512}\"|(?:(?<=[:=])|(?<=[:=] ))'[^'\n]{0,512}')[^\n'\"]{0,512}){0,32}",
    re.IGNORECASE,
)
_COOKIES = re.compile(r"(\bcookies\s{0,4}=\s{0,4}\{)(?!<secret>)[^}\n]{1,4096}", re.IGNORECASE)
_BEARER = re.compile(r"\b(bearer\s{1,4})(?=[^\s\d]{0,256}\d)[\w.~+/=-]{8,}", re.IGNORECASE)
_BASIC = re.compile(
    r"\b(Basic\s{1,4})(?=[^\s\d]{0,256}\d)(?=[^\sA-Z]{0,256}[A-Z])[A-Za-z0-9+/]{16,}={0,2}(?![\w.-])"
)
_SIGNED = re.compile(r"(\bsignature=)[0-9a-f]{40,128}(?![A-Za-z0-9])", re.IGNORECASE)
_PRIVATE = re.compile(
    r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY[A-Z ]{0,10}-----"
    r"(?:(?!-----BEGIN)[\s\S]){0,20000}?(?:-----END [A-Z0-9 ]{0,60}-----|(?=-----BEGIN)|\Z)"
)
# Up to the last @ of the authority: a password may contain one.
_URL = re.compile(
    r"(?<=://)[^/\s'\"]{1,512}@|(?<=://)[^\s'\"/:@]{1,64}:(?!\d{1,5}(?:[/?#]))[^\s'\"<>@]{1,256}@(?=[\w\[])"
)
_ENCODED = re.compile(r"(?<=%3A%2F%2F)[\w.~-]{1,64}%3A[\w.~-]{1,128}%40", re.IGNORECASE)
# Anybody who has the address of a webhook can post to it.
_HOOK = re.compile(
    r"(://(?:hooks?|maker|sctapi|api\.day|outlook|[\w-]{1,64}\.webhook)\.[\w.-]{1,64}/|/bot(?=\d{6})"
    r"|/webhooks?(?:b2)?/"
    r"|/hook/|://[\w.-]{1,64}/t/(?=[\w-]{16}))(?!<secret>)[^\s'\"<>)\]]{6,512}"
)
# `user:password@host` without a scheme.
_LOGIN = re.compile(
    r"(?:(?<![\w:/.+-])|(?<=:/))[\w.+-]{1,64}:(?!//)[^\s@/:'\"<>]{3,128}@(?=[\w\[])(?!sha256:)"
)
# Key material without its header line, and random words.
_LONG = re.compile(r"(?<![A-Za-z0-9+/=_.-])[A-Za-z0-9+/]{60,}={0,2}")
_RANDOM = re.compile(
    rf"{EDGE}(?:_Z\w{{1,4096}}|sha(?:1|256|512)[=:-][\w+/=-]{{1,128}}|archive-v\d/[\w-]{{1,64}}|[A-Za-z0-9]{{20,}})",
)
# Names of keys with a secret value.
_WORDS = (
    r"(?:token|secret|passw(?:or[dt])?d?(?![a-z])|passphrase|pass(?=\\{0,3}['\"]?\s{0,4}[=:])"
    r"|(?<=[_;-])pwd?(?=\\{0,3}['\"]?\s{0,4}[=:])|(?<=_)pwd\b|bindpw"
    r"|(?<![a-z_])pwd(?=\\{0,3}['\"]?\s{0,4}[=:]\s{0,4}\\{0,3}['\"]?(?![a-z]:)[^\s/~.$'\"<\\]{4})"
    r"|requirepass|(?:api|access|account|private|signing|encryption|auth|subscription|master|push|kaggle|storage)"
    r"[ _-]?key|client-(?:key|certificate)-data|wandb[._]key|credential|x-(?:amz|goog|oss)-(?:signature|credential"
    r"|security-token)"
    r"|(?<=_)(?:sk|pat)(?=\s{0,4}[=:])|(?<![a-z])_auth(?=\s{0,4}[=:])|contrase\xf1a|mot de passe|\u5bc6\u7801"
    r"|\u5bc6\u94a5|\u53e3\u4ee4"
    r"|(?<=[?&;])(?:sig(?:nature)?|key|auth|q-ak)(?==)|(?<![a-z])cookie)(?!s\b|s?iz|_id|\w{0,32}length)"
)
# Values that are no secret: a switch, a number, a placeholder.
_HARMLESS = r"(?!true\b|false\b|null\b|none\b|\d{1,19}\b|\(not known|\(set;|<)"
_WHOLE = r"(?:(?<=[^\\]\")(?:[^\"\\\n]|\\[^\n]){4,512}(?=\")|(?<=[^\\]')(?:[^'\\\n]|\\[^\n]|''){4,512}(?='))"
_VALUE = r"[^\s,;&`'\"\])\\]{4,}"
_REST = r"(?=(?P<rest>[\w.-]{0,64}))(?P=rest)"
_QUOTE = r"(?:\\{0,3}['\"])?"
_NAMED = re.compile(
    rf"({_WORDS}{_REST}{_QUOTE}\]?\s{{0,4}}(?:=>|[=:\uff1d\uff1a])(?:\s{{0,4}}|\s{{5,64}}(?=['\"]))(?:["
    rf"|>\\][+-]?\s{{1,16}})?(?:[\w.]{{1,48}}\((?=b?['\"]))?[\[({{]?b?{_QUOTE}){_HARMLESS}(?:{_WHOLE}|{_VALUE})",
    re.IGNORECASE,
)
# `password is x1`: only a value with a digit, which is no word of a sentence.
_SAID = re.compile(
    rf"({_WORDS}{_REST}{_QUOTE}(?:\t{{1,4}}|\s{{0,4}}(?:->|:=|(?<=\s)\|(?=\s)|%3[ad]|&#(?:61|58);)\s{{0,4}}"
    r"|\s(?:is|was|for [^\s:]{1,64}:|provided:)\s|\s(?=['\"])|\s{1,4})['\"]?)"
    rf"{_HARMLESS}(?=[^\s'\"]{{0,64}}?\d)(?=[^\s'\"]{{0,64}}?[a-z])(?![\w]{{0,32}}[(\[.])[^\s,;&`'\"\])\\%]{{8,}}",
    re.IGNORECASE,
)
_PAIR = re.compile(
    rf"((?:['\"]--?|\(b?['\"])(?=[\w-]{{1,96}}['\"],)(?=[\w-]{{0,64}}?{_WORDS})[\w-]{{1,96}}['\"],\s{{0,4}}b?['\"])"
    rf"{_HARMLESS}(?!--)[^\n'\"]{{4,}}",
    re.IGNORECASE,
)
_ELEMENT = re.compile(
    rf"(<(?=[\w:-]{{1,96}}>)(?=[\w:-]{{0,64}}?{_WORDS})[\w:-]{{1,96}}>){_HARMLESS}[^<\n]{{4,}}(?=</)",
    re.IGNORECASE,
)
_FLAG = re.compile(
    rf"((?<![\w-])--(?=([\w.-]{{1,96}})\s)(?=[\w.-]{{0,64}}?{_WORDS})\2\s{{1,4}}['\"]?){_HARMLESS}(?!-)[^\s,;&`'\"\])]{{4,}}",
    re.IGNORECASE,
)
_ENTRY = re.compile(
    rf"(\b(?:name|key)['\"]?\s{{0,2}}[=:]\s{{0,2}}['\"]?(?=[\w.-]{{1,96}}['\"]?[,\s])(?=[\w.-]{{0,64}}?{_WORDS})[\w.-]{{1,96}}['\"]?[,\s]{{1,32}}"
    rf"['\"]?value['\"]?\s{{0,2}}[=:]\s{{0,2}}['\"]?){_HARMLESS}{_VALUE}",
    re.IGNORECASE,
)
# Programs that take a password by a short option.
_GIVEN = re.compile(
    r"(\bcurl\b[^\n|;]{0,200}?\s(?:-u|--user)[\s=]{1,4}['\"]?[^\s:'\"]{1,64}:"
    r"|\b(?:sshpass|docker login|mysql(?:dump|admin)?|unzip|7z|swanlab login|openssl|ssh-keygen)\b[^\n|;]{0,120}?"
    r"\s(?:-[pPkN]\s?|-p(?=\w)|-pass(?:in|out)?\s{1,4}pass:)['\"]?|\bAUTH\s(?=[^\s]{0,64}?\d)"
    r"|\b(?:IDENTIFIED BY|PASSWORD)\s{1,4}')"
    rf"(?![-<]){_VALUE}"
)
# Under a name that says little: only a value that cannot be a word.
_OPAQUE = re.compile(
    r"((?<![\w-])[\w-]{0,48}?(?:key|auth|session(?:_?id)?|sid|sk|ak|pat|credentials?)['\"]?\s{0,4}[=:]\s{0,4}['\"]?)"
    r"([A-Za-z0-9_+=-]{16,512})(?![\w.])",
    re.IGNORECASE,
)
_SWITCH = re.compile(r"(?<=[a-z])(?=[A-Z0-9])|(?<=[A-Z])(?=[a-z0-9])|(?<=[0-9])(?=[A-Za-z])")
_SPOKEN = re.compile(r"[a-z]{3,}")
_POSSESSIVE = re.compile(r"(?<=[*+?}])\+")


def _compile(pattern: str, flags: int = 0) -> re.Pattern[str]:
    """Compile a pattern; Python 3.10 has no possessive quantifiers, and on remote hosts it only masks secrets."""
    return re.compile(pattern if sys.version_info >= (3, 11) else _POSSESSIVE.sub("", pattern), flags)


_NAME = r"[^/\\\s:`'\",;()\[\]<>%]++"
_PATH_EDGE = EDGE.replace("A-Za-z0-9", r"\w.-")
_HOMES = _compile(
    rf"({_PATH_EDGE}(?:[A-Za-z]:)?[/\\]{{1,4}}(?:home\d{{0,2}}|Users)[/\\]{{1,4}}(?:users[/\\]{{1,4}})?(?!\.)"
    rf"|(?<=[\w-])[/\\]{{1,4}}home\d{{0,2}}[/\\]{{1,4}}(?:users[/\\]{{1,4}})?(?!\.)"
    rf"|[/\\]{{1,4}}users?[/\\]{{1,4}}(?=[^/\\\s:]++[/\\\s'\"]|[^/\\\s:.]++\Z)(?:[a-z]/[a-z]{{2}}/)?"
    rf"|{_PATH_EDGE}/(?:(?:net|cluster|global|p)/scratch\d?|scratch\d?|lustre|nfs|afs|dfs/scratch\d?)/(?!(?:home\d{{0,2}}"
    rf"|users?)/)(?![\w.-]+\.(?:edu|org|com)/)"
    r"|%(?:2F|5C)(?:home|users)%(?:2F|5C)(?=\w)"
    rf"|/tmp/(?:torchinductor|triton|hsperfdata|pytest-of|ray|krb5cc)[_-](?!session))(?![\w.-]*+\.py\b){_NAME}",
    re.IGNORECASE,
)
# Folders with one folder per user, and names in them that are no user.
_USUAL = (
    rf"(?:{'|'.join(FRAMEWORKS)}|models?|datasets?|checkpoints?|ckpts?|data|cache|\.cache|huggingface|hub|logs?|runs?"
    r"|outputs?|results?|shared|tmp|users?|home|src|code|train|test|eval|envs?|\.?venv|projects?|repos?|scripts?"
    r"|configs?|examples?|grpo|rlhf|conda|miniconda3?|lib|bin|opt|mnt|fsx|nfs|efs|nvme\d*|ssd\d*|disks?\d*"
    r"|local|scratch\d*"
    r"|volumes?|storage|workspace|weights|home\d*|[a-z]|wheels|<user>)(?![\w.-])"
)
_SHARED = _compile(
    rf"{_PATH_EDGE}(/(?:u|media|fsx|workspace|data|efs|gpfs|work|storage|projects?|shared|userdata|Volumes|ceph(?:fs)?"
    rf"|jfs|dfs"
    rf"|mnt(?:/(?:data|fsx|nfs|efs))?)/)(?!{_USUAL})"
    rf"(?:{_NAME}(?=/)|[^/\\\s:`'\",;()\[\].]++(?!\w|\.\w))"
)
_TILDE = _compile(r"(?:(?<![\w/.~-])|(?<=\\[nrt]))~[A-Za-z_][\w.-]*+(?=/)")
# As in `scp` and prompts; a split of a data set, name/set@train, is none.
_REMOTE_USER = _compile(r"(?<![\w/.-])[a-z_][\w.-]{0,31}@(?!sha256:)(?=[\w-]++:)")
_MAIL = _compile(
    r"(?:(?<![\w.+%-])[\w.+%-]++|\"[^\"\n@]{1,64}\")@[\w-]++(?:\.[\w-]++)++"
    r"|(?<![\w.+%-])[\w.+-]{1,64}%40[\w-]++(?:\.[\w-]++)++"
)
_WHO = _compile(
    r"((?<![a-z])(?:USER|LOGNAME|USERNAME)['\"]?\s{0,2}[=:]\s{0,2}['\"]?"
    r"|(?<![\w])(?i:user_?name)['\"]?\s{0,2}[=:]\s{0,2}['\"]?"
    r"|['\"]user['\"]\s{0,2}:\s{0,2}['\"](?=[\w.-]{1,32}['\"])"
    r"|\bHOME=(?:/[\w.-]{1,32}){1,4}/(?=[\w.-]{1,32}(?![\w./-]))"
    r"|\b[ug]id=\d{1,9}\(|\blogged in as:?\s|\bsudo: {1,4}(?=[\w.-]{1,32} :)|(?:wandb\.ai"
    r"|git@[\w.-]{1,64}:)/?(?!<))"
    r"(?!<|none\b|null\b|assistant\b|user\b|system\b)[\w.-]{1,64}"
)
_LISTED = _compile(
    r"(^[dl-](?:[r-][w-][xsStT-]){3}[.+@]?\s{1,4}\d{1,6}\s{1,8})(?!root\b|<)[\w.-]{1,32}\s{1,8}[\w.-]{1,32}(?=\s)",
    re.MULTILINE,
)
_PASSWD = _compile(r"^(?!<|root:)[\w.-]{1,32}(:[x*!]?:\d{1,9}:\d{1,9}:)[^:\n]{0,128}(?=:/)", re.MULTILINE)
_AUTHOR = _compile(r"(\bAuthor:\s{1,4})[^<\n]{1,80}(?= <)")
_AT = _compile(
    r"(\b(?:ssh|scp|rsync|sftp)\b(?:\s-{1,2}[\w=-]{1,32}(?:\s\d{1,5})?){0,8}\s(?:[^\s@]{1,64}\s)?|(?<=\[)|(?<=\) ))"
    r"[a-z_][\w.-]{0,31}@[\w.-]{1,64}(?![\w.@-])"
)
# Addresses and names of machines.
_ADDRESS = _compile(
    r"(?:(?<![\w.=])|(?<=\\[nrt])|(?<=\[\d\dm))(?!127\.|0\.)(?:\d{1,3}\.){3}\d{1,3}(?!\w|\.\w)"
)
_ADDRESS_SET = _compile(r"(?<=[^=]=)(?!127\.|0\.)(?:\d{1,3}\.){3}\d{1,3}(?!\w|\.\w)")
_ADDRESS6 = _compile(
    r"(?:(?<![\w:.])|(?<=\\[nrt])|(?<=[a-z]:))[0-9a-f]{0,4}(?::[0-9a-f]{0,4}){2,7}(%[\w.-]{1,15})?(?![\w:])",
    re.IGNORECASE,
)
_ROUTED = _compile("[23f][0-9a-f]{3}:", re.IGNORECASE)
_MAC = _compile(
    r"(?:(?<![\w:-])|(?<=\\[nrt])|(?<=[^\W\d_]:)(?<![0-9a-f]{2}:))[0-9a-f]{2}([:-])(?:[0-9a-f]{2}\1){4,18}[0-9a-f]{2}"
    r"(?![\w-]|:\w)",
    re.IGNORECASE,
)
_DEVICE = _compile(r"(?:\b|(?<=\\[nrt]))(GPU|MIG)-[0-9a-f]{8}(?:-[0-9a-f]{4,12}){1,4}", re.IGNORECASE)
_UUID = _compile(
    rf"{EDGE}(?<![0-9a-f]{{4}}-)(?:[0-9a-f]{{8}}-(?:[0-9a-f]{{4}}-){{3}}[0-9a-f]{{12}}(?![A-Za-z0-9-])"
    r"|[0-9a-f]{12}4[0-9a-f]{3}[89ab][0-9a-f]{15}(?![A-Za-z0-9]))",
    re.IGNORECASE,
)
_HOST = _compile(
    r"(?<=//)(?!localhost\b|127\.|0\.0\.0\.0|<|(?:[\w-]++\.){0,4}(?:github|huggingface|pytorch|readthedocs)\b)"
    r"[A-Za-z0-9][\w.-]*(?=[:/])"
)
_HOST_NAMED = _compile(
    r"((?<![^\W_])(?:host|hostname|server\.address|master_addr|rdzv_endpoint|(?:https?|all)_proxy))(['\"]?\s{0,8}[=:]\s{0,8})"
    r"(?!\[?['\"]?(?:localhost|127\.|0\.0\.0\.0|<))\S++",
    re.IGNORECASE,
)
_NO_MACHINE = r"localhost\b|127\.|0\.0\.0\.0|<|Job\b|error\b)[\w.-]{1,64}(?:\[[\d,-]{1,64}\])?"
_MACHINE = _compile(
    r"(--(?:master|head|node|server)[_-](?:addr(?:ess)?|host|ip)[ =]|--rdzv[_-]endpoint[ =]|--host[ =]"
    r"|NODELIST=|NODENAME=|\bLinux (?!kernel|version)(?=[\w.-]{1,64} \d{1,2}\.\d{1,3}\.)"
    r"|\b(?:resolve|added) '"
    r"|connect to host |failed to connect to \[|\b(?:srun|mpirun|prun): (?:error: )?|\bSTEP [\d.]{1,24} ON "
    rf"|Last login: [^\n]{{1,60}} from )(?!{_NO_MACHINE}"
)
_SIGNALLED = _compile(r"(?<=\[)[A-Za-z][\w.-]{0,63}(?=:\d{1,8}\] \*{3} )")
_SYSLOG = _compile(rf"(^[A-Z][a-z]{{2}} {{1,2}}\d{{1,2}} \d\d:\d\d:\d\d )(?!{_NO_MACHINE}", re.MULTILINE)
_NCCL = _compile(r"(?<![\w.:/-])[\w.-]{1,64}(?=:\d{1,8}:\d{1,8} \[\d{1,3}\] NCCL )")
_SHARES = _compile(
    r"(?<=\\\\)[A-Za-z0-9][\w.-]{0,62}(?=\\)|(?<![\w.:/-])(?=[\w-]{0,32}\d"
    r"|[\w-]{1,32}\.)[A-Za-z][\w.-]{1,64}(?=:/(?:export|home|vol|mnt)\b)"
)
_GUID = _compile(
    r"(?<![\w:.-])(?=[0-9:]{0,19}[a-f])(?:[0-9a-f]{4}:){3}[0-9a-f]{4}(?![\w:-])"
    r"|(?:(?<![\w.])|(?<=\\[nrt]))(?:[0-9a-f]{4}\.){2}[0-9a-f]{4}(?!\w|\.\w)"
    r"|(?i:(?<=serial number: )|(?<=machine-id: ))\w{6,40}"
)
_DOTTED = _compile(r"(?<![\w.-])[A-Za-z0-9_-]++(?:\.[A-Za-z0-9_-]++)++\.?")
_MACHINES = (
    ".internal", ".local", ".lan", ".intranet", ".corp", ".localdomain", ".amazonaws.com", ".cloudapp.net",
    ".cloudapp.azure.com", ".windows.net", ".azureml.ms", ".googleusercontent.com", ".oraclevcn.com", ".aliyuncs.com",
    ".onion", ".runpod.net", ".vast.ai", ".lambdalabs.com", ".coreweave.cloud", ".cluster",
    ".run.app", ".ngrok.io", ".ngrok-free.app", ".modal.run", ".novalocal", ".home.arpa", ".ts.net",
)  # fmt: skip
_OFFICES = (
    ".com", ".edu", ".net", ".org", ".gov", ".cn", ".de", ".fr", ".jp", ".uk", ".ch", ".kr", ".in", ".au", ".ca",
)  # fmt: skip
_KNOWN = ("github", "huggingface", "pytorch", "readthedocs", "nvidia", "python.org", "pypi", "example")
_RELEASE = _compile(
    r"(?:\b(?:version|release|driver|libcu\w{1,16}|cu[bds]\w{1,16}|cuda\w{0,8}|nccl|nv\w{2,16}|torch"
    r"|[\w-]{1,24}-cu\d\d))[ v\"'=(]{1,3}\Z",
    re.IGNORECASE,
)
_BY_ADDRESS = _compile(
    rf"{_PATH_EDGE}(?:(?:ip|ec2|domU|node|host)-(?:\d{{1,3}}-){{3}}\d{{1,3}}(?!\d)|i-0[0-9a-f]{{16}}(?!\w)"
    r"|gke-[\w-]{4,64}-[0-9a-f]{8}-\w{4}(?!\w)|aks-\w{1,32}-\d{6,10}-vmss\w{6}(?!\w))"
)


def _unless_revision(match: re.Match[str]) -> str:
    before = match.string[max(0, match.start() - 24) : match.start()]
    return match[0] if len(match[0]) == 40 and _REVISION.search(before) else MASK


def _if_random_part(match: re.Match[str]) -> str:
    """Mask a long word unless it is a path: then no part between its slashes is random."""
    part = max(match[0].split("/"), key=len)
    kinds = (str.isdigit, str.isupper, str.islower)
    return MASK if len(part) >= 20 and all(any(map(kind, part)) for kind in kinds) else match[0]


def _if_opaque(match: re.Match[str]) -> str:
    value = match[2]
    hexadecimal = len(value) >= 32 and not value.strip("0123456789abcdef")
    return match[1] + MASK if hexadecimal or any(map(is_random, re.split(r"[_+=-]+", value))) else match[0]


def is_random(word: str) -> bool:
    """Return whether a word is long, mixes digits and both cases, and has no syllables of a name."""
    if len(word) < 16 or not all(any(map(kind, word)) for kind in (str.isdigit, str.isupper, str.islower)):
        return False
    syllables = sum(map(len, _SPOKEN.findall(word)))
    return word.isalnum() and len(_SWITCH.findall(word)) >= 0.4 * len(word) and syllables <= len(word) / 3


def _mail(match: re.Match[str]) -> str:
    """Keep `numpy@1.26`, a release, and `A@B.T`, an expression."""
    last = match[0].rpartition(".")[2]
    return "<mail>" if len(last) > 1 and not last.isdigit() else match[0]


def _address(match: re.Match[str]) -> str:
    """Keep four numbers behind the name of a library: they are its release."""
    return (
        match[0] if _RELEASE.search(match.string[max(0, match.start() - 32) : match.start()]) else "<address>"
    )


def _machine(match: re.Match[str]) -> str:
    name = match[0].removesuffix(".").lower()
    office = name.endswith(_OFFICES) and name.count(".") > 1 and not any(map(name.__contains__, _KNOWN))
    return "<host>" if office or name.endswith(_MACHINES) else match[0]


def _address6(match: re.Match[str]) -> str:
    """Replace global and local IPv6 addresses; a time, a slice and a C++ name are none."""
    text = match[0].partition("%")[0]
    if text.count(":") < 3 and not _ROUTED.match(text):
        return match[0]
    text = text.removesuffix(":") if not text.endswith("::") else text
    head, gap, tail = text.partition("::")
    if gap:
        first_version, right = (head.split(":") if head else []), (tail.split(":") if tail else [])
        valid = len(first_version) + len(right) < 8 and "::" not in tail and all(first_version) and all(right)
    else:
        parts = text.split(":")
        valid = len(parts) == 8 and all(parts)
    loopback = not text.rpartition(":")[0].strip("0:") and text.rpartition(":")[2].lstrip("0") in {"", "1"}
    return match[0] if loopback or not valid else "<address>"


def _own_names(text: str) -> str:
    """Replace this user's home folder and this machine's name."""
    home, host = os.path.expanduser("~"), os.uname().nodename  # noqa: PTH111 - as a string
    text = text.replace(home, "~") if len(home) > 1 else text
    return text.replace(host, "<host>") if len(host) > 3 else text


Rule = tuple[re.Pattern[str], "str | Callable[[re.Match[str]], str]", tuple[str, ...]]
"""A pattern, its replacement, and lower-case texts of which one must stand in a text for the pattern to match."""
_SECRET_NAMES = (
    "token", "secret", "pass", "pw", "key", "client-", "credential", "x-amz", "x-goog", "x-oss", "sk", "pat", "auth",
    "contrase", "mot de", "\u5bc6\u7801", "\u5bc6\u94a5", "\u53e3\u4ee4", "sig", "q-ak", "cookie",
)  # fmt: skip
_SECRETS: tuple[Rule, ...] = (
    (_PRIVATE, MASK, ("private key",)),
    (_HEADER, rf"\1{MASK}", ("authorization", "x-api-key", "x-auth-token", "x-hub-", "cookie")),
    (_COOKIES, rf"\1{MASK}", ("cookies",)),
    (_SIGNED, rf"\1{MASK}", ("signature=",)),
    (_HOOK, rf"\1{MASK}", ("://", "/bot", "/webhook", "/hook/")),
    (_URL, f"{MASK}@", ("://",)),
    (_ENCODED, f"{MASK}@", ("%3a%2f%2f",)),
    (_LOGIN, f"{MASK}@", ("@",)),
    (_JWT, MASK, ("eyj",)),
    (_ISSUED, _unless_revision, ()),
    (_BEARER, rf"\1{MASK}", ("bearer",)),
    (_BASIC, rf"\1{MASK}", ("basic",)),
    (_PIPED, rf"\1{MASK}", ("echo",)),
    (_ENTRY, rf"\1{MASK}", ("value",)),
    (_NAMED, rf"\1{MASK}", _SECRET_NAMES),
    (_PAIR, rf"\1{MASK}", ("',", '",')),
    (_ELEMENT, rf"\1{MASK}", ("</",)),
    (_FLAG, rf"\1{MASK}", ("--",)),
    (
        _GIVEN,
        rf"\1{MASK}",
        (
            "curl",
            "sshpass",
            "docker",
            "mysql",
            "unzip",
            "7z",
            "swanlab",
            "openssl",
            "ssh-",
            "auth",
            "identified",
            "password",
        ),
    ),
    (_SAID, rf"\1{MASK}", _SECRET_NAMES),
    (_OPAQUE, _if_opaque, ("key", "auth", "session", "sid", "sk", "ak", "pat", "credential")),
    (_LONG, _if_random_part, ()),
    (_RANDOM, lambda match: MASK if is_random(match[0]) else match[0], ()),
)
_FOLDERS: tuple[Rule, ...] = (
    (_HOMES, r"\1<user>", ("home", "user", "scratch", "lustre", "nfs", "afs", "tmp")),
    (_SHARED, r"\1<user>", ("/",)),
    (_TILDE, "~<user>", ("~",)),
)
_IDENTITY: tuple[Rule, ...] = (
    (_WHO, r"\1<user>", ("user", "logname", "home=", "id=", "logged in", "sudo:", "wandb.ai", "git@")),
    (_LISTED, r"\1<user> <user>", ("r-", "rw")),
    (_PASSWD, r"<user>\1", (":",)),
    (_AUTHOR, r"\1<user>", ("author:",)),
    (_AT, r"\1<user>@<host>", ("@",)),
    (_NCCL, "<host>", ("nccl ",)),
    (
        _MACHINE,
        r"\1<host>",
        ("--", "node", "linux ", "resolve", "added", "connect", "run: ", "step ", "login: "),
    ),
    (_SIGNALLED, "<host>", ("] *** ",)),
    (_SYSLOG, r"\1<host>", (":",)),
    (_SHARES, "<host>", ("\\\\", ":/export", ":/home", ":/vol", ":/mnt")),
    *_FOLDERS,
    (_MAIL, _mail, ("@", "%40")),
    (_HOST, "<host>", ("//",)),
    (_HOST_NAMED, r"\1\2<host>", ("host", "server.", "master_", "rdzv_", "_proxy")),
    (_DOTTED, _machine, (".",)),
    (_BY_ADDRESS, "<host>", ("-",)),
    (_MAC, "<address>", (":", "-")),
    (_GUID, "<address>", (":", ".")),
    (_ADDRESS, _address, (".",)),
    (_ADDRESS_SET, "<address>", ("=",)),
    (_ADDRESS6, _address6, (":",)),
    (_REMOTE_USER, "<user>@", ("@",)),
    (_DEVICE, r"\1-<uuid>", ("gpu-", "mig-")),
    (_UUID, "<uuid>", ()),
)
_ROUNDS = 4


def mask(text: str) -> str:
    """Replace every secret in a text.

    >>> mask("Authorization: Digest abc; --hub_token s3cr3tvalue")
    'Authorization: <secret>'
    """
    return _apply(_SECRETS, text)


def mask_and_cut(text: str, length: int) -> str:
    """Replace secrets, then cut: half of a secret has no shape.

    >>> mask_and_cut("key " + "0a1b2c3d" * 5, 24)
    'key <secret>'
    """
    return text if len(text) <= length else mask(text)[:length]


def redact(text: str) -> str:
    """Replace secrets and everything that identifies a person or a machine, for a text that is shared.

    >>> redact("/home/ada/run.sh on 10.1.2.3, see ada@example.org")
    '/home/<user>/run.sh on <address>, see <mail>'
    """
    return _apply(_IDENTITY, _own_names(_apply(_SECRETS, text)))


def redact_path(path: str) -> str:
    """Replace user names in a path, before it is shortened.

    >>> redact_path("/home/ada/run/train.py")
    '/home/<user>/run/train.py'
    """
    return _apply(_FOLDERS, path)


@functools.lru_cache(2048)
def _apply(rules: tuple[Rule, ...], text: str) -> str:
    """Apply all rules until nothing changes: a replacement can uncover what stood behind it."""
    for _ in range(_ROUNDS):
        before = text
        lower = text.lower()
        for pattern, replacement, needed in rules:
            if not needed or any(map(lower.__contains__, needed)):
                text = pattern.sub(replacement, text)
        if text == before:
            break
    return text
