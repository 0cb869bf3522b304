"""What people paste of a hang: what is said of ranks is read, and what one look cannot decide is unknown."""

import json

import pytest

from diagnostics.hang.judge import causes
from diagnostics.hang.judge.decide import judge
from diagnostics.hang.read import files

_CAUGHT = (
    "[rank{0}]:[E1 ProcessGroupNCCL.cpp:616] [Rank {0}] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum={1}, OpType={2}, NumelIn={3}, NumelOut={3}, Timeout(ms)=600000) ran for 600020 milliseconds\n"
)
_COUNTED = (
    "[rank{0}]:[E1 ProcessGroupNCCL.cpp:1743] [PG ID 0 PG GUID 0(default_pg) Rank {0}] Received a dump signal. "
    "Last enqueued NCCL work: {1}, last completed NCCL work: {2}.\n"
)
_AT = (
    "[rank{0}]:[E1 ProcessGroupNCCL.cpp:1785] [PG ID 0 PG GUID 0(default_pg) Rank {0}] Exception (either an error or "
    "timeout) detected by watchdog at work: {1}, last enqueued NCCL work: {2}, last completed NCCL work: {3}.\n"
)
_MAIN = 'Thread 7 (idle): "MainThread"\n'
_FORM = 'File "/opt/env/lib/python3.10/site-packages/torch/distributed/distributed_c10d.py", line {}, in {}\n'

HANGS = {
    "a rank that has begun less": (
        _CAUGHT.format(0, 50, "ALLREDUCE", 8) + _AT.format(0, 50, 51, 49) + _COUNTED.format(1, 49, 49),
        "absent", "HNG002", {"/2"},
    ),
    "other operations of one number": (
        "".join(_CAUGHT.format(rank, 5, "BROADCAST" if rank == 1 else "ALLREDUCE", 8) for rank in range(3)),
        "mismatch", "HNG001", {"/2"},
    ),
    "torchfrtrace": (
        "Not all ranks joining collective: sequence number: 7\ncollective: nccl:all_reduce\nmissing ranks: {2}\n"
        "expected ranks: {0, 1, 2}\ncollective state: scheduled\n",
        "absent", "HNG002", {"/3"},
    ),
    "torchfrtrace on kinds": (
        "Collective sequence number: 7 has errors\ncollective: nccl:all_reduce\nexpected ranks: {0, 1, 2}\n"
        "error msg: Culprit rank 1; Error type: COLLECTIVE_TYPE_MISMATCH, Expected collective type: 'all_reduce'\n",
        "mismatch", "HNG001", {"/2"},
    ),
    "PyTorch's own check": (
        "RuntimeError: Detected mismatch between collectives on ranks. Rank 0 is running collective: "
        "CollectiveFingerPrint(SequenceNumber=3, OpType=ALLREDUCE, TensorShape=[8]), but Rank 1 is running collective: CollectiveFingerPrint("  # noqa: E501
        "SequenceNumber=3, OpType=ALLGATHER, TensorShape=[8]).",
        "mismatch", "HNG001", {"/1", "/2"},
    ),
    "a monitored barrier": (
        "RuntimeError: [Rank 0]: Ranks 1, 3 failed to pass monitoredBarrier in 30000 ms", "absent", "HNG002", {"/2", "/4"},  # noqa: E501
    ),
    "a tree of processes": (
        " 10 launch\n 11  \\_ python3.12\n 12      \\_ python3.12 <defunct>\n 13      \\_ python3.12\n",
        "dead", "HNG005", {"/12"},
    ),
    "a list of processes": (
        "ada   7  9.8  4.4  91  29 ?  Ssl  14:25  13:01 python train.py\nada  58  1.7  0.0   0   0 ?  Z    14:27  26:20 [python] <defun\n"  # noqa: E501
        "ada  60  2.0  2.4  91  16 ?  Sl   14:27  26:31 python train.py\n",
        "dead", "HNG005", {"/58"},
    ),
    "an answer of what was not looked at": (
        f"{_MAIN}    begin (http/client.py:318)\n    <module> (train.py:9)\n", "lost_message", "HNG016", {"/1"},
    ),
    "a call in a handler of twisted": (
        f"{_MAIN}    create_connection (socket.py:832)\n    open (imaplib.py:312)\n    check (auth.py:75)\n"
        "    _inlineCallbacks (twisted/internet/defer.py:1660)\n    <module> (server.py:9)\n",
        "blocked_loop", "HNG009", {"/1"},
    ),
    "a thread without a number": (
        'Thread (idle): "MainThread"\n    wait (threading.py:359)\n    get (queue.py:180)\n'
        "    _try_get_data (torch/utils/data/dataloader.py:1310)\n    ...\n"
        'Thread (idle): "Thread-2 (_pin_memory_loop)"\n    select (selectors.py:415)\n'
        "    wait (multiprocessing/connection.py:1136)\n",
        "lost_message", "HNG016", {"/1"},
    ),
    "lines of two ranks in turns": (
        "[rank0]: Traceback (most recent call last):\n[rank1]: Traceback (most recent call last):\n"
        f"[rank0]:   {_FORM.format(3, 'all_gather')}[rank1]:   {_FORM.format(9, 'barrier')}"
        "[rank0]: KeyboardInterrupt\n[rank1]: KeyboardInterrupt\n",
        "mismatch", "HNG001", {"/1", "/2"},
    ),
    "a store that waits": (
        "Timed out after 601 seconds waiting for clients. 1/2 clients joined.", "rendezvous", "HNG015", {"/1"},
    ),
    "frames of C++": (
        "[rank2]: frame #4: c10d::TCPStore::get(std::string const&) + 0x7a (0x7f in /opt/env/lib/libtorch_cpu.so)\n"
        "[rank2]: frame #5: c10d::ProcessGroupNCCL::broadcastUniqueNCCLID(ncclUniqueId*) + 0xaf (0x7f in /l/libtorch_cuda.so)\n",  # noqa: E501
        "rendezvous", "HNG015", {"/1"},
    ),
    "a trace of lines": ("rendezvous.py(188):         return TCPStore(\n", "rendezvous", "HNG015", {"/1"}),
    "gdb with frames of Python": (
        "#1  0x7f in acquire_timed (timeout=-1) at ../Modules/_threadmodule.c:63\n"
        "#3  Frame 0x7f2, for file /usr/lib/python3.8/threading.py, line 302, in wait (self=<Condition>)\n"
        "#9  Frame 0x7f3, for file /usr/lib/python3.8/queue.py, line 170, in get (self=<Queue>)\n",
        "lost_message", "HNG016", {"/1"},
    ),
    "a layer of a model of experts": (
        f"{_MAIN}    all_gather_coalesced (deepspeed/runtime/zero/partition_parameters.py:1254)\n"
        "    fetch_sub_module (deepspeed/runtime/zero/partitioned_param_coordinator.py:386)\n"
        "    forward (transformers/models/qwen3_moe/modeling_qwen3_moe.py:300)\n    <module> (train.py:90)\n",
        "mismatch", "HNG001", set(),
    ),
    "a lock that a queue keeps, wanted again by a handler of signals": (
        f"{_MAIN}    __enter__ (threading.py:240)\n    put (queue.py:126)\n    emit (logging/handlers.py:30)\n"
        "    on_signal (train.py:4)\n    <module> (train.py:9)\n",
        "lock", "HNG006", {"/1"},
    ),
    "a lock of a file that is asked for again, in IPython": (
        "OSError                                   Traceback (most recent call last)\n"
        "~/env/lib/python3.7/site-packages/datasets/utils/filelock.py in _acquire(self)\n    380         try:\n"
        "--> 381             fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)\n\n"
        "OSError: [Errno 37] No locks available\n\nDuring handling of the above exception, another occurred:\n",
        "file_lock", "HNG007", {"/1"},
    ),
    "a child of a fork that writes to a log": (
        'Thread 9 (active): "MainThread"\n    emit (logging/__init__.py:1163)\n    handle (logging/__init__.py:1028)\n'
        "    ...\n    spawn_worker (gunicorn/arbiter.py:704)\n",
        "lock", "HNG006", {"/1"},
    ),
    "a stack of the kernel, of one thread alone": (
        "child 812 -- Threads: 1\n  [<0>] futex_do_wait+0x3a/0x70\n  [<0>] __futex_wait+0x99/0x100\n",
        "lock", "HNG006", {"/812"},
    ),
    "a question at the end of a log": (
        "wandb: (1) Create a W&B account\nwandb: (2) Use an existing W&B account\n"
        "wandb: (3) Don't visualize my results\nwandb: Enter your choice:\n",
        "input", "HNG008", {"/1"},
    ),
    "a call on an event loop, written by hand": (
        "ssl.py read    <- here\njob/exchange.py:get_markets\nasyncio/events.py:_run   <- on the loop\n",
        "blocked_loop", "HNG009", {"/1"},
    ),
    "an interrupt within sympy": (
        '^CTraceback (most recent call last):\n  File "train.py", line 3, in <module>\n    simplify(x)\n'
        '  File "/opt/env/lib/python3.11/site-packages/sympy/simplify/simplify.py", line 9, in simplify\n'
        "    expr = trigsimp(expr)\nKeyboardInterrupt\n",
        "spin_python", "HNG011", {"/1"},
    ),
    "frames of gdb that a line holds two of": (
        "#0  0x00007f3b in do_futex_wait.constprop () from /lib64/libpthread.so.0      "
        "#3  0x4ea969 in PyThread_acquire_lock_timed (lock=<optimized out>) at Python/thread_pthread.h:497\n",
        "lock", "HNG006", {"/1"},
    ),
    "a check of PyTorch's that is cut": (
        "RuntimeError: Detected mismatch between collectives on ranks. Rank 0 is running collective: "
        "CollectiveFingerPrint(SequenceNumber=3, OpType=BROADCAST, TensorShape=[1]), but Rank 1 is running collective: "
        "CollectiveFingerPrint(SequenceNumber=3, OpType=ALLREDUCE, TensorShape=[25], TensorDevice",
        "mismatch", "HNG001", {"/1", "/2"},
    ),
    "NCCL's RAS in words": (
        "Warnings\n========\n\n#0-0 (27a079b828ff1a75) MISMATCH\n  Communicator ranks have different collective operation counts\n"  # noqa: E501
        "  6 ranks have launched up to operation 6650\n  2 ranks have launched up to operation 6649\n"
        "  Rank 0 -- GPU 0 managed by process 48 on node 10.0.0.1\n  Rank 2 -- GPU 2 managed by process 49 on node 10.0.0.1\n",  # noqa: E501
        "absent", "HNG002", {"/1", "/3"},
    ),
    "a mutex, as eu-stack has it": (
        "PID 7 - process\nTID 7:\n#0  0x00007f0000000001 __lll_lock_wait\n#1  0x00007f0000000002 pthread_mutex_lock\n",
        "lock", "HNG006", {"/7"},
    ),
    "the interpreter's lock and a mutex, arguments of gdb in lines of their own": (
        "Thread 2 (Thread 0x7f1 (LWP 9)):\n#0  0x00007f in futex_wait (private=0, expected=2,\n    futex_word=0x7f) at futex.h:146\n"  # noqa: E501
        "#1  __lll_lock_wait (futex=futex@entry=0x7f,\n    private=0) at lowlevellock.c:49\n#2  0x00007f in log_it ()\n"
        "Thread 1 (Thread 0x7f2 (LWP 8)):\n#0  0x00007f in pthread_cond_timedwait ()\n"
        "#1  0x00007f in take_gil (tstate=0x7f,\n    runtime=0x7f) at ceval_gil.h:255\n#2  PyEval_RestoreThread (tstate=0x7f)\n",  # noqa: E501
        "locks", "HNG006", {"/1"},
    ),
    "a mutex on a Mac": (
        "* thread #1, queue = 'com.apple.main-thread', stop reason = signal SIGSTOP\n"
        "  * frame #0: 0x00007ff8 libsystem_kernel.dylib`__psynch_mutexwait + 10\n",
        "lock", "HNG006", {"/1"},
    ),
    "a module that is imported twice at once": (
        f"{_MAIN}    acquire (<frozen importlib._bootstrap>:157)\n    __enter__ (<frozen importlib._bootstrap>:171)\n"
        "    _find_and_load (<frozen importlib._bootstrap>:1024)\n    <module> (train.py:9)\n",
        "lock", "HNG006", {"/1"},
    ),
    "frames without their indentation, under a service's name": (
        'trainer-1  | Thread 7 (idle): "MainThread"\ntrainer-1  | acquire (logging/__init__.py:901)\ntrainer-1  | &lt;module&gt; (train.py:9)\n',  # noqa: E501
        "lock", "HNG006", {"/1"},
    ),
    "a queue that is flushed at the end": (
        "Traceback (most recent call last):\n"
        '  File "/usr/lib/python3.11/multiprocessing/util.py", line 300, in _run_finalizers\n    finalizer()\n'
        '  File "/usr/lib/python3.11/multiprocessing/queues.py", line 199, in _finalize_join\n    thread.join()\n'
        '  File "/usr/lib/python3.11/threading.py", line 1112, in join\n    self._wait_for_tstate_lock()\nKeyboardInterrupt\n',  # noqa: E501
        "full_pipe", "HNG012", {"/1"},
    ),
    "who calls whom where no head tells it": (
        '  File "/usr/lib/python3.10/threading.py", line 324, in wait\n    waiter.acquire()\n'
        '  File "/usr/lib/python3.10/queue.py", line 171, in get\n    self.not_empty.wait()\n'
        '  File "/job/train.py", line 9, in step\n    item = rows.get()\n',
        "lost_message", "HNG016", {"/1"},
    ),
    "an answer over a connection that is not HTTP's": (
        f"{_MAIN}    read (ssl.py:1099)\n    recv_into (ssl.py:1241)\n    _read (paramiko/packet.py:9)\n    <module> (train.py:9)\n",  # noqa: E501
        "lost_message", "HNG016", {"/1"},
    ),
    "a thread in the middle of its work": (
        'Thread 0x7f1 (most recent call first):\n  File "/usr/lib/python3.12/threading.py", line 355 in wait\n'
        '  File "/job/chip.py", line 440 in get\n  File "/job/chip.py", line 343 in set_property\n'
        '  File "/job/chip.py", line 390 in mute\n  File "/job/radio.py", line 127 in unmute\n'
        '  File "/usr/lib/python3.12/threading.py", line 1032 in _bootstrap\n',
        "lost_message", "HNG016", {"/1"},
    ),
    "NCCL's RAS where it lists who is ahead": (
        "#0-0 (27a079b828ff1a75) MISMATCH\n  Communicator ranks have different AllGather operation counts\n"
        "  3 ranks have launched up to operation 640\n  1 rank has launched up to operation 641\n"
        "  Rank 2 -- GPU 2 managed by process 49 on node 10.0.0.1\n",
        "absent", "HNG002", {"/1", "/2", "/4"},
    ),
    "a check of PyTorch's that is cut within its first half": (
        "RuntimeError: Detected mismatch between collectives on ranks. Rank 1 is running collective: "
        "CollectiveFingerPrint(SequenceNumber=21, OpType=BROADCAST, TensorShape=[1], TensorDtypes=Lo",
        "mismatch", "HNG001", {"/2", "/3"},
    ),
    "a child that flushes what a thread of its parent was writing": (
        '  File "/usr/lib/python3.7/multiprocessing/util.py", line 400 in _flush_std_streams\n'
        '  File "/usr/lib/python3.7/multiprocessing/process.py", line 317 in _bootstrap\n'
        '  File "/usr/lib/python3.7/multiprocessing/popen_fork.py", line 74 in _launch\n',
        "lock", "HNG006", {"/1"},
    ),
    "frames of Python in lines of their own": (
        "#4  PyEval_EvalFrameEx (f=\n    Frame 0x7f, for file /usr/lib/python2.6/threading.py, line 239, in wait (self=<\n"  # noqa: E501
        "#9  PyEval_EvalFrameEx (f=\n    Frame 0x7f, for file /usr/lib/python2.6/Queue.py, line 168, in get (self=<\n",
        "lost_message", "HNG016", {"/1"},
    ),
    "`ps -ef`": (
        "ada  10    1  0 14:01 ?  00:00:19 python3 train.py\nada  11   10  0 14:02 ?  00:00:19 [python3] <defunct>\n"
        "ada  12   10  0 14:02 ?  00:00:21 python3 train.py\n",
        "dead", "HNG005", {"/11"},
    ),
    "a check of PyTorch's that is only named": (
        'Our model leads to "RuntimeError: Detected mismatch between collectives on ranks." with ZeRO-3.\n',
        "mismatch", "HNG001", {"/1", "/2"},
    ),
    "a barrier in the store": (
        "RuntimeError: Timed out initializing process group in store based barrier on rank: 0, for key: "
        "store_based_barrier_key:1 (world_size=4, worker_count=16, timeout=0:30:00)\n",
        "rendezvous", "HNG015", {"/1"},
    ),
    "a traceback as rich draws it": (
        "\u2502 /usr/lib/frameworks/Versions/3.11/lib/python3.11/ht\n\u2502 tp/client.py:279 in _read_status\n\u2502\n"
        "\u2502    278 \u2502   def _read_status(self):\n"
        "\u2502 \u2771  279 \u2502   \u2502   line = str(self.fp.readline(1))\n",
        "lost_message", "HNG016", {"/1"},
    ),
    "a call that strace sees no end of": (
        "$ sudo strace -p 686\nstrace: Process 686 attached\nrecvfrom(4, \n", "lost_message", "HNG016", {"/686"},
    ),
    "a rank that waits for a server": (
        f"rank 0:\n{_MAIN}    readinto (socket.py:706)\n    begin (http/client.py:318)\n    <module> (train.py:9)\n"
        f"rank 1:\n{_MAIN}    broadcast (torch/distributed/distributed_c10d.py:3000)\n    <module> (train.py:9)\n",
        "absent", "HNG002", {"/1"},
    ),
}  # fmt: skip


def said(tmp_path, text):
    path = tmp_path / "dump.txt"
    path.write_text(text)
    return causes.named(judge(files.read([str(path)]))).verdict


@pytest.mark.parametrize("name", HANGS)
def test_what_is_told_is_read(tmp_path, name):
    """The cause, its code and who is named; quoted in an issue it is the same."""
    text, cause, code, culprits = HANGS[name]
    for form in (text, f"My job hangs, this is what I see:\n\n{text}", text.replace("\n", "\n> ")):
        verdict = said(tmp_path, form)
        assert (verdict.outcome, verdict.cause, verdict.code, set(verdict.culprits)) == (
            "hang", cause, code, culprits,
        )  # fmt: skip


# Somebody has not come: of what class that is follows, who it is does not.
LATE = {
    "all at the same": "".join(_CAUGHT.format(n, 5, "ALLREDUCE", 8) + _AT.format(n, 5, 7 + n, 4) for n in range(3)),
    "other numbers of groups that are not said": _CAUGHT.format(0, 5, "ALLREDUCE", 8)
    + _CAUGHT.format(1, 9, "BROADCAST", 8),
    "pairs": _CAUGHT.format(0, 5, "SEND", 8) + _CAUGHT.format(1, 5, "RECV", 8),
    "sizes that a root may have alone": _CAUGHT.format(0, 5, "GATHER", 8) + _CAUGHT.format(1, 5, "GATHER", 0),
    "an old watchdog": "[E ProcessGroupNCCL.cpp:737] [Rank 0] Watchdog caught collective operation timeout: "
    "WorkNCCL(OpType=ALLREDUCE, Timeout(ms)=1800000) ran for 1804406 milliseconds before timing out.\n",
    "a rank alone, with words before it": 'this is card 0: Thread 59633 (active): "MainThread"\n'
    "    all_reduce (vllm/distributed/parallel_state.py:132)\n    forward (train.py:9)\n",
    "a watchdog's line that is cut": "".join(_CAUGHT.format(n, 5, "ALLREDUCE", 8) for n in range(3))
    + "[rank3]:[E1 ProcessGroupNCCL.cpp:616] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5, "
    "OpType=ALLR",
    "who came to the barrier": "RuntimeError: Rank 1 successfully reached monitoredBarrier, but received errors while "
    "waiting for send/recv from rank 0. Please check rank 0 logs for faulty rank.\n",
}  # fmt: skip
OPEN = {
    "nothing pending": _COUNTED.format(1, 6, 6) + _COUNTED.format(6, 6, 6),
    "an error that was raised": f"Traceback (most recent call last):\n  {_FORM.format(3, 'all_reduce')}RuntimeError: CUDA error\n",  # noqa: E501
    "who lost its other end": "Connection reset by peer\n"
    "[rank2]: frame #4: c10d::TCPStore::get(std::string const&) + 0x7a (0x7f in /opt/env/lib/libtorch_cpu.so)\n",
    "a watchdog's own stack": "frame #0: c10d::TCPStore::check() + 0x7a (0x7f in /l/libtorch_cpu.so)\n"
    "frame #1: c10d::ProcessGroupNCCL::heartbeatMonitor() + 0x7a (0x7f in /l/libtorch_cuda.so)\n",
    "no frame": 'Process 5: python\nPython v3.7.3 (/usr/bin/python3)\n\nThread 5 (idle): "MainThread"\n',
    "a question that was answered": "wandb: (3) Don't visualize my results\n"
    "wandb: Enter your choice: 3\nwandb: You chose it\n"
    + _COUNTED.format(1, 6, 6),
    "an object of Ray's that does not come": "[W 1 1] plasma_store_provider.cc:452: Objects 00618f05 are "
    "still not local after 224s. If this message continues to print, ray.get() is likely hung.\n",
    "a stack of the kernel, of two threads": "parent 812 -- Threads: 2\n  [<0>] futex_do_wait+0x3a/0x70\n",
    "tracebacks of two processes in each other's lines": "Traceback (most recent call last):\n"
    '  File "/job/train.py", line 9, in <module>\n    future.result()\n'
    '  File "/usr/lib/python3.10/concurrent/futures/_base.py", line 453, in result\n'
    "Traceback (most recent call last):\n"
    '  File "/usr/lib/python3.10/multiprocessing/queues.py", line 103, in get\nKeyboardInterrupt\n',
    "idle workers of Ray": "Stack dump for ada     2838  5.1  0.0 4422028 332940 pts/0  Sl   03:50   0:14 ray_worker\n"
    "Thread 0x7F14 (active)\n\t _get_next_task_from_local_scheduler (ray/worker.py:984)\n\t main_loop (ray/worker.py:1001)\n"  # noqa: E501
    "\t <module> (ray/workers/default_worker.py:99)\nThread 0x7F15 (active)\n\t recv (redis/_compat.py:71)\n"
    "\t _run (ray/import_thread.py:60)\n\t _bootstrap (threading.py:884)\n",
    "a thread that listens to what is published": "Thread 0x7F16 (active)\n\t recv (redis/_compat.py:71)\n"
    "\t read_response (redis/connection.py:633)\n\t parse_response (redis/client.py:2974)\n"
    "\t listen (redis/client.py:3045)\n\t watch (events.py:60)\n\t _bootstrap (threading.py:884)\n",
    "one of which the end is cut off": "Thread 0x7F15 (active)\n\t _flush (ray/profiling.py:97)\n"
    "\t _bootstrap (threading.py:884)\nThread 0x7F16 (active)\n\t recv (redis/_compat.py:71)\n"
    "\t readline (redis/connection.py:223)\n\t read_response (redis/co\n",
    "pool threads": 'Thread 0x7f27 (idle threadpool worker)\n\n  File "/usr/lib/python3.9/threading.py", line 930, in _bootstrap\n'  # noqa: E501
    '    self._bootstrap_inner()\n  File "/usr/lib/python3.9/concurrent/futures/thread.py", line 75, in _worker\n'
    "    work_item = work_queue.get(block=True)\n",
    "a stack without a line for its thread": "    get_execution_info (ray/_private/function_manager.py:361)\n"
    "    main_loop (ray/_private/worker.py:887)\n    <module> (ray/_private/workers/default_worker.py:289)\n",
    "a thread beside the main one": 'Thread 0x7f1 (most recent call first):\n  File "/usr/lib/python3.12/queue.py", line 180 in get\n'  # noqa: E501
    '  File "/job/pipeline.py", line 98 in run\n  File "/usr/lib/python3.12/threading.py", line 1032 in _bootstrap\n',
    "a piece of a worker of a pool": '  File "/usr/lib/python3.8/multiprocessing/queues.py", line 355, in get\n'
    "    with self._rlock:\nKeyboardInterrupt\n",
    "NCCL's RAS without a difference": "Errors\n======\n\nWarnings\n========\n\n#0-0 (27a0) MISMATCH\n"
    "  8 ranks have launched up to operation 7\n  Rank 0 -- GPU 0 managed by process 48 on node 10.0.0.1\n"
    'Thread 7 (idle): "MainThread"\n    main_loop (ray/_private/worker.py:887)\n',
    "a thread that looks once a minute": "Traceback for thread 26 (python) [] (most recent call last):\n"
    '    (Python) File "/usr/lib64/python3.12/threading.py", line 1032, in _bootstrap\n'
    '    (Python) File "/job/manager.py", line 54, in run\n'
    '    (Python) File "/usr/lib64/python3.12/threading.py", line 655, in wait\n'
    '    (Python) File "/usr/lib64/python3.12/threading.py", line 359, in wait\n'
    "      Arguments:\n        timeout: 60\n",
    "a barrier in the store that has only begun": "Waiting in store based barrier to initialize process group for "
    "rank: 0, key: store_based_barrier_key:1 (world_size=4, worker_count=2, timeout=0:30:00)\n"
    "frame #0: c10d::TCPStore::check() + 0x7a (0x7f in /l/libtorch_cpu.so)\n"
    "frame #1: c10d::ProcessGroupNCCL::heartbeatMonitor() + 0x7a (0x7f in /l/libtorch_cuda.so)\n",
    "a lock that strace sees": "strace: Process 7 attached\nfutex(0x161ee20, FUTEX_WAIT, 2147483648, NULL^Cstrace: "
    "Process 7 detached\n <detached ...>\n",
    "a server that nobody asks": f"{_MAIN}    select (selectors.py:468)\n    _run_once (asyncio/base_events.py:1898)\n"
    "    run (uvicorn/server.py:61)\n    <module> (uvicorn:8)\n",
    "an idle worker of an engine": 'Process 7: VLLM::Worker_TP0   (Python 3.12.3)\nThread (idle) "MainThread"\n'
    "    poll (zmq/sugar/poll.py:106)\n    acquire_read (vllm/distributed/device_communicators/shm_broadcast.py:698)\n"
    "    dequeue (vllm/distributed/device_communicators/shm_broadcast.py:779)\n"
    "    worker_busy_loop (vllm/v1/executor/multiproc_executor.py:973)\n",
    "threads of gdb, a line each": '* 1    Thread 0x7fc7 (LWP 52) "" select_poll_poll () at /x/selectmodule.c.h:219\n',
    "a list of processes": "ada   7  0.0  0.0  10  10 ?  Sl  14:27  0:01 python train.py\n",
    "zombies of another kind": " 10 sh\n 11  \\_ git <defunct>\n 12  \\_ python3.12\nThread 12 (idle)\n    wait (threading.py:3)\n"  # noqa: E501
    "    _bootstrap (threading.py:9)\n",
}  # fmt: skip


@pytest.mark.parametrize("name", OPEN)
def test_what_cannot_be_decided_is_unknown(tmp_path, name):
    """Read, and neither a hang nor calm."""
    assert said(tmp_path, OPEN[name]).outcome == "unknown"


def test_a_recorders_json_among_words(tmp_path):
    """As the debug server gives it, between fences."""
    entry = {"profiling_name": "nccl:all_reduce", "state": "scheduled", "collective_seq_id": 4}
    document = {"rank": 3, "pg_config": {}, "pg_status": {}, "entries": [entry]}
    path = tmp_path / "issue.md"
    path.write_text(f"Look:\n```json\n{json.dumps(document, indent=1)}\n```\nWhat is it?\n")
    assert files.read([str(path)]).collectives[0].rank == 3


def test_stacks_under_names_are_apart(tmp_path):
    """As a time limit of pytest writes them; the main one is that which is called so."""
    path = tmp_path / "log.txt"
    path.write_text(
        '~~~~ Stack of worker_0 (140) ~~~~\n  File "/usr/lib/python3.11/threading.py", line 1002, in _bootstrap\n'
        '    self._bootstrap_inner()\n~~~~ Stack of MainThread (139) ~~~~\n  File "/job/train.py", line 12, in main\n'
        "    value = input('? ')\n"
    )
    judged = judge(files.read([str(path)]))
    assert [len(stand.process.threads) for stand in judged.index.stands.values()] == [2]
    assert judged.verdict.cause == "input"
