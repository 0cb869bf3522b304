"""The engine for a server, whichever of the three kinds it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from grpo_core.extras import extra
from grpo_core.rollout.engine import EngineError
from grpo_core.rollout.http.client import HttpClient
from grpo_core.rollout.http.identify import SERVERS, identify
from grpo_core.rollout.http.remote import RemoteEngine

if TYPE_CHECKING:
    from pathlib import Path

    from grpo_core.config import RolloutConfig
    from grpo_core.rollout.engine import Engine


def engine_for(
    options: RolloutConfig, host: str, port: int, folder: Path, *, token: str | None = None
) -> Engine:
    """The engine for whoever answers there, if it is whom `rollout.server` names.

    Args:
        options: `server`, `sync` and `timeout_s` count.
        host: The server's.
        port: The server's.
        folder: Where weights may be written for a server that reads them.
        token: The server's.

    Raises:
        EngineError: Nobody there, or somebody else.
    """
    http = HttpClient("remote", host, port, timeout_s=options.timeout_s, token=token)
    found = identify(http)
    # From TRL 1.11 on, `trl vllm-serve` runs `vllm serve`, and nothing tells them apart.
    if options.server not in ("auto", found) and (options.server, found) != ("trl", "vllm"):
        raise EngineError(
            f"{http.where('')}: rollout.server = {options.server!r} is {SERVERS[options.server]}, but "
            f"{SERVERS[found]} answers; set rollout.server = {found!r} or 'auto'"
        )
    if found == "grpo-core":
        return RemoteEngine(host, port, timeout_s=options.timeout_s, token=token, sync=options.sync)
    engine: Engine = extra("trl" if options.server == "trl" else found).connect(
        host, port, timeout_s=options.timeout_s, token=token, folder=folder, sync=options.sync
    )
    return engine


def check_trainable(engine: Engine) -> None:
    """Refuses, before a step is made, an engine that can't give what training takes.

    Raises:
        EngineError: It takes no weights, or no seeds; says why.
    """
    able = engine.capabilities
    for need, has in (("update", able.update), ("seeds", able.seeds)):
        if not has:
            why = able.why_not.get(need, "it doesn't say why")
            raise EngineError(f"{engine.name} engine: it can't be trained with ({need}): {why}")
