"""Asks the index which releases of TRL and vLLM there are: the list from which cells are generated."""

from __future__ import annotations

from typing import TYPE_CHECKING

from packaging.requirements import Requirement
from packaging.version import InvalidVersion, Version

from diagnostics.matrix.build import sources
from diagnostics.matrix.plan.releases import Release, Releases

if TYPE_CHECKING:
    import datetime
    from collections.abc import Mapping


def fetch(
    environ: Mapping[str, str], today: datetime.date, *, since: Mapping[str, str] | None = None
) -> Releases:
    """Asks the index.

    Args:
        environ: the machine's settings, which name the index.
        today: the day to note.
        since: the oldest version wanted of `trl` and `vllm`.

    Raises:
        WheelError: the index can't be asked.
    """
    since = since or {}
    trl = [
        Release(item.version, item.uploaded, item.python, _extra(item.version, environ))
        for item in _listed("trl", environ, since.get("trl", "0"))
    ]
    return Releases(today, tuple(trl), tuple(_listed("vllm", environ, since.get("vllm", "0"))))


def _listed(distribution: str, environ: Mapping[str, str], since: str) -> list[Release]:
    found: dict[Version, Release] = {}
    for version, uploaded, python in sources.uploads(distribution, environ):
        try:
            parsed = Version(version)
        except InvalidVersion:
            continue
        if parsed.is_prerelease or parsed < Version(since):
            continue
        known = found.get(parsed)
        if known is None or uploaded < known.uploaded:
            found[parsed] = Release(version, uploaded, python)
    return [found[version] for version in sorted(found)]


def _extra(version: str, environ: Mapping[str, str]) -> str:
    """Returns which vLLM the vllm extra of this TRL allows."""
    for text in sources.requirements("trl", version, environ):
        item = Requirement(text)
        if item.name == "vllm" and (item.marker is None or item.marker.evaluate({"extra": "vllm"})):
            return str(item.specifier)
    return ""
