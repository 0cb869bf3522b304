"""The API index is built, looks names up, compares releases and explains import errors; hostile archives are refused.

Most tests use an index of two small packages, the others the index in the wheel.
"""

from __future__ import annotations

import gzip
import io
import json
import struct
import sys
import tarfile
import tracemalloc
import zipfile
from dataclasses import replace
from types import SimpleNamespace

import httpx
import msgspec
import pytest
from click.testing import CliRunner
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from diagnostics import UserError, uv
from diagnostics.api_index import __main__ as api_index_command
from diagnostics.api_index import build, options, query, store
from diagnostics.api_index.compare import Comparison, MissingUse
from diagnostics.api_index.explain import explain_missing
from diagnostics.api_index.packages import IndexedPackage
from diagnostics.api_index.query import Release
from diagnostics.api_index.surface import SourceFacts, Surface
from diagnostics.api_index.uses import Use, collect_uses
from diagnostics.collect import python_environment
from diagnostics.commands import version_answers, versions
from diagnostics.compat_table import Compat
from diagnostics.doctor.checks import missing_names
from diagnostics.doctor.checks.registry import CheckInput
from diagnostics.triage import command as triage
from tests.api_index.conftest import ENGINE, PACKAGES, RELEASES, FakeIndex, clear_cache, make_sdist
from tests.case_files import each_case, read_cases
from tests.diagnostics.fake_environments import EnvironmentBuilder

OLD, NEW = Release("trl", "1.0"), Release("trl", "1.1")
ERRORS = read_cases(__file__, "explained_errors.yaml")
QUESTIONS = read_cases(__file__, "index_questions.yaml")


def test_name_lookup_returns_releases(index):
    """An unchanged name has one entry, a changed one an entry per range of releases; a removed module is gone."""
    vllm = index.load("vllm")
    assert vllm.releases == ["0.1", "0.2", "0.3"]
    surfaces = [query.surface_of(Release("vllm", version)) for version in vllm.releases]
    assert [surface.has_module("vllm.ports") for surface in surfaces] == [True, True, False]
    assert vllm.packed("vllm.llm")["LLM.generate"] == "def (self, prompts)"
    assert set(vllm.packed("vllm.llm")["LLM.__init__"]) == {"0-0", "1-"}
    assert vllm.metadata("requires", 1) == ["torch==2.1"]
    assert (vllm.number("0.2+cu129"), vllm.number("9")) == (1, None)


def test_star_imports_are_resolved_by_all(index):
    """`from x import *` brings the names of `__all__`, and no others."""
    surface = query.surface_of(Release("vllm", "0.1"))
    assert surface.find("vllm", "SamplingParams").module == "vllm.sampling"
    assert surface.find("vllm", "Hidden") is None


LAZY_MODELS = {
    "vllm/__init__.py": (
        "structure = define_import_structure(Path(__file__).parent / 'models', prefix='models')\n"
        "sys.modules[__name__] = _LazyModule(__name__, __file__, structure)\n"
    ),
    "vllm/models/qwen/modeling_qwen.py": '__all__ = [\n    "Qwen",\n]\nclass Qwen: ...\nclass Hidden: ...\n',
    "vllm/models/qwen/modular_qwen.py": '__all__ = ["Source"]\nclass Source: ...\n',
}


def test_names_that_transformers_collects_at_import_are_found(make_index):
    """`define_import_structure` brings the names of `__all__` in each file of a folder, except modular files."""
    make_index(LAZY_MODELS, LAZY_MODELS)
    surface = query.surface_of(Release("vllm", "0.1"))
    assert surface.find("vllm", "Qwen").module == "vllm.models.qwen.modeling_qwen"
    assert (surface.find("vllm", "Hidden"), surface.find("vllm", "Source")) == (None, None)


def test_names_collected_at_import_are_unknown_in_a_wheel():
    """Without the index, the files below the folder are not read, so any name may exist."""
    source = SimpleNamespace(names=lambda: frozenset(LAZY_MODELS), read=LAZY_MODELS.get)
    assert Surface(SourceFacts(source), "vllm").find("vllm", "Qwen").kind == "dynamic"


def test_name_imported_from_a_module_that_is_not_read_is_unknown(make_index):
    """The package itself imports the name, so it is not reported as missing."""
    files = {"vllm/__init__.py": "from vllm.unread import Cache\n"}
    make_index(files, files)
    assert query.surface_of(Release("vllm", "0.1")).find("vllm", "Cache").kind == "dynamic"


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("Qwen3ForCausalLM", "4.51.0"),
        ("Qwen2_5OmniForConditionalGeneration", "4.52.1"),
        ("SmolLM3ForCausalLM", "4.53.0"),
        ("Glm4vForConditionalGeneration", "4.53.0"),
    ],
)
def test_first_release_of_a_lazily_exported_model(name, first):
    """In the shipped index, every release from the first one on has the class."""
    found, missing, undecided = query.releases_with("transformers", Use("name", "transformers", name))
    assert found[0] == first
    assert Version(missing[-1]) < Version(first)
    assert not undecided


@pytest.mark.parametrize(
    ("option", "accepted"),
    [
        ("dtype", ("auto", "half")),
        ("executor", ("ray", "mp")),
        ("device", ()),
        ("tokens", ()),
        ("nothere", ()),
    ],
)
def test_choices_come_from_literal_types(index, option, accepted):
    """Choices are read from optional and aliased Literal types; a type that accepts any text has none."""
    assert options.choices(Release("vllm", "0.2"), option) == accepted


def test_second_build_fetches_nothing(tmp_path):
    """Each release fetches only its new files, and a second build only the index page."""
    index, cache = FakeIndex(RELEASES), build.Cache("vllm", tmp_path)
    with index.client() as client:
        lines = list(build.fetch(client, PACKAGES["vllm"], cache))
        assert [line.rpartition(": ")[2] for line in lines] == [
            "5 files, 5 of them new",
            "5 files, 1 of them new",
            "5 files, 1 of them new",
        ]
        index.requests.clear()
        assert list(build.fetch(client, PACKAGES["vllm"], cache)) == []
        assert index.requests == ["vllm"]


def test_large_wheel_is_read_by_range_requests(tmp_path):
    index, cache = FakeIndex(RELEASES), build.Cache("vllm", tmp_path)
    big = max(map(len, index.wheels.values()))
    build.archives._SMALL, before = big - 1, build.archives._SMALL
    try:
        with index.client() as client:
            assert len(list(build.fetch(client, PACKAGES["vllm"], cache))) == 3
    finally:
        build.archives._SMALL = before
    assert cache.releases().keys() == {"0.1", "0.2", "0.3"}


def test_an_sdist_is_read_like_a_wheel(tmp_path):
    """A package without wheels, like DeepSpeed, is read from its sdist."""
    cache = build.Cache("vllm", tmp_path)
    with FakeIndex(
        {"vllm": {"0.2": (ENGINE, ["torch==2.1", "[audio]", "x"])}}, sdists=True
    ).client() as client:
        (line,) = build.fetch(client, PACKAGES["vllm"], cache)
    record = cache.releases()["0.2"]
    assert line == "vllm 0.2: 5 files, 5 of them new"
    assert record["requires"] == ["torch==2.1", 'x; extra == "audio"']
    assert "class LLM" in cache.source(record["files"]["vllm/llm.py"])


@pytest.mark.parametrize("sdists", [False, True])
def test_release_that_unpacks_to_too_much_is_not_read(tmp_path, monkeypatch, sdists):
    """A hundred kilobytes can unpack to gigabytes."""
    monkeypatch.setattr(build.archives, "_LARGEST_INDEXED", 1000)
    cache, files = build.Cache("vllm", tmp_path), {"vllm/a.py": "x = 1\n" * 100, "vllm/b.py": "y = 1\n" * 100}
    with FakeIndex({"vllm": {"0.2": (files, [])}}, sdists=sdists).client() as client:
        (line,) = build.fetch(client, PACKAGES["vllm"], cache)
    assert "not read: ValueError" in line
    assert "unpack to more than 1000 bytes" in line
    assert cache.releases() == {}


def test_sdist_that_unpacks_to_a_thousand_times_its_size_takes_bounded_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(build.archives, "_LARGEST_INDEXED", 4_000_000)
    index, cache = FakeIndex({}), build.Cache("vllm", tmp_path)
    index.wheels["vllm-1.tar.gz"] = make_sdist(
        "vllm", "1", {f"vllm/m{number}.py": "#" * 2_000_000 for number in range(40)}, []
    )
    assert len(index.wheels["vllm-1.tar.gz"]) < 100_000
    tracemalloc.start()
    with index.client() as client:
        (line,) = build.fetch(client, PACKAGES["vllm"], cache)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert "unpack to more than 4000000 bytes" in line
    assert most < 15_000_000


@pytest.mark.parametrize("sdists", [False, True])
def test_file_that_is_too_large_is_named(tmp_path, monkeypatch, sdists):
    monkeypatch.setattr(build.archives, "_LARGEST_MEMBER", 1000)
    files = {"vllm/a.py": "x = 1\n", "vllm/big.py": "y = 1\n" * 1000}
    cache = build.Cache("vllm", tmp_path)
    with FakeIndex({"vllm": {"0.2": (files, [])}}, sdists=sdists).client() as client:
        (line,) = build.fetch(client, PACKAGES["vllm"], cache)
    assert line == "vllm 0.2: 1 files, 1 of them new; too large to read: vllm/big.py"


def test_unreadable_package_does_not_end_the_build(tmp_path, monkeypatch):
    """The next package is built, the file of the unreadable one stays, and the command reports it."""
    index = FakeIndex(RELEASES)
    for name, value in {"CACHE": tmp_path / "cache", "PACKAGES": PACKAGES}.items():
        monkeypatch.setattr(build, name, value)
    monkeypatch.setattr(store, "FOLDER", tmp_path)
    monkeypatch.setattr(build.archives, "connect", index.client)
    listed = build.archives._listed_files

    def answer(client, package, environ):
        if package == "vllm":
            raise UserError("the index cannot be read for vllm: ReadTimeout")
        return listed(client, package, environ)

    monkeypatch.setattr(build.archives, "_listed_files", answer)
    lines = list(build.build(["vllm", "trl"]))
    assert lines[0] == "vllm: not built: UserError: the index cannot be read for vllm: ReadTimeout"
    assert lines[-1].startswith("trl.zip: ")
    assert not (tmp_path / "vllm.zip").exists()


def test_compiled_module_may_define_any_name(make_index):
    """Its own names are neither known nor missing; a package has the names that it imports from there."""
    files = {
        "vllm/__init__.py": "from vllm.core import fast\n",
        "vllm/core.cpython-311-x86_64-linux-gnu.so": "",
    }
    make_index(files)
    assert query.releases_with("vllm", Use("name", "vllm.core", "other"))[2] == ["0.1"]
    assert query.releases_with("vllm", Use("name", "vllm", "fast"))[0] == ["0.1"]
    assert query.releases_with("vllm", Use("name", "vllm", "slow"))[1] == ["0.1"]


def hostile_sdist(kind, size, padding=b""):
    """Return an sdist with one header of a kind that claims a size, followed by padding."""
    member = tarfile.TarInfo("a/vllm/a.py")
    member.type = kind
    header = bytearray(member.tobuf(tarfile.GNU_FORMAT))
    header[124:136] = (b"\xff" if size < 0 else b"\x80") + size.to_bytes(11, "big", signed=True)
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return gzip.compress(bytes(header) + padding)


def hostile_wheel(method):
    """Return a wheel with a member of 100 MB that declares 1000 bytes."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method) as archive:
        archive.writestr("vllm/a.py", bytes(100_000_000))
    data = bytearray(stream.getvalue())
    struct.pack_into("<I", data, data.rindex(b"PK\1\2") + 24, 1000)
    return bytes(data)


@pytest.mark.parametrize(
    ("name", "make", "reason"),
    [
        ("vllm-1.tar.gz", lambda: hostile_sdist(b"0", -1024), "one of -1024 bytes"),
        ("vllm-1.tar.gz", lambda: hostile_sdist(b"x", 1 << 40), "claims 1099511627776 bytes"),
        ("vllm-1.tar.gz", lambda: hostile_sdist(b"0", 1 << 40), "one of 1099511627776 bytes"),
        ("vllm-1.tar.gz", lambda: gzip.compress(b"x" * 3000), "ReadError"),
        ("vllm-1-py3-none-any.whl", lambda: hostile_wheel(zipfile.ZIP_DEFLATED), "BadZipFile: Bad CRC-32"),
        ("vllm-1-py3-none-any.whl", lambda: hostile_wheel(zipfile.ZIP_BZIP2), "wheels do not use"),
        ("vllm-1-py3-none-any.whl", lambda: b"no zip", "BadZipFile"),
    ],
)
def test_hostile_archive_is_not_read(tmp_path, name, make, reason):
    """A small archive takes neither endless time nor gigabytes of memory, and ends in one line."""
    index, cache = FakeIndex({}), build.Cache("vllm", tmp_path)
    index.wheels[name] = make()
    tracemalloc.start()
    with index.client() as client:
        (line,) = build.fetch(client, PACKAGES["vllm"], cache)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert reason in line
    assert most < 10_000_000
    assert cache.releases() == {}


@pytest.mark.parametrize(
    "answer",
    [b"[1]", b"{", b'{"files": [1]}', b'{"files": [{"filename": 1}]}', b'{"files": [{"filename": "x", "url": []}]}',
     b'{"files": [{"filename": "vllm-1.tar.gz", "url": "u", "size": "x"}]}'],
)  # fmt: skip
def test_broken_listing_is_a_user_error(answer):
    client = httpx.Client(transport=httpx.MockTransport(lambda _: httpx.Response(200, content=answer)))
    with pytest.raises(UserError, match="the index cannot be read for vllm"):
        build.archives.list_releases(client, "vllm", environ={})


def test_hash_that_is_a_path_is_dropped():
    """The matrix caches a wheel in a folder that has the name of the wheel's hash."""
    entry = {"filename": "vllm-1.tar.gz", "url": "u", "hashes": {"sha256": "../../evil"}}
    answer = httpx.Response(200, json={"files": [entry]})
    client = httpx.Client(transport=httpx.MockTransport(lambda _: answer))
    (release,) = build.archives.list_releases(client, "vllm", environ={})
    assert release.sha256 == ""


def test_metadata_that_unpacks_to_too_much_is_not_read(tmp_path, monkeypatch):
    """The release counts as one without requirements."""
    monkeypatch.setattr(build.archives, "_LARGEST_MEMBER", 1000)
    cache = build.Cache("vllm", tmp_path)
    requirements = [f"package{number}>=1" for number in range(100)]
    with FakeIndex({"vllm": {"0.2": ({"vllm/a.py": "x = 1\n"}, requirements)}}).client() as client:
        list(build.fetch(client, PACKAGES["vllm"], cache))
    assert cache.releases()["0.2"]["requires"] == []


@pytest.mark.parametrize(
    "text", ["-" * 1_000_000 + "1", "(" * 100_000, "x = 1\0"], ids=["minus", "brackets", "null"]
)
def test_source_that_cannot_be_parsed_may_define_any_name(text):
    """Python's parser raises MemoryError for a million minus signs."""
    package = PACKAGES["vllm"]
    assert build.extract_file(package, "vllm/a.py", text) == {"__getattr__": "dynamic *"}
    assert (
        build.extract_uses(
            msgspec.structs.replace(package, uses=("trl",)), "vllm/a.py", f"import trl\n{text}"
        )
        == {}
    )


@pytest.mark.parametrize(
    ("user", "provider", "at_import", "when_called"),
    [
        (OLD, "0.1", [], []),
        (OLD, "0.2", [], ["vllm.LLM(device=)"]),
        (OLD, "0.3", ["vllm.ports.get_open_port"], ["vllm.LLM(device=)"]),
        (NEW, "0.2", [], ["vllm.extra.helper"]),
        (NEW, "0.3", [], []),
    ],
)
def test_missing_names_by_release_and_time(index, user, provider, at_import, when_called):
    """A name that no release has is not reported; a name with an alternative is not missing."""
    pair = query.compatibility(user, Release("vllm", provider))
    assert [item.use.text for item in pair.at_import] == at_import
    assert [item.use.text for item in pair.when_called] == when_called


def test_requirements_can_exclude_a_pair(index):
    """A declared range excludes a pair, and contradicting pins of a third package are a conflict."""
    assert query.compatibility(OLD, Release("vllm", "0.3")).allowed is False
    assert query.compatibility(OLD, Release("vllm", "0.2")).allowed is True
    assert query.compatibility(NEW, Release("vllm", "0.2")).conflicts == (
        "trl 1.1 requires torch>=2.2, vllm 0.2 requires torch==2.1",
    )


def run_versions(*arguments):
    """Run `versions`; return exit code, output and exception."""
    result = CliRunner().invoke(versions.command, arguments, standalone_mode=False)
    return result.return_value, result.output, result.exception


@each_case(QUESTIONS["fitting"])
def test_versions_recommends_a_fitting_release(index, question, code, install):
    """Fitting releases are recommended with exit code 0; two releases that do not fit exit with 1."""
    result, output, _error = run_versions(*question)
    assert result == code
    assert set(install.split()) <= set(output.split())
    assert ("pip install" in output) is bool(install)


@pytest.mark.parametrize(
    ("installed", "code", "line"),
    [
        ({"trl": "1.1", "vllm": "0.3"}, 0, "1 of 1 pairs of installed packages fit"),
        ({"trl": "1.0", "vllm": "0.3"}, 1, "✘ trl 1.0 with vllm 0.3: not declared"),
        ({"vllm": "0.3"}, 3, "0 of 0 pairs"),
        ({"trl": "1.0", "vllm": "0.2"}, 0, "missing when called: vllm.LLM(device=)"),
    ],
)
def test_installed_packages_are_checked_against_each_other(index, tmp_path, installed, code, line):
    """Installed packages are compared in pairs by their metadata; the JSON document has the pairs."""
    maker = EnvironmentBuilder(tmp_path / "env")
    for name, version in installed.items():
        maker.add(name, version)
    python = str(maker.prefix / "bin" / "python")
    result, output, _error = run_versions("--python", python)
    assert (result, line in " ".join(output.split())) == (code, True)
    document = json.loads(run_versions("--python", python, "--format", "json")[1])
    assert [pair["fits"] for pair in document["pairs"]] == [not code] * (len(installed) - 1)


def test_environment_without_indexed_packages_is_refused(index, tmp_path):
    """An environment without indexed packages is refused, and so are packages together with --python."""
    python = str(EnvironmentBuilder(tmp_path / "env").add("vllm", "7").prefix / "bin" / "python")
    assert "no package with a release in the index" in str(run_versions("--python", python)[2])
    assert "name no packages" in str(run_versions("vllm", "--python", python)[2])


@pytest.mark.parametrize(
    ("script", "resolves", "text"),
    [
        ("echo a==1; echo b==2", True, "2 packages, Python 3."),
        ("echo 'error: No solution found: Because a' >&2; exit 1", False, "No solution found: Because a"),
        ("echo 'error: Failed to fetch' >&2; exit 2", None, "Failed to fetch"),
        ("sleep 30", None, "no answer of the index within"),
    ],
)
def test_install_command_is_resolved_from_wheels(tmp_path, monkeypatch, script, resolves, text):
    """uv resolves the command for this Python from wheels only; an error or no answer gives an unknown result."""
    program = tmp_path / "uv"
    program.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/arguments\ncat > {tmp_path}/input\n{script}\n')
    program.chmod(0o755)
    monkeypatch.setattr(uv, "find_uv", lambda: program)
    monkeypatch.setattr(version_answers, "_RESOLVE_LIMIT_S", 1)
    resolution = version_answers.resolve([NEW])
    assert (resolution.resolves, text in resolution.text) == (resolves, True)
    arguments = (tmp_path / "arguments").read_text()
    assert "--only-binary :all:" in arguments
    assert f"--python {sys.executable}" in arguments
    assert (tmp_path / "input").read_text() == "trl==1.1\n"


def test_missing_uv_leaves_the_command_unresolved(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nothere/python")
    monkeypatch.setitem(sys.modules, "uv", None)
    monkeypatch.setenv("PATH", "/nothere")
    assert version_answers.resolve([NEW]) == version_answers.Resolution(None, "uv is not installed")


def test_versions_json(index):
    """The JSON document has the locations of the missing names."""
    result, output, _error = run_versions("trl==1.0", "vllm==0.3", "--format", "json")
    document = json.loads(output)
    assert (result, document["schema"], document["take"]) == (1, "grpo-doctor.versions-answer.v1", {})
    assert document["pairs"][0]["missing"][0] == {
        "name": "vllm.ports.get_open_port",
        "why": "no module vllm.ports",
        "at": "trl/trainer.py:2",
        "moment": "import",
    }


@pytest.mark.parametrize(
    ("version", "releases"),
    [
        ("0.8.5", ["0.8.5"]),
        ("v0.8.5+cu121", ["0.8.5"]),
        ("0.8", ["0.8.5.post1", "0.8.5"]),
        ("0.9rc1", []),
        ("", ["0.10", "0.8.5.post1", "0.8.5"]),
    ],
)
def test_version_text_selects_releases(monkeypatch, version, releases):
    """A release selects itself, without its local suffix; a shorter text selects a series."""
    monkeypatch.setattr(
        store, "load", lambda _package: SimpleNamespace(releases=["0.8.5", "0.8.5.post1", "0.10"])
    )
    assert query.find_releases("vllm", version) == releases


def test_optional_imports_are_not_missing(tmp_path, monkeypatch):
    """Names imported in a `try`, and names of modules for other hardware, are not missing."""
    trainer = """
        try:
            from peft import Gone
        except ImportError:
            Gone = None
        from peft.npu_flash import pad
        from peft.inputs import parse
    """
    full = {
        "peft/__init__.py": "class Gone: ...",
        "peft/npu_flash.py": "pad = 1",
        "peft/inputs.py": "parse = 1",
    }
    releases = {
        "peft": {"1": (full, []), "2": ({"peft/__init__.py": ""}, [])},
        "trl": {"1": ({"trl/a.py": trainer}, [])},
    }
    with FakeIndex(releases).client() as client:
        for name, uses in (("peft", ()), ("trl", ("vllm", "peft"))):
            package, cache = IndexedPackage(name, (name,), uses=uses), build.Cache(name, tmp_path / "cache")
            list(build.fetch(client, package, cache))
            build.pack(package, cache, tmp_path)
    monkeypatch.setattr(store, "FOLDER", tmp_path)
    clear_cache()
    comparison = query.check(Release("trl", "1"), Release("peft", "2"))
    clear_cache()
    assert [item.use.text for item in comparison.missing] == ["peft.inputs.parse"]


def test_removed_auto_class_mapping_is_missing():
    """In the shipped index, trl 0.22.2 fails at import with transformers 5.0.0."""
    pair = query.compatibility(Release("trl", "0.22.2"), Release("transformers", "5.0.0"))
    assert "MODEL_FOR_VISION_2_SEQ_MAPPING_NAMES" in {item.use.name for item in pair.at_import}


@pytest.mark.parametrize(("plugin", "engine"), [("0.23.0.post1", "0.23.0"), ("0.11.0", "0.11.0")])
def test_a_plugin_is_for_the_engine_of_the_same_number(plugin, engine):
    """In the shipped index, vllm-ascend fits the vLLM of its own number, built without CUDA.

    It pins another torch than vLLM's CUDA build.
    """
    plugin, engine = Release("vllm-ascend", plugin), Release("vllm", engine)
    engines = [Release("vllm", item) for item in query.find_releases("vllm", "")]
    answer = query.rank_releases([plugin], engines)
    assert [pair.provider for pair in answer.pairs if not pair.contradicted] == [engine]
    command = version_answers.install_command([plugin, engine])
    assert command.startswith("env VLLM_TARGET_DEVICE=empty uv pip install --no-binary vllm ")
    assert version_answers.resolve([plugin, engine]).resolves is None


def test_files_of_one_model_do_not_fail_at_import():
    """A missing name in a model file of sglang does not fail at import, because each file is loaded in a `try`."""
    use = Use("name", "transformers", "Gone", file="sglang/srt/models/a.py")
    missing = [MissingUse(replace(use, file=file), "") for file in (use.file, "sglang/srt/server.py")]
    assert query.fail_at_import(Comparison(missing=missing)) == missing[1:]


CLASH = "ValueError: 'aimv2' is already used by a Transformers config, pick another name."


@pytest.mark.parametrize(
    ("engine", "models", "fails"),
    [("0.9.2", "4.55.0", True), ("0.9.2", "4.53.3", False), ("0.10.0", "4.55.0", False)],
)
def test_a_model_type_that_transformers_has_cannot_be_registered(tmp_path, engine, models, fails):
    """In the shipped index, vLLM 0.9 fails at import with transformers from 4.54.0 on, because both have aimv2."""
    pair = query.compatibility(Release("vllm", engine), Release("transformers", models))
    assert [item.use.text for item in pair.at_import] == ['AutoConfig.register("aimv2")'] * fails
    assert pair.contradicted is fails
    maker = EnvironmentBuilder(tmp_path / "env").add("vllm", engine).add("transformers", models)
    findings = list(
        missing_names.missing_names(CheckInput(python_environment.collect(maker.prefix, {}), {}, Compat()))
    )
    titles = [
        f'vllm {engine} calls AutoConfig.register("aimv2"), and transformers {models} has that model type itself'
    ]
    assert [finding.title for finding in findings] == titles * fails


def test_error_of_a_model_type_that_transformers_has_is_explained():
    """The explanation names the callers in the shipped index; a type that no indexed package registers has none."""
    explanation = explain_missing(CLASH, {"vllm": "0.9.2", "transformers": "4.55.0"})
    assert explanation.changes == ("transformers<=4.53.3", "vllm>=0.10.0")
    assert explanation.sentences == (
        "transformers has the model type 'aimv2' itself from 4.54.0 to 5.24.0. The installed transformers 4.55.0 is too"
        " new. vllm 0.9.0 to 0.9.2 registers it (vllm/transformers_utils/configs/ovis.py:76)."
    )
    assert explain_missing(CLASH.replace("aimv2", "mine")) is None


@pytest.mark.parametrize(
    ("statement", "registered"),
    [
        ("AutoConfig.register('a', A)", ["a"]),
        ("AutoConfig.register('a', A, exist_ok=True)", []),
        ("try: AutoConfig.register('a', A)\nexcept ValueError: pass", []),
        ("with suppress(ValueError): AutoConfig.register('a', A)", []),
        ("for name in names: AutoConfig.register(name, A)", []),
    ],
)
def test_a_registration_counts_unless_it_may_fail(statement, registered):
    """A registration counts if it has a constant name and its failure is not handled."""
    uses = collect_uses(f"from transformers import AutoConfig\n{statement}\n", "a.py", ("transformers",))
    assert [use.path[0] for use in uses if use.kind == "registered"] == registered


def test_optional_auto_class_is_not_missing():
    """In the shipped index, verl 0.9.1 fits transformers 5.9.0, because it imports the removed class in a `try`."""
    pair = query.compatibility(Release("verl", "0.9.1"), Release("transformers", "5.9.0"))
    assert not pair.contradicted


@pytest.mark.parametrize("content", [b"", b"PK junk", "cut"])
def test_damaged_index_file_is_named(index, index_folder, tmp_path, monkeypatch, content):
    """A damaged index file raises a user error that names the file."""
    whole = (index_folder / "vllm.zip").read_bytes()
    (tmp_path / "vllm.zip").write_bytes(whole[:200] if content == "cut" else content)
    monkeypatch.setattr(store, "FOLDER", tmp_path)
    error = run_versions("vllm==0.3")[2]
    assert isinstance(error, UserError)
    assert "vllm.zip: not a file of the API index" in str(error)


@each_case(QUESTIONS["unanswerable"])
def test_unanswerable_query_is_refused(index, question, message):
    """An unknown package, release or requirement, and a package named twice, are refused."""
    assert message in str(run_versions(*question)[2])


@pytest.mark.parametrize("case", ERRORS["small_index"], ids=lambda case: case["message"])
def test_import_error_is_explained(index, case):
    """The explanation has the caller, whether the installed release is too new or too old, and the release to take."""
    installed = {"vllm": case["installed"]} if case["installed"] else {}
    explanation = explain_missing(case["message"], installed)
    assert (explanation.direction, list(explanation.changes)) == (case["direction"], case["changes"])
    assert explanation.callers[0].package == "trl"


@pytest.mark.parametrize(
    ("message", "changes"),
    [
        ("LoraConfig.__init__() got an unexpected keyword argument 'eva_config", ("peft>=0.14.0",)),
        ("'GRPOConfig' object has no attribute 'num_iterations", ("trl>=0.16.0",)),
        ("LoraConfig.__init__() got an unexpected keyword argument 'eva_conf", None),
    ],
)
def test_line_that_is_cut_at_its_end(message, changes):
    """A name without its closing quote counts if a release has it; a part of a name is not reported as missing."""
    explanation = explain_missing(message)
    assert (explanation and explanation.changes) == changes


def test_class_that_another_package_replaces_does_not_decide():
    """unsloth-zoo has vLLM's class, too: without a stated vLLM release, no release and no command is concluded."""
    message = "LRUCacheWorkerLoRAManager.create_lora_manager() takes 2 positional arguments but 3 were given"
    explanation = explain_missing(message)
    assert explanation.changes == ()
    assert "unsloth-zoo has one of that name, too: not decided which" in explanation.headline
    assert explain_missing(message, {"vllm": "0.11.0"}).changes == ("vllm>=0.14.0", "vllm<=0.3.0")


def test_release_without_the_module_cannot_raise_an_error_about_a_name_in_it():
    """transformers before 4.49 has no module of Qwen2.5-VL, so a name that is missing in it was removed later."""
    module = "transformers.models.qwen2_5_vl.modeling_qwen2_5_vl"
    explanation = explain_missing(
        f"ImportError: cannot import name 'Qwen2_5_VLFlashAttention2' from '{module}'"
    )
    assert (explanation.direction, explanation.changes) == ("too new", ("transformers>=4.49.0,<=4.52.4",))


def test_subclass_of_the_same_name_leaves_the_release_decided():
    """ms-swift's GRPOTrainer extends TRL's, so that TRL's is still the one that an error without a path names."""
    explanation = explain_missing(
        "GRPOTrainer._get_train_sampler() takes 1 positional argument but 2 were given"
    )
    assert (explanation.namesake, explanation.changes) == ("", ("trl>=0.18.0",))


def test_missing_argument_is_compared_with_the_number_required_per_release():
    """The call has one argument less than the release in use requires, and as many as older releases require."""
    message = (
        "GenerationMixin._get_initial_cache_position() missing 1 required positional argument: 'model_kwargs'"
    )
    explanation = explain_missing(message)
    assert (explanation.direction, explanation.changes) == ("too new", ("transformers>=4.41.0,<=4.51.3",))
    assert "with only 2 required arguments from 4.41.0 to 4.51.3" in explanation.headline


def test_missing_argument_that_every_release_requires_is_passed(make_index):
    """The call lacks the argument, so the advice is not to remove it."""
    files = {"vllm/cache.py": "class Cache:\n    def grow(self, by): ...\n"}
    make_index(files, files)
    explanation = explain_missing(
        "TypeError: Cache.grow() missing 1 required positional argument: 'by'", {}, "vllm"
    )
    assert (explanation.changes, explanation.call_repair) == ((), "Pass it in the call")


@pytest.mark.parametrize(
    ("file", "folder"),
    [
        ("/tmp/ray/working_dir_files/pkg/datasets/__init__.py", "/tmp/ray/working_dir_files/pkg/datasets"),
        ("C:\\work\\datasets\\__init__.py", "C:/work/datasets"),
        ("/usr/lib/python3/dist-packages/datasets/__init__.py", ""),
        ("/opt/env/site-packages/datasets/__init__.py", ""),
        (".../datasets/__init__.py", ""),
    ],
)
def test_folder_that_shadows_a_package_is_named(file, folder):
    """A file outside of the folders of installed packages is another copy: no release is concluded from it."""
    explanation = explain_missing(f"ImportError: cannot import name 'Dataset' from 'datasets' ({file})")
    assert explanation.local_folder == folder
    assert explanation.headline.startswith(f"Python imports {folder}, which") is bool(folder)
    assert bool(explanation.changes) is not bool(folder)


SIZE = "TypeError: Cache.__init__() got an unexpected keyword argument 'size'"
CACHE, CACHE_2 = (f"class Cache:\n    def __init__(self{text}): ...\n" for text in ("", ", size=1"))


@pytest.mark.parametrize("case", ERRORS["class_without_module"], ids=lambda case: case["headline"])
def test_class_is_found_by_its_name(make_index, case):
    """A class that an error names without its module is found, although no other package uses the missing member."""
    make_index(*case["releases"])
    assert explain_missing(case["message"]).headline == case["headline"]


@pytest.mark.parametrize(
    ("first", "last"),
    [
        ({"vllm/cache.py": CACHE_2}, {"vllm/cache.py": CACHE_2}),
        ({"vllm/cache.py": CACHE}, {"vllm/cache.py": CACHE_2, "vllm/v1.py": CACHE}),
        ({"vllm/cache.py": CACHE}, {"vllm/cache.py": "from torch import Base\nclass Cache(Base): ...\n"}),
    ],
    ids=["all releases have it", "two classes of that name", "base class of another package"],
)
def test_ambiguous_class_is_not_explained(make_index, first, last):
    """A guess would send the user to the wrong package."""
    make_index(first, first, last)
    assert explain_missing(SIZE) is None


CALLED = "TypeError: Cache.__init__() got an unexpected keyword argument 'by'"


def test_call_inside_the_package_itself_is_a_defect(make_index):
    """If no release has an argument, it is explained for a caller in the same package, and not for any other."""
    make_index({"vllm/cache.py": CACHE}, {"vllm/cache.py": CACHE}, {"vllm/cache.py": CACHE_2})
    assert explain_missing(CALLED, {}, "trl") is None
    assert "The call is in vllm itself" in explain_missing(CALLED, {}, "vllm").headline


def test_argument_that_no_release_has_is_explained_for_an_exported_class(make_index):
    """A class at the package's top level is the one that users call, so its missing argument is no guess."""
    files = {"vllm/__init__.py": "from vllm.cache import Cache\n", "vllm/cache.py": CACHE}
    make_index(files, files, files)
    assert explain_missing(CALLED).headline == "No vllm from 0.1 to 0.3 has vllm.cache.Cache(by=)."


def test_name_of_a_module_that_decides_at_run_time_is_not_claimed(make_index):
    """A module's `__getattr__` may define any name, so the index does not say that a release has it."""
    make_index(*[{"vllm/lazy.py": "def __getattr__(name):\n    return load(name)\n"}] * 3)
    assert explain_missing("ImportError: cannot import name 'Cache' from 'vllm.lazy'") is None


@pytest.mark.parametrize("case", ERRORS["shipped_index"], ids=lambda case: case["message"])
def test_error_is_explained_by_the_shipped_index(case):
    """The side and the changes that satisfy both packages, also for an unknown release and a wrapped message."""
    explanation = explain_missing(case["message"], case["installed"], case["caller"])
    assert (explanation.direction, list(explanation.changes)) == (case["direction"], case["changes"])


@pytest.mark.parametrize(
    ("message", "advice"),
    [
        (
            "DPOTrainer.__init__() got an unexpected keyword argument 'beta'",
            "Pass it in DPOConfig, which has it",
        ),
        ("vllm: error: unrecognized arguments: -language-model-only", "Write it with two dashes."),
    ],
)
def test_argument_at_another_place_is_named(message, advice):
    """The headline says where or how the argument is accepted."""
    assert advice in explain_missing(message, {"vllm": "0.23.0"}).headline


def test_package_outside_the_index_is_named_with_its_caller():
    """For a package that is not indexed, the explanation names both packages and claims no releases."""
    explanation = explain_missing("ImportError: cannot import name 'x' from 'megatron.core'", {}, "mbridge")
    assert explanation.headline == "mbridge imports megatron.core.x, which the megatron in use does not have."
    assert not explanation.changes


def test_import_of_a_folder_without_an_init_is_no_matter_of_releases(index):
    """Python prints no path of the module, because the folder it found is no package."""
    explanation = explain_missing("ImportError: cannot import name 'LLM' from 'vllm' (unknown location)")
    assert explanation.headline == (
        "vllm.LLM is not found: Python imports a folder vllm that has no __init__.py."
    )
    assert explanation.changes == ()


def test_name_under_a_condition_does_not_decide_the_release(make_index):
    """A release without the optional package lacks the name, too."""
    files = {"vllm/__init__.py": "if find_spec('x'):\n    from vllm.extra import helper\n"}
    make_index(*[files | {"vllm/extra.py": "def helper(): ...\n"}] * 2)
    explanation = explain_missing("ImportError: cannot import name 'helper' from 'vllm'")
    assert explanation.changes == ()
    assert "It is defined under a condition" in explanation.headline
    assert explanation.import_check == "vllm.extra"


def test_newer_caller_is_recommended(index):
    """If the next release of the caller does not use the missing name, it is recommended too."""
    message = "TypeError: LLM.__init__() got an unexpected keyword argument 'device'"
    explanation = explain_missing(message, {"vllm": "0.2", "trl": "1.0"})
    assert explanation.changes == ("vllm<=0.1", "trl>=1.1")


@pytest.mark.parametrize(
    "message",
    [
        "ValueError: x",
        "ImportError: cannot import name 'a' from 'other.b'",
        "ModuleNotFoundError: No module named 'ray._private.ray_logging.filters'",
        "x" * 10**6,
    ],
)
def test_unknown_names_are_not_explained(index, message):
    assert explain_missing(message) is None


def test_shipped_index_is_small_and_valid():
    """Every file of the shipped index has the schema, and all have at most 8 MB together."""
    files = sorted(store.FOLDER.glob("*.zip"))
    assert sum(path.stat().st_size for path in files) <= 8_000_000
    assert {store.Package(path).about["schema"] for path in files} <= {store.SCHEMA}


@each_case(QUESTIONS["requirements"])
def test_requirement_conflicts(index, monkeypatch, ours, theirs, conflict):
    """Two requirements conflict only if no version satisfies both, also no version that neither names."""
    ranges = {OLD: {"x": [(SpecifierSet(ours), "")]}, NEW: {"x": [(SpecifierSet(theirs), "")]}}
    monkeypatch.setattr(query, "requirements_of", ranges.get)
    assert bool(list(query.conflicts(OLD, NEW))) is conflict


def test_doctor_reports_missing_names(index, tmp_path):
    """Doctor reports a missing name from package metadata only, with the location of the import."""
    maker = EnvironmentBuilder(tmp_path / "env").add("vllm", "0.3").add("trl", "1.0")
    case = CheckInput(python_environment.collect(maker.prefix, {}), {}, Compat())
    (finding,) = missing_names.missing_names(case)
    assert (finding.code, finding.severity.word) == ("CMP906", "warning")
    assert "vllm.ports.get_open_port" in finding.detail
    assert finding.evidence[0].place == "trl/trainer.py:2"
    maker = EnvironmentBuilder(tmp_path / "good").add("vllm", "0.3").add("trl", "1.1")
    assert (
        list(
            missing_names.missing_names(
                CheckInput(python_environment.collect(maker.prefix, {}), {}, Compat())
            )
        )
        == []
    )


def test_triage_explains_a_missing_name(index, tmp_path):
    """The explanation has the release of the log, and the change."""
    log = tmp_path / "run.log"
    log.write_text(
        "vllm==0.3\nTraceback (most recent call last):\n"
        '  File "/site-packages/trl/trainer.py", line 3, in <module>\n    from vllm.ports import get_open_port\n'
        "ModuleNotFoundError: No module named 'vllm.ports'\n"
    )
    result = CliRunner().invoke(triage.command, [str(log), "--format", "json"], standalone_mode=False)
    (finding,) = [item for item in json.loads(result.output)["findings"] if item["code"] == "CMP906"]
    assert finding["detail"].startswith(
        "vllm has vllm.ports from 0.1 to 0.2. The installed vllm 0.3 is too new."
    )
    assert "vllm<=0.2" in json.dumps(finding["remedy"])


def triage_first_finding(path, text):
    """Return the first finding of a log with this text."""
    path.write_text(text)
    result = CliRunner().invoke(triage.command, [str(path), "--format", "json"], standalone_mode=False)
    return json.loads(result.output)["findings"][0]


def test_release_of_any_indexed_package_is_read_from_the_log(tmp_path):
    finding = triage_first_finding(
        tmp_path / "run.log",
        "ImportError: cannot import name 'LocalEntryNotFoundError' from 'huggingface_hub.errors'\n"
        "- huggingface_hub version: 0.23.5\n",
    )
    assert finding["certainty"] == "established"
    assert "The installed huggingface-hub 0.23.5 is too old." in finding["detail"]


def test_index_explanation_precedes_the_general_option_issue(tmp_path):
    finding = triage_first_finding(
        tmp_path / "run.log",
        "TypeError: GRPOConfig.__init__() got an unexpected keyword argument 'top_p'\n",
    )
    assert finding["code"] == "CMP906"
    assert "trl>=0.16.0" in json.dumps(finding["remedy"])


def test_changes_lists_what_the_releases_of_a_period_removed():
    """`changes` compares new releases with the other packages' releases of that time, and reads only the index."""
    arguments = ["changes", "vllm", "--since", "2025-09-20", "--until", "2025-10-06"]
    lines = CliRunner().invoke(api_index_command.command, arguments).output.splitlines()
    assert len(lines) == 3
    assert all(line.startswith("vllm 0.11.0 removed vllm.") for line in lines)
    assert "which trl 0.23.1 takes (trl/scripts/vllm_serve.py:539)" in lines[1]


def test_stubs_show_the_names_of_a_compiled_module(tmp_path, monkeypatch):
    """The top-level package has the names in the stub, and no others."""
    files = {
        "vllm/__init__.py": "from vllm._C import *\nfor x in dir(_C):\n    globals()[x] = 1\n",
        "vllm/_C/__init__.pyi": "from typing import Any\nfloat8: dtype = ...\n",
        "vllm/_C.cpython-311-x86_64-linux-gnu.so": "",
    }
    package = IndexedPackage("vllm", ("vllm",), stubs=("vllm/_C/__init__.pyi",))
    cache = build.Cache("vllm", tmp_path / "cache")
    with FakeIndex({"vllm": {"0.1": (files, [])}}).client() as client:
        list(build.fetch(client, package, cache))
    build.pack(package, cache, tmp_path)
    monkeypatch.setattr(store, "FOLDER", tmp_path)
    clear_cache()
    try:
        found, missing, undecided = zip(
            *(query.releases_with("vllm", Use("name", "vllm", name)) for name in ("float8", "Any")),
            strict=True,
        )
        assert (found, missing, undecided) == ((["0.1"], []), ([], ["0.1"]), ([], []))
        assert query.releases_with("vllm", Use("name", "vllm._C", "float8"))[2] == ["0.1"]
    finally:
        clear_cache()
