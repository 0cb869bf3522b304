"""The environment variables that change how a run behaves. Only these are read: others are none of our business."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_PREFIXES = (
    "ACCELERATE_", "CUDA_", "GLOO_", "HF_", "NCCL_", "NVIDIA_", "OMP_", "PYTORCH_", "RAY_", "TORCH_", "TORCHELASTIC_",
    "TRITON_", "TRL_", "TRANSFORMERS_", "VERL_", "VLLM_",
)  # fmt: skip
_NAMES = {
    "ALL_PROXY", "HTTPS_PROXY", "HTTP_PROXY", "LD_LIBRARY_PATH", "LD_PRELOAD", "LOCAL_RANK", "LOCAL_WORLD_SIZE",
    "MASTER_ADDR", "MASTER_PORT", "MKL_NUM_THREADS", "NO_PROXY", "PYTHONHOME", "PYTHONPATH", "RANK", "TMPDIR",
    "TOKENIZERS_PARALLELISM", "USE_HF", "WORLD_SIZE", "XDG_CACHE_HOME", "all_proxy", "http_proxy", "https_proxy",
    "no_proxy",
}  # fmt: skip
_SECRET = re.compile(r"TOKEN(?!IZER)|SECRET|PASSW|_KEY|CREDENTIAL", re.IGNORECASE)
_CREDENTIALS = re.compile(r"(?<=://)[^/\s@]+@")
HIDDEN = "(set; not read, it may be a secret)"


def collect(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that matter; of those that may hold a secret only that they are set."""
    return {
        name: HIDDEN if _SECRET.search(name) else _CREDENTIALS.sub("…@", value)
        for name, value in sorted(environ.items())
        if name in _NAMES or name.startswith(_PREFIXES)
    }
