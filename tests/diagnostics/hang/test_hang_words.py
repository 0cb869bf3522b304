"""What a log says of a wait, a death or a device, where no stack says it, and lists of processes beside stacks."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest

from diagnostics import __main__ as program
from diagnostics.hang.judge import causes
from diagnostics.hang.judge.decide import judge
from diagnostics.hang.judge.verdict import HANG, UNKNOWN
from diagnostics.hang.read import ReadError, files

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from diagnostics.hang.judge.verdict import HangVerdict

LATE = (
    "[rank0]:[E101 ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=4, NumelOut=4, Timeout(ms)=60000) ran for 60010 milliseconds\n"
)
RAISED = (
    "[rank1]: Traceback (most recent call last):\n"
    '[rank1]:   File "train.py", line 9, in step\n'
    "[rank1]:     score = table[key]\n"
    "[rank1]: {error}\n"
)
WAITS = (
    "Process 71: python train.py\nPython v3.11.2 (/usr/bin/python3.11)\n\n"
    'Thread 71 (idle): "MainThread"\n    all_reduce (torch/distributed/distributed_c10d.py:2050)\n'
    "    step (train.py:33)\n    <module> (train.py:80)\n"
)


@pytest.fixture
def told(tmp_path: Path) -> Callable[[str], HangVerdict]:
    def of(text: str) -> HangVerdict:
        path = tmp_path / "dump.txt"
        path.write_text(text, encoding="utf-8")
        return causes.named(judge(files.read([str(path)]))).verdict

    return of


_FIGURES = (
    "INFO 04-28 22:54:32 [loggers.py:257] Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: "
    "{made} tokens/s, Running: {runs} reqs, Waiting: {waits} reqs, GPU KV cache usage: 7.5%\n"
)


def _table(*rows: str) -> str:
    return "\n".join(("  PID STAT WCHAN                CMD", *rows)) + "\n"


CASES = {
    "a rank's own error before the others' limit": (
        RAISED.format(error="KeyError: 'answer'") + LATE, "dead", "HNG005"),
    "an error that tells of others": (
        RAISED.format(error="RuntimeError: NCCL communicator was aborted on rank 1") + LATE, "absent", "HNG002"),
    "killed for memory, then the limit": (
        "Out of memory: Killed process 412 (python3) total-vm:99kB\n" + LATE, "dead", "HNG005"),
    "killed after the limit": (LATE + "failed (exitcode: -9) local_rank: 1 (pid: 412)\n", "absent", "HNG002"),
    "killed, and a stack of who waits": (
        WAITS + "\nDataLoader worker (pid 412) is killed by signal: Killed.\n", "dead", "HNG005"),
    "dead children beside the stack of one that lives": (
        WAITS + "\n   PID COMMAND\n    70 python3\n    71  \\_ python3\n    72  \\_ python3 <defunct>\n",
        "dead", "HNG005"),
    "a device that its driver gave up": (
        "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n" + LATE, "device", ""),
    "a device that its driver gave up, and nothing beside": (
        "Unable to determine the device handle for GPU0000:03:00.0: Unknown Error\n", "device", ""),
    "a device that lost what was on it, and answers": (
        "NVRM: Xid (PCI:0000:3b:00): 94, Contained: SM (0x1). RST: No, D-RST: No\n" + LATE, "device", ""),
    "the lock of a file, as a log's last word": (
        "Fetching 5 files: 0%|\nStill waiting to acquire lock on /c/model.lock (elapsed: 10.0 seconds)...\n",
        "file_lock", "HNG007"),
    "a lock that a build left behind": (
        "Lock file exists in build directory: '/home/me/.cache/torch_extensions/py38/plugin/lock'\n",
        "file_lock", "HNG007"),
    "a peer that is gone, and no error for it": (
        "host:141:158 [0] include/socket.h:416 NCCL WARN Net : Connection closed by remote peer\n", "dead", "HNG005"),
    "a store that does not answer": (
        "[c10d] waitForInput: poll for socket SocketImpl(fd=4) returned 0, likely a timeout\n",
        "rendezvous", "HNG015"),
    "gdb's frames, filled up to a terminal's width": (
        "(gdb) bt" + " " * 40 + "#0  0x7f1 in futex_wait (private=0)" + " " * 30 + "at futex-internal.h:205" + " " * 20
        + "#1  0x7f2 in PyCOND_TIMEDWAIT (us=5000)" + " " * 30 + "at /tmp/build/Py\n", "lock", "HNG006"),
    "a static that its own thread makes, in a path that is cut": (
        "#0  0x7f1 in syscall () from /lib64/libc.so.6\n"
        "#1  0x7f2 in __cxxabiv1::__cxa_guard_acquire (g=0x1 <guard variable for at::globalContext()::c>) at /opt/x\n",
        "lock", "HNG006"),
    "a server that is not up": (
        "10:00:01 - INFO - client - Server is not up yet. Retrying in 2.0 seconds...\n" * 3 + "Tra\n", "connect", ""),
    "an engine that takes no request": (_FIGURES.format(made="0.0", runs=0, waits=12) * 4, "lost_answer", "HNG010"),
    "an engine that makes no token": (_FIGURES.format(made="0.0", runs=2, waits=0) * 4, "lost_answer", "HNG010"),
    "a lock that a file system does not give": (
        "FileSystem does not appear to support flock. Falling back to SoftFileLock for /m/.gitignore.lock\n" * 3,
        "file_lock", "HNG007"),
    "the lock of a folder": ("Blocking waiting for file lock on build directory\n", "file_lock", "HNG007"),
    "NCCL, that can't connect": (
        "w:1:9 [0] NCCL INFO Call to connect returned Connection timed out, retrying\n", "rendezvous", "HNG015"),
    "a store that can't be had": (
        "[E socket.cpp:793] [c10d] The client socket has timed out after 60s while trying to connect to (n, 22).\n",
        "rendezvous", "HNG015"),
    "a key that nobody sets": (
        "torch.distributed.DistStoreError: wait timeout after 600000ms, keys: /default_pg/0/cpu\n",
        "rendezvous", "HNG015"),
    "an engine's worker that gives no answer": (
        "ERROR 05-31 08:15:01 [core.py:1110] TimeoutError: RPC call to sample_tokens timed out.\n",
        "lost_message", "HNG016"),
    "NCCL's guess of a mismatch": (
        "NCCL WARN Your program may be hanging, this may be caused by a collective mismatch around rank 2.\n",
        "mismatch", "HNG001"),
    "what somebody says of two collectives": (
        "It ends in a desync: rank 0 is in a barrier while the others have moved on to reduce.\n",
        "mismatch", "HNG001"),
    "what CANN says of its device": (
        "EE1002: Stream synchronize timeout. rtDeviceSynchronize execute failed, reason=[stream sync timeout]\n",
        "device", ""),
    "HCCL's words, cut above": (
        "Possible Cause: 1. An exception occurs during the execution on some NPUs in the cluster.\n",
        "absent", "HNG002"),
    "an adapter that can't be begun": ("NVRM: GPU 0000:01:00.0: RmInitAdapter failed! (0x22:0x56:894)\n", "device", ""),
    "a watchdog's line that a terminal broke": (
        "[E ProcessGroupNCCL.cpp:916] [Rank 1] Watchdog caught collective opera\ntion timeout: WorkNCCL(SeqNum=4, "
        "OpType=BROADCAST, Num\nelIn=112, NumelOut=112, Timeout(ms)=60000) ran for 60010 milliseconds\n",
        "absent", "HNG002"),
    "who died, and who noticed that something stands": (
        "ERROR [core.py:5] Worker proc VllmWorker-1 died unexpectedly, shutting down executor.\n"
        "INFO [shm_broadcast.py:466] No available shared memory broadcast block found in 60 seconds.\n",
        "dead", "HNG005"),
    "what an engine prints while it compiles, a process out of memory, and who noticed": (
        "INFO [shm_broadcast.py:466] No available shared memory broadcast block found in 60 seconds.\n"
        "Out of memory: Killed process 4711 (python) total-vm:1kB\n"
        "[rank0]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, OpType=ALLREDUCE)\n",
        "dead", "HNG005"),
    "a bus error of a worker, and an interrupt of who waits": (
        "ERROR: Unexpected bus error encountered in worker.\nTraceback (most recent call last):\n"
        '  File "train.py", line 52, in <module>\n    for batch in loader:\n'
        '  File "/usr/lib/python3.10/multiprocessing/queues.py", line 343, in get\n    res = self._recv_bytes()\n'
        "KeyboardInterrupt\n", "dead", "HNG005"),
    "a step of a loop that took minutes": (
        "WARNING:asyncio:Executing <Task pending name='T-1' coro=<serve()>> took 312.402 seconds\n",
        "blocked_loop", "HNG009"),
    "a call in an actor's loop, as the last word": (
        "INFO: server up\nUsing blocking ray.get inside async actor. This blocks the event loop.\n",
        "blocked_loop", "HNG009"),
    "a call, said in a sentence": (
        "py-spy shows the main thread blocked inside the driver in `cuEventSynchronize`.\n", "device", ""),
    "a call that never comes back, said in a sentence": (
        "The worker runs until its first decode, where `__cxa_atexit` blocks forever.\n", "lock", "HNG006"),
    "an answer of a worker, said in a sentence": (
        "The engine blocks in `Executor.get_response()` waiting for a result that never arrives.\n",
        "lost_message", "HNG016"),
    "a call without quotes, said in a sentence": (
        "Symptom: the process hangs indefinitely during destroy_process_group() or at its exit.\n", "absent", "HNG002"),
    "a kernel, said in a sentence, beside who noticed": (
        "The custom kernel never returns on this device.\n"
        "INFO [shm_broadcast.py:705] No available shared memory broadcast block found in 60 seconds.\n", "device", ""),
    "ranks that did not come, said in a sentence": (
        "Rank 0 hangs in the step. Ranks 1 and 2 never print their line, so nothing goes on.\n", "absent", "HNG002"),
    "a rank that came alone, said in a sentence": (
        "The others leave the function early, so only rank 0 hits the barrier.\n", "absent", "HNG002"),
    "two locks, said in sentences": (
        "generate holds model.reader_lock\npause keeps the request\npost_process waits for writer_lock\n",
        "lock", "HNG006"),
    "a trace of calls, by vLLM": (
        "2024-07-16 13:56:37.43 Call to wait_until_ready in /w/vllm/distributed/shm_broadcast.py:284 "
        "from create in /w/vllm/distributed/shm_broadcast.py:489\n", "lost_message", "HNG016"),
    "a stack of Python that computes, and a native one that waits": (
        'Thread 71 (active): "MainThread"\n    ctc_loss (torch/nn/functional.py:3086)\n    <module> (train.py:11)\n'
        "And native:\n#0  0x7f1 in clock_gettime () from /lib64/libcuda.so.1\n"
        "#1  0x7f2 in cudaStreamSynchronize () from /usr/lib/libcudart.so.12\n#2  0x7f3 in main ()\n", "device", ""),
    "a device's signal, in a list of threads": (
        '* 1    Thread 0x7f1 (LWP 71) "train" 0x7f2 in rocr::core::BusyWaitSignal::WaitRelaxed(hsa_signal_s, long) ()\n'
        '  2    Thread 0x7f3 (LWP 72) "train" 0x7f4 in pthread_cond_wait () from /lib64/libpthread.so.0\n',
        "device", ""),
    "a future of native code": (
        "Thread 1 (LWP 71):\n#0  0x7f1 in pthread_cond_wait () from /lib64/libpthread.so.0\n"
        "#1  0x7f2 in c10::ivalue::Future::wait () from /usr/lib/libtorch_cpu.so\n#2  0x7f3 in main ()\n",
        "lost_message", "HNG016"),
    "an actor that is only asked for": (
        " 1  1d571e700b7c4dd57b4b14cd01000000  Learner  PENDING_CREATION  01000000\n", "pending", "HNG016"),
    "ranks that began other collectives under one number": (
        "[Rank 0] Running collective: CollectiveFingerPrint(SequenceNumber=5, OpType=BROADCAST, TensorShape=[4])\n"
        "[Rank 1] Running collective: CollectiveFingerPrint(SequenceNumber=5, OpType=ALLREDUCE, TensorShape=[4])\n",
        "mismatch", "HNG001"),
    "ranks of which one has not begun to build a communicator": (
        "NCCL INFO comm 0x5 rank 0 nranks 3 cudaDev 0 - Init START\n"
        "NCCL INFO comm 0x6 rank 2 nranks 3 cudaDev 2 - Init START\n", "rendezvous", "HNG015"),
    "a task that the kernel found asleep": (
        "INFO: task python3:412 blocked for more than 120 seconds.\n", "kernel", ""),
    "a server of files that does not answer": (
        "nfs: server data not responding, still trying\n" * 2, "kernel", ""),
    "the kernel's stack of an open that waits for its server": (
        "cat /proc/412/stack\n[<0>] rpc_wait_bit_killable+0x24/0xa0 [sunrpc]\n[<0>] nfs4_do_open+0xf5/0x690 [nfsv4]\n",
        "kernel", ""),
    "a stopped one among its like": (
        _table("  412 Rl   -   python train.py --rank 0", "  413 Tl   -   python train.py --rank 1"),
        "stopped", "HNG004"),
    "an uninterruptible one": (
        _table("  412 D    nfs_wait_bit_killable  python train.py", "  413 Sl   futex_wait   python train.py"),
        "kernel", ""),
    "a sample of macOS": (
        "    + 99 thread_start  (in libsystem_pthread.dylib) + 15  [0x7f1]\n"
        "    +   99 step  (in libmine.dylib) + 15  [0x7f1]\n"
        "    +     99 _pthread_mutex_firstfit_lock_wait  (in libsystem_pthread.dylib) + 15  [0x7f1]\n"
        "    +       99 __psynch_mutexwait  (in libsystem_kernel.dylib) + 10  [0x7f1]\n", "lock", "HNG006"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_cause_that_words_tell(name: str, told: Callable[[str], HangVerdict]) -> None:
    """Each is of the class that its words leave, and a hypothesis where nothing was seen of who holds up the others."""
    text, cause, code = CASES[name]
    verdict = told(text)
    assert (verdict.outcome, verdict.cause, verdict.code) == (HANG, cause, code)


@pytest.mark.parametrize(
    "name",
    [
        "NCCL's guess of a mismatch",
        "what somebody says of two collectives",
        "a call that never comes back, said in a sentence",
        "an answer of a worker, said in a sentence",
        "an engine that makes no token",
    ],
)
def test_what_is_only_said_is_a_hypothesis(name: str, told: Callable[[str], HangVerdict]) -> None:
    """Nothing of it was seen."""
    assert told(CASES[name][0]).certainty == "hypothesis"


def test_a_device_that_answers_is_not_said_not_to(told: Callable[[str], HangVerdict]) -> None:
    """Of contained errors the driver tells itself: what was on the device is lost, and it goes on."""
    sentence = told(CASES["a device that lost what was on it, and answers"][0]).sentence
    assert "failed or lost" in sentence
    assert "answer" not in sentence


NOTHING = {
    "a crash, and nobody waits": (
        "Traceback (most recent call last):\n"
        '  File "torch/utils/data/_utils/signal_handling.py", line 66, in handler\n    _error_if_any_worker_fails()\n'
        "RuntimeError: DataLoader worker (pid 412) is killed by signal: Killed.\n"
    ),
    "a log that says the same again and again": "".join(
        f"10:00:{second} Waiting for the engine to start\n" for second in (10, 20, 30)
    ),
    "an engine at work": _FIGURES.format(made="5.4", runs=1, waits=14) * 4,
    "an engine at rest": _FIGURES.format(made="0.0", runs=0, waits=0) * 4,
    "an engine in a long step": _FIGURES.format(made="0.0", runs=1, waits=0) * 3,
    "an engine that goes on": _FIGURES.format(made="0.0", runs=1, waits=0) * 4
    + _FIGURES.format(made="9.1", runs=1, waits=0),
    "a server whose workers start": "DEBUG 18:08:15 [core_client.py:421] Waiting for 1 core engine proc\n",
    "a crash, in a page's bold letters": (
        "Traceback (most recent call last):\n"
        '  File "/opt/lib/python3.10/queue.py", line 179, in get\n    self.not_empty.wait(remaining)\n'
        '  File "torch/utils/data/_utils/signal_handling.py", line 66, in handler\n    _error_if_any_worker_fails()\n'
        "**RuntimeError: DataLoader worker (pid 412) is killed by signal: Bus error.**\n"
    ),
    "a rank at another number, in a log that may be cut": (
        "[Rank 0] Running collective: CollectiveFingerPrint(SequenceNumber=5, OpType=BROADCAST, TensorShape=[4])\n"
        "[Rank 1] Running collective: CollectiveFingerPrint(SequenceNumber=6, OpType=BROADCAST, TensorShape=[4])\n"
    ),
    "a server of data's worker at rest": (
        'Thread 71 (idle): "MainThread"\n    select_poll_poll_impl (selectmodule.c:678)\n'
        "    select (selectors.py:415)\n"
        "    wait (multiprocessing/connection.py:1136)\n    get (multiprocessing/queues.py:113)\n"
        "    _worker_loop (torchdata/stateful_dataloader/worker.py:187)\n    run (train.py:344)\n"
    ),
}


@pytest.mark.parametrize("name", NOTHING)
def test_words_that_leave_it_open(name: str, told: Callable[[str], HangVerdict]) -> None:
    """They are read, and no hang is claimed."""
    assert told(NOTHING[name]).outcome == UNKNOWN


SILENT = {
    "ranks that all came to the store": (
        "Waiting in store based barrier to initialize process group for rank: 3 (world_size=4, worker_count=3)\n"
        * 2
        + "Rank 0: Completed store-based barrier for key:store_based_barrier_key:1 with 4 nodes.\n"
    ),
    "a server that came up": (
        "Server is not up yet. Retrying in 2.0 seconds...\n" * 3 + "Server is up!\n  0%| | 0/1000\n"
    ),
    "a server that is asked twice": "Server is not up yet. Retrying in 2.0 seconds...\n" * 2,
    "a warning of Ray's, and what went on": (
        "Using blocking ray.get inside async actor. This blocks the event loop.\nstep 1\nstep 2\nstep 3\n"
    ),
    "locks of many files": "".join(f"Falling back to SoftFileLock for /m/{n}.lock\n" for n in range(4)),
    "a lock alone, said in a sentence": "Each worker holds the lock while it writes, and gives it back.\n",
    "a rank that does its part alone": "Only rank 0 prints the table; a metric is logged once.\n",
    "a call that a sentence denies": "With this change the job is not stuck in `all_reduce` any more.\n",
    "a trace of calls that came back": (
        "Call to wait_until_ready in /w/vllm/shm_broadcast.py:284 from create in /w/vllm/shm_broadcast.py:489\n"
        "Return from wait_until_ready in /w/vllm/shm_broadcast.py:299 to create in /w/vllm/shm_broadcast.py:489\n"
    ),
    "a call that a sentence praises": "We call `dist.all_reduce` here, and `queue.get` is what it should be.\n",
    "a server of files that answers again": (
        "nfs: server data not responding, still trying\n" * 2 + "nfs: server data OK\n"
    ),
    "the lock of a file that was given": (
        "Still waiting to acquire lock on /c/model.lock (elapsed: 10.0 seconds)...\nmodel.safetensors: 12%|\n"
    ),
    "a peer that is gone, and an error for it": (
        "host:1:2 [0] NCCL WARN Net : Connection closed by remote peer\nRuntimeError: NCCL error in: ProcessGroup\n"
    ),
    "one that sleeps for a disk": _table("  412 D    -   python train.py", "  413 Sl   -   python train.py"),
}


@pytest.mark.parametrize("name", SILENT)
def test_words_of_what_is_over_or_usual(name: str, told: Callable[[str], HangVerdict]) -> None:
    """Nothing is read in them, or nothing claimed."""
    with contextlib.suppress(ReadError):
        assert told(SILENT[name]).outcome != HANG


@pytest.mark.parametrize("kind", ["empty", "folder", "binary", "missing"])
def test_what_is_no_dump_is_refused_in_a_line(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is judged, and the reason names the file."""
    path = tmp_path / kind
    if kind == "folder":
        path.mkdir()
    elif kind != "missing":
        path.write_bytes(b"" if kind == "empty" else bytes(range(256)) * 16)
    assert program.main(["hang", "--from", str(path)]) == program.USAGE
    told = capsys.readouterr()
    assert not told.out
    assert told.err.count("\n") == 1
    assert kind in told.err


def test_an_interrupt_says_that_nothing_was_judged(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No traceback, no verdict."""

    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(files, "read", interrupted)
    assert program.main(["hang", "--from", "x"]) == program.INTERRUPTED
    told = capsys.readouterr()
    assert (told.out, told.err) == ("", "diagnostics: hang: interrupted; nothing was judged\n")
