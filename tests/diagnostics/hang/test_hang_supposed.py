"""Dumps of a part: the class of the cause where the wait allows no other, nobody named; `unknown` where it may rest."""

from __future__ import annotations

import pytest

from tests.diagnostics.hang.test_hang_pasted import LATE, said

_HEAD = 'Process 7: {}\nPython v3.12.3 (/usr/bin/python3.12)\n\nThread 7 ({}): "MainThread"\n'
_GATHER = "    all_gather (torch/distributed/distributed_c10d.py:9)\n"
_STEP = "    draft (eagle_worker.py:397)\n    run_batch (scheduler.py:1573)\n    event_loop_normal (scheduler.py:646)\n"
_WORKER = _HEAD.format("sglang::scheduler_TP3", "active") + _STEP
_SYNC = "    cuEventSynchronize (libcuda.so.575.51)\n"
_MODEL = (
    "    _to_list (vllm/v1/worker/gpu_model_runner.py:40)\n    run_engine_core (vllm/v1/engine/core.py:7)\n"
)
CLASSES = {
    "a device": (_HEAD.format("VLLM::EngineCore", "active") + _SYNC + _MODEL, "device", ""),
    "a device, by what is called": (
        'Traceback (most recent call last):\n  File "/job/train.py", line 3, in step\n    x = loss.item()\n'
        "KeyboardInterrupt\n",
        "device", "",
    ),
    "a device, in what all ranks do": (
        'Thread 7 (active): "MainThread"\n    synchronize (torch/cuda/streams.py:9)\n'
        "    gather (accelerate/utils/operations.py:5)\n    pad_across_processes (transformers/trainer.py:5)\n"
        "    step (train.py:9)\n",
        "absent", "HNG002",
    ),
    "a step under a watchdog": (
        f"[2025-06-05 TP3] Watchdog timeout (self.watchdog_timeout=300)\n{_WORKER}", "device", "",
    ),
    "a backward pass in a thread of PyTorch's": (
        'Thread 42 (idle): "MainThread"\n    backward (torch/autograd/__init__.py:266)\n    step (train.py:7)\n'
        f"Thread 43 (active)\n{_GATHER}    _fn (torch/_dynamo/eval_frame.py:489)\n",
        "absent", "HNG002",
    ),
    "a device, of a stack that is cut": (
        _HEAD.format("sglang::scheduler_TP2", "active") + "    0x7f94 (libcuda.so.575.57.08)\n" + _SYNC
        + "    0x7f95 (libcudart.so.12)\n",
        "device", "",
    ),
    "calls alone, by hand": (
        "The rank hangs here:\n```\nTHPVariable_dealloc\nc10::TensorImpl::~TensorImpl\ncudaStreamSynchronize\n"
        "cuStreamSynchronize      <- never returns\n```\nIt is not the network.\n",
        "device", "",
    ),
    "Horovod's words": (
        "W stall_inspector.cc:105] One or more tensors were submitted to be reduced, gathered or broadcasted by subset "
        "of ranks and are waiting for remainder of ranks for more than 60 seconds.\nMissing ranks:\n0: [sz]\n",
        "absent", "HNG002",
    ),
    "a collective of MPI": (
        "#0  0x00007f in MPIDI_CH3I_Progress () from /usr/lib64/libmpi.so.12\n"
        "#1  0x00007f in MPIR_Wait_impl.isra.0 () from /usr/lib64/libmpi.so.12\n"
        "#2  0x00007f in PMPI_Bcast_c () from /usr/lib64/libmpi.so.12\n",
        "absent", "HNG002",
    ),
    "threads of a native pool": (
        "#0  0x00007f in gomp_team_barrier_wait_end () from /lib/libgomp.so.1\n"
        "#1  0x00007f in gomp_team_end () from /lib/libgomp.so.1\n"
        "#2  0x00007f in _PyEval_EvalFrameDefault () from /lib/libpython3.so\n",
        "lock", "HNG006",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LATE)
def test_that_a_rank_has_not_come(tmp_path, name):
    """The class follows from where the others stand; who it is does not."""
    verdict = said(tmp_path, LATE[name])
    assert (verdict.cause, verdict.code, verdict.certainty, verdict.culprits) == (
        "absent", "HNG002", "hypothesis", (),
    )  # fmt: skip


@pytest.mark.parametrize("name", CLASSES)
def test_the_class_that_a_wait_allows(tmp_path, name):
    """A guess that is called one."""
    text, cause, code = CLASSES[name]
    verdict = said(tmp_path, text)
    assert (verdict.outcome, verdict.cause, verdict.code, verdict.certainty, verdict.culprits) == (
        "hang", cause, code, "hypothesis", (),
    )  # fmt: skip


_PY = '  File "/opt/lib/python3.9/site-packages/torch/{}", line 7, in {}\n    call()\n'
NAMED = {
    "threads of a list, by hand": (
        "Both ranks:\n\n- `MainThread`: `dist.barrier` (`torch/distributed/distributed_c10d.py`) from `save`\n"
        "- `Executor_0`: `all_gather` / `gather_object` from `_save` (`torch/distributed/checkpoint/saver.py`)\n",
        "two_threads", "HNG003",
    ),
    "a thread that wants the interpreter, by py-bt": (
        "Thread 1 Python stack\n```\n  Waiting for the GIL\n  <built-in method then of PyCapsule object at 0x7f>\n"
        + _PY.format("futures/__init__.py", "then") + "```\n",
        "lock", "HNG006",
    ),
    "gdb's frame that is cut, at the interpreter": (
        "#4  ___pthread_cond_timedwait64 (cond=cond@entry=0x5) at ./nptl/pthread_cond_wait.c:652\n"
        "#5  0x000055555566f8cd in PyCOND_TIMEDWAIT (us=<optimized out>, mut=<optimized out>, cond=0\n",
        "lock", "HNG006",
    ),
    "frames of Visual Studio": (
        " \tntdll.dll!NtWaitForSingleObject()\tUnknown\n \tpython37.dll!take_gil(_ts * tstate) Line 208\tC\n"
        " \tpython37.dll!PyGILState_Ensure() Line 1067\tC\n",
        "lock", "HNG006",
    ),
    "a log that waits for the lock of a file": (
        "still waiting to acquire lock on /home/ada/.locks/a.lock\n" * 2
        + '^CTraceback (most recent call last):\n  File "/opt/bin/cli", line 8, in <module>\n    sys.exit(main())\n',
        "file_lock", "HNG007",
    ),
    "a regular expression whose interrupt became another error": (
        "^CKeyboardInterrupt\n\nThe above exception was the direct cause of the following exception:\n\n"
        'Traceback (most recent call last):\n  File "<stdin>", line 1, in <module>\n'
        '  File "/usr/lib/python3.12/site-packages/regex/regex.py", line 254, in match\n    return pat.match(string)\n'
        "SystemError: <method 'match'> returned a result with an exception set\n",
        "spin_python", "HNG011",
    ),
    "a log that is written while a lock is given back": (
        '  File "/usr/lib/python3.10/logging/__init__.py", line 968, in handle\n    self.emit(record)\n'
        '  File "/usr/lib/python3.10/logging/__init__.py", line 1489, in warning\n    self._log(WARNING, msg)\n'
        '  File "/usr/lib/python3.10/threading.py", line 274, in _release_save\n    self._lock.release()\n'
        '  File "/usr/lib/python3.10/threading.py", line 318, in wait\n    saved_state = self._release_save()\n',
        "lock", "HNG006",
    ),
    **{
        name: (f'Thread 7 (idle): "MainThread"\n{stack}    step (train.py:9)\n    <module> (train.py:8)\n', cause, code)
        for name, stack, cause, code in (
            ("W&B, of a program that waits for it",
             "    wait (threading.py:359)\n    get (wandb/sdk/mailbox/handle.py:9)\n    init (wandb/sdk/init.py:5)\n",
             "lost_message", "HNG016"),
            ("who asks a manager",
             "    _recv (multiprocessing/connection.py:379)\n    recv (multiprocessing/connection.py:250)\n"
             "    _callmethod (multiprocessing/managers.py:818)\n", "lost_message", "HNG016"),
            ("who fetches a tensor's memory of another process",
             "    _recv (multiprocessing/connection.py:379)\n    detach (multiprocessing/resource_sharer.py:57)\n"
             "    rebuild_storage_fd (torch/multiprocessing/reductions.py:513)\n", "lost_message", "HNG016"),
            ("a file of a bucket, after a fork",
             "    wait (threading.py:355)\n    sync (fsspec/asyn.py:94)\n    wrapper (fsspec/asyn.py:118)\n",
             "lost_message", "HNG016"),
            ("a queue that is joined",
             "    wait (threading.py:355)\n    join (queue.py:90)\n", "lost_message", "HNG016"),
            ("an answer of Redis",
             "    readinto (socket.py:706)\n    _read_from_socket (redis/_parsers/socket.py:65)\n",
             "lost_message", "HNG016"),
            ("a handshake", "    do_handshake (ssl.py:1382)\n    _create (ssl.py:1104)\n", "connect", ""),
            ("a name that is not resolved", "    getaddrinfo (socket.py:962)\n", "connect", ""),
            ("a client whose server is not up", "    check_server (trl/extras/vllm_client.py:129)\n", "connect", ""),
            ("a group for weights", "    init_weights_update_group (verl/workers/rollout/engine.py:7)\n",
             "rendezvous", "HNG015"),
            ("an array of JAX's", "    _value (jax/_src/array.py:631)\n", "device", ""),
            ("hosts of JAX's", "    sync_global_devices (jax/experimental/multihost_utils.py:9)\n", "absent", "HNG002"),
        )
    },
    "a call that frees what a device uses": (
        'Thread 7 (active): "MainThread"\n    cudaFree (libcudart.so.12)\n    cudaEventDestroy (libcudart.so.12)\n'
        "    c10::cuda::release (libc10_cuda.so)\n    step (train.py:9)\n", "device", "",
    ),
    "a program that waits for its device's signal": (
        "Thread 1 (LWP 71):\n"
        "#0  0x7f1 in core::InterruptSignal::WaitRelaxed(int, long) () from /opt/libhsa-runtime64.so.1\n",
        "device", "",
    ),
    "a blocking read of a socket, by strace": (
        "$ strace python3 job.py\nioctl(4, FIONBIO, [0])                  = 0\nread(4, \n",
        "lost_message", "HNG016",
    ),
    "a newer watchdog, whose ranks are in operations of other sizes": (
        "".join(
            f"[rank{n}]:[E ProcessGroupNCCL.cpp:689] [Rank {n}] Watchdog caught collective operation timeout: WorkNCCL("
            f"SeqNum=7219, OpType=BROADCAST, NumelIn={size}, NumelOut={size}, Timeout(ms)=3000) ran for 3000097 "
            f"milliseconds before timing out.\n[rank{n}]:[E ProcessGroupNCCL.cpp:2303] [PG ID 0 PG GUID 0 Rank "
            f"{n}]  failure detected by watchdog at work sequence id: 7219 PG status: last enqueued work: 7220, last "
            "completed work: 7218\n"
            for n, size in ((2, 24084544), (3, 64))
        ),
        "mismatch", "HNG001",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NAMED)
def test_a_cause_in_other_words(tmp_path, name):
    """By what stands there, in whatever form somebody has it."""
    text, cause, code = NAMED[name]
    verdict = said(tmp_path, text)
    assert (verdict.outcome, verdict.cause, verdict.code) == ("hang", cause, code)


RESTS = {
    "a step without a watchdog": _WORKER,
    "a rank that asks for requests": _HEAD.format("python", "idle")
    + "    broadcast (torch/distributed/distributed_c10d.py:9)\n    broadcast_pyobj (utils/common.py:100)\n"
    "    recv_requests (managers/scheduler.py:3)\n    event_loop_normal (managers/scheduler.py:3)\n",
    "a native thread of a pool": "#0  0x00007f in gomp_barrier_wait_end () from /lib/libgomp.so.1\n"
    "#1  0x00007f in gomp_thread_start () from /lib/libgomp.so.1\n",
    "a thread of the driver's": "#0  0x00007f in poll () from /lib/libc.so.6\n"
    "#1  0x00007f in ?? () from /lib/libcuda.so.1\n"
    "#2  0x00007f in start_thread () from /lib/libpthread.so.0\n",
    "an exit, with native frames": _HEAD.format("sglang::scheduler_TP6", "idle")
    + "    PyThread_acquire_lock_timed (python3.12)\n    _shutdown (threading.py:1622)\n"
    'Thread 8 (idle): "tqdm_monitor"\n    PyThread_acquire_lock_timed (python3.12)\n    wait (threading.py:359)\n'
    "    run (tqdm/_monitor.py:69)\n    _bootstrap (threading.py:1030)\n",
    "W&B's own thread": 'Thread 8 (idle): "Thread-3 (loop)"\n    wait (threading.py:359)\n'
    "    loop (wandb/sdk/lib/retry.py:9)\n    run (threading.py:1012)\n    _bootstrap (threading.py:1030)\n",
    "a manager's own process": 'Thread 8 (idle): "MainThread"\n    wait (threading.py:359)\n'
    "    serve_forever (multiprocessing/managers.py:185)\n    _run_server (multiprocessing/managers.py:616)\n",
    "a driver's own thread that waits for any signal": "#0  0x7f1 in ioctl () from /lib/libc.so.6\n"
    "#1  0x7f2 in core::Signal::WaitAny () from /opt/libhsa-runtime64.so.1\n"
    "#2  0x7f3 in start_thread () from /lib/libpthread.so.0\n",
    "compiled code that runs": 'Thread 7 (active): "MainThread"\n    forward (model.py:9)\n'
    "    _fn (torch/_dynamo/eval_frame.py:489)\n    __call__ (torch/_inductor/output_code.py:638)\n",
}  # fmt: skip


@pytest.mark.parametrize("name", RESTS)
def test_what_may_rest_or_work_is_unknown(tmp_path, name):
    """No hang is claimed of what a healthy job looks like, too."""
    assert said(tmp_path, RESTS[name]).outcome == "unknown"
