"""The stand-in for a libstdc++ that is too old is compiled and loaded, and provides one symbol version."""

import re
import shutil
import subprocess

import pytest

from diagnostics.matrix import libstdcxx
from tests.processes import run_python

needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")


def test_unsupported_symbol_version_is_refused(tmp_path):
    """A symbol version that the stand-in does not have is refused, and no compiler is suggested."""
    with pytest.raises(libstdcxx.NotProvidedError, match=r"GLIBCXX_3.4.99.*install a newer libstdc\+\+$"):
        libstdcxx.provide(tmp_path, "3.4.99")
    assert list(tmp_path.iterdir()) == []


@needs_compiler
def test_library_that_needs_the_symbol_loads(tmp_path):
    """A library that needs the new symbol and symbols of the machine's libstdc++ loads and runs."""
    stand_in = tmp_path / libstdcxx.SONAME
    library = libstdcxx._system_library()
    provided = {name for name in libstdcxx._symbol_versions(library) if name != "GLIBCXX_3.4.32"}
    libstdcxx._compile(shutil.which("cc"), str(library), provided, stand_in)
    # Like the library of a wheel, it needs the new symbol and a symbol of the real library, both from libstdc++.
    (tmp_path / "wheel.c").write_text(
        "void _ZSt21ios_base_library_initv(void); void *_Znwm(unsigned long); void _ZdlPv(void *);"
        "int works(void) { _ZSt21ios_base_library_initv(); void *p = _Znwm(8); _ZdlPv(p); return p != 0; }"
    )
    link = ["cc", "-shared", "-fPIC", "-nostdlib", "-o", "wheel.so", "wheel.c", "-Wl,--no-as-needed"]
    subprocess.run([*link, stand_in, library], cwd=tmp_path, check=True, timeout=500)
    start = libstdcxx._START.format(path=str(stand_in))
    program = f"{start}\nprint(ctypes.CDLL({str(tmp_path / 'wheel.so')!r}).works())"
    done = run_python("-c", program)
    assert (done.stdout, done.stderr) == ("1\n", "")


@needs_compiler
def test_stand_in_gets_a_pth_file_that_names_it(tmp_path, monkeypatch):
    """The stand-in gets a .pth file in site-packages that loads it."""
    monkeypatch.setattr(libstdcxx, "_symbol_versions", lambda _library: {"GLIBCXX_3.4"})
    assert libstdcxx.provide(tmp_path, "3.4.32") is True
    (path,) = re.findall("CDLL\\('(.*)', mode", (tmp_path / "grpo_doctor_libstdcxx.pth").read_text())
    assert path == str(tmp_path / "grpo_doctor_libstdcxx" / libstdcxx.SONAME)
