"""What is installed is found by its metadata's names, and is what `importlib.metadata` says."""

import re
import sys
from importlib import metadata

import pytest
from packaging.version import InvalidVersion, Version

from diagnostics.lint import versions


def by_metadata(name):
    try:
        return Version(metadata.version(name))
    except (metadata.PackageNotFoundError, InvalidVersion, TypeError):
        return None


@pytest.mark.parametrize(
    ("names", "release"),
    [
        (["vllm-0.8.5.post1.dist-info/METADATA"], "0.8.5.post1"),
        (["vllm-0.8.5+cu118.dist-info/METADATA"], "0.8.5+cu118"),
        (["VLLM-0.8.5.dist-info/METADATA"], "0.8.5"),
        (["vllm-0.8.5-py3.11.egg-info/PKG-INFO"], "0.8.5"),
        (["vllm.egg-info/PKG-INFO"], "0.8.5"),
        (["vllm-0.8.5.dist-info/RECORD"], None),
        (["vllm-flash-attn-0.8.5.dist-info/METADATA"], None),
        (["vllm_flash_attn-0.8.5.dist-info/METADATA"], None),
        (["vllm/METADATA"], None),
        ([], None),
    ],
)
def test_a_release_is_what_the_metadata_says(tmp_path, monkeypatch, names, release):
    """Of wheels by the folder's name alone; eggs, leftovers and other packages of a like name, too."""
    for name in names:
        path = tmp_path / name
        path.parent.mkdir()
        path.write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {release}\n")
    monkeypatch.setattr(sys, "path", ["/nowhere", str(tmp_path)])
    assert versions._installed("vllm") == by_metadata("vllm") == (release and Version(release))


def test_the_first_on_the_path_counts(tmp_path, monkeypatch):
    """As it is the one that is imported."""
    for place, release in (("a", "1.0"), ("b", "2.0")):
        folder = tmp_path / place / f"trl-{release}.dist-info"
        folder.mkdir(parents=True)
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: trl\nVersion: {release}\n")
    for places, release in (("ab", "1.0"), ("ba", "2.0")):
        monkeypatch.setattr(sys, "path", [str(tmp_path / place) for place in places])
        assert versions._installed("trl") == by_metadata("trl") == Version(release)


def test_all_that_is_installed_here_is_found():
    """In the environment of the tests."""
    names = {re.sub("[-_.]+", "-", each.metadata["Name"]).lower() for each in metadata.distributions()}
    assert {name: versions._installed(name) for name in names} == {name: by_metadata(name) for name in names}
