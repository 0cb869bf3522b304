"""Build an API index of two small packages with three and two releases, from wheels of a fake package index."""

from __future__ import annotations

import io
import re
import tarfile
import textwrap

import httpx
import pytest

from diagnostics.api_index import build, query, store
from diagnostics.api_index.packages import IndexedPackage
from diagnostics.commands import version_answers
from tests.case_files import read_cases
from tests.wheels import make_wheel

SOURCES = read_cases(__file__, "packages.yaml")
ENGINE, TRAINER, TRAINER_2 = SOURCES["engine"], SOURCES["trainer"], SOURCES["trainer_2"]
# 0.2 is without `device`, 0.3 without the module `ports`.
ENGINE_2 = ENGINE | {"vllm/llm.py": ENGINE["vllm/llm.py"].replace(", device=None", "")}
ENGINE_3 = {name: text for name, text in ENGINE_2.items() if name != "vllm/ports.py"} | {
    "vllm/extra.py": "def helper(a, b=1): ...\n"
}
RELEASES = {
    "vllm": {
        "0.1": (ENGINE, []),
        "0.2": (ENGINE_2, ["torch==2.1"]),
        "0.3": (ENGINE_3, ["torch==2.2", "numpy"]),
    },
    "trl": {
        "1.0": (TRAINER, ['vllm<0.3,>=0.1; extra == "vllm"']),
        "1.1": (TRAINER_2, ["vllm>=0.3", "torch>=2.2", "numpy"]),
    },
}
PACKAGES = {
    "vllm": IndexedPackage("vllm", ("vllm",), since_day="2024-01-01"),
    "trl": IndexedPackage("trl", ("trl",), since_day="2024-01-01", uses=("vllm",)),
}


_CACHED = (
    store._load, query.surface_of, query._exists, query.requirements_of, query.uses_of, query.companions_of,
)  # fmt: skip


def make_sdist(package, version, files, requires):
    """Return the bytes of an sdist, whose requirements are in its egg-info."""
    stream = io.BytesIO()
    files = files | {
        "PKG-INFO": f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n",
        f"{package}.egg-info/requires.txt": "\n".join(requires),
    }
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for name, text in files.items():
            data = textwrap.dedent(text).encode()
            member = tarfile.TarInfo(f"{package}-{version}/{name}")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return stream.getvalue()


class FakeIndex:
    """A package index that serves wheels, whole or by HTTP range requests."""

    def __init__(self, releases, *, sdists=False, **sizes):
        make, ending = (make_sdist, ".tar.gz") if sdists else (make_wheel, "-py3-none-any.whl")
        self.wheels = {
            f"{package}-{version}{ending}": make(package, version, *content)
            for package, versions in releases.items()
            for version, content in versions.items()
        }
        self.requests = []
        self.sizes = sizes

    def client(self):
        """Return an HTTP client whose requests end here."""
        return httpx.Client(transport=httpx.MockTransport(self.answer))

    def answer(self, request):
        """Return the response to one request: a page of the index, a file, or a range of a file."""
        name = request.url.path.rstrip("/").rpartition("/")[2]
        self.requests.append(name)
        if name not in self.wheels:
            return httpx.Response(
                200, json={"files": [self.entry(item) for item in self.wheels if item.startswith(f"{name}-")]}
            )
        data = self.wheels[name]
        match = re.fullmatch(r"bytes=(\d+)-(\d+)", request.headers.get("range", ""))
        return (
            httpx.Response(206, content=data[int(match[1]) : int(match[2]) + 1])
            if match
            else httpx.Response(200, content=data)
        )

    def entry(self, name):
        """Return the entry of a file in the index's page."""
        size = self.sizes.get("size") or len(self.wheels[name])
        return {
            "filename": name,
            "url": f"https://files.test/{name}",
            "size": size,
            "upload-time": "2025-01-01T00:00:00Z",
        }


def clear_cache():
    """Clear everything that is cached from an index."""
    for function in _CACHED:
        function.cache_clear()


@pytest.fixture(scope="session")
def index_folder(tmp_path_factory):
    """Build the API index of both packages; return its folder."""
    folder = tmp_path_factory.mktemp("api")
    with FakeIndex(RELEASES).client() as client:
        for name, package in PACKAGES.items():
            cache = build.Cache(name, folder / "cache")
            list(build.fetch(client, package, cache))
            build.pack(package, cache, folder)
    return folder


@pytest.fixture
def index(index_folder, monkeypatch):
    """Replace the shipped index by the small one, and disable uv."""
    monkeypatch.setattr(store, "FOLDER", index_folder)
    monkeypatch.setattr(
        version_answers, "resolve", lambda _releases: version_answers.Resolution(None, "offline")
    )
    clear_cache()
    yield store
    clear_cache()


@pytest.fixture
def make_index(tmp_path, monkeypatch):
    """A function that puts an index of vLLM in place of the shipped one: each argument has the files of a release."""

    def make(*releases):
        contents = {f"0.{number}": (files, []) for number, files in enumerate(releases, 1)}
        cache = build.Cache("vllm", tmp_path / "cache")
        with FakeIndex({"vllm": contents}).client() as client:
            list(build.fetch(client, PACKAGES["vllm"], cache))
        build.pack(PACKAGES["vllm"], cache, tmp_path)
        monkeypatch.setattr(store, "FOLDER", tmp_path)
        clear_cache()

    yield make
    clear_cache()
