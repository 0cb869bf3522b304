"""A kit from its packing to its results in the store, by an empty folder without a network; and what is refused."""

from __future__ import annotations

import copy
import json
import os
import shutil
import subprocess
import sys

import pytest

from diagnostics.matrix import command as matrix
from diagnostics.matrix import gpu_results
from diagnostics.matrix.store import StoreError
from tests.cells import ROOT
from tests.gpu.kit import pack, run_kit

SELECTED = ["tests/gpu/test_machine.py", "-k", "nvidia_smi_prints or cuda_itself"]
SCHEMA = ROOT / "docs" / "gpu-v1.schema.json"


@pytest.fixture(scope="module")
def kit(tmp_path_factory):
    """A small one, in parts of a megabyte: no wheel but the project's."""
    folder = tmp_path_factory.mktemp("kit")
    wheels = tmp_path_factory.mktemp("wheels")
    pack.build_wheel(wheels)
    pack.pack(folder, wheels, [], 10**6)
    return folder


@pytest.fixture(scope="module")
def brought_back(kit, tmp_path_factory):
    """What its script wrote in a folder that had nothing but the kit."""
    box = tmp_path_factory.mktemp("box")
    shutil.copytree(kit, box, dirs_exist_ok=True)
    command = [sys.executable, "run_kit.py", "--python", sys.executable, "--no-figures", "--", *SELECTED]
    done = subprocess.run(
        [*without_network(), *command], cwd=box, env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True,
        timeout=900, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return box / "gpu.json"


def without_network():
    """What starts a program that has no network, where this machine's kernel lets a user do that."""
    tool = shutil.which("unshare")
    alone = [tool, "--map-root-user", "--net"] if tool else []
    tried = subprocess.run([*alone, "true"], capture_output=True, check=False)
    return alone if tried.returncode == 0 else []


def test_parts_are_no_larger_than_they_may_be(kit):
    """And they and their list are all of it, but for the script."""
    listed = json.loads((kit / "parts.json").read_text())
    assert len(listed["parts"]) > 1
    assert max((kit / part["name"]).stat().st_size for part in listed["parts"]) <= 10**6
    names = {path.name for path in kit.iterdir()}
    assert names == {"parts.json", "run_kit.py", *(part["name"] for part in listed["parts"])}


@pytest.mark.long
def test_it_runs_in_an_empty_folder_and_its_results_are_taken_in(brought_back, tmp_path, capsys):
    """Each test's outcome comes back, with the versions that it ran with; a second time it is there already."""
    document = gpu_results.read_gpu_results(brought_back)
    ended = {test["name"].rpartition("::")[2]: test["outcome"] for test in document["tests"]}
    assert ended["test_what_nvidia_smi_prints_is_read"] == "passed"
    assert ended["test_the_facts_are_those_that_cuda_itself_tells"] in {"passed", "skipped"}
    assert {"python", "torch", "pytest"} <= document["versions"].keys()
    store = ["--store", str(tmp_path)]
    assert matrix.main(["merge", *store, str(brought_back)]) == 0
    assert "2 tests on " in capsys.readouterr().out
    assert matrix.main(["merge", *store, str(brought_back)]) == 0
    assert "is there already" in capsys.readouterr().out
    (kept,) = (tmp_path / "gpu").iterdir()
    assert gpu_results.read_gpu_results(kept) == document


@pytest.mark.long
def test_its_schema_describes_it(brought_back):
    """And refuses an outcome that it doesn't know."""
    jsonschema = pytest.importorskip("jsonschema")
    schema, document = json.loads(SCHEMA.read_text()), json.loads(brought_back.read_text())
    jsonschema.validate(document, schema)
    document["tests"][0]["outcome"] = "fine"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, schema)


GOOD = {
    "schema": "grpo-doctor.gpu.v1",
    "made": "2026-01-31T12:00:00Z",
    "kit": {"version": "0.1.0", "sha256": "0" * 64, "cells": []},
    "machine": {"devices": [], "seen": ["H100"], "driver": None, "cuda": "12.8", "architecture": "x86_64"},
    "versions": {"torch": "2.8.0"},
    "command": "pytest -m gpu",
    "exit_code": 0,
    "seconds": 1.5,
    "tests": [{"name": "a::b", "outcome": "passed", "seconds": 0.1}],
    "figures": [{"name": "step", "value": 0.5, "low": 0.4, "high": 0.6, "unit": "s"}],
}


def changed(path, value):
    """The good document with another value."""
    document = copy.deepcopy(GOOD)
    *keys, last = path
    place = document
    for key in keys:
        place = place[key]
    place[last] = value
    return json.dumps(document)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "no JSON"),
        ("[]", "expected a table"),
        (changed(["schema"], "grpo-doctor.gpu.v2"), "schema: expected grpo-doctor.gpu.v1"),
        (changed(["made"], "yesterday"), "expected a time"),
        (changed(["kit", "sha256"], "../x"), "expected a digest"),
        (changed(["machine"], None), "machine: expected"),
        (changed(["versions", "torch"], 2), "versions.torch: expected str"),
        (changed(["tests"], []), "tests: none ran"),
        (changed(["tests", 0, "outcome"], "fine"), "expected one of passed, failed"),
        (changed(["tests", 0, "outcome"], "failed"), "does not go with the outcomes"),
        (changed(["exit_code"], 1), "does not go with the outcomes"),
        (changed(["seconds"], "long"), "seconds: expected"),
        (changed(["figures", 0, "value"], "fast"), "figures[0].value: expected"),
    ],
)
def test_what_no_kit_writes_is_refused(tmp_path, text, said, capsys):
    """In one line that says what was expected; nothing of it is kept."""
    (tmp_path / "gpu.json").write_text(text)
    with pytest.raises(StoreError) as refused:
        gpu_results.read_gpu_results(tmp_path / "gpu.json")
    assert said in str(refused.value)
    assert matrix.main(["merge", "--store", str(tmp_path / "store"), str(tmp_path / "gpu.json")]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "store" / "gpu").exists()


@pytest.mark.parametrize("kind", ["pipe", "kernel", "large"])
def test_what_is_no_file_of_its_size_is_not_read(tmp_path, kind, monkeypatch):
    """Nothing is waited for."""
    path = tmp_path / "gpu.json"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "kernel":
        path.symlink_to("/proc/kmsg")
    else:
        path.write_text(json.dumps(GOOD))
        monkeypatch.setattr(gpu_results, "LARGEST", 100)
    with pytest.raises(StoreError, match=r"can't be read: (not a|larger than)"):
        gpu_results.read_gpu_results(path)


def test_a_good_document_is_taken(tmp_path):
    """The one that the others differ from in one place."""
    (tmp_path / "gpu.json").write_text(json.dumps(GOOD))
    assert gpu_results.read_gpu_results(tmp_path / "gpu.json") == GOOD


@pytest.mark.parametrize("damage", ["missing", "altered", "no list"])
def test_a_kit_that_is_not_whole_is_refused(kit, tmp_path, damage):
    """Before anything of it is unpacked."""
    shutil.copytree(kit, tmp_path / "box")
    (tmp_path / "work").mkdir()
    part = tmp_path / "box" / "kit.part-001"
    if damage == "missing":
        part.unlink()
    elif damage == "altered":
        part.write_bytes(part.read_bytes()[:-1] + b"x")
    else:
        (tmp_path / "box" / "parts.json").write_text("{}")
    with pytest.raises(run_kit.KitError, match=r"is missing|copy it again|no list of parts"):
        run_kit.joined(tmp_path / "box", tmp_path / "work")
    assert not (tmp_path / "work" / "source").exists()


def test_what_a_kit_says_of_its_machine_does_nothing_and_tells_no_secret(tmp_path, capsys):
    """A name of a GPU with a token and a terminal's command in it, as merge prints it."""
    token = f"hf_{'aB3' * 11}x"
    (tmp_path / "gpu.json").write_text(
        changed(["machine", "seen"], [f"H100 {token}\x1b]0;x\x07\n::error::no"])
    )
    assert matrix.main(["merge", "--store", str(tmp_path / "store"), str(tmp_path / "gpu.json")]) == 0
    said = "".join(capsys.readouterr())
    assert "H100" in said
    assert token not in said
    assert not {"\x1b", "\x07"} & set(said)
    assert "\n::error" not in said
