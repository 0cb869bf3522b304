"""By what a line of a stack is known: the heads of threads and the frames of faulthandler, gdb, pystack and others."""

from __future__ import annotations

import re

FAULT = re.compile(
    r"^\s*(?:Current thread|Thread) (0x[0-9a-fA-F]+)(?: \[([^\]]*)\])? \(most recent call first\)"
)
PYSTACK = re.compile(r"^\s*Traceback for thread (\d+) \(([^)]*)\)(.*?)\(most recent call (last|first)\)")
PLAIN = re.compile(r"^[^\w\n]*(?:Stack|T?raceback|Thread)\b.*\(most recent call (first|last)\)")
# Whatever else a program writes above a thread's stack.
THREAD = re.compile(
    r"^\W*(?:stack (?:of|for)\b|<?_?(?:Main|\w+ )?Thread\b)(?![^\n]*\bFile \")[^.!?\n]{0,80}$", re.IGNORECASE
)
FIRST = re.compile(r"Thread 1\b:?$|MainThread|main thread", re.IGNORECASE)
PYTHON = re.compile(r'^\s*(?:\(Python\) )?File:? "([^"]+)", line (\d+|\?+)(,?) in (\S+)')
# As IPython has it: the place, and an arrow at the line. Two ways of writing the place.
IPYTHON = re.compile(r"^(?:File )?(\S{1,300}\.py)(?::\d+)?,? in (\w+(?:\.\w+)*)\(")
# As rich has it: the place, and its mark at the line.
RICH = re.compile(r"^\s*(/\S{1,300}\.pyx?):(\d+) in (\S+)\s*$")
RICH_LINE = re.compile(r"^\s*\u2771\s+(\d+)\s(?:\W{0,12})(.*)$")
IPYTHON_LINE = re.compile(r"^-+> ?(\d+)\s(.*)$")
C = re.compile(r'^\s*\(C\) File "([^"]*)", line (\d+), in (.+?)(?: \(([^)]*)\))?\s*$')
GDB_THREAD = re.compile(r'^\s*Thread (\d+) \((?:Thread 0x[0-9a-f]+ \()?LWP (\d+)\)?(?: "([^"]*)")?')
# `info threads`: a line a thread, of each the innermost frame alone.
GDB_INFO = re.compile(
    r'^\*?\s*(\d+)\s+Thread 0x[0-9a-f]+ \(LWP (\d+)\)(?: "([^"]*)")?\s+(?:0x[0-9a-f]+ in )?([^\s(]+) ?\('
)
GDB_FRAME = re.compile(
    r"^\s*#\d+\s+(?:0x[0-9a-f]+ in )?(.+?) ?\((?:.*?)\)(?: from (\S+)| at (\S+?):(\d+)| at /?[\w.+-]+/\S*)?\s*$"
)
# A frame whose arguments go on in the next line; `eu-stack`, without arguments; lldb.
GDB_CUT = re.compile(
    r"^\s*#\d+\s+(?:0x[0-9a-f]+ in )?([\w:~<>@.$*&, ]{1,300}?) ?\((?=[^\n]*=)(?:[^\n]*[,=]|[^\n)]*)\s*$"
)
EU = re.compile(r"^\s*#\d+\s+0x[0-9a-f]+ (?:- \d+ )?(?!in )([\w:~@.$]{2,300})(?: - .*|\s*\(?.*)?$")
EU_THREAD = re.compile(r"^\s*TID (\d+)\b")
LLDB = re.compile(r"^\s*\*?\s*frame #\d+: 0x[0-9a-f]+ ([^\s`]+)`(.+?)(?: \+ \d+| at |\(|$)")
LLDB_THREAD = re.compile(r"^\s*\*?\s*thread #(\d+)\b")
GDB_PYTHON = re.compile(r"^\s*(?:#\d+ .*\b)?Frame 0x[0-9a-f]+, for file ([^,]+), line (\d+), in (\S+)")
# As older ones have it, without a line.
GDB_PLACE = re.compile(r"^\s*#\d+ file '([^']+\.py)', in '(\w+)'$")
# Frames of C++ as an error of c10d prints them, and chains of calls that somebody drew: outermost first.
CPP = re.compile(r"^\s*frame #(\d+): (.+?) \+ 0x[0-9a-f]+ \((?:0x[0-9a-f]+ in )?([^)]*)\)")
ARROW = re.compile(r"^\s{1,80}(?:\S.{0,200}\s)?->\s+([\w:.]+)")
# Native frames of what only noticed that others are stuck or gone.
AFTER = re.compile(
    r"[wW]atchdog|heartbeatMonitor|HeartbeatMonitor|checkTimeout|recvValueWithTimeout|sendBytes"
)
# Who lost its other end is not the one that stands.
CLOSED = re.compile(
    r"(?i)connection (?:was )?(?:likely )?(?:reset|closed)|broken pipe|failed to recv|recvValue failed"
)
ERROR = re.compile(
    r"^(?:\^C|\*\*)?(?:[\w.]+\.)?([A-Z]\w*(?:Error|Exception|Exit|Interrupt|Empty|Timeout|Expired)\w*)(?::|$)"
)
STOOD = re.compile(r"KeyboardInterrupt|Timeout|TimedOut|Empty|Expired|SystemExit|Interrupted")
# A lock that is asked for until it is given; errors that are of a wait all the same.
AGAIN = "[Errno 37] No locks available"
STANDS = re.compile(rf"(?i)timed out|\btimeout after|{re.escape(AGAIN)}")
CAUSE = ("During handling of the above", "The above exception was")
PROCESS = re.compile(r"^Process (\d+): ?")
LONGEST = 1000
PID = re.compile(r"(?i)\b(?:process|pid|lwp)[ :=]+(\d+)\b")
# By any of which a text is one of stacks.
ANY = (
    FAULT, PYSTACK, GDB_THREAD, PLAIN, GDB_FRAME, PYTHON, IPYTHON, CPP, ARROW, GDB_INFO, GDB_PYTHON, RICH, EU, LLDB,
)  # fmt: skip
