"""The index of two small packages: building, looking up, comparing, explaining."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from packaging.specifiers import SpecifierSet

from diagnostics import UserError
from diagnostics.api_index import build, options, query, store
from diagnostics.api_index.explain import explain_missing
from diagnostics.api_index.packages import IndexedPackage
from diagnostics.api_index.query import Release
from diagnostics.collect import packages
from diagnostics.commands import versions
from diagnostics.compat_table import Compat
from diagnostics.doctor.checks import names
from diagnostics.doctor.checks.base import Examined
from diagnostics.triage import command as triage
from tests.api_index.conftest import PACKAGES, RELEASES, FakeIndex, forget
from tests.diagnostics.fake_environments import Maker

OLD, NEW = Release("trl", "1.0"), Release("trl", "1.1")


def test_a_name_has_its_releases(index):
    """Unchanged names are stored once; a module that went is not in later releases."""
    vllm = index.load("vllm")
    assert vllm.releases == ["0.1", "0.2", "0.3"]
    assert ["vllm.ports" in vllm.modules(number) for number in range(3)] == [True, True, False]
    assert vllm.packed("vllm.llm")["LLM.generate"] == "def (self, prompts)"
    assert set(vllm.packed("vllm.llm")["LLM.__init__"]) == {"0-0", "1-"}
    assert vllm.metadata("requires", 1) == ["torch==2.1"]
    assert (vllm.number("0.2+cu129"), vllm.number("9")) == (1, None)


def test_star_imports_are_resolved_by_all(index):
    """`from x import *` brings the names of `__all__`, and no others."""
    surface = query.surface_of(Release("vllm", "0.1"))
    assert surface.find("vllm", "SamplingParams").module == "vllm.sampling"
    assert surface.find("vllm", "Hidden") is None


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
def test_choices_are_those_of_the_types(index, option, accepted):
    """Optional ones and named ones, too; a type that accepts any text has none."""
    assert options.choices(Release("vllm", "0.2"), option) == accepted


def test_a_second_build_fetches_nothing(tmp_path):
    """And a new release costs only its own files."""
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


def test_a_large_wheel_is_read_by_ranges(tmp_path):
    """Only blocks are asked for."""
    index, cache = FakeIndex(RELEASES), build.Cache("vllm", tmp_path)
    big = max(map(len, index.wheels.values()))
    build.archives._SMALL, before = big - 1, build.archives._SMALL
    try:
        with index.client() as client:
            assert len(list(build.fetch(client, PACKAGES["vllm"], cache))) == 3
    finally:
        build.archives._SMALL = before
    assert cache.releases().keys() == {"0.1", "0.2", "0.3"}


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
def test_missing_names_by_release_and_moment(index, user, provider, at_import, when_called):
    """A name that no release has counts for none; one with an alternative is not missing."""
    pair = query.compatibility(user, Release("vllm", provider))
    assert [item.use.text for item in pair.at_import] == at_import
    assert [item.use.text for item in pair.when_called] == when_called


def test_requirements_decide_too(index):
    """Ranges of an extra count; pins of a third package that exclude each other are a conflict."""
    assert query.compatibility(OLD, Release("vllm", "0.3")).allowed is False
    assert query.compatibility(OLD, Release("vllm", "0.2")).allowed is True
    assert query.compatibility(NEW, Release("vllm", "0.2")).conflicts == (
        "trl 1.1 requires torch>=2.2, vllm 0.2 requires torch==2.1",
    )


def run(*arguments):
    """Run `versions`; return exit code and output."""
    result = CliRunner().invoke(versions.command, arguments, standalone_mode=False)
    return result.return_value, result.output, result.exception


@pytest.mark.parametrize(
    ("question", "code", "install"),
    [
        (["trl==1.1"], 0, "uv pip install trl==1.1 vllm==0.3"),
        (["trl==1.0", "vllm"], 0, "uv pip install trl==1.0 vllm==0.1"),
        (["vllm==0.3", "trl"], 0, "uv pip install trl==1.1 vllm==0.3"),
        (["trl==1.0", "vllm==0.3"], 1, ""),
        # Of several releases the one that fits best to what else is named; the newest if nothing is.
        (["trl==1", "vllm==0.2"], 0, "uv pip install trl==1.0 vllm==0.2"),
        (["vllm", "trl"], 0, "uv pip install vllm==0.3 trl==1.1"),
    ],
)
def test_versions_answers_a_question(index, question, code, install):
    """Which release for which; two releases that do not fit are a finding, and never recommended."""
    result, output, _error = run(*question)
    assert result == code
    assert set(install.split()) <= set(output.split())
    assert ("pip install" in output) is bool(install)


def test_versions_has_a_document(index):
    """For programs, with the places of the missing names."""
    result, output, _error = run("trl==1.0", "vllm==0.3", "--format", "json")
    document = json.loads(output)
    assert (result, document["schema"], document["take"]) == (1, "grpo-doctor.versions-answer.v1", {})
    assert document["pairs"][0]["missing"][0] == {
        "name": "vllm.ports.get_open_port",
        "why": "no module vllm.ports",
        "at": "trl/trainer.py:3",
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
def test_a_text_names_releases(monkeypatch, version, releases):
    """A release is itself only, without its local suffix; a shorter text is a line of releases."""
    monkeypatch.setattr(
        store, "load", lambda _package: SimpleNamespace(releases=["0.8.5", "0.8.5.post1", "0.10"])
    )
    assert query.find_releases("vllm", version) == releases


def test_optional_imports_and_other_hardware_are_not_missing(tmp_path, monkeypatch):
    """A `try` whose handler takes nothing is an alternative for every package; `inputs` is not `npu`."""
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
    forget()
    comparison = query.check(Release("trl", "1"), Release("peft", "2"))
    forget()
    assert [item.use.text for item in comparison.missing] == ["peft.inputs.parse"]


def test_a_removed_mapping_of_auto_classes_is_missing():
    """In the shipped index: trl 0.22.2 fails at import with transformers 5.0.0."""
    pair = query.compatibility(Release("trl", "0.22.2"), Release("transformers", "5.0.0"))
    assert "MODEL_FOR_VISION_2_SEQ_MAPPING_NAMES" in {item.use.name for item in pair.at_import}


def test_an_optional_auto_class_is_not_missing():
    """In the shipped index: verl 0.9.1 needs a transformers that lacks it, and says so in a `try`."""
    pair = query.compatibility(Release("verl", "0.9.1"), Release("transformers", "5.9.0"))
    assert not pair.contradicted


@pytest.mark.parametrize("content", [b"", b"PK junk", "cut"])
def test_a_damaged_file_is_named(index, index_folder, tmp_path, monkeypatch, content):
    """In one line, not as a fault of the program."""
    whole = (index_folder / "vllm.zip").read_bytes()
    (tmp_path / "vllm.zip").write_bytes(whole[:200] if content == "cut" else content)
    monkeypatch.setattr(store, "FOLDER", tmp_path)
    error = run("vllm==0.3")[2]
    assert isinstance(error, UserError)
    assert "vllm.zip: not a file of the API index" in str(error)


@pytest.mark.parametrize(
    ("question", "message"),
    [
        (["nothere==1"], "nothere==1"),
        (["vllm==7"], "vllm==7"),
        (["vllm>=1"], "vllm>=1"),
        (["=="], "=="),
        (["vllm", "vllm"], "named twice"),
        (["trl==1.0", "trl==1.1"], "named twice"),
    ],
)
def test_a_question_that_cannot_be_answered_is_refused(index, question, message):
    """In one line that says what the index has; a package would be compared with itself."""
    assert message in str(run(*question)[2])


@pytest.mark.parametrize(
    ("message", "installed", "direction", "changes"),
    [
        (
            "ImportError: cannot import name 'get_open_port' from 'vllm.ports' (/x)",
            "0.3",
            "too new",
            ("vllm<=0.2",),
        ),
        ("ModuleNotFoundError: No module named 'vllm.ports'", "0.3", "too new", ("vllm<=0.2",)),
        ("ModuleNotFoundError: No module named 'vllm.extra'", "0.1", "too old", ("vllm>=0.3",)),
        (
            "TypeError: LLM.__init__() got an unexpected keyword argument 'device'",
            "0.2",
            "too new",
            ("vllm<=0.1",),
        ),
        ("AttributeError: module 'vllm.ports' has no attribute 'get_open_port'", "", "", ()),
    ],
)
def test_an_error_is_explained(index, message, installed, direction, changes):
    """Which releases have the name, which side is to change, and the nearest release."""
    explanation = explain_missing(message, {"vllm": installed} if installed else {})
    assert (explanation.direction, explanation.changes) == (direction, changes)
    assert explanation.callers[0].package == "trl"


def test_a_newer_caller_is_a_change_too(index):
    """If the installed trainer takes a name that its next release does not."""
    message = "TypeError: LLM.__init__() got an unexpected keyword argument 'device'"
    explanation = explain_missing(message, {"vllm": "0.2", "trl": "1.0"})
    assert explanation.changes == ("vllm<=0.1", "trl>=1.1")


@pytest.mark.parametrize(
    "message", ["ValueError: x", "ImportError: cannot import name 'a' from 'other.b'", "x" * 10**6]
)
def test_other_errors_are_not_explained(index, message):
    """Nothing is said about what the index does not have."""
    assert explain_missing(message) is None


def test_the_shipped_index_is_small_and_complete():
    """Every file has the schema; all are at most 8 MB together."""
    files = sorted(store.FOLDER.glob("*.zip"))
    assert sum(path.stat().st_size for path in files) <= 8_000_000
    assert {store.Package(path).about["schema"] for path in files} <= {store.SCHEMA}


@pytest.mark.parametrize(
    ("ours", "theirs", "conflict"),
    [
        (">20.0", ">=20.0", False),
        ("", "", False),
        ("<5", ">=4.56", False),
        ("<5", ">=5", True),
        ("==2.7.1", ">=2.8", True),
        ("==4.*", ">=4.2", False),
        ("!=5.0,>=4.56", "<5.1", False),
    ],
)
def test_a_conflict_is_what_no_release_can_satisfy(index, monkeypatch, ours, theirs, conflict):
    """Also between the bounds, where no requirement names a release."""
    ranges = {OLD: {"x": [(SpecifierSet(ours), "")]}, NEW: {"x": [(SpecifierSet(theirs), "")]}}
    monkeypatch.setattr(query, "requirements_of", ranges.get)
    assert bool(list(query.conflicts(OLD, NEW))) is conflict


def test_doctor_reports_names_that_the_installed_release_lacks(index, tmp_path):
    """By metadata alone, with the place in the package that takes them."""
    maker = Maker(tmp_path / "env").add("vllm", "0.3").add("trl", "1.0")
    case = Examined(packages.collect(maker.prefix, {}), {}, Compat())
    (finding,) = names.missing_names(case)
    assert (finding.code, finding.severity.word) == ("CMP906", "warning")
    assert "vllm.ports.get_open_port" in finding.detail
    assert finding.evidence[0].place == "trl/trainer.py:3"
    maker = Maker(tmp_path / "good").add("vllm", "0.3").add("trl", "1.1")
    assert list(names.missing_names(Examined(packages.collect(maker.prefix, {}), {}, Compat()))) == []


def test_triage_explains_a_missing_name(index, tmp_path):
    """With the release that the log reports, and the change."""
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
