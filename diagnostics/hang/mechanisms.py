"""Words of mechanisms: which names and phrases are of which class of cause, in whatever notation they are written.

Text is read as words in small letters, so that a function, a log's line and a sentence are the same: `ncclAllReduce`,
`all_reduce` and "all-reduce" are all "all reduce". What a row has taken no later row reads: `shm_broadcast` is a ring,
and no broadcast.
"""

from __future__ import annotations

import re

# Classes that claim nothing: what else may last as long.
COMPUTES = "busy"
# How a sentence says each: what the words are of.
PHRASES = {
    "mismatch": "ranks that are in different collectives",
    "absent": "a rank that does not come to a collective",
    "rendezvous": "a rendezvous to which not all come",
    "connect": "a connection that is not made",
    "device": "a device that does not come back",
    "lock": "a lock that is not given back",
    "file_lock": "the lock of a file that is not given back",
    "dead": "a process that died while others wait for it",
    "lost_message": "a wait for something that nobody sends",
    "full_pipe": "room that is waited for where nobody reads",
    "input": "a question that nobody answers",
    "blocked_loop": "an event loop that a call blocks",
    "pending": "work that Ray does not start",
    "kernel": "a task that the kernel does not let go",
    COMPUTES: "work that takes long",
}
# What is always said along with a cause, and does not speak against it.
FOLLOWS = {
    "mismatch": ("absent", "device", "lost_message", "dead"),
    "absent": ("device", "lost_message"),
    "rendezvous": ("absent", "connect", "device", "lost_message"),
    "dead": ("lost_message", "absent", "lock"),
    "file_lock": ("lock", "lost_message"),
    "input": ("lock", "lost_message"),
} | dict.fromkeys(("lock", "full_pipe", "blocked_loop", "pending", "kernel"), ("lost_message",))

_A = r"(?:an? |the |this |that |its |same )?"
_SURE: tuple[tuple[str, str], ...] = (
    ("mismatch", r"mismatch\w*(?: \w+){0,4} collectives?|collectives? mismatch\w*|desync\w*|different collectives?"
     r"|(?:ranks?|collectives?) (?:\w+ ){0,3}(?:diverge\w*|out of sync)"
     r"|ranks? \d+ (?:is|are|was|were) in (?:\w+ ){1,6}(?:while|whereas|but) (?:the )?(?:others?|rank)"),
    ("file_lock", r"(?:soft )?file ?lock|flock|lock ?file|fcntl (?:lock|setlk)|file baton|stale lock|lock \w+ on \w+"
     r"|locks? (?:the|a) file|lock directory"),
    ("input", r"stdin|n? ?tty read|getpass|readline prompt|y n|yes no|password for|enter your"
     r"|waiting for (?:user |an )?input|cmdloop|i?pdb|set trace|breakpoint|interactive prompt"
     r"|prompts? (?:for|the user)"),
    (COMPUTES, r"infinite(?:ly)? (?:loop\w*|recurs\w*)|endless loop|loops? forever|never terminat\w*|sympy|catastrophic"
     r"|backtracking|busy loop in"),
    ("kernel", r"nfs\w*|rpc wait bit\w*|uninterruptible|d state|io schedule|jbd2|lustre|ceph|hung task"
     r"|blocked for more than|stale file handle"),
)  # fmt: skip
_LIKELY: tuple[tuple[str, str], ...] = (
    ("absent", r"all ?(?:reduce|gather|to ?all)|reduce ?scatter|monitored barrier|dist barrier"
     r"|broadcast (?:object|pyobj|tensor)\w*|(?:nccl|gloo|c10d|dist|torch) \w*broadcast|collectives?(?! rpc)"
     r"|wait for everyone|gloo|nccl group|mpi (?:wait|bcast|barrier)\w*|destroy process group|work nccl"),
    ("rendezvous", r"rendezvous|init process group|tcp ?store|store based barrier|comm init rank|unique ?id"
     r"|init (?:torch )?distributed|new group|create c10d store"
     r"|waiting for (?:all )?(?:other )?(?:nodes|workers|ranks|clients|peers) to (?:join|connect|register)"),
    ("connect", r"(?:connection|connect) (?:refused|timed out|failed)"
     r"|(?:could not|can ?not|can t|failed to|unable to) (?:connect|reach)|unreachable|econnrefused|etimedout|syn sent"
     r"|create connection|getaddrinfo|do handshake|not (?:up|ready|listening|reachable)(?: yet)?"),
    ("device", r"(?:cu|cuda|hip|acl|rt|musa) ?(?:stream|event|ctx|device|context) ?sync\w*|stream sync\w*"
     r"|(?:cuda|npu|xpu|gpu|device|hpu) synchronize|cuda memcpy|cu memcpy\w*|xid \d+|fallen off the bus|hsa signal"
     r"|local scalar dense|block until ready|gpu (?:hang|reset|lost|is lost)"
     r"|kernel (?:\w+ )?(?:never|hangs?|deadlocks?)|(?:stream|event) query"),
    ("lock", r"mutex(?:es)?|rw ?lock|critical section|take gil|the gil|gil (?:held|deadlock|state)"
     rf"|hold(?:s|ing)? {_A}(?:\w+ )?lock|lock (?:is |was )?(?:held|owned|order|inversion|contention)"
     rf"|(?:wait\w*|block\w*) (?:on |for |to acquire ){_A}(?:import |module |global )?lock|after fork"
     r"|fork(?:ed)? (?:child|process)|atfork|import lock|(?:non )?reentrant|lll lock"),
    ("dead", r"sig ?(?:kill|segv|bus|abrt)|oom kill\w*|was killed"
     r"|(?:process|worker|rank|actor|engine|child|server|node|peer|container|pod) (?:(?:has|had|was|is|unexpectedly) )*"
     r"(?:died|dead|crash\w*|exited|killed|gone|terminated)|defunct|zombie|segfault\w*|segmentation fault"
     r"|(?:died|crashed|exited) (?:silently|unexpectedly|without)"),
    ("lost_message", rf"queue get|(?:wait\w*|block\w*) (?:on |for ){_A}(?:\w+ )?(?:response|reply|result|answer|message"
     r"|request|output|data|notification|signal|item|event|ack)s?"
     r"|never (?:sent|sends|(?:receiv|repli|respond|arriv|resolv|notif|signal)\w*)|no (?:response|reply|answer)"
     r"|read status|get ?response|shm broadcast|(?:lost|missed) (?:wake\w*|notif\w*|message|signal)"
     r"|recv (?:bytes|multipart|pyobj)|future (?:result|never)|ray get|anon pipe read|pipe (?:read|wait)"),
    ("full_pipe", r"(?:pipe|queue|buffer) (?:is )?full|queue put|full (?:pipe|queue|buffer)|backpressure|pipe write"
     r"|std(?:err|out) pipe|send ?all|queue join thread|nobody reads|not (?:being )?drained"),
    ("blocked_loop", rf"block(?:s|ed|ing)? {_A}(?:whole |entire |main )?(?:asyncio )?event ?loop"
     r"|event ?loop (?:is |was |gets? )?(?:block\w*|stall\w*|starv\w*)|run once|inside async|run until complete"
     r"|run coroutine threadsafe"),
    ("pending", r"placement group|can ?not be scheduled|insufficient resources|pending (?:creation|node assignment)"
     r"|unschedulable|no available node|resource demands?|infeasible"),
    (COMPUTES, r"compil\w+|inductor|load(?:ing)? (?:weights|checkpoint|model|safetensors)|download\w*|autotun\w*"
     r"|warm ?up"),
)  # fmt: skip
_POSSIBLE: tuple[tuple[str, str], ...] = (
    ("absent", r"process group|peers?|barrier|[nrh]ccl|broadcast|(?:other|some|one|missing) ranks?"
     r"|ranks? (?:\d+ )?(?:never|did not|does not|doesn|didn)|fsdp|zero ?3"),
    ("rendezvous", r"master (?:addr|port)|join(?:ed|ing)? the (?:group|cluster)|c10d"),
    ("device", r"synchronize|cuda|nvrm|gpu kernel|nvlink|libcuda|amdgpu|rocm|cuda graphs?|ecc"),
    ("lock", r"futex|r ?lock|lock(?:s|ed)?|gil|fork(?:ed)?|deadlock(?:s|ed)?"),
    ("dead", r"killed|died|dead|crash\w*|terminated|exited|out of memory|oom"),
    ("lost_message", r"recv|queue|response|future|wait for|dequeue|acquire read|pool|zmq|data ?loader|condition"
     r"|(?:event|cond) wait|rpc|pipe"),
    ("blocked_loop", r"asyncio|event loop|await|coroutine"),
)  # fmt: skip


def _row(rows: tuple[tuple[str, str], ...]) -> re.Pattern[str]:
    return re.compile(rf"\b(?:{'|'.join(f'(?P<{cause}>{names})' for cause, names in rows)})\b")


# The surest first, each with its weight.
ROWS = ((3.0, _row(_SURE)), (2.0, _row(_LIKELY)), (1.0, _row(_POSSIBLE)))
# Causes whose words no other has: they stand whatever follows from them is said more often.
ROOTS = ("mismatch", "file_lock")
# What may be how it rests, where all that was read of it does.
RESTS = ("lost_message",)
# What is a cause only beside one of those that follow from it: of a death alone nobody waits for anything.
BESIDE = ("dead",)
# Of a text that says that something stands; of a line that says so or that somebody waits; of one that denies it.
_STANDS = (
    r"hangs?|hung|hanging|stuck|deadlock\w*|fr[eo]ez\w*|frozen?|blocked|never|forever|indefinitely|stall\w*|time ?outs?"
    r"|timed out|wedged|no progress|stops? responding|unresponsive"
)
STANDS = re.compile(rf"\b(?:{_STANDS})\b|卡住|卡死|不动|阻塞|死锁")
WAITS = re.compile(rf"\b(?:{_STANDS}|blocks?|blocking|waits?|waiting|retry\w*)\b|{STANDS.pattern}")
DENIES = re.compile(
    rf"\b(?:not|no longer|doesn t|isn t|without) (?:\w+ )?(?:{_STANDS})\b"
    r"|\b(?:any ?more|no longer|red herring|health(?:y|ily)|unrelated|innocent|as expected|progressing)\b"
)
# Words that say of nothing that it stands, and of a text's end that all goes on.
UNSAID = re.compile(
    r"\b(?:nothing|nobody|none|no|not|never|without|doesn t|didn t|isn t|wasn t) "
    r"(?:(?:one|process|rank|thread|worker)(?:es|s)? )?"
    rf"(?:(?:is|are|was|were|gets?|seems?|looks?|really|actually) )?(?:an? |any )?(?:{_STANDS})\b"
)
WELL = re.compile(r"\b(?:all|everything)(?: \w+)? (?:good|well|fine|ok(?:ay)?|healthy)\b")
# Of a line that says why.
WHY = re.compile(r"\b(?:root cause|because|caused by|due to|culprit)\b")
# A log's end, where it went on: a bar, a step, or in words.
WENT_ON = re.compile(
    r"[1-9]\d?%|\d(?:it/s|s/it)|(?i:\bstep \d|\bis (?:now )?(?:up|ready)\b|\bsucce\w+|\bcompleted?\b)"
)
# The last line of an error; where no limit of time was reached, nothing stands any more.
ERROR = re.compile(r"^\W*(?:\w+\]:? *)?(?:[\w.]+\.)?[A-Z]\w*(?:Error|Exception)\b(?::|$)")
LIMIT = re.compile(r"(?i)time[ds]? ?out|timing out|time limit|deadline|interrupt|heartbeat")
# What a debugger shows a function was called with, and where a name in capitals and small letters parts.
_GIVEN = re.compile(r"\b\w+=(?:<[^>]*>|[^\s,)]*)")
_PARTS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_WORD = re.compile(r"[a-z]+|\d+|[\u4e00-\u9fff]+")


def words(line: str) -> str:
    """A line as words.

    >>> words("#2 ncclGroupEndInternal (job=0x7f) at group.cc:9")
    '2 nccl group end internal at group cc 9'
    """
    return " ".join(_WORD.findall(_PARTS.sub(" ", _GIVEN.sub(" ", line)).lower()))
