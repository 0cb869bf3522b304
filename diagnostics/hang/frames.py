"""Which frames tell what a thread waits for: the tables that `waits` reads."""

from __future__ import annotations

import re
from functools import lru_cache

from diagnostics.frameworks import TOP_MODULES

_OPERATIONS = (
    "all_gather|all_gather_into_tensor|all_gather_object|all_gather_coalesced|_all_gather_base|"
    "all_reduce|all_reduce_coalesced|"
    "all_to_all|all_to_all_single|barrier|monitored_barrier|broadcast|broadcast_object_list|gather|gather_object|reduce|"
    "reduce_scatter|reduce_scatter_tensor|_reduce_scatter_base|scatter|scatter_object_list|send|recv|isend|irecv|"
    "send_object_list|recv_object_list|batch_isend_irecv"
)
# (kind, end of the path, functions), by the innermost frame that fits one; order among equals.
_FRAMES: tuple[tuple[str, str, str], ...] = (
    ("input", r"getpass\.py|click/termui\.py|wandb/.*(prompt|termui|login|apikey)\w*\.py|questionary/",
     r"getpass|unix_getpass|_raw_input|fallback_getpass|prompt|prompt_func|confirm|prompt_choice|prompt_api_key"
     r"|_prompt_choice"),
    ("rendezvous", r"(torch/distributed/)?rendezvous\.py", r".*"),
    ("rendezvous", r"torch/distributed/distributed_c10d\.py",
     r"init_process_group|_new_process_group_helper|_store_based_barrier|new_group|_new_group_with_tag|split_group"),
    ("rendezvous", r"vllm/distributed/utils\.py", r"create|__post_init__"),
    ("collective", r"torch/distributed/distributed_c10d\.py", _OPERATIONS + r"|wait"),
    ("collective", r"torch/distributed/_functional_collectives\w*\.py"
     r"|torch/distributed/_symmetric_memory/.*", r"wait_tensor|.*"),
    ("collective", r"vllm/distributed/utils\.py", r"barrier|broadcast_obj|all_gather_obj|recv_obj|send_obj"
     r"|broadcast"),
    ("collective", r"(pynccl\w*|custom_all_reduce|cuda_communicator)\.py", r".*"),
    ("collective", r"deepspeed/runtime/zero/\w+\.py", r"_{0,2}(all_gather|reduce_scatter|all_reduce)\w*|wait"),
    ("collective", r"deepspeed/comm/\w+\.py|megatron/core/tensor_parallel/mappings\.py", r".*"),
    ("ray", r"ray/(_private/)?worker\.py", r"get|get_objects?|wait"),
    ("ray", r"ray/util/placement_group\.py|ray/experimental/.*", r"wait|ready|get"),
    ("ring_write", r"shm_broadcast\.py", r"acquire_write|enqueue"),
    ("ring_read", r"shm_broadcast\.py", r"acquire_read|dequeue|wait_until_ready"),
    ("file_lock", r"filelock/\w+\.py|portalocker/.*|fasteners/.*|torch/utils/file_baton\.py|oslo_concurrency/.*",
     r"acquire|_poll_until_acquired|_acquire|__enter__|wait|lock"),
    ("data_loader", r"torch/utils/data/dataloader\.py", r"_try_get_data|_get_data"),
    # What an engine's answers come in by; whether any is due, its main thread tells.
    ("socket", r"vllm/v1/engine/core_client\.py", r"process_outputs_socket"),
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
    # The main thread gave its backward pass to a thread of the engine's.
    ("join", r"torch/autograd/(__init__|graph)\.py", r"backward|_engine_run_backward|grad"),
    ("join", r"threading\.py", r"join|_wait_for_tstate_lock|_shutdown"),
    ("processes_lock", r"multiprocessing/synchronize\.py", r"__enter__|acquire|wait"),
    ("http", r"http/client\.py", r"_read_status|begin|getresponse|_read_chunked|_read_next_chunk_size"
     r"|_readinto_chunked|read"),
    ("http", r"(urllib3|requests|httpcore|aiohttp)/.*\.py", r"_make_request|getresponse|read|stream"
     r"|_receive_response_headers|"
     r"_receive_event|handle_request|send|_error_catcher"),
    ("connect", r"socket\.py|urllib3/util/connection\.py", r"create_connection"),
    ("pipe", r"multiprocessing/connection\.py", r"_recv|recv|recv_bytes|_poll|poll|wait|_recv_bytes"),
    ("pipe_full", r"multiprocessing/connection\.py", r"_send|send|send_bytes|_send_bytes"),
    ("queue_full", r"queue\.py", r"put"),
    ("queue", r"queue\.py", r"get"),
    ("compile", r"torch/_inductor/.*|torch/_dynamo/.*|triton/(compiler|runtime|backends)/.*|flashinfer/jit/.*"
     r"|torch/utils/cpp_extension\.py|"
     r"tilelang/.*|torch/_functorch/.*", r".*"),
    ("load", r"safetensors/.*|transformers/modeling_utils\.py|transformers/core_model_loading\.py"
     r"|torch/serialization\.py|"
     r"vllm/model_executor/model_loader/.*|huggingface_hub/(file_download|_snapshot_download)\.py"
     r"|gguf/.*", r"(?!__call__).*"),
    ("symbolic", r"(^|.*/)(sympy|mpmath)/.*\.py", r".*"),
    ("regex", r"(^|.*/)re(/__init__|/_compiler)?\.py|(^|.*/)regex/\w+\.py", r"match|search|sub|findall"
     r"|fullmatch|split|finditer|subn"),
    ("between", r"flight recorder", r"between_collectives"),
    ("collective", r".*", r".*(gloo::|ncclGroupEnd|ncclAll|ncclBroadcast|ncclSend|ncclRecv|c10d::Work"
     r"|c10d::ProcessGroup|Async\w+Work|WorkNCCL|"
     r"UnboundBuffer::wait).*"),
    ("rendezvous", r".*", r".*(c10d::TCPStore|TCPStore::|TCPClient).*"),
    # A lock of Python's in C: what is named so has let go of the interpreter.
    ("lock", r".*", r"acquire_timed|lock_PyThread_acquire_lock|rlock_acquire|PyThread_acquire_lock_timed"
     r"|take_gil|PyEval_(Acquire|Restore)Thread|PyGILState_Ensure"),
    # Nobody rests at a mutex.
    ("lock", r".*", r"__lll_lock_wait\w*|_{0,3}(GI___)?pthread_(mutex|rwlock)_(timed|rd|wr)?lock\w*|std::mutex::lock"
     r"|(absl::.*)?Mutex::Lock\w*|__cxa_guard_acquire|__psynch_mutexwait|_pthread_mutex_firstfit_lock_\w+"
     # Short, and under a lock that is inlined: who is seen there waits for it.
     r"|__internal_atexit|__new_exitfn|PyThread_acquire_lock"),
    ("lock", r"logging/__init__\.py", r"acquire|_acquireLock"),
    ("lock", r"<frozen importlib\._bootstrap>|importlib/_bootstrap\.py", r"acquire|_lock_unlock_module|__enter__"),
    ("loop", r"asyncio/(base_events|unix_events)\.py", r"_run_once"),
    ("loop", r"selectors\.py", r"select"),
    ("event", r"threading\.py", r"wait|__enter__"),
)  # fmt: skip
TABLE = tuple(
    (kind, re.compile(rf"(?:^|.*/)(?:{path})$"), re.compile(rf"(?:{names})$"))
    for kind, path, names in _FRAMES
)


@lru_cache(maxsize=4096)
def kinds(path: str, function: str) -> tuple[str, ...]:
    """What a frame tells, the first that holds first: the ranks of a job have the same frames.

    >>> kinds("/usr/lib/python3.12/queue.py", "get")
    ('queue',)
    """
    return tuple(kind for kind, paths, names in TABLE if names.match(function) and paths.match(path))


# Frames of libraries' machinery: what stands below them says whether a thread is idle.
MACHINERY = re.compile(
    r"(?:^|.*/)(?:threading|queue|selectors|socket|ssl|contextlib|functools|_weakrefset)\.py$"
    r"|(?:^|.*/)(?:multiprocessing/(?:connection|queues|synchronize)|concurrent/futures/_base|c10d_logger"
    r"|shm_broadcast)\.py$"
    r"|(?:^|.*/)(?:zmq|asyncio)/.*"
)
# A thread whose first frame outside machinery is one of these has nothing to do, and nobody waits for that to change.
_IDLE: tuple[tuple[str, str], ...] = (
    (r"concurrent/futures/(thread|process)\.py", r"_worker|_process_worker|wait_result_broken_or_wakeup|run"),
    (r"multiprocessing/pool\.py", r"worker|_handle_tasks|_handle_results|_handle_workers|_wait_for_updates"),
    (r"multiprocessing/(forkserver|resource_tracker|resource_sharer|managers)\.py", r".*"),
    (r"vllm/v1/engine/core\.py", r"_process_input_queue|process_input_sockets|process_output_sockets"),
    (r"vllm/v1/engine/(core_client|utils)\.py", r"monitor_engine_cores|monitor_engine_liveness|_run"),
    (
        r"vllm/v1/executor/multiproc_executor\.py",
        r"worker_busy_loop|async_output_busy_loop|monitor_workers|death_pipe_monitor",
    ),
    (r"torch/utils/data/_utils/(worker|pin_memory)\.py", r"_worker_loop|do_one_step|_pin_memory_loop"),
    (
        r"tqdm/_monitor\.py|wandb/.*|sentry_sdk/.*|tensorboard/.*|opentelemetry/.*|ray/_private/.*",
        r"(?!get|get_objects|wait$).*",
    ),
    (r"torch/_inductor/compile_worker/.*|torch/_inductor/async_compile\.py", r".*"),
    (r"twisted/internet/(\w+reactor|base|asyncioreactor)\.py", r".*"),
    (r"grpc/(_common|_server)\.py", r"wait|_wait_once|wait_for_termination|_serve"),
    (r"socketserver\.py|http/server\.py", r"serve_forever|handle_one_request"),
    (r"asyncio/(runners|base_events|unix_events)\.py", r"run|run_forever|run_until_complete"),
    (r"py_?spy|pydevd.*|debugpy/.*", r".*"),
    (r"prometheus_client/.*|torch/distributed/elastic/.*", r".*"),
    (r"ray/(_private/)?workers/default_worker\.py", r".*"),
    # Ray's own threads, and a worker that waits for its next task.
    (r"ray/(profiling|import_thread|log_monitor|monitor|memory_monitor)\.py", r".*"),
    (r"ray/worker\.py", r"main_loop|_get_next_task\w*|listen_error_messages\w*|print_\w+|import_thread"),
)
IDLES = tuple((re.compile(rf"(?:^|.*/)(?:{path})$"), re.compile(rf"(?:{names})$")) for path, names in _IDLE)
# With nothing of Python above it this loop of Ray's core only polls, and on a busy machine seems to compute.
RAYS_LOOP = re.compile(r"(?:^|.*/)ray/(?:_private/)?worker\.py:main_loop$")
THREADING = re.compile(r"(?:^|.*/)threading\.py$")
LIBRARY = re.compile(
    r"/(?:site|dist)-packages/|/lib(?:64|32)?/python\d[.\d]*/|^<frozen|^<string>"
    # As py-spy shortens them in its text: from the folder of packages on.
    rf"|^(?:{'|'.join(TOP_MODULES)}|torch|ray|sglang|transformers|accelerate|deepspeed|peft|datasets|megatron"
    r"|lightning|pytorch_lightning|redis|requests|urllib3|httpx|httpcore|aiohttp|uvicorn|fastapi|starlette|zmq|grpc"
    r"|filelock|wandb|tqdm|click|numpy|triton|joblib|multiprocess|multiprocessing|concurrent|asyncio|http|importlib)/"
    r"|^(?:threading|queue|selectors|socket|ssl|subprocess|contextlib|functools|runpy|socketserver)\.py$"
    # What is native: a library, or a source file of one.
    r"|\.so[.\d]*$|\.(?:cpp|cc|cu|c|h|S|pyx)$|^\[native\]$|(?:^|/)python[\d.]*$"
)
# Calls in C that wait: they have no frame, so the line that makes them must tell.
_CALLS = re.compile(
    r"(?:\bos\.|\.|\b)(acquire|input|getpass|recv|recv_into|recvfrom|recv_bytes|read|readline|readinto|accept|connect|send|sendall|"
    r"send_bytes|write|flush|join|get|put|wait|result|sleep|flock|lockf|waitpid|poll|select|item|tolist|cpu|synchronize|"
    r"barrier|communicate)\s*\("
)
_WITH_LOCK = re.compile(r"^\s*(?:async\s+)?with\b.*(?:lock|mutex|cond|sem)", re.IGNORECASE)


def called(line: str) -> str:
    """The call on a line of source that may wait; empty if there is none.

    >>> called("with self._lock:"), called("x = queue.get(timeout=3)"), called("x = 1")
    ('acquire', 'get', '')
    """
    if _WITH_LOCK.match(line):
        return "acquire"
    found: list[str] = _CALLS.findall(line)
    return found[-1] if found else ""
