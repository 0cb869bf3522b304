"""Who it is that answers at an address: one of the three kinds of rollout server."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from grpo_core.rollout.engine import EngineError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from grpo_core.rollout.http.client import HttpClient

PROTOCOL = "grpo-doctor.serve.v1"
LOST = "the server lost the weights it was sent; it was started again, or somebody else has sent others"
SERVERS = {
    "grpo-core": f"`python -m grpo_core serve` ({PROTOCOL})",
    "vllm": "`vllm serve`",
    "trl": "`trl vllm-serve` of TRL 0.16 to 1.10",
}


def identify(http: HttpClient) -> str:
    """Who answers: a key of `SERVERS`. `trl vllm-serve` of TRL 1.11 and later is `vllm serve`, and found to be.

    Raises:
        EngineError: Nobody there, none of these, or ours with an `/info` that is not.
    """
    status, told = http.call("GET", "/info", repeat=True)
    if status == HTTPStatus.UNAUTHORIZED:
        http.checked("/info", status, told)
    if status == HTTPStatus.OK:
        info = http.parsed("/info", status, told)
        if isinstance(info, dict) and info.get("schema") == PROTOCOL:
            return "grpo-core"
    status, text = http.call("GET", "/openapi.json", repeat=True)
    paths = _paths(http.parsed("/openapi.json", status, text)) if status == HTTPStatus.OK else {}
    if {"/weights", "/fingerprint"} <= paths.keys():  # it speaks TRL's dialect, too
        raise EngineError(
            f"{http.where('/info')}: a server of {PROTOCOL} that does not say so: {told[:80]!r}"
        )
    for path, kind in (("/v1/completions", "vllm"), ("/generate/", "trl")):
        if path in paths:
            return kind
    raise EngineError(
        f"{http.where('')}: no rollout server answers there (/openapi.json: status {status}); "
        f"expected {', '.join(SERVERS.values())}"
    )


def _paths(document: Any) -> Mapping[str, Any]:
    paths = document.get("paths") if isinstance(document, dict) else None
    return paths if isinstance(paths, dict) else {}
