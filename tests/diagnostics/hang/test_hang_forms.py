"""One stack in the notations and behind the prefixes that people paste: read the same in each."""

import json

import pytest

from diagnostics.hang.judge import causes
from diagnostics.hang.judge.decide import judge
from diagnostics.hang.read import files, notations

STACK = (
    ("/opt/env/lib/python3.11/threading.py", 320, "wait"),
    ("/opt/env/lib/python3.11/queue.py", 171, "get"),
    ("/job/data.py", 40, "next_batch"),
    ("/job/train.py", 88, "main"),
    ("/job/train.py", 120, "<module>"),
)
NAMES = [name for *_, name in STACK]


def inward(form):
    """The innermost first."""
    return "".join(
        form.format(p=p, n=n, f=f, i=i, b=p.rpartition("/")[2]) for i, (p, n, f) in enumerate(STACK)
    )


def outward(form):
    return "".join(form.format(p=p, n=n, f=f, b=p.rpartition("/")[2]) for p, n, f in reversed(STACK))


TRACEBACK = (
    "Traceback (most recent call last):\n"
    + outward('  File "{p}", line {n}, in {f}\n    source()\n')
    + "KeyboardInterrupt\n"
)
SPIED = 'Thread 7 (idle): "MainThread"\n' + inward("    {f} ({p}:{n})\n")


def before(text, form):
    return "".join(f"{form.format(i=i)}{line}\n" for i, line in enumerate(text.splitlines()))


FORMS = {
    "a pod's log with times": before(TRACEBACK, "2024-05-01T12:00:{i:02d}.123456789Z stderr F "),
    "a pod's name": before(SPIED, "[pod/worker-0/trainer] "),
    "a logger's words": before(TRACEBACK, "12:00:{i:02d},123 - ERROR - trainer - "),
    "bars": before(SPIED, "| "),
    "numbers": before(TRACEBACK, "{i:3d}: "),
    "a numbered list": before(SPIED, "{i}. "),
    "mpirun": before(TRACEBACK, "[1,0]<stderr>:"),
    "a rank behind a time": before(TRACEBACK, "2024-05-01 12:00:{i:02d} [rank0]: "),
    "twice quoted": before(TRACEBACK, "> > "),
    "a page's escapes": TRACEBACK.replace('"', "&quot;").replace("<", "&lt;").replace(">", "&gt;"),
    "one string of JSON": json.dumps(TRACEBACK),
    "one line": TRACEBACK.replace("\n", " "),
    "blanks that do not break": TRACEBACK.replace("  ", "\u00a0\u00a0"),
    "a narrow terminal": TRACEBACK.replace('", line', '",\n line'),
    "an interrupt's sign": f"^C{TRACEBACK}",
    "pdb": outward("  {p}({n}){f}()\n-> source()\n"),
    "PyCharm": inward("{f}, {b}:{n}\n"),
    "VS Code": inward("{f} ({p}:{n})\n"),
    "VS Code, copied": inward("{f}\t{b}\t{n}:1\n"),
    "at": inward("  at {f} ({p}:{n})\n"),
    "pytest": outward("{p}:{n}: in {f}\n    source()\n"),
    "colons": inward("{p}:{n} {f}\n"),
    "folded for a flame graph": ";".join(f"{f} ({p}:{n})" for p, n, f in reversed(STACK)) + " 100",
    "austin": "P1;T1;" + ";".join(f"{p}:{f}:{n}" for p, n, f in reversed(STACK)),
    "a tree of tasks": inward(" |  {f} {p}:{n}\n"),
    "numbers and places": inward("#{i} {f} at {p}:{n}\n"),
    "columns": inward("    {f:<20} ({p}:{n})\n"),
    "columns with remarks": inward("    {f:<20} ({p}:{n})   <-- BLOCKS FOREVER\n"),
    "a remark in py-spy's": SPIED.replace("320)", "320)  # stuck here"),
    "remarks in a traceback": TRACEBACK.replace(", in wait\n", ", in wait  \u2190 never returns\n"),
    "no head": outward('  File "{p}", line {n}, in {f}\n'),
    "Markdown": inward("- `{f}` (`{p}:{n}`)\n"),
    "another system's paths": inward('  File "C:\\env\\{b}", line {n} in {f}\n'),
}


@pytest.mark.parametrize("name", FORMS)
def test_a_stack_is_the_same_in_every_form(tmp_path, name):
    """All frames, innermost first."""
    path = tmp_path / "dump.txt"
    path.write_text(FORMS[name])
    [process] = files.read([str(path)]).processes
    assert [[frame.function for frame in thread.frames] for thread in process.threads] == [NAMES]


@pytest.mark.parametrize("name", [name for name in FORMS if name != "another system's paths"])
def test_and_says_the_same(tmp_path, name):
    """The form changes nothing of what is named."""
    path = tmp_path / "dump.txt"
    path.write_text(FORMS[name])
    verdict = causes.named(judge(files.read([str(path)]))).verdict
    assert (verdict.outcome, verdict.code) == ("hang", "HNG016")


def test_ranks_that_a_launcher_numbers_are_apart(tmp_path):
    """As `srun --label` marks them, their lines in turns."""
    one, other = (TRACEBACK.replace("queue.py", name).splitlines() for name in ("queue.py", "other.py"))
    lines = [f"{rank}: {line}" for pair in zip(one, other, strict=True) for rank, line in enumerate(pair)]
    path = tmp_path / "dump.txt"
    path.write_text("\n".join(lines))
    assert [process.rank for process in files.read([str(path)]).processes] == [0, 1]


def test_threads_that_nothing_parts_are_apart(tmp_path):
    """As a loop over all threads prints them, one below the other."""
    thread = (
        '  File "/usr/lib/python3.11/threading.py", line 1002, in _bootstrap\n    self._bootstrap_inner()\n'
    )
    path = tmp_path / "dump.txt"
    path.write_text((thread + outward('  File "{p}", line {n}, in {f}\n')) * 2)
    assert [len(process.threads) for process in files.read([str(path)]).processes] == [2]


def test_stacks_side_by_side_are_apart(tmp_path):
    """What is said of a frame is in no column's way."""
    left, right = (
        ("dispatch", "alloc_page", "pthread_cond_wait  <- GIL held"),
        ("work", "map_pages", "take_gil"),
    )
    rows = [("main thread:", "worker:"), *zip(left, right, strict=True)]
    path = tmp_path / "dump.txt"
    path.write_text("".join(f"{one:<40}{other}\n" for one, other in rows))
    verdict = causes.named(judge(files.read([str(path)]))).verdict
    assert (verdict.outcome, verdict.code) == ("hang", "HNG006")


ROW = {
    "PID": "4242", "PPID": "1", "TTY": "?", "STAT": "Tsl", "S": "T", "TIME": "43:28", "ELAPSED": "1-02:14:19",
    "WCHAN": "-", "STARTED": "Fri May  7 10:32:48 2021", "COMMAND": "/opt/bin/python -m job", "CMD": "python a.py 1",
}  # fmt: skip
HEADS = (
    "PID TTY STAT TIME COMMAND",
    "PID PPID STAT WCHAN ELAPSED COMMAND",
    "S PID CMD",
    "STAT ELAPSED PID",
    "CMD PID S TTY",
    "PID STARTED STAT COMMAND",
)


def listing(head, **row):
    return f"{head}\n{'  '.join((ROW | row)[name] for name in head.split())}\n"


@pytest.mark.parametrize("head", HEADS)
def test_who_is_stopped_in_a_list_of_any_columns(tmp_path, head):
    """One that was asked for alone, too."""
    path = tmp_path / "dump.txt"
    path.write_text(listing(head))
    verdict = causes.named(judge(files.read([str(path)]))).verdict
    assert (verdict.code, verdict.culprits) == ("HNG004", ("/4242",))


@pytest.mark.parametrize("head", HEADS)
def test_a_list_of_who_runs_is_read_and_claims_nothing(tmp_path, head):
    """Nor does it of a child beside it that nobody waits for."""
    path = tmp_path / "dump.txt"
    dead = listing(
        head, PID="4243", STAT="Z", S="Z", COMMAND="[sh] <defunct>", CMD="[sh] <defunct>"
    ).partition("\n")[2]
    path.write_text(listing(head, STAT="Rl", S="R") + dead)
    assert judge(files.read([str(path)])).verdict.outcome == "unknown"


def test_a_summary_of_ras_without_errors_is_read_and_claims_nothing(tmp_path):
    """Of communicators that run."""
    path = tmp_path / "dump.txt"
    path.write_text(
        "NCCL version 2.30.7 compiled with CUDA 12.8\n\nJob summary\n===========\n\n"
        "Communicators... (0.00s)\n=============\n\n"
        "Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors\n"
        "    #  in group  per comm  per node  per comm  in group\n"
        "    0         1         2         4         8         8   RUNNING      OK\n\n"
        "Errors\n======\n\n\nWarnings\n========\n"
    )
    assert judge(files.read([str(path)])).verdict.outcome == "unknown"


@pytest.mark.parametrize(
    ("text", "code", "pid"),
    [
        ("$ sudo strace -p 4242\nrecvfrom(11, ", "HNG016", 4242),
        ("strace: Process 77 attached\n12:01:02 read(0, ", "HNG008", 77),
    ],
)
def test_a_call_that_strace_saw_begin(tmp_path, text, code, pid):
    """And of which it saw no end."""
    path = tmp_path / "dump.txt"
    path.write_text(text)
    verdict = causes.named(judge(files.read([str(path)]))).verdict
    assert (verdict.code, verdict.culprits) == (code, (f"/{pid}",))


@pytest.mark.parametrize(
    "line",
    [
        "2024-05-01 12:00:01 INFO trainer.py:120 step 3 begins",
        "INFO 05-01 12:00:01 [core.py:58] Initializing an engine",
        "WARNING [trainer.py:120]",
        "trainer.py:77: UserWarning: slow",
        "see train.py for what step() does",
    ],
)
def test_what_a_log_says_of_places_is_no_stack(line):
    """A place in a file, however often."""
    assert not notations.many([line] * 3)
