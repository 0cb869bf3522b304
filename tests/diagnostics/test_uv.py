"""uv gets the machine's pip configuration, and installs torch for CPUs."""

from __future__ import annotations

import doctest
import subprocess
import sys

import pytest

from diagnostics import uv


@pytest.mark.parametrize(
    ("environ", "added"),
    [
        ({}, {}),
        ({"PIP_INDEX_URL": "https://a/simple"}, {"UV_DEFAULT_INDEX": "https://a/simple"}),
        ({"PIP_INDEX_URL": "https://a/simple", "UV_DEFAULT_INDEX": "https://b"}, {}),
        (
            {"PIP_EXTRA_INDEX_URL": "https://a  https://b"},
            {"UV_INDEX": "https://a https://b", "UV_INDEX_STRATEGY": "unsafe-best-match"},
        ),
        ({"PIP_CERT": "/ca.pem"}, {"SSL_CERT_FILE": "/ca.pem"}),
        ({"PIP_FIND_LINKS": "/a\n/b"}, {"UV_FIND_LINKS": "/a,/b"}),
        ({"PIP_FIND_LINKS": "  "}, {}),
    ],
)
def test_pip_settings_reach_uv(environ, added):
    """They get uv's names, unless uv has its own already."""
    assert uv.uv_environment(environ) == added


@pytest.mark.parametrize(
    ("name", "python", "version", "local"),
    [
        ("torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl", (3, 11), None, True),
        ("torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl", (3, 11), "2.13.0", True),
        ("torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl", (3, 11), "2.12.0", False),
        ("torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl", (3, 12), None, False),
        ("torch-2.13.0-cp311-cp311-manylinux_2_28_x86_64.whl", (3, 11), None, False),
        ("torchvision-0.20+cpu-cp311-cp311-linux_x86_64.whl", (3, 11), None, False),
    ],
)
def test_torch_is_the_cpu_build(tmp_path, name, python, version, local):
    """From a folder with the build for this Python, else from PyTorch's index for CPUs."""
    (tmp_path / name).write_text("")
    arguments = uv.torch_arguments({"PIP_FIND_LINKS": str(tmp_path)}, python=python, version=version)
    assert arguments == ([] if local else ["--torch-backend", "cpu"])


def test_uv_is_found_or_reported_missing(tmp_path, monkeypatch):
    """It is on PATH or next to this Python; otherwise the message says how to install it."""
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setitem(sys.modules, "uv", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(uv.UvMissingError, match="python -m pip install uv"):
        uv.find_uv()
    (tmp_path / "uv").write_text("#!/bin/sh\n")
    (tmp_path / "uv").chmod(0o755)
    assert uv.find_uv() == tmp_path / "uv"


def test_uv_module_needs_only_the_standard_library():
    """The noxfile imports it."""
    blocked = "import sys; sys.modules.update(dict.fromkeys(['packaging', 'rich', 're2', 'jinja2']))"
    program = f"{blocked}; import diagnostics.uv"
    assert (
        subprocess.run(
            [sys.executable, "-S", "-c", program], check=False, cwd=uv.__file__.rpartition("/diagnostics/")[0]
        ).returncode
        == 0
    )


def test_docstring_examples():
    results = doctest.testmod(uv)
    assert results.attempted
    assert not results.failed
