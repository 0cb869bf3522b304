"""Build a stand-in (shim) for libstdc++.so.6, so that wheels built against a newer libstdc++ load on an older machine.

Some CPU builds of vLLM need a symbol that libstdc++ has since gcc 13: `std::ios_base_library_init()`, a marker for
code that uses <iostream>. If the machine's libstdc++ lacks this symbol, the cell's environment gets a small library
named libstdc++.so.6, which defines the symbol and loads the machine's libstdc++ for everything else. Building it needs
a C compiler.
"""

import ctypes.util
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

SONAME = "libstdc++.so.6"
# The only symbol version that the stand-in can provide; it has one symbol.
_SUPPORTED_VERSION = "3.4.32"
_SOURCE = """
void _ZNSt8ios_base4InitC1Ev(void *);
void _ZSt21ios_base_library_initv(void) {}
__attribute__((constructor)) static void ready(void) { static char init; _ZNSt8ios_base4InitC1Ev(&init); }
"""
# Line of a .pth file: the cell's Python runs it at start, before a module can load the machine's library by this name.
_START = "import ctypes; ctypes.CDLL({path!r}, mode=ctypes.RTLD_GLOBAL)\n"


class NotProvidedError(RuntimeError):
    """Raised when a machine's libstdc++ is missing, or too old for a cell and not substituted."""


def provide(packages: Path, version: str) -> bool:
    """Make libstdc++ symbols up to `version` available to the wheels in a `site-packages` folder.

    Returns:
        Whether a stand-in was built.

    Raises:
        NotProvidedError: The symbols are not available; the message says how to provide them.
    """
    system_library = _system_library()
    provided = _symbol_versions(system_library)
    if f"GLIBCXX_{version}" in provided:
        return False
    fix = f"its wheels need GLIBCXX_{version}, which {system_library} lacks: install a newer libstdc++"
    if version != _SUPPORTED_VERSION:
        raise NotProvidedError(fix)
    if (compiler := shutil.which("cc")) is None:
        raise NotProvidedError(f"{fix}, or a C compiler")
    target = packages / "grpo_doctor_libstdcxx"
    target.mkdir()
    try:
        _compile(compiler, system_library, provided, target / SONAME)
    except subprocess.SubprocessError as error:
        raise NotProvidedError(f"{fix}; {compiler} could not build a stand-in: {error}") from None
    start = _START.format(path=str(target / SONAME))
    (packages / "grpo_doctor_libstdcxx.pth").write_text(start, encoding="utf-8")
    return True


def _system_library() -> Path:
    """Return the path of the machine's libstdc++.so.6, as its linker finds it; raise NotProvidedError for none."""
    name = ctypes.util.find_library("stdc++")
    if name is None:
        raise NotProvidedError("this machine has no libstdc++: install it (Debian: libstdc++6)")
    ctypes.CDLL(name)
    maps = Path("/proc/self/maps").read_text(encoding="utf-8")
    return Path(next(line.split()[-1] for line in maps.splitlines() if "/libstdc++.so.6" in line))


def _symbol_versions(library: Path) -> set[str]:
    """Return the symbol versions (GLIBCXX_…, CXXABI_…) in a library's string table."""
    names = re.findall(rb"(?<=\0)(?:GLIBCXX|CXXABI)_[A-Z0-9_.]+(?=\0)", library.read_bytes())
    return {name.decode() for name in names}


def _compile(compiler: str, system_library: Path, provided: set[str], target: Path) -> None:
    """Compile and link the stand-in.

    The stand-in must define the symbol versions that other libraries need from libstdc++, or the loader refuses these
    libraries; the symbols themselves come from the machine's library. The stand-in refers to the machine's library by
    path, because both have the same file name. An empty library with this path as its name makes the linker record it.
    """
    versions = "".join(f"{name} {{}};\n" for name in sorted(provided))
    versions += f"GLIBCXX_{_SUPPORTED_VERSION} {{ global: _ZSt21ios_base_library_initv; local: *; }};\n"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file, text in (("empty.c", ""), ("source.c", _SOURCE), ("versions", versions)):
            (folder / file).write_text(text, encoding="utf-8")
        shared = [compiler, "-shared", "-fPIC", "-nostdlib"]
        empty_library = [f"-Wl,-soname,{system_library}", "-o", "system.so", "empty.c"]
        stand_in = [f"-Wl,-soname,{SONAME}", "-Wl,--version-script=versions", "-Wl,--no-as-needed"]
        for arguments in (empty_library, [*stand_in, "-o", str(target), "source.c", "system.so"]):
            subprocess.run([*shared, *arguments], cwd=folder, check=True, capture_output=True, timeout=60)
