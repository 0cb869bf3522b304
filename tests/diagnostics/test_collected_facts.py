"""Facts of an environment and a machine are collected, without values of secrets, and round-trip through JSON.

They include variables, GPUs by nvidia-smi, libraries that ELF files need, Ray sessions and limits of cgroups.
"""

import json
import os
import sys
from pathlib import Path

import msgspec
import pytest

from diagnostics.collect import elf, env_vars, gpus, processors_and_memory, ray_traces
from diagnostics.collect import facts as collection
from diagnostics.collect.facts import Facts
from diagnostics.collect.gpus import Gpu
from diagnostics.output.redact import forget_secrets, redact
from diagnostics.output.text_filters import redact_for_sharing
from tests.case_files import each_case, read_cases

CASES = read_cases(__file__, "collected_facts.yaml")


def test_facts_round_trip_through_json(environment):
    """Facts that one node serializes are equal when another node has read them."""
    facts = collection.collect(environment.add("vllm", "0.8.5").prefix, {"VLLM_USE_V1": "1"})
    sent = json.loads(json.dumps(facts.to_json()))
    assert msgspec.convert(sent, Facts) == facts
    assert facts.machine.processors.count >= 1
    assert facts.environment.version("vllm") == "0.8.5"


def test_facts_of_another_tool_release_are_read(environment):
    """In facts of another tool release, unknown fields are ignored and missing fields get their defaults."""
    document = collection.collect(environment.prefix, {}).to_json()
    document["machine"]["added_later"] = 1
    del document["machine"]["interfaces"]
    assert msgspec.convert(document, Facts).machine.interfaces == ()


@each_case(CASES["documents"])
def test_invalid_facts_document_is_refused(environment, change, message):
    """An invalid facts document is refused with the name of the field."""
    document = collection.collect(environment.prefix, {}).to_json()
    with pytest.raises(ValueError, match=message):
        msgspec.convert(document | change, Facts)


def test_values_of_secret_variables_are_not_collected():
    """Secret variables are reported by name, proxies by host and port, and unknown variables not at all."""
    environ = {
        "HF_TOKEN": "hf_x", "VLLM_API_KEY": "k", "https_proxy": "http://me:word@proxy:80", "SECRET": "s",
        "TOKENIZERS_PARALLELISM": "false", "HTTP_PROXY": "http://bob:12345/S3cret@proxy:3128",
        "ALL_PROXY": "http://proxy:80/x.pac",
    }  # fmt: skip
    known = env_vars.collect(environ)
    assert known == {
        "HF_TOKEN": env_vars.HIDDEN,
        "VLLM_API_KEY": env_vars.HIDDEN,
        "https_proxy": "proxy:80",
        "TOKENIZERS_PARALLELISM": "false",
        "HTTP_PROXY": env_vars.HIDDEN,
        "ALL_PROXY": "proxy:80",
    }
    assert redact_for_sharing(known)["HF_TOKEN"] == known["HF_TOKEN"]


GPU_XML = Path(__file__).with_name("nvidia_smi.xml").read_text(encoding="utf-8")


def nvidia_smi(folder, script):
    """Write a fake nvidia-smi that runs a Python script; return its path."""
    path = folder / "nvidia-smi"
    path.write_text(f"#!{sys.executable}\n{script}\n")
    path.chmod(0o755)
    return str(path)


@each_case(CASES["nvidia_smi"])
def test_nvidia_smi_without_a_usable_answer_is_recorded(tmp_path, script, state, problem):
    limit_s = 0.5 if state == "timeout" else 500
    known = gpus.collect(limit_s=limit_s, program=nvidia_smi(tmp_path, script))
    assert known.state == state
    assert problem in known.problem


def test_gpus_are_read_from_nvidia_smi_xml(tmp_path):
    known = gpus.collect(limit_s=500, program=nvidia_smi(tmp_path, f"print({GPU_XML!r})"))
    assert (known.state, known.driver, known.cuda) == ("ok", "570.1", "12.8")
    assert known.devices == (
        Gpu(0, "NVIDIA H100", "GPU-1234", 85.5, 0.0, "", "exclusive_process", False, 2, True),
    )


def test_needed_libraries_and_symbol_versions_are_read_from_elf():
    """A compiled module of Python needs libc with a versioned symbol, and only the newest version is kept."""
    import _ctypes

    needed, versions = elf.read_elf(Path(_ctypes.__file__))
    assert "libc.so.6" in needed
    assert elf.newest_versions(versions)[0].startswith("GLIBC_2.")
    assert elf.newest_versions(["GLIBCXX_3.4.9", "GLIBCXX_3.4.32", "GLIBC_PRIVATE"]) == ["GLIBCXX_3.4.32"]


@pytest.mark.parametrize("data", [b"", b"\x7fELF", b"\x7fELF\x02\x01" + b"\xff" * 58, b"text" * 40])
def test_unreadable_extension_is_recorded(environment, data):
    folder = environment.add("vllm", "0.8.5").site / "vllm"
    folder.mkdir()
    (folder / "_C.abi3.so").write_bytes(data)
    (known,) = elf.collect([environment.site], environment.prefix, os.environ)
    assert known.problem.startswith("no readable ELF file")


def test_ray_session_address_and_release_are_read(tmp_path):
    session = tmp_path / "ray" / "session_2026-11-21_10-00-00_1_1"
    session.mkdir(parents=True)
    (session / "usage_stats.json").write_text('{"ray_version": "2.44.1"}')
    (tmp_path / "ray" / "session_latest").symlink_to(session)
    (tmp_path / "ray" / "ray_current_cluster").write_text("bluefin01:6379\n")
    (known,) = ray_traces.collect({"TMPDIR": str(tmp_path)})
    assert (known.current, known.release) == ("bluefin01:6379", "2.44.1")
    assert redact(f"the cluster {known.current}") == "the cluster <host>:6379"
    forget_secrets()
    # Who came first may write there: pip would take this release as the folder /tmp/x.
    (session / "usage_stats.json").write_text('{"ray_version": "2.44.1/../../tmp/x"}')
    assert ray_traces.collect({"TMPDIR": str(tmp_path)})[0].release == ""
    assert ray_traces.collect({"RAY_TMPDIR": str(tmp_path / "none")}) == ()


@each_case(CASES["cgroups"])
def test_cgroup_cpu_and_memory_limits_are_read(tmp_path, monkeypatch, files, quota, limit_gb):
    """Limits of both cgroup versions are read, and reclaimable file cache does not count as used memory."""
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(processors_and_memory, "_CGROUPS", tmp_path)
    assert processors_and_memory._cpu_quota() == quota
    assert processors_and_memory._memory_limit() == tuple(limit_gb)
