"""Find the code that uses a missing name, as far as a log shows it: a frame, a file, a module or a program.

`frames_of` returns the frames of a traceback, `without_wrappers` drops those that only pass a call on, `package_of`
returns the package of a file, and `describe_caller` the text for a sentence about the calling code.
"""

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath

from diagnostics.api_index import query, store
from diagnostics.api_index.explain import CallingCode
from diagnostics.api_index.packages import CALLERS, GENERATED_FOLDERS
from diagnostics.logs.prefixes import parse_line
from diagnostics.logs.tracebacks import Traceback, short_path
from diagnostics.output.redact import redact_path, truncate
from diagnostics.triage.line_patterns import join_releases, written_versions
from diagnostics.triage.log_facts import MAX_TEXT, Hit, LogFacts

Frames = Sequence[tuple[str, str]]
_Releases = Mapping[str, str]
_MAX_FRAME_LINES, _MAX_LINES, _MAX_DISTANCE, _MAX_PARTS = 400, 2000, 40, 3
_FRAME = re.compile(r'  File "([^"]{1,600})", line \d+, in (<?\w+>?)')
# Functions that pass a call or an access of an attribute on: a frame of theirs is no caller.
_WRAPPER = re.compile(
    r"__getattr(?:ibute)?__|_handle_fromlist|_get_module|_?(?:wrap|inner)(?:per|ped)?(?:_\w+)?|decorate_context|_call_impl"
)
# A line of a traceback, also as IPython prints it.
_FRAME_LINE = re.compile(r'^\s*File "|\.py\b.{0,80} in <')
_IMPORT = re.compile(r"\s*(?:from|import) (\w+)")
_PASSING = {*CALLERS["launchers"], *CALLERS["passing_files"], *sys.stdlib_module_names}
_OR_OTHER = ", or a package that it imports,"
# A file or a module that a line names, but not a command's own name before its error.
_CODE = re.compile(r"(?<![\w/])-m (?P<module>\w{1,80})|(?P<path>[\w.~<>:/\\-]{0,300}\w\.py)\b(?!: error)")
# A line of a command, whose files need not be the code that failed.
_COMMAND = re.compile(r"(?:^|[\s`\"'$;&|])(?:python[\d.]*|torchrun|deepspeed|accelerate|(?:ba)?sh)\s|\\$")
_PROGRAM = re.compile(rf"(?i)(?<![\w/.-])(?:{'|'.join(CALLERS['programs'])})(?![\w/])")


def frames_of(traceback: Traceback, log: LogFacts) -> list[tuple[str, str]]:
    """Return the frames of a traceback as (path, function), also if a terminal wrapped their lines."""
    lines = [parse_line(raw).text for raw in log.lines_from(traceback.line, _MAX_FRAME_LINES)]
    text = "".join(lines[: traceback.end - traceback.line])
    frames = _FRAME.findall(text) if text.count('  File "') > len(traceback.frames) else []
    return frames or traceback.frames


def without_wrappers(frames: Frames) -> list[tuple[str, str]]:
    """Return frames without those at the end that only pass a call or an access on to other code."""
    callers = list(frames)
    while callers and (
        _WRAPPER.fullmatch(callers[-1][1].rpartition(".")[2]) or callers[-1][0].startswith("<frozen")
    ):
        callers.pop()
    return callers


def package_of(path: str) -> str:
    """Return the package that a file belongs to, or its top-level module in site-packages; '' if neither is known.

    >>> package_of("/opt/env/site-packages/trl/import_utils.py"), package_of("/src/verl/verl/protocol.py")
    ('trl', 'verl')
    """
    path = path.replace("\\", "/")
    for mark in ("site-packages/", "dist-packages/"):
        if mark in path:
            module = path.rpartition(mark)[2].partition("/")[0]
            return query.package_of(module) or module
    if writer := next((name for folder, name in GENERATED_FOLDERS.items() if f"{folder}/" in path), ""):
        return writer
    return query.package_of(module_of(path).partition(".")[0])


def module_of(path: str) -> str:
    """Return the module of an indexed package that a file defines; '' if there is none.

    >>> module_of("/src/verl/verl/protocol.py")
    'verl.protocol'
    """
    path = path.replace("\\", "/")
    parts = path.removesuffix(".py").removesuffix("/__init__").split("/")
    is_folder = path.endswith("/__init__.py")
    for start in range(len(parts) - 2 + is_folder, -1, -1):
        package = query.package_of(parts[start])
        # A folder of the user may have the same name.
        if (module := ".".join(parts[start:])) in store.load(package).about["modules"]:
            return module
    return ""


def describe_caller(
    provider: str, is_direct: bool, hit: Hit, log: LogFacts, frames: Frames, installed: _Releases
) -> CallingCode:
    """Return the code that uses a provider's name, with its release if the log has it; empty if the log shows none.

    The deepest frame outside of the provider counts. If there is none, the text begins with "Probably" and names the
    nearest file or module that a line names, or a program. Without
    `is_direct` the provider's own code may be the user, as of an attribute, so only the last frame is considered.
    """
    texts = join_releases([parse_line(raw).text for raw in log.lines_from(1, _MAX_LINES)])
    for path, function in list(reversed(frames))[: None if is_direct else 1]:
        is_caller = not _WRAPPER.fullmatch(function) and PurePath(path).stem not in CALLERS["passing_files"]
        if is_caller and (text := _describe_file(path, provider, installed, texts)):
            imported = _IMPORT.match(hit.traceback.source) if hit.traceback else None
            package = query.package_of(imported[1]) or imported[1] if imported else ""
            is_other = package and package not in {provider, package_of(path)} and " import name" in hit.text
            text = f"{_with_release(package, installed, texts)}, which {text} imports," if is_other else text
            return CallingCode(text, is_file=True)
    is_lazy_import = hit.traceback and hit.traceback.frames and not frames
    if not is_direct or is_lazy_import:
        return CallingCode()
    return next(_mentions(provider, hit, installed, texts), CallingCode())


def _mentions(provider: str, hit: Hit, installed: _Releases, texts: Sequence[str]) -> Iterator[CallingCode]:
    """Yield the files and modules that lines name, the nearest first, and then programs with a release or an import."""
    own_files = {module.rpartition(".")[2] for module in store.load(provider).about["modules"]}
    first = max(hit.line - _MAX_DISTANCE, 1)
    near = enumerate(texts[first - 1 : hit.line + _MAX_DISTANCE], first)
    for _number, text in sorted(near, key=lambda item: abs(item[0] - hit.line)):
        for match in _CODE.finditer(text):
            module, path = match["module"], match["path"]
            package = package_of(path) if path else query.package_of(module) or module
            stem = PurePath(path or "").stem
            is_own = path == f"{stem}.py" and stem in own_files
            if {package, stem} & _PASSING or is_own or (path and _COMMAND.search(text)):
                continue
            if path and (described := _describe_file(path, provider, installed, texts)):
                more = _OR_OTHER if _FRAME_LINE.search(text) else ""
                yield CallingCode(f"Probably {described}{more}", is_file=True)
            elif module and package != provider:
                yield CallingCode(f"Probably {_with_release(package, installed, texts)}")
    for line, name in ((text, match[0]) for text in texts for match in _PROGRAM.finditer(text)):
        program, imported = _with_release(name, installed, texts), _IMPORT.match(line)
        if name.lower() != provider and (program != name or (imported and imported[1] == name)):
            yield CallingCode(f"Probably {program}{_OR_OTHER}")


def _describe_file(path: str, provider: str, installed: _Releases, texts: Sequence[str]) -> str:
    """Return a file with its package or program, and its release; '' if the provider or Python has it."""
    package, path = package_of(path), path.replace("\\", "/")
    if package == provider or path.startswith("<") or ("/python3." in path and not package):
        return ""
    if package:
        return f"{_with_release(package, installed, texts)} ({short_path(path)})"
    # Without the folders up to a user's name.
    parts = re.split(r".*<[^/]*>/|/", truncate(redact_path(path), MAX_TEXT))[-_MAX_PARTS:]
    parts = [part for part in parts if part.strip(".~")]
    if parts[-1:] == ["__init__.py"]:
        return ""
    program = next(filter(_PROGRAM.fullmatch, reversed(parts)), "")
    file = "/".join(parts)
    return f"{_with_release(program, installed, texts)} ({file})" if program else file


def _with_release(package: str, installed: _Releases, texts: Sequence[str]) -> str:
    """Return a package with the release that the log lists or names in a sentence, if any."""
    if package in installed:
        return f"{package} {installed[package]}"
    names = re.sub("[-_]", "[-_ ]?", re.escape(package).replace(r"\-", "-"))
    named = (item for text in texts for item in written_versions(text, names))
    release = next((release for name, release, _ in named if re.fullmatch(names, name, re.IGNORECASE)), "")
    return f"{package} {release}".strip()
