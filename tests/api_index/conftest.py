"""Provide a fake package index, and fixtures that put a small API index built from it in place of the shipped one.

`api_of_files` returns the API of source files without an index.
"""

import functools
import io
import re
import tarfile
import textwrap

import httpx
import pytest

from diagnostics.api_index import build, class_lookup, query, store
from diagnostics.api_index.extract import extract
from diagnostics.api_index.packages import IndexedPackage
from diagnostics.api_index.release_api import ReleaseApi
from diagnostics.commands import version_answers
from tests.case_files import read_cases
from tests.wheels import make_wheel

SOURCES = read_cases(__file__, "packages.yaml")
ENGINE, TRAINER, TRAINER_2 = SOURCES["engine"], SOURCES["trainer"], SOURCES["trainer_2"]
# Release 0.2 lacks the argument `device`, and 0.3 lacks the module `ports`, too.
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
    query.api_of, query._exists, query.requirements_of, query.uses_of, query.companions_of,
    query.releases_with, class_lookup._find_module,
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


class MemoryFacts:
    """The facts of a package's files in memory, in place of `IndexedFacts`."""

    def __init__(self, files):
        names = {path.removesuffix(".py").removesuffix("/__init__").replace("/", "."): path for path in files}
        self._facts = {
            module: extract(files[path], module, is_package=path.endswith("/__init__.py"))
            for module, path in names.items()
        }
        self.modules, self.facts = self._facts.keys, self._facts.get

    def has_module(self, module):
        """Return whether there is a module or a folder of modules of that name."""
        return any(f"{name}.".startswith(f"{module}.") for name in self._facts)


def api_of_files(package, files):
    """Return the API (`ReleaseApi`) of a package with these files."""
    return ReleaseApi(MemoryFacts(files), package)


class FakeIndex:
    """A package index in memory that serves wheels or sdists, whole or by HTTP range requests.

    Attributes:
        archives: The content of each archive by its file name; tests may add some.
        requests: The last part of each requested URL.
    """

    def __init__(self, releases, *, sdists=False):
        make, ending = (make_sdist, ".tar.gz") if sdists else (make_wheel, "-py3-none-any.whl")
        self.archives = {
            f"{package}-{version}{ending}": make(package, version, *content)
            for package, versions in releases.items()
            for version, content in versions.items()
        }
        self.requests = []

    def client(self):
        """Return an HTTP client whose requests this index answers."""
        return httpx.Client(transport=httpx.MockTransport(self.answer))

    def answer(self, request):
        """Return the response to one request: a page of the index, a file, or a range of a file."""
        name = request.url.path.rstrip("/").rpartition("/")[2]
        self.requests.append(name)
        if name not in self.archives:
            listed = [self.entry(item) for item in self.archives if item.startswith(f"{name}-")]
            return httpx.Response(200, json={"files": listed})
        data = self.archives[name]
        if match := re.fullmatch(r"bytes=(\d+)-(\d+)", request.headers.get("range", "")):
            return httpx.Response(206, content=data[int(match[1]) : int(match[2]) + 1])
        return httpx.Response(200, content=data)

    def entry(self, name):
        """Return the entry of a file in the index's page."""
        location = {"filename": name, "url": f"https://files.test/{name}"}
        return location | {"size": len(self.archives[name]), "upload-time": "2025-01-01T00:00:00Z"}


def clear_cache():
    """Clear what `query` and `class_lookup` cached from an index; `store` caches by folder."""
    for function in _CACHED:
        function.cache_clear()


def build_index(folder, packages, releases):
    """Build the API index of these packages in a folder, from wheels of these releases; return the folder."""
    with FakeIndex(releases).client() as client:
        for name, package in packages.items():
            cache = build.Cache(name, folder / "cache")
            list(build.fetch(client, package, cache))
            build.pack(package, cache, folder)
    return folder


@pytest.fixture(scope="session")
def index_folder(tmp_path_factory):
    """Build the API index of PACKAGES; return its folder."""
    return build_index(tmp_path_factory.mktemp("api"), PACKAGES, RELEASES)


@pytest.fixture
def index(index_folder, monkeypatch):
    """Put the API index of PACKAGES in place of the shipped one, and let no command run uv; yield `store`."""
    monkeypatch.setattr(store, "FOLDER", index_folder)
    offline = version_answers.Resolution(None, "offline")
    monkeypatch.setattr(version_answers, "resolve", lambda _releases: offline)
    clear_cache()
    yield store
    clear_cache()


@pytest.fixture
def install_index(tmp_path, monkeypatch):
    """Return a function that builds the API index of some packages and puts it in place of the shipped one."""

    def install(packages, releases):
        monkeypatch.setattr(store, "FOLDER", build_index(tmp_path, packages, releases))
        # The folder is written again; the shipped index, which takes seconds to read, stays in the other cache.
        monkeypatch.setattr(store, "_load", functools.cache(store._load.__wrapped__))
        clear_cache()

    yield install
    clear_cache()


@pytest.fixture
def make_index(install_index):
    """Return a function that installs an index of vLLM; each argument has the files of a release: 0.1, 0.2, …."""

    def make(*releases, package=PACKAGES["vllm"]):
        contents = {f"0.{number}": (files, []) for number, files in enumerate(releases, 1)}
        install_index({"vllm": package}, {"vllm": contents})

    return make
