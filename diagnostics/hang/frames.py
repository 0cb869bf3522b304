"""What frames tell of a thread: what it waits for, whether it is idle, what is a library's."""

from __future__ import annotations

import re
from functools import lru_cache

from diagnostics.frameworks import TOP_MODULES
from diagnostics.hang import wait_table

TABLE = tuple(
    (kind, re.compile(rf"(?:^|.*/)(?:{path})$"), re.compile(rf"(?:{names})$"))
    for kind, path, names in wait_table.WAYS
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
    r"|(?:^|.*/)(?:zmq|asyncio|redis)/.*|(?:^|.*/)(?:select|_?socket|_?thread)module\.c(?:\.h)?$"
    # Below what Python calls in C, where a reader of stacks shows that.
    r"|(?:^|.*/)(?:lib(?:c|pthread|zmq|stdc\+\+|python[\d.]*)(?:-[\d.]+)?\.so[.\d]*|python[\d.]*)$"
)
# Libraries that serve beside a program: in their own threads they rest, in one of the program's it waits for them.
_BESIDE = r"(?:wandb|sentry_sdk|tensorboard|opentelemetry)/.*"
BESIDE = re.compile(rf"(?:^|.*/){_BESIDE}")
# A thread whose first frame outside machinery is one of these has nothing to do, and nobody waits for that to change.
_IDLE: tuple[tuple[str, str], ...] = (
    (r"concurrent/futures/(thread|process)\.py", r"_worker|_process_worker|wait_result_broken_or_wakeup|run"),
    (
        r"(?:multiprocess|multiprocessing|billiard)/pool\.py",
        r"worker|_handle_(?:tasks|results|workers)|_wait_for_updates",
    ),
    (
        r"multiprocessing/(forkserver|resource_tracker|resource_sharer|managers)\.py",
        # Not who asks one of these.
        r"(?!(?:_callmethod|_connect|_create|_incref|dispatch|detach|get_connection)$).*",
    ),
    (r"vllm/v1/engine/core\.py", r"_process_input_queue|process_input_sockets|process_output_sockets"),
    (r"vllm/v1/engine/(core_client|utils)\.py", r"monitor_engine_cores|monitor_engine_liveness|_run"),
    (
        r"vllm/v1/executor/multiproc_executor\.py",
        r"worker_busy_loop|async_output_busy_loop|monitor_workers|death_pipe_monitor",
    ),
    (
        r"(?:torch/utils/data/_utils|torchdata/stateful_dataloader)/(worker|pin_memory)\.py",
        r"_worker_loop|do_one_step|_pin_memory_loop",
    ),
    (
        rf"tqdm/_monitor\.py|{_BESIDE}|ray/_private/.*",
        r"(?!get|get_objects|wait$).*",
    ),
    (r"torch/_inductor/compile_worker/.*|torch/_inductor/async_compile\.py", r".*"),
    (r"twisted/internet/(\w+reactor|base|asyncioreactor)\.py", r".*"),
    # Of an engine without requests.
    (r"detokenizer_manager\.py|data_parallel_controller\.py", r"event_loop"),
    (r"scheduler\w*\.py|idle_sleeper\.py", r"maybe_sleep|self_check_during_idle"),
    (r"grpc/(_common|_server)\.py", r"wait|_wait_once|wait_for_termination|_serve"),
    (r"socketserver\.py|http/server\.py", r"serve_forever|handle_one_request"),
    (r"asyncio/(runners|base_events|unix_events)\.py", r"run|run_forever|run_until_complete"),
    (r"py_?spy|pydevd.*|debugpy/.*", r".*"),
    (r"prometheus_client/.*", r".*"),
    # Who listens to whatever is published.
    (r"redis/(asyncio/)?client\.py", r"listen|get_message|run"),
    (
        r"torch/distributed/elastic/.*",
        r"(?!(?:next_rendezvous|run|_?wait_\w+|synchronize|barrier|get_all)$).*",
    ),
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
    r"|lightning|pytorch_lightning|redis|sgl_kernel|flashinfer|flash_attn\w*|deep_gemm|deep_ep|xformers|horovod|anyio"
    r"|torch_npu|openai|botocore|huggingface_hub|tokenizers|safetensors|multiprocess|billiard|gevent|eventlet|requests|urllib3|httpx|httpcore|aiohttp|uvicorn|fastapi|starlette|zmq|grpc"
    r"|filelock|wandb|tqdm|click|numpy|triton|joblib|multiprocess|multiprocessing|concurrent|asyncio|http|importlib)/"
    r"|^(?:threading|queue|selectors|socket|ssl|subprocess|contextlib|functools|runpy|socketserver)\.py$"
    # What is native: a library, or a source file of one.
    r"|\.so[.\d]*$|\.(?:dylib|dll|pyd)$|\.(?:cpp|cc|cu|c|h|S|pyx)$|^\[native\]$|(?:^|/)python[\d.]*$"
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
