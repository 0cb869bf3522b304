"""Explain errors of compiled packages that were built for another PyTorch, C++ ABI or CUDA than the installed one.

`explain_builds` reads missing symbols and libraries, and operators that are not registered. The required torch of a
release, and the CUDA of a torch, are those of the metadata in the API index.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

from packaging.utils import canonicalize_name

from diagnostics.api_index import query
from diagnostics.api_index.query import Release
from diagnostics.findings import Certainty, Evidence, Finding, Severity
from diagnostics.fixes import Fix, Install
from diagnostics.triage.calling_code import package_of
from diagnostics.triage.log_facts import Hit
from diagnostics.triage.verdict import Diagnosis
from diagnostics.versions import in_range

_CODE = "CMP907"
_TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
_TEXTS, _REBUILDS, _ABI = _TABLE["texts"], _TABLE["rebuild"], _TABLE["abi"]
_FOLDER = re.compile(r"[/\\](?:site|dist)-packages[/\\]")
_MAX_LINES, _MAX_LENGTH = 3, 2000


def explain_builds(verdict: Diagnosis, installed: Mapping[str, str]) -> Iterator[Finding]:
    """Yield a finding for the first error about a build that the log's lines or the metadata decide."""
    logs = {log.source: log for log in verdict.logs}
    for hit in [*(hit for candidate in verdict.candidates for hit in candidate.hits), *verdict.anchors]:
        lines = [hit.text, *logs[hit.source].lines_from(hit.line + 1, _MAX_LINES)]
        text = "\n".join(line[:_MAX_LENGTH] for line in lines)
        for pattern, explain in _EXPLAINERS:
            if (match := pattern.search(text)) and (explained := explain(match, hit, installed)):
                title, advice, *requirements = explained
                fix = Fix.of(advice, *([Install(tuple(requirements))] if requirements else []))
                evidence = (Evidence(hit.quoted, hit.location),)
                supported = Certainty.SUPPORTED
                yield Finding(_CODE, title, Severity.ERROR, supported, "static", title, evidence, fix)
                return


def _explain_symbol(match: re.Match[str], _hit: Hit, installed: Mapping[str, str]) -> tuple[str, ...]:
    """Explain a missing symbol or operator of PyTorch by the C++ ABI in it, and by the torch that the package needs."""
    groups = match.groupdict(default="")
    package, symbol = _package_of_file(groups["path"]), groups.get("symbol", "")
    if package in {"", "torch"}:
        return ()
    torch, release = installed.get("torch", ""), installed.get(package, "")
    in_use, name = f"torch {torch}" if torch else "the torch in use", f"{package} {release}".rstrip()
    abi = next((name for name, mark in _ABI["marks"].items() if re.search(mark, symbol)), "")
    has_new = bool(re.search(_ABI["also_new"], torch)) or in_range(torch, f">={_ABI['since']}")
    if torch and abi == ("new" if has_new else "old"):
        abi = ""
    state = f"has the {'new' if abi == 'old' else 'old'} one" if torch else "is another one"
    title = _TEXTS[f"abi_{abi}" if abi else "symbol"].format(name=name, torch=in_use, state=state)
    needed = _required_torch(package, release.partition("+")[0])
    if needed and not in_range(torch, f"=={needed}"):
        return title, _TEXTS["pinned"].format(name=name, needed=needed), f"torch=={needed}"
    advice = _REBUILDS.get(package, _TEXTS["rebuild"]) + (_TEXTS[f"other_{abi}"] if abi else "")
    return title, advice.format(package=package, torch=in_use)


def _required_torch(package: str, release: str) -> str:
    """Return the one torch that a release requires, for which its wheel was built; '' if it allows several."""
    pins = map(str, query.plain_ranges(Release(package, release), "torch"))
    return next((pin[2:] for pin in pins if pin.startswith("==")), "")


def _explain_library(match: re.Match[str], hit: Hit, installed: Mapping[str, str]) -> tuple[str, ...]:
    """Explain a missing CUDA library by the CUDA that the torch in use brings, and the one of the package's build."""
    built, torch = match["cuda"], installed.get("torch", "")
    frames = hit.traceback.frames if hit.traceback else []
    pinning = [item for item in installed.items() if _cuda_of_torch(_required_torch(*item)) == built]
    package = next((package_of(path) for path, _ in reversed(frames)), "")
    if not package and len(pinning) == 1:
        package = pinning[0][0]
    release, brought = installed.get(package, ""), _cuda_of_torch(torch)
    if brought.partition(".")[0] == built:
        return ()
    name = f"{package} {release}".rstrip() if package else "A compiled package"
    state = f"torch {torch} brings CUDA {brought}" if brought else _TEXTS["other_cuda"]
    title = _TEXTS["library"].format(name=name, built=built, state=state)
    needed = _required_torch(package, release)
    if needed and _cuda_of_torch(needed) == built:
        return (
            title,
            _TEXTS["library_pinned"].format(name=name, needed=needed, built=built),
            f"torch=={needed}",
        )
    return title, _TEXTS["library_fix"].format(built=built, have=brought or "of the torch in use")


def _cuda_of_torch(release: str) -> str:
    """Return the CUDA of a torch: of its suffix, else the major number of the build on the index; '' if unknown."""
    if suffix := re.search(r"\+cu(\d\d)(\d)", release):
        return f"{suffix[1]}.{suffix[2]}"
    names = " ".join(query.requirements_of(Release("torch", release))) if "+" not in release else ""
    return next(iter(re.findall(r"-cu(\d\d)\b", names)), "")


def _package_of_file(path: str) -> str:
    """Return the package of a compiled module by its path or name; '' for a path that shows none.

    >>> _package_of_file("/env/site-packages/sgl_kernel/common_ops.abi3.so"), _package_of_file("flash_attn_2_cuda.so")
    ('sgl-kernel', 'flash-attn')
    """
    folder, *installed = _FOLDER.split(path)
    parts = re.split(r"[/\\]", installed[-1] if installed else folder)
    names = [part.partition(".")[0] for part in parts]
    for name in names if installed else reversed(names):
        words = name.split("_")
        starts = ("_".join(words[:count]) for count in range(len(words), 0, -1))
        if package := next(filter(None, map(query.package_of, starts)), ""):
            return package
    return canonicalize_name(names[0]) if installed or len(names) == 1 else ""


_FUNCTIONS = {
    "symbol": _explain_symbol,
    "operator": _explain_symbol,
    "library": _explain_library,
}
_EXPLAINERS = [(re.compile(_TABLE["patterns"][name]), explain) for name, explain in _FUNCTIONS.items()]
