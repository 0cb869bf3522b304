"""What a thread waits for: out of its frames where they tell, else out of the system call that it is in."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from diagnostics.hang.snapshot import Frame

if TYPE_CHECKING:
    from diagnostics.hang.snapshot import Process, Thread


@dataclass(frozen=True)
class Wait:
    """What one thread is in.

    Attributes:
        kind: One of KINDS.
        frame: The frame that tells it; None where a system call did.
        operation: Of a collective, its name.
        place: The first frame outside libraries: who asked for it.
    """

    kind: str
    frame: Frame | None = None
    operation: str = ""
    place: Frame | None = None
    detail: str = ""


# Kinds, and how a sentence says them.
KINDS = {
    "collective": "waits in a collective",
    "rendezvous": "waits for other ranks to come to the rendezvous",
    "ray": "waits for an answer of Ray",
    "ring_read": "waits for a message in the engine's ring",
    "ring_write": "waits for room in the engine's ring",
    "file_lock": "waits for the lock of a file",
    "data_loader": "waits for a worker of its data loader",
    "input": "waits for input",
    "http": "waits for an HTTP answer",
    "socket": "waits for a socket",
    "connect": "waits to be connected",
    "child": "waits for a child process",
    "pool": "waits for a pool's result",
    "future": "waits for a future's result",
    "join": "waits for another thread",
    "queue": "waits for an item in a queue of its own",
    "queue_full": "waits for room in a queue of its own",
    "processes_queue": "waits for an item in a queue between processes",
    "pipe": "waits for something in a pipe",
    "pipe_full": "waits for room in a pipe",
    "processes_lock": "waits for a lock that processes share",
    "lock": "waits for a lock",
    "event": "waits for an event",
    "sleep": "sleeps, and looks again",
    "start": "waits for what it started to be ready",
    "loop": "has nothing to do in its event loop",
    "idle": "has nothing to do",
    "supervise": "supervises its children",
    "compile": "compiles",
    "load": "loads",
    "import": "imports modules",
    "symbolic": "computes symbols without end",
    "regex": "matches a regular expression",
    "compute": "computes",
    "native": "is in native code",
    "kernel": "is in the kernel, where no signal reaches it",
    "stopped": "is stopped",
    "dead": "is dead",
    "between": "is between collectives",
    "unseen": "could not be seen",
}
BUSY = ("compile", "load", "import", "symbolic", "regex", "compute")
IDLE = ("loop", "idle", "supervise")

_OPERATIONS = (
    "all_gather|all_gather_into_tensor|all_gather_object|all_gather_coalesced|_all_gather_base|all_reduce|all_reduce_coalesced|"
    "all_to_all|all_to_all_single|barrier|monitored_barrier|broadcast|broadcast_object_list|gather|gather_object|reduce|"
    "reduce_scatter|reduce_scatter_tensor|_reduce_scatter_base|scatter|scatter_object_list|send|recv|isend|irecv|"
    "send_object_list|recv_object_list|batch_isend_irecv"
)
# (kind, end of the path, functions), by the innermost frame that fits one; order among equals.
_FRAMES: tuple[tuple[str, str, str], ...] = (
    ("input", r"getpass\.py|click/termui\.py|wandb/.*(prompt|termui|login|apikey)\w*\.py|questionary/",
     r"getpass|unix_getpass|_raw_input|fallback_getpass|prompt|prompt_func|confirm|prompt_choice|prompt_api_key|_prompt_choice"),
    ("rendezvous", r"torch/distributed/rendezvous\.py", r".*"),
    ("rendezvous", r"torch/distributed/distributed_c10d\.py",
     r"init_process_group|_new_process_group_helper|_store_based_barrier|new_group|_new_group_with_tag|split_group"),
    ("rendezvous", r"vllm/distributed/utils\.py", r"create|__post_init__"),
    ("collective", r"torch/distributed/distributed_c10d\.py", _OPERATIONS + r"|wait"),
    ("collective", r"torch/distributed/_functional_collectives\w*\.py|torch/distributed/_symmetric_memory/.*", r"wait_tensor|.*"),
    ("collective", r"vllm/distributed/utils\.py", r"barrier|broadcast_obj|all_gather_obj|recv_obj|send_obj|broadcast"),
    ("collective", r"(pynccl\w*|custom_all_reduce|cuda_communicator)\.py", r".*"),
    ("collective", r"deepspeed/comm/\w+\.py|megatron/core/tensor_parallel/mappings\.py", r".*"),
    ("ray", r"ray/_private/worker\.py", r"get|get_objects|wait"),
    ("ray", r"ray/util/placement_group\.py|ray/experimental/.*", r"wait|ready|get"),
    ("ring_write", r"shm_broadcast\.py", r"acquire_write|enqueue"),
    ("ring_read", r"shm_broadcast\.py", r"acquire_read|dequeue|wait_until_ready"),
    ("file_lock", r"filelock/\w+\.py|portalocker/.*|fasteners/.*|torch/utils/file_baton\.py|oslo_concurrency/.*",
     r"acquire|_poll_until_acquired|_acquire|__enter__|wait|lock"),
    ("data_loader", r"torch/utils/data/dataloader\.py", r"_try_get_data|_get_data"),
    ("start", r"vllm/v1/engine/(utils|core_client)\.py|multiproc_executor\.py",
     r"wait_for_engine_startup|wait_for_ready|wait_for_response_handle_ready"),
    ("supervise", r"torch/distributed/elastic/(agent/server/\w+|multiprocessing/api)\.py",
     r"_invoke_run|_monitor_workers|wait|_poll|run"),
    ("supervise", r"torch/multiprocessing/spawn\.py", r"join|start_processes|spawn"),
    ("supervise", r"vllm/v1/(utils|engine/utils)\.py", r"wait_for_completion_or_failure"),
    ("future", r"concurrent/futures/_base\.py", r"result|wait|exception|as_completed"),
    ("pool", r"multiprocessing/pool\.py", r"get|wait|next|join"),
    ("processes_queue", r"multiprocessing/queues\.py", r"get"),
    ("pipe_full", r"multiprocessing/queues\.py", r"put|_feed"),
    ("child", r"subprocess\.py", r"_wait|wait|communicate|_communicate|_try_wait"),
    ("child", r"multiprocessing/(popen_\w+|process)\.py", r"poll|wait|join"),
    ("join", r"threading\.py", r"join|_wait_for_tstate_lock|_shutdown"),
    ("processes_lock", r"multiprocessing/synchronize\.py", r"__enter__|acquire|wait"),
    ("http", r"http/client\.py", r"_read_status|begin|getresponse|_read_chunked|_read_next_chunk_size|_readinto_chunked|read"),
    ("http", r"(urllib3|requests|httpcore|aiohttp)/.*\.py", r"_make_request|getresponse|read|stream|_receive_response_headers|"
     r"_receive_event|handle_request|send|_error_catcher"),
    ("connect", r"socket\.py|urllib3/util/connection\.py", r"create_connection"),
    ("pipe", r"multiprocessing/connection\.py", r"_recv|recv|recv_bytes|_poll|poll|wait|_recv_bytes"),
    ("pipe_full", r"multiprocessing/connection\.py", r"_send|send|send_bytes|_send_bytes"),
    ("queue_full", r"queue\.py", r"put"),
    ("queue", r"queue\.py", r"get"),
    ("compile", r"torch/_inductor/.*|torch/_dynamo/.*|triton/(compiler|runtime|backends)/.*|flashinfer/jit/.*|torch/utils/cpp_extension\.py|"
     r"tilelang/.*|torch/_functorch/.*", r".*"),
    ("load", r"safetensors/.*|transformers/modeling_utils\.py|transformers/core_model_loading\.py|torch/serialization\.py|"
     r"vllm/model_executor/model_loader/.*|huggingface_hub/(file_download|_snapshot_download)\.py|gguf/.*", r"(?!__call__).*"),
    ("symbolic", r"(^|.*/)(sympy|mpmath)/.*\.py", r".*"),
    ("regex", r"(^|.*/)re(/__init__|/_compiler)?\.py|(^|.*/)regex/\w+\.py", r"match|search|sub|findall|fullmatch|split|finditer|subn"),
    ("between", r"flight recorder", r"between_collectives"),
    ("collective", r".*", r".*(gloo::|ncclGroupEnd|ncclAll|ncclBroadcast|ncclSend|ncclRecv|c10d::Work|c10d::ProcessGroup|Async\w+Work|WorkNCCL|"
     r"UnboundBuffer::wait).*"),
    ("rendezvous", r".*", r".*(c10d::TCPStore|TCPStore::|TCPClient).*"),
    ("loop", r"asyncio/(base_events|unix_events)\.py", r"_run_once"),
    ("loop", r"selectors\.py", r"select"),
    ("event", r"threading\.py", r"wait|__enter__"),
)  # fmt: skip
_TABLE = tuple((kind, re.compile(rf"(?:^|.*/)(?:{path})$"), re.compile(rf"(?:{names})$")) for kind, path, names in _FRAMES)  # fmt: skip
# Frames of libraries' machinery: what stands below them says whether a thread is idle.
_MACHINERY = re.compile(
    r"(?:^|.*/)(?:threading|queue|selectors|socket|ssl|contextlib|functools|_weakrefset)\.py$"
    r"|.*/(?:multiprocessing/(?:connection|queues|synchronize)|concurrent/futures/_base|c10d_logger|shm_broadcast)\.py$"
    r"|.*/zmq/.*|.*/asyncio/.*|(?:^|.*/)asyncio/.*"
)
# A thread whose first frame outside machinery is one of these has nothing to do, and nobody waits for that to change.
_IDLE: tuple[tuple[str, str], ...] = (
    (r"concurrent/futures/(thread|process)\.py", r"_worker|_process_worker|wait_result_broken_or_wakeup|run"),
    (r"multiprocessing/pool\.py", r"worker|_handle_tasks|_handle_results|_handle_workers|_wait_for_updates"),
    (r"multiprocessing/(forkserver|resource_tracker|resource_sharer|managers)\.py", r".*"),
    (r"vllm/v1/engine/core\.py", r"_process_input_queue|process_input_sockets|process_output_sockets"),
    (r"vllm/v1/executor/multiproc_executor\.py", r"worker_busy_loop|async_output_busy_loop|monitor_workers"),
    (r"torch/utils/data/_utils/(worker|pin_memory)\.py", r"_worker_loop|do_one_step|_pin_memory_loop"),
    (r"tqdm/_monitor\.py|wandb/.*|sentry_sdk/.*|tensorboard/.*|opentelemetry/.*|ray/_private/.*", r"(?!get|get_objects|wait$).*"),
    (r"torch/_inductor/compile_worker/.*|torch/_inductor/async_compile\.py", r".*"),
    (r"socketserver\.py|http/server\.py", r"serve_forever|handle_one_request"),
    (r"asyncio/(runners|base_events|unix_events)\.py", r"run|run_forever|run_until_complete"),
    (r"py_?spy|pydevd.*|debugpy/.*", r".*"),
    (r"prometheus_client/.*|torch/distributed/elastic/.*", r".*"),
    (r"ray/_private/workers/default_worker\.py", r".*"),
)
_IDLES = tuple((re.compile(rf"(?:^|.*/)(?:{path})$"), re.compile(rf"(?:{names})$")) for path, names in _IDLE)
_THREADING = re.compile(r"(?:^|.*/)threading\.py$")
_LIBRARY = re.compile(r"/(?:site|dist)-packages/|/lib/python3[.\d]*/|^<frozen|^torch/|^<string>")
# What a call says that has no frame.
_CALLED = {
    "input": "input", "getpass": "input", "acquire": "lock", "join": "join", "sleep": "sleep", "flock": "file_lock",
    "lockf": "file_lock", "waitpid": "child", "recv": "socket", "recvfrom": "socket", "recv_into": "socket",
    "accept": "socket", "connect": "connect", "barrier": "collective", "select": "loop",
}  # fmt: skip
# What says more than that an event, a selector or a pipe is waited for: the library that waits by it.
_STRONGER = ("queue", "queue_full", "future", "join", "pool", "processes_queue", "data_loader", "start", "supervise", "child", "ray",
             "ring_read", "ring_write", "rendezvous", "collective", "file_lock", "pipe_full")  # fmt: skip
# Calls by which a rank waits for its device or for work that it began: the collective itself has no frame.
_DEVICE = ("wait", "item", "tolist", "cpu", "synchronize", "barrier")


def of(process: Process, thread: Thread) -> Wait:
    """What a thread is in."""
    place = _asked(thread)
    if process.state in ("Z", "X"):
        return Wait("dead", place=place)
    if "T" in (process.state, thread.state) or "t" in (process.state, thread.state):
        return Wait("stopped", place=place)
    if thread.state == "D":
        return Wait("kernel", place=place, detail=thread.wchan)
    if not thread.frames:
        return _by_call(process, thread, place) if thread.syscall or thread.wchan else Wait("unseen")
    found = _by_frames(process, thread, place)
    # A thread in a collective may spin in it; any other wait is none if it computes.
    if thread.busy and (found is None or found.kind not in ("collective", "rendezvous", *BUSY)):
        return Wait("import" if _imports(thread) else "compute", thread.frames[0], place=place)
    return found or _by_call(process, thread, place)


def _by_frames(process: Process, thread: Thread, place: Frame | None) -> Wait | None:
    idle = _idle(thread)
    if idle:
        return Wait(idle, thread.frames[0], place=place)
    found: Wait | None = None
    for frame in thread.frames:
        for kind, path, names in _TABLE:
            if names.match(frame.function) and path.match(frame.path):
                if (found and kind not in _STRONGER) or (kind in BUSY and not thread.busy and thread.runnable is not None):
                    continue
                operation = frame.function if kind == "collective" else ""
                found = Wait(kind, frame, operation, place)
                if kind not in ("event", "loop", "pipe", "http"):
                    return _refined(process, thread, found)
                break
        if not _MACHINERY.match(frame.path) and not _LIBRARY.search(frame.path):
            break  # the user's own code: what stands below it called it, and does not say what it waits for
    if found:
        return _refined(process, thread, found)
    if _imports(thread) and (thread.busy or thread.runnable is None):
        return Wait("import", thread.frames[0], place=place)
    return None


def _refined(process: Process, thread: Thread, wait: Wait) -> Wait:
    """What else the system call says of a wait: of a pipe which end, of an event loop's select nothing."""
    if wait.kind == "event" and any(_THREADING.match(f.path) and f.function == "join" for f in thread.frames):
        return Wait("join", wait.frame, place=wait.place)
    if wait.kind == "loop" and not any("asyncio" in frame.path for frame in thread.frames):
        under = next((f for f in thread.frames if not _MACHINERY.match(f.path)), None)
        found = _by_call(process, thread, wait.place)
        return found if under and found.kind != "loop" else wait
    if wait.kind == "processes_queue" and thread.futex.startswith("sem:"):
        return Wait("processes_queue", wait.frame, place=wait.place, detail=thread.futex)
    return wait


def _idle(thread: Thread) -> str:
    """Whether a thread only waits for work: `loop` or `idle`; empty if not."""
    for frame in thread.frames:
        if any(names.match(frame.function) and path.match(frame.path) for path, names in _IDLES):
            asked = [f.function for f in thread.frames[: thread.frames.index(frame)]]
            if "asyncio" in frame.path:
                return "loop"
            return "" if "get_response" in asked else "idle"
        if frame.function == "_run_once" and frame.path.endswith("base_events.py"):
            return "loop"
        if not _MACHINERY.match(frame.path):
            return ""
        if frame.function in ("join", "_shutdown") and _THREADING.match(frame.path):
            return ""
        if frame.path.endswith("events.py") and frame.function == "_run":
            return ""
    return ""


def _imports(thread: Thread) -> bool:
    return any(frame.path.startswith("<frozen importlib") for frame in thread.frames[:40])


def _asked(thread: Thread) -> Frame | None:
    return next((frame for frame in thread.frames if not _LIBRARY.search(frame.path)), None)


def _by_call(process: Process, thread: Thread, place: Frame | None) -> Wait:
    """What the system call says, with the call in the source's line where that is known."""
    call = thread.syscall
    frame = thread.frames[0] if thread.frames else None
    kinds = {d.kind for d in process.fds if d.fd in thread.waits_fds}
    said = _CALLED.get(frame.calls, "") if frame else ""
    kind = "native"
    if call in ("read", "poll", "ppoll", "select", "pselect6") and 0 in thread.waits_fds and (call == "read" or said == "input" or "tty" in kinds):
        kind = "input"
    elif call == "connect":
        kind = "connect"
    elif "pipe" in kinds:
        kind = "pipe_full" if call in ("write", "writev") else "pipe"
    elif call.startswith("epoll"):
        kind = "loop"
    elif kinds & {"tcp", "unix", "socket"}:
        kind = "socket"
    elif call in ("flock", "fcntl lock"):
        kind = "file_lock"
    elif call in ("wait4", "waitid"):
        kind = "child"
    elif call in ("nanosleep", "clock_nanosleep"):
        kind = "sleep"
    elif call == "futex":
        kind = _at_futex(process, thread, frame, said)
    elif said:
        kind = said
    return Wait(kind, frame, "barrier" if kind == "collective" else "", place, call)


def _at_futex(process: Process, thread: Thread, frame: Frame | None, said: str) -> str:
    """What a futex is for: a semaphore of many processes, a collective's end asked for in C++, or a lock."""
    if thread.futex.startswith("sem:"):
        return "processes_lock"
    if frame and frame.calls in _DEVICE and process.rank is not None:
        return "collective"
    if frame and frame.calls in ("get", "wait", "result"):
        return {"get": "queue", "result": "future"}.get(frame.calls, "event")
    return said or ("lock" if frame else "native")
