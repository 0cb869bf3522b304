"""Collect the environment variables that change how a run behaves, without values that may be secret.

A variable is reported if it is in `env_vars.txt`, is a proxy, or begins with one of `_PREFIXES`. Its value is shown,
with secrets masked, if it is in `env_vars.txt` or the installed vLLM reads it. The value of a switch of a library such
as NCCL is shown if it is plain and has no secret. A proxy is reduced to host and port. HIDDEN replaces the values of
names like TOKEN or _KEY, and other values that are not empty: a variable of Ray contains the whole job description.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from diagnostics.output.redact import MASK, mask

# Variables with these prefixes are reported; the rules below decide whether their values are shown.
_PREFIXES = (
    "ACCELERATE_", "CUDA_", "GLOO_", "HF_", "NCCL_", "NVIDIA_", "OMP_", "PYTORCH_", "RAY_", "TORCH_", "TORCHELASTIC_",
    "TRITON_", "TRL_", "TRANSFORMERS_", "VERL_", "VLLM_",
)  # fmt: skip
# Variables of these libraries are reported with their value if it is plain: a word, a number, a path, a list of those.
_SWITCH_PREFIXES = ("CUDA_", "GLOO_", "NCCL_", "OMP_", "PYTORCH_", "TORCH_", "TORCHELASTIC_", "TRITON_")
_PLAIN_VALUE = re.compile(r"[\w.,:;/=+~^%@* -]{0,512}", re.ASCII)
_NAMES = set(Path(__file__).with_name("env_vars.txt").read_text(encoding="ascii").split())
_PROXIES = {"ALL_PROXY", "HTTPS_PROXY", "HTTP_PROXY", "all_proxy", "http_proxy", "https_proxy"}
_PROXY = re.compile(
    r"(?:[a-z][a-z0-9+.-]{0,16}://)?(?:[^/\s]{0,512}@)?([\w.-]{1,253}|\[[0-9A-Fa-f:.]+\])(:\d{1,5})?(?:/[^@]*)?\Z"
)
_SECRET = re.compile(r"TOKEN(?!IZER|_PATH|S_PARALLELISM)|SECRET|PASSW|_KEY|CREDENTIAL", re.IGNORECASE)
_NOT_SECRET = {"RAY_PROCESS_STARTUP_TOKEN"}  # an index of a worker
HIDDEN = MASK  # redaction leaves it as it is


def collect(environ: Mapping[str, str], vllm_names: Iterable[str] = ()) -> dict[str, str]:
    """Return the variables that affect a run; values that may be secret are replaced by HIDDEN.

    Args:
        environ: All variables.
        vllm_names: Names of variables that the installed vLLM reads.
    """
    readable = {*_NAMES, *vllm_names}
    known = _NAMES | _PROXIES
    names = sorted(name for name in environ if name in known or name.startswith(_PREFIXES))
    return {name: _value(name, environ[name], readable) for name in names}


def _value(name: str, value: str, readable: set[str]) -> str:
    """Return the value to report for a variable: with secrets masked, or HIDDEN if it may be a secret as a whole."""
    if name in _PROXIES:
        return _proxy(value)
    if _SECRET.search(name) and name not in _NOT_SECRET:
        return HIDDEN
    if name in readable:
        return mask(value)
    harmless = name.startswith(_SWITCH_PREFIXES) and _PLAIN_VALUE.fullmatch(value) and mask(value)
    return harmless if harmless and MASK not in harmless else HIDDEN if value else ""


def _proxy(value: str) -> str:
    """Return a proxy as host and port, without user, password and path; HIDDEN if it has another form.

    >>> _proxy("http://ada:pw@proxy.example.org:3128/pac?key=1")
    'proxy.example.org:3128'
    """
    match = _PROXY.match(value)
    return f"{match[1]}{match[2] or ''}" if match else HIDDEN if value else ""
