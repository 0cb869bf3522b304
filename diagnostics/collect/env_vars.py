"""Environment variables that change how a run behaves. Values are read only of the variables named here.

Other variables of these programs are reported as set, without their value: one of Ray's contains the whole job
description, and a variable with a made-up name may contain anything.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from diagnostics.output.redact import MASK, mask

# Variables that are reported; whether their values are read depends on the two names below.
_PREFIXES = (
    "ACCELERATE_", "CUDA_", "GLOO_", "HF_", "NCCL_", "NVIDIA_", "OMP_", "PYTORCH_", "RAY_", "TORCH_", "TORCHELASTIC_",
    "TRITON_", "TRL_", "TRANSFORMERS_", "VERL_", "VLLM_",
)  # fmt: skip
# Switches of libraries in C: a word, a number, a path, a list of those.
_SWITCH_PREFIXES = ("CUDA_", "GLOO_", "NCCL_", "OMP_", "PYTORCH_", "TORCH_", "TORCHELASTIC_", "TRITON_")
_PLAIN_VALUE = re.compile(r"[\w.,:;/=+~^%@* -]{0,512}", re.ASCII)
_NAMES = {
    "LD_LIBRARY_PATH", "LD_PRELOAD", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
    "MKL_NUM_THREADS", "NO_PROXY", "PYTHONHOME", "PYTHONPATH", "RANK", "TMPDIR", "TOKENIZERS_PARALLELISM", "USE_HF",
    "WORLD_SIZE", "XDG_CACHE_HOME", "no_proxy", "ACCELERATE_CONFIG_FILE", "ACCELERATE_CPU_AFFINITY",
    "ACCELERATE_DEBUG_MODE", "ACCELERATE_DEEPSPEED_ZERO_STAGE", "ACCELERATE_DYNAMO_BACKEND",
    "ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "ACCELERATE_LOG_LEVEL", "ACCELERATE_MIXED_PRECISION",
    "ACCELERATE_NUM_PROCESSES", "ACCELERATE_TORCH_DEVICE", "ACCELERATE_USE_CPU", "ACCELERATE_USE_DEEPSPEED",
    "ACCELERATE_USE_FSDP", "ACCELERATE_USE_MEGATRON_LM", "HF_DATASETS_CACHE", "HF_DATASETS_OFFLINE", "HF_DEBUG",
    "HF_ENDPOINT", "HF_HOME", "HF_HUB_CACHE", "HF_HUB_DISABLE_PROGRESS_BARS", "HF_HUB_DISABLE_SYMLINKS",
    "HF_HUB_DISABLE_TELEMETRY", "HF_HUB_DISABLE_XET", "HF_HUB_DOWNLOAD_TIMEOUT", "HF_HUB_ENABLE_HF_TRANSFER",
    "HF_HUB_ETAG_TIMEOUT", "HF_HUB_OFFLINE", "HF_HUB_VERBOSITY", "HF_MODULES_CACHE", "HF_XET_CACHE",
    "HF_XET_HIGH_PERFORMANCE", "HUGGINGFACE_HUB_CACHE", "NVIDIA_DRIVER_CAPABILITIES", "NVIDIA_TF32_OVERRIDE",
    "NVIDIA_VISIBLE_DEVICES",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_BACKEND_LOG_LEVEL",
    "RAY_CGRAPH_get_timeout", "RAY_DEDUP_LOGS", "RAY_DISABLE_USAGE_STATS",
    "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES", "RAY_JOB_ID", "RAY_NODE_ID", "RAY_NODE_IP_ADDRESS",
    "RAY_OVERRIDE_NODE_ID_FOR_TESTING", "RAY_PROCESS_STARTUP_TOKEN", "RAY_RAYLET_PID", "RAY_TMPDIR",
    "RAY_USAGE_STATS_ENABLED", "RAY_WORKER_ID", "RAY_memory_monitor_refresh_ms", "RAY_memory_usage_threshold",
    "TRANSFORMERS_CACHE", "TRANSFORMERS_NO_ADVISORY_WARNINGS", "TRANSFORMERS_OFFLINE", "TRANSFORMERS_VERBOSITY",
    "TRL_EXPERIMENTAL_SILENCE", "VERL_LOGGING_LEVEL", "VERL_PPO_LOGGING_LEVEL", "VERL_VLLM_DISTRIBUTED_BACKEND",
    "VLLM_ALLOW_INSECURE_SERIALIZATION", "VLLM_ALLOW_LONG_MAX_MODEL_LEN", "VLLM_ATTENTION_BACKEND", "VLLM_CACHE_ROOT",
    "VLLM_CONFIGURE_LOGGING", "VLLM_ENABLE_V1_MULTIPROCESSING", "VLLM_FLASH_ATTN_VERSION", "VLLM_HOST_IP",
    "VLLM_LOGGING_LEVEL", "VLLM_NCCL_SO_PATH", "VLLM_PORT", "VLLM_TARGET_DEVICE", "VLLM_TRACE_FUNCTION",
    "VLLM_USE_MODELSCOPE", "VLLM_USE_RAY_COMPILED_DAG", "VLLM_USE_RAY_SPMD_WORKER", "VLLM_USE_V1",
    "VLLM_WORKER_MULTIPROC_METHOD",
}  # fmt: skip
_PROXIES = {"ALL_PROXY", "HTTPS_PROXY", "HTTP_PROXY", "all_proxy", "http_proxy", "https_proxy"}
_PROXY = re.compile(
    r"(?:[a-z][a-z0-9+.-]{0,16}://)?(?:[^/\s]{0,512}@)?([\w.-]{1,253}|\[[0-9A-Fa-f:.]+\])(:\d{1,5})?(?:/|$)"
)
_SECRET = re.compile(r"TOKEN(?!IZER|_PATH|S_PARALLELISM)|SECRET|PASSW|_KEY|CREDENTIAL", re.IGNORECASE)
_NOT_SECRET = {"RAY_PROCESS_STARTUP_TOKEN"}  # an index of a worker
HIDDEN = "(set; not read, it may be a secret)"


def collect(environ: Mapping[str, str], known: Iterable[str] = ()) -> dict[str, str]:
    """Return the variables that matter; values that may be secret are replaced by HIDDEN.

    Args:
        environ: All variables.
        known: Names that the installed vLLM reads.
    """
    readable = {*_NAMES, *known}
    return {
        name: _value(name, value, readable)
        for name, value in sorted(environ.items())
        if name in _NAMES or name in _PROXIES or name.startswith(_PREFIXES)
    }


def _value(name: str, value: str, readable: set[str]) -> str:
    if name in _PROXIES:
        return _proxy(value)
    if _SECRET.search(name) and name not in _NOT_SECRET:
        return HIDDEN
    if name in readable:
        return mask(value)
    harmless = name.startswith(_SWITCH_PREFIXES) and _PLAIN_VALUE.fullmatch(value) and mask(value)
    return harmless if harmless and MASK not in harmless else HIDDEN if value else ""


def _proxy(value: str) -> str:
    """Return a proxy as host and port, without user, password and path.

    >>> _proxy("http://ada:pw@proxy.example.org:3128/pac?key=1")
    'proxy.example.org:3128'
    """
    match = _PROXY.match(value)
    return f"{match[1]}{match[2] or ''}" if match else HIDDEN if value else ""
