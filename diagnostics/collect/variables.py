"""The environment variables that change how a run behaves. Only the values of those named here are read.

Of the other variables of these programs it is told that they are set: a job's whole description stands in one of Ray's,
and whoever makes up a name of his own may keep anything in it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from diagnostics.collect.secrets import mask
from diagnostics.output.redact import MASK

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# They are told of; whether their values are read, the two below say.
_PREFIXES = (
    "ACCELERATE_", "CUDA_", "GLOO_", "HF_", "NCCL_", "NVIDIA_", "OMP_", "PYTORCH_", "RAY_", "TORCH_", "TORCHELASTIC_",
    "TRITON_", "TRL_", "TRANSFORMERS_", "VERL_", "VLLM_",
)  # fmt: skip
# The switches of libraries in C: a word, a number, a path, a list of those.
_SWITCHES = ("CUDA_", "GLOO_", "NCCL_", "OMP_", "PYTORCH_", "TORCH_", "TORCHELASTIC_", "TRITON_")
_PLAIN = re.compile(r"[\w.,:;/=+~^%@* -]{0,512}", re.ASCII)
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
_NO_SECRETS = {"RAY_PROCESS_STARTUP_TOKEN"}  # a number that a worker is told by
HIDDEN = "(set; not read, it may be a secret)"


def collect(environ: Mapping[str, str], known: Iterable[str] = ()) -> dict[str, str]:
    """The variables that matter; of those whose values are not known to be harmless only that they are set.

    Args:
        environ: All variables.
        known: Names that the vLLM at hand reads, by its own list.
    """
    read = {*_NAMES, *known}
    return {
        name: _value(name, value, read)
        for name, value in sorted(environ.items())
        if name in _NAMES or name in _PROXIES or name.startswith(_PREFIXES)
    }


def _value(name: str, value: str, read: set[str]) -> str:
    if name in _PROXIES:
        return _proxy(value)
    if _SECRET.search(name) and name not in _NO_SECRETS:
        return HIDDEN
    if name in read:
        return mask(value)
    shown = name.startswith(_SWITCHES) and _PLAIN.fullmatch(value) and mask(value)
    return shown if shown and MASK not in shown else HIDDEN if value else ""


def _proxy(value: str) -> str:
    """A proxy as host and port; who may use it, and what stands behind, is not read.

    >>> _proxy("http://ada:pw@proxy.example.org:3128/pac?key=1")
    'proxy.example.org:3128'
    """
    found = _PROXY.match(value)
    return f"{found[1]}{found[2] or ''}" if found else HIDDEN if value else ""
