"""The functions of each library that block, and what they wait for. `blocking_calls` reads this table.

The innermost frame that matches counts, with the first row that matches it. Paths are suffixes: stack
tools omit folders before a package, and also the name of a package without `__init__.py`.
"""

from __future__ import annotations

_OPERATIONS = (
    "all_gather|all_gather_into_tensor|all_gather_object|all_gather_coalesced|_all_gather_base|"
    "all_reduce|all_reduce_coalesced|"
    "all_to_all|all_to_all_single|barrier|monitored_barrier|broadcast|broadcast_object_list|gather|gather_object|reduce|"
    "reduce_scatter|reduce_scatter_tensor|_reduce_scatter_base|scatter|scatter_object_list|send|recv|isend|irecv|"
    "send_object_list|recv_object_list|batch_isend_irecv"
)
_PROCESSES = r"(?:multiprocess|multiprocessing|torch/multiprocessing|billiard)"
# PyTorch and its sharding.
_TORCH: tuple[tuple[str, str, str], ...] = (
    ("rendezvous", r"(torch/distributed/)?rendezvous\.py", r".*"),
    ("rendezvous", r"torch/distributed/elastic/(rendezvous|utils)/\w+\.py", r"next_rendezvous|run|_?wait_\w+"
     r"|synchronize|barrier|get_all"),
    ("rendezvous", r"torch/distributed/distributed_c10d\.py",
     r"init_process_group|_new_process_group_helper|_store_based_barrier|new_group|_new_group_with_tag|split_group"),
    ("collective", r"torch/distributed/distributed_c10d\.py", _OPERATIONS + r"|wait|destroy_process_group"
     r"|_shutdown_backend"),
    ("collective", r"torch/distributed/_functional_collectives\w*\.py"
     r"|torch/distributed/_symmetric_memory/.*", r"wait_tensor|.*"),
    ("collective", r"torch/distributed/(tensor/|_tensor/)_collective_utils\.py|torch/distributed/algorithms/join\.py",
     r".*"),
    ("collective", r"torch/distributed/checkpoint/utils\.py", r"reduce_scatter|all_reduce|all_gather\w*|scatter\w*"
     r"|gather\w*|broadcast\w*|barrier"),
    ("collective", r"torch/distributed/(fsdp|_composable)/.*", r"_?(all_gather|reduce_scatter|all_reduce|unshard"
     r"|wait_for_unshard|wait_all_gather|foreach_all_gather|foreach_reduce)\w*"),
    ("collective", r"torch/nn/parallel/distributed\.py", r"_sync_\w+|_distributed_broadcast_coalesced|_verify_\w+"),
    ("rpc", r"torch/distributed/rpc/.*", r"_?(wait\w*|rpc_sync|_all_gather|shutdown|_barrier)"),
)  # fmt: skip
# Engines, sharding libraries, launchers.
_FRAMEWORKS: tuple[tuple[str, str, str], ...] = (
    ("rendezvous", r"vllm/distributed/utils\.py", r"create|__post_init__"),
    ("collective", r"vllm/distributed/utils\.py", r"barrier|broadcast_obj|all_gather_obj|recv_obj|send_obj"
     r"|broadcast"),
    ("rendezvous", r".*\.py",
     r"_?init_(custom_|extra_)?process_group|init_weights?_update_(group|communicator)|init_collective_group"),
    ("connect", r"(trl/(extras|generation)/|swift/.*)vllm_client\.py", r"_?check_server|_?wait_for_server"),
    ("rendezvous", r"pynccl\w*\.py", r"__init__|ncclCommInitRank\w*|ncclGetUniqueId"),
    ("rendezvous", r"deep_ep/\w+\.py|nvshmem/.*", r"__init__|init\w*"),
    ("collective", r"(pynccl\w*|custom_all_reduce|cuda_communicator|symm_mem|quick_all_reduce)\.py", r".*"),
    ("collective", r"(distributed/)?(parallel_state|communication_op)\.py", r"_?(all_reduce|all_gather|reduce_scatter"
     r"|broadcast|barrier|gather|send|recv|tensor_model_parallel)_?\w*"),
    ("collective", r"deep_ep/\w+\.py", r"\w*(dispatch|combine)\w*"),
    ("collective", r"deepspeed/runtime/zero/\w+\.py", r"_{0,2}(all_?gather|reduce_scatter|all_?reduce)\w*|wait"
     r"|average_tensor|reduce_ipg_grads"),
    ("collective", r"deepspeed/comm/\w+\.py|megatron/core/tensor_parallel/mappings\.py", r".*"),
    ("collective", r"megatron/(core/)?(pipeline_parallel|distributed|tensor_parallel|optimizer|dist_checkpointing)/.*",
     r"_communicate\w*|_\w*p2p_ops\w*|(recv|send)_(forward|backward)\w*|(start|finish)_(grad|param)_sync|wait"),
    ("collective", r"accelerate/(state|accelerator)\.py", r"wait_for_everyone"),
    ("collective", r"accelerate/utils/operations\.py", r"_gpu_\w+|gather|gather_object|broadcast\w*"),
    ("collective", r"ray/util/collective/.*|horovod/.*", _OPERATIONS + r"|allreduce\w*|allgather\w*|synchronize|wait"),
    ("ray", r"ray/(_private/)?worker\.py", r"get|get_objects?|wait"),
    ("ray", r"ray/util/placement_group\.py|ray/experimental/.*|ray/dag/.*", r"wait|ready|get|read|begin_read|execute"),
    ("ring_write", r"shm_broadcast\.py", r"acquire_write|enqueue"),
    ("ring_read", r"shm_broadcast\.py", r"acquire_read|dequeue|wait_until_ready"),
    # Threads that receive an engine's responses; its main thread shows whether one is due.
    ("socket", r"vllm/v1/engine/core_client\.py", r"process_outputs_socket"),
    ("start", r"vllm/v1/engine/(utils|core_client)\.py|multiproc_executor\.py",
     r"wait_for_engine_startup|wait_for_ready|wait_for_response_handle_ready"),
    ("start", r"(entrypoints/)?(engine|http_server)\.py", r"_wait_for_scheduler_ready|_wait_and_warmup"),
    ("supervise", r"torch/distributed/elastic/(agent/server/\w+|multiprocessing/api)\.py",
     r"_invoke_run|_monitor_workers|wait|_poll|run"),
    ("supervise", r"torch/multiprocessing/spawn\.py", r"join|start_processes|spawn"),
    ("supervise", r"vllm/v1/(utils|engine/utils)\.py", r"wait_for_completion_or_failure"),
)  # fmt: skip
# One process and its children.
_PYTHON: tuple[tuple[str, str, str], ...] = (
    ("file_lock", r"filelock/(\w+/)?\w+\.py|_?filelock\.py|portalocker/.*|fasteners/.*|torch/utils/file_baton\.py"
     r"|oslo_concurrency/.*|huggingface_hub/utils/_fixes\.py",
     r"acquire|_poll_until_acquired|_acquire\w*|__enter__|wait|lock|WeakFileLock"),
    ("data_loader", r"torch/utils/data/dataloader\.py", r"_try_get_data|_get_data"),
    ("future", r"concurrent/futures/_base\.py", r"result|wait|exception|as_completed"),
    ("future", r"anyio/from_thread\.py|asgiref/sync\.py|fsspec/asyn\.py", r"run|run_sync|__call__|(maybe_)?sync"),
    ("pool", rf"{_PROCESSES}/pool\.py", r"get|wait|next|join"),
    ("pool", r"joblib/parallel\.py", r"_?retrieve|get_result"),
    ("processes_queue", rf"{_PROCESSES}/queues?\.py", r"get"),
    ("pipe_full", rf"{_PROCESSES}/queues?\.py", r"put|_feed"),
    ("child", r"subprocess\.py", r"_wait|wait|communicate|_communicate|_try_wait"),
    ("child", rf"{_PROCESSES}/(popen_\w+|process)\.py|popen_loky_\w+\.py", r"poll|wait|join"),
    # The main thread gave its backward pass to a thread of autograd.
    ("join", r"torch/autograd/(__init__|graph)\.py", r"backward|_engine_run_backward|grad"),
    ("join", r"threading\.py", r"join|_wait_for_tstate_lock|_shutdown"),
    ("processes_lock", rf"{_PROCESSES}/synchronize\.py", r"__enter__|acquire|wait"),
    ("http", r"http/client\.py", r"_read_status|begin|getresponse|_read_chunked|_read_next_chunk_size"
     r"|_readinto_chunked|read"),
    ("http", r"(urllib3|requests|httpx?|httpcore|aiohttp|botocore|openai)/.*\.py", r"_make_request|getresponse|read"
     r"|stream|_receive_response_headers|_receive_event|handle_request|send|_error_catcher"),
    ("rpc", r"grpc/_channel\.py|xmlrpc/client\.py|rpyc/.*", r"_?blocking|result|_?next|__next__|__call__|wait|request"
     r"|serve|_wait\w*"),
    ("connect", r"socket\.py|urllib3/util/connection\.py", r"create_connection|getaddrinfo|gethostbyname"),
    ("connect", r"ssl\.py", r"do_handshake"),
    ("socket", r"(redis|psycopg2?|pymysql|pymongo|kafka|pika|paramiko)/.*\.py", r"_?(read|recv|receive|wait)\w*"),
    ("pipe", rf"{_PROCESSES}/connection\.py", r"_recv|recv|recv_bytes|_poll|poll|wait|_recv_bytes"),
    ("pipe_full", rf"{_PROCESSES}/connection\.py", r"_send|send|send_bytes|_send_bytes"),
    ("queue_full", r"queue\.py", r"put"),
    ("queue", r"queue\.py", r"get|join"),
    # Calling compiled code is not compiling.
    ("compile", r"torch/_dynamo/(?!eval_frame|external_utils|utils|decorators).*"
     r"|torch/_inductor/(?!runtime/|utils\.|output_code\.|cudagraph|codecache\.).*"
     r"|torch/_functorch/(?!_aot_autograd/runtime_wrappers|aot_autograd\.|apis\.|eager_transforms).*"
     r"|triton/(compiler|backends)/.*|flashinfer/jit/.*|torch/utils/cpp_extension\.py|tilelang/.*", r".*"),
    ("compile", r"torch/_(inductor/codecache|functorch/aot_autograd)\.py|triton/runtime/.*",
     r"\w*compil\w*|load|_do_compile|aot_module_simplified|create_aot_dispatcher_function|_bench|benchmark"),
    ("load", r"safetensors/.*|transformers/modeling_utils\.py|transformers/core_model_loading\.py"
     r"|torch/serialization\.py|"
     r"vllm/model_executor/model_loader/.*|huggingface_hub/(file_download|_snapshot_download)\.py"
     r"|gguf/.*", r"(?!__call__).*"),
    ("input", r"getpass\.py|click/termui\.py|wandb/.*(prompt|termui|login|apikey)\w*\.py|questionary/",
     r"getpass|unix_getpass|_raw_input|fallback_getpass|prompt|prompt_func|confirm|prompt_choice|prompt_api_key"
     r"|_prompt_choice"),
    ("input", r"i?pdb\.py|bdb\.py|cmd\.py|IPython/.*debugger\.py|prompt_toolkit/shortcuts/prompt\.py",
     r"cmdloop|_cmdloop|interaction|prompt"),
    ("symbolic", r"(^|.*/)(sympy|mpmath)/.*\.py", r".*"),
    ("regex", r"(^|.*/)re(/__init__|/_compiler)?\.py|(^|.*/)regex/\w+\.py", r"match|search|sub|findall"
     r"|fullmatch|split|finditer|subn"),
    ("between", r"flight recorder", r"between_collectives"),
)  # fmt: skip
# Devices and native code.
_NATIVE: tuple[tuple[str, str, str], ...] = (
    ("device", r"torch/(cuda|npu|xpu|hpu|musa|mps)/(__init__|streams|graphs|memory)\.py|torch/accelerator/\w+\.py"
     r"|torch_npu/npu/\w+\.py", r"synchronize|wait|replay|empty_cache|capture_end|__exit__"),
    ("device", r"jax/(_src/)?\w+\.py|torch_xla/core/xla_model\.py", r"block_until_ready|_value|wait_for_tokens"
     r"|effects_barrier|wait_device_ops|mark_step"),
    ("collective", r"jax/experimental/multihost_utils\.py", r"sync_global_devices|broadcast_one_to_all"
     r"|process_allgather|assert_equal"),
    ("rendezvous", r".*", r".*(ncclCommInit|bootstrap(Init|Recv|Send|AllGather|Net)|ncclTransportP2p|initTransportsRank"
     r"|NCCLComm::create|getNCCLComm|initNCCLComm|broadcastUniqueNCCLID).*"),
    ("collective", r".*", r".*(gloo::|ncclGroupEnd|ncclAll|ncclBroadcast|ncclSend|ncclRecv|c10d::Work"
     r"|c10d::ProcessGroup|Async\w+Work|WorkNCCL|"
     r"UnboundBuffer::wait|ncclComm(Abort|Destroy|Finalize)).*"),
    ("collective", r".*", r"P?MPIR?_(All(reduce|gather)|Bcast|Barrier|Gather|Reduce|Scatter|Alltoall|Wait)\w*(\.\w+)*"),
    ("rendezvous", r".*", r".*(c10d::TCPStore|TCPStore::|TCPClient|c10d::PrefixStore).*"),
    ("device", r".*", r"(cuda|hip|musa)\w*(Synchronize|Memcpy|EventQuery|GraphLaunch|LaunchKernel)\w*"
     r"|cu(Stream|Event|Ctx)Synchronize\w*|cu(Memcpy|LaunchKernel|GraphLaunch|MemFree)\w*|aclrtSynchronize\w*"
     r"|(cuda|hip)(Free|(Event|Stream|Graph|GraphExec)Destroy|HostUnregister|DeviceReset)\w*"
     r"|cu(Event|Stream|Ctx)Destroy\w*|rt(Stream|Device|Event)Synchronize\w*|synStreamSynchronize|hsa_signal_wait\w*"
     r"|(rocr::)?core::\w*Signal::Wait\w*|amd::(Monitor|Semaphore|HostQueue|Event|Command)::\w*[Ww]ait\w*|(tsl|xla)::.*(BlockUntilReady|Await)\w*"
     r"|.*waitUntilCompleted\]?|.*(_local_scalar_dense|CUDAStream::synchronize|device_synchronize).*"),
    ("collective", r"\[native\]", r"all_gather\w*|all_?reduce\w*|reduce_scatter\w*|gather_object|broadcast_object_list"
     r"|barrier|all_to_all\w*|destroy_process_group|wait_for_everyone"),
    ("rendezvous", r"\[native\]", r"init_process_group|new_group|init_device_mesh"),
    ("ring_read", r"\[native\]", r"get_response|_wait_for_response"),
    ("device", r"lib(cuda|cudart|hsa-runtime64|amdhip64|ascendcl)\.so.*", r".*"),
    # A future in native code.
    ("future", r".*", r".*(std::\S*future\S*::(wait|get)|c10::ivalue::Future::wai|arrow::\S*Future\S*::Wait).*"),
    # Python's locks in C: these functions have released the GIL.
    ("lock", r".*", r"acquire_timed|lock_PyThread_acquire_lock|rlock_acquire|PyThread_acquire_lock_timed"
     r"|take_gil|PyEval_(Acquire|Restore)Thread|PyGILState_Ensure|_?PyCOND_(TIMED)?WAIT\w*"),
    ("lock", r"\[native\]", r"acquire"),
    # A mutex: a thread in it is never idle.
    ("lock", r".*", r"__lll_lock_wait\w*|_{0,3}(GI___)?pthread_(mutex|rwlock)_(timed|rd|wr)?lock\w*|std::mutex::lock"
     r"|(absl::.*)?Mutex::Lock\w*|(__cxxabiv1::)?__cxa_guard_acquire|_{0,2}pthread_cond_destroy|__psynch_mutexwait"
     r"|_pthread_mutex_firstfit_lock_\w+"
     r"|(.*::)?SpinLock::(Slow)?Lock|AbslInternalSpinLockDelay\w*|RtlEnterCriticalSection|RtlpEnterCriticalSection\w*|(Rtl)?AcquireSRWLock\w+"
     # Short functions under an inlined lock.
     r"|__internal_atexit|__cxa_atexit|__new_exitfn|PyThread_acquire_lock"),
    # Threads of a native pool: a fork has none of them.
    ("threads", r".*", r"gomp_(team_(end|start|barrier\w*)|barrier\w*|simple_barrier\w*)|GOMP_(parallel\w*|barrier)"
     r"|__kmp\w*(barrier|join|fork|suspend|wait)\w*|exec_blas\w*|blas_thread_\w+"),
    ("lock", r"logging/__init__\.py", r"acquire|_acquireLock"),
    ("lock", r"<frozen importlib\._bootstrap>|importlib/_bootstrap\.py", r"acquire|_lock_unlock_module|__enter__"),
    # Connection libraries.
    ("socket", r".*", r"(ssl\d*|SSL|tls\d*)_(connect|accept|do_handshake|read\w*)|PySSL_SSL\w+|_ssl__SSLSocket_\w+"),
    ("loop", r"asyncio/(base_events|unix_events)\.py", r"_run_once"),
    ("loop", r"selectors\.py", r"select"),
    ("socket", r"zmq/(sugar|backend|green)/.*", r"recv\w*|send\w*|poll"),
    ("event", r"threading\.py", r"wait|__enter__"),
)  # fmt: skip
# (kind, end of the path, functions)
ROWS = _TORCH + _FRAMEWORKS + _PYTHON + _NATIVE
# Background services: their own threads are idle here, a thread of the program waits for them.
SIDE_SERVICES = r"(?:wandb|sentry_sdk|tensorboard|opentelemetry)/.*"
# A thread whose first frame outside library internals is one of these is idle, and blocks no other.
IDLE_FRAMES: tuple[tuple[str, str], ...] = (
    (r"concurrent/futures/(thread|process)\.py", r"_worker|_process_worker|wait_result_broken_or_wakeup|run"),
    (r"(?:multiprocess|multiprocessing|billiard)/pool\.py",
     r"worker|_handle_(?:tasks|results|workers)|_wait_for_updates"),
    # Except who calls one of these functions.
    (r"multiprocessing/(forkserver|resource_tracker|resource_sharer|managers)\.py",
     r"(?!(?:_callmethod|_connect|_create|_incref|dispatch|detach|get_connection)$).*"),
    (r"vllm/v1/engine/core\.py", r"_process_input_queue|process_input_sockets|process_output_sockets"),
    (r"vllm/v1/engine/(core_client|utils)\.py", r"monitor_engine_cores|monitor_engine_liveness|_run"),
    (r"vllm/v1/executor/multiproc_executor\.py",
     r"worker_busy_loop|async_output_busy_loop|monitor_workers|death_pipe_monitor"),
    (r"(?:torch/utils/data/_utils|torchdata/stateful_dataloader)/(worker|pin_memory)\.py",
     r"_worker_loop|do_one_step|_pin_memory_loop"),
    (rf"tqdm/_monitor\.py|{SIDE_SERVICES}|ray/_private/.*", r"(?!get|get_objects|wait$).*"),
    (r"torch/_inductor/compile_worker/.*|torch/_inductor/async_compile\.py", r".*"),
    (r"twisted/internet/(\w+reactor|base|asyncioreactor)\.py", r".*"),
    # An engine without requests.
    (r"detokenizer_manager\.py|data_parallel_controller\.py", r"event_loop"),
    (r"scheduler\w*\.py|idle_sleeper\.py", r"maybe_sleep|self_check_during_idle"),
    (r"grpc/(_common|_server)\.py", r"wait|_wait_once|wait_for_termination|_serve"),
    (r"socketserver\.py|http/server\.py", r"serve_forever|handle_one_request"),
    (r"asyncio/(runners|base_events|unix_events)\.py", r"run|run_forever|run_until_complete"),
    (r"py_?spy|pydevd.*|debugpy/.*", r".*"),
    (r"prometheus_client/.*", r".*"),
    # Subscribers.
    (r"redis/(asyncio/)?client\.py", r"listen|get_message|run"),
    (r"torch/distributed/elastic/.*",
     r"(?!(?:next_rendezvous|run|_?wait_\w+|synchronize|barrier|get_all)$).*"),
    (r"ray/(_private/)?workers/default_worker\.py", r".*"),
    # Ray's own threads, and a worker that waits for its next task.
    (r"ray/(profiling|import_thread|log_monitor|monitor|memory_monitor)\.py", r".*"),
    (r"ray/worker\.py", r"main_loop|_get_next_task\w*|listen_error_messages\w*|print_\w+|import_thread"),
)  # fmt: skip
# Packages as stack tools print them without their folder.
_LIBRARY_NAMES = (
    "accelerate aiohttp anyio asyncio billiard botocore click concurrent datasets deep_ep deep_gemm deepspeed "
    r"eventlet fastapi filelock flash_attn\w* flashinfer gevent grpc horovod http httpcore httpx "
    "huggingface_hub importlib joblib lightning megatron multiprocess multiprocessing numpy openai peft "
    "pytorch_lightning ray redis requests safetensors sgl_kernel sglang starlette tokenizers torch torch_npu "
    "tqdm transformers triton urllib3 uvicorn wandb xformers zmq "
)
LIBRARIES = "|".join(_LIBRARY_NAMES.split())
