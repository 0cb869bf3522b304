"""The API index has each release's names and requirements; `versions` and doctor report which releases fit together.

`versions` recommends releases; doctor reports names that an installed release lacks. Most tests build a small index,
some use the index in the wheel ("the shipped index"). Damaged index files and questions that cannot be answered are
refused. uv resolves the install command.
"""

import json
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from diagnostics import UserError, uv
from diagnostics.api_index import options, query, store
from diagnostics.api_index.compare import Comparison, MissingUse
from diagnostics.api_index.packages import IndexedPackage
from diagnostics.api_index.query import Release
from diagnostics.api_index.uses import Use, collect_uses
from diagnostics.collect import python_environment
from diagnostics.commands import version_answers, versions
from diagnostics.compat_table import Compat
from diagnostics.doctor.checks import missing_names
from diagnostics.doctor.checks.registry import CheckInput
from tests.case_files import each_case, read_cases
from tests.diagnostics.fake_environments import EnvironmentBuilder

OLD, NEW = Release("trl", "1.0"), Release("trl", "1.1")
QUESTIONS = read_cases(__file__, "index_questions.yaml")


def test_index_has_names_by_ranges_of_releases(index):
    """An unchanged name has one entry, a changed one an entry per range of releases; a removed module is gone."""
    vllm = index.load("vllm")
    assert vllm.releases == ["0.1", "0.2", "0.3"]
    apis = [query.api_of(Release("vllm", version)) for version in vllm.releases]
    assert [api.has_module("vllm.ports") for api in apis] == [True, True, False]
    assert vllm.packed("vllm.llm")["LLM.generate"] == "def (self, prompts)"
    assert set(vllm.packed("vllm.llm")["LLM.__init__"]) == {"0-0", "1-"}
    assert vllm.metadata("requires", 1) == ["torch==2.1"]
    assert (vllm.number("0.2+cu129"), vllm.number("9")) == (1, None)


@pytest.mark.parametrize("case", QUESTIONS["lookups"], ids=lambda case: case["id"])
def test_release_has_a_name_lacks_it_or_may_have_it(make_index, case):
    make_index(case["files"], package=IndexedPackage("vllm", ("vllm",), stubs=tuple(case.get("stubs", ()))))
    for place, outcome in enumerate(("has", "lacks", "may have")):
        for module, _, name in (text.rpartition(".") for text in case.get(outcome, ())):
            assert query.releases_with("vllm", Use("name", module, name))[place] == ["0.1"], (module, name)


@each_case(QUESTIONS["first_releases"])
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
        *((name, ()) for name in ("device", "tokens", "absent")),
    ],
)
def test_choices_of_an_option_come_from_literal_types(index, option, accepted):
    """Choices are read from optional and aliased Literal types; other types and unknown options have none."""
    assert options.choices(Release("vllm", "0.2"), option) == accepted


@each_case(QUESTIONS["versions"])
def test_version_text_selects_releases(monkeypatch, version, releases):
    """A release selects itself, also with a local suffix; a shorter text selects a series, an empty one all."""
    indexed = SimpleNamespace(releases=["0.8.5", "0.8.5.post1", "0.10"])
    monkeypatch.setattr(store, "load", lambda _package: indexed)
    assert query.find_releases("vllm", version) == releases


@pytest.mark.parametrize("content", [b"", b"PK junk", "cut"])
def test_damaged_index_file_is_named(index, index_folder, tmp_path, monkeypatch, content):
    """A damaged index file raises a user error that names the file."""
    whole = (index_folder / "vllm.zip").read_bytes()
    (tmp_path / "vllm.zip").write_bytes(whole[:200] if content == "cut" else content)
    monkeypatch.setattr(store, "FOLDER", tmp_path)
    error = run_versions("vllm==0.3")[2]
    assert isinstance(error, UserError)
    assert "vllm.zip: not a file of the API index" in str(error)


def test_shipped_index_is_small_and_valid():
    """Every file of the shipped index has the schema, and all have at most 8 MB together."""
    files = sorted(store.FOLDER.glob("*.zip"))
    assert sum(path.stat().st_size for path in files) <= 8_000_000
    assert {store.Package(path).about["schema"] for path in files} <= {store.SCHEMA}


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
def test_missing_names_depend_on_the_releases_and_are_listed_by_time_of_use(
    index, user, provider, at_import, when_called
):
    """A name that no release has is not reported; a name with an alternative is not missing."""
    pair = query.compatibility(user, Release("vllm", provider))
    assert [item.use.text for item in pair.at_import] == at_import
    assert [item.use.text for item in pair.when_called] == when_called


def test_optional_imports_are_not_missing(install_index):
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
    uses = {"peft": (), "trl": ("vllm", "peft")}
    install_index({name: IndexedPackage(name, (name,), uses=uses[name]) for name in uses}, releases)
    comparison = query.compare_names(Release("trl", "1"), Release("peft", "2"))
    assert [item.use.text for item in comparison.missing] == ["peft.inputs.parse"]


def test_removed_auto_class_mapping_is_missing():
    """In the shipped index, trl 0.22.2 imports at import time a name that transformers 5.0.0 lacks."""
    pair = query.compatibility(Release("trl", "0.22.2"), Release("transformers", "5.0.0"))
    assert "MODEL_FOR_VISION_2_SEQ_MAPPING_NAMES" in {item.use.name for item in pair.at_import}


def test_optional_auto_class_is_not_missing():
    """In the shipped index, verl 0.9.1 fits transformers 5.9.0, because it imports the removed class in a `try`."""
    pair = query.compatibility(Release("verl", "0.9.1"), Release("transformers", "5.9.0"))
    assert not pair.contradicted


def test_experimental_trainers_and_guarded_flags_do_not_contradict_a_pair():
    """Only TRL 0.27.2's experimental trainers lack a name of vLLM 0.10.2; verl 0.6.1 uses a name after a `try`."""
    experimental = query.compatibility(Release("trl", "0.27.2"), Release("vllm", "0.10.2"))
    assert {item.use.file.split("/")[1] for item in experimental.names.missing} == {"experimental"}
    guarded = query.compatibility(Release("verl", "0.6.1"), Release("vllm", "0.11.0"))
    assert "vllm.config.CompilationConfig(mode=)" in {item.use.text for item in guarded.names.guarded}
    assert [(pair.contradicted, pair.limits_grpo) for pair in (experimental, guarded)] == [(False, False)] * 2


def test_files_of_one_model_do_not_fail_at_import():
    """A missing name in a model file of sglang does not fail at import, because each file is loaded in a `try`."""
    use = Use("name", "transformers", "Gone", file="sglang/srt/models/a.py")
    missing = [MissingUse(replace(use, file=file), "") for file in (use.file, "sglang/srt/server.py")]
    assert query.missing_at_import(Comparison(missing=missing)) == missing[1:]


@each_case(QUESTIONS["registrations"])
def test_a_registration_counts_if_its_name_is_constant_and_its_failure_unhandled(statement, registered):
    """With `exist_ok=True` a registration cannot fail, so it does not count either."""
    uses = collect_uses(f"from transformers import AutoConfig\n{statement}\n", "a.py", ("transformers",))
    assert [use.path[0] for use in uses if use.kind == "registered"] == registered


def missing_names_in(maker):
    """Return doctor's findings about missing names in a fake environment."""
    return list(
        missing_names.missing_names(CheckInput(python_environment.collect(maker.prefix, {}), {}, Compat()))
    )


def test_doctor_reports_missing_names(index, tmp_path):
    """Doctor reports a missing name with the location of its import, and nothing for releases that fit."""
    (finding,) = missing_names_in(EnvironmentBuilder(tmp_path / "env").add("vllm", "0.3").add("trl", "1.0"))
    assert (finding.code, finding.severity.word) == ("CMP906", "warning")
    assert "vllm.ports.get_open_port" in finding.detail
    assert finding.evidence[0].place == "trl/trainer.py:2"
    assert missing_names_in(EnvironmentBuilder(tmp_path / "good").add("vllm", "0.3").add("trl", "1.1")) == []


@pytest.mark.parametrize(
    ("engine", "models", "fails"),
    [("0.9.2", "4.55.0", True), ("0.9.2", "4.53.3", False), ("0.10.0", "4.55.0", False)],
)
def test_a_model_type_that_transformers_has_cannot_be_registered(tmp_path, engine, models, fails):
    """In the shipped index, vLLM 0.9 and transformers from 4.54.0 on both have aimv2, so the import fails.

    An older transformers and vLLM 0.10 have no such conflict.
    """
    pair = query.compatibility(Release("vllm", engine), Release("transformers", models))
    assert [item.use.text for item in pair.at_import] == ['AutoConfig.register("aimv2")'] * fails
    assert pair.contradicted is fails
    maker = EnvironmentBuilder(tmp_path / "env").add("vllm", engine).add("transformers", models)
    title = f'vllm {engine} calls AutoConfig.register("aimv2"), and transformers {models} has that model type itself'
    assert [finding.title for finding in missing_names_in(maker)] == [title] * fails


def test_requirements_can_exclude_a_pair(index):
    """A declared range excludes a pair, and contradicting pins of a third package are a conflict."""
    assert query.compatibility(OLD, Release("vllm", "0.3")).allowed is False
    assert query.compatibility(OLD, Release("vllm", "0.2")).allowed is True
    assert query.compatibility(NEW, Release("vllm", "0.2")).conflicts == (
        "trl 1.1 requires torch>=2.2, vllm 0.2 requires torch==2.1",
    )


@each_case(QUESTIONS["requirements"])
def test_requirements_conflict_if_no_version_satisfies_both(index, monkeypatch, first, second, conflict):
    """The search includes versions that neither requirement names."""
    ranges = {OLD: {"x": [(SpecifierSet(first), "")]}, NEW: {"x": [(SpecifierSet(second), "")]}}
    monkeypatch.setattr(query, "requirements_of", ranges.get)
    assert bool(list(query.conflicts(OLD, NEW))) is conflict


@pytest.mark.parametrize(("plugin", "engine"), [("0.23.0.post1", "0.23.0"), ("0.11.0", "0.11.0")])
def test_a_plugin_is_for_the_engine_of_the_same_number(plugin, engine):
    """In the shipped index, vllm-ascend fits the vLLM of its own number, built without CUDA.

    The plugin pins another torch than vLLM's CUDA build. The install command builds vLLM from source, so uv does not
    resolve it.
    """
    plugin, engine = Release("vllm-ascend", plugin), Release("vllm", engine)
    engines = [Release("vllm", item) for item in query.find_releases("vllm", "")]
    answer = query.rank_releases([plugin], engines)
    assert [pair.provider for pair in answer.pairs if not pair.contradicted] == [engine]
    command = version_answers.install_command([plugin, engine])
    assert command.startswith("env VLLM_TARGET_DEVICE=empty uv pip install --no-config --no-binary vllm ")
    assert version_answers.resolve([plugin, engine]).resolves is None


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


@each_case(QUESTIONS["unanswerable"])
def test_unanswerable_query_is_refused(index, question, message):
    """An unknown package, release or requirement, and a package named twice, are refused."""
    assert message in str(run_versions(*question)[2])


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


@each_case(QUESTIONS["installed"])
def test_installed_packages_are_checked_against_each_other(index, tmp_path, installed, code, line):
    """Installed packages are compared in pairs, which the JSON document has.

    Names that are missing only when called give exit code 0, and a single package gives 3.
    """
    maker = EnvironmentBuilder(tmp_path / "env")
    for name, version in installed.items():
        maker.add(name, version)
    python = str(maker.prefix / "bin" / "python")
    result, output, _error = run_versions("--python", python)
    assert (result, line in " ".join(output.split())) == (code, True)
    document = json.loads(run_versions("--python", python, "--format", "json")[1])
    assert [pair["fits"] for pair in document["pairs"]] == [not code] * (len(installed) - 1)


def test_environment_without_indexed_releases_is_refused(index, tmp_path):
    """An environment without a release of the index is refused, and so are packages together with --python."""
    python = str(EnvironmentBuilder(tmp_path / "env").add("vllm", "7").prefix / "bin" / "python")
    assert "no package with a release in the index" in str(run_versions("--python", python)[2])
    assert "name no packages" in str(run_versions("vllm", "--python", python)[2])


@each_case(QUESTIONS["resolutions"])
def test_install_command_is_resolved_from_wheels(tmp_path, monkeypatch, script, resolves, text):
    """uv resolves for this Python from wheels only; other errors, without secrets, and no answer leave it unknown."""
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


def test_host_of_the_index_is_redacted_in_json(index, monkeypatch):
    """uv's error names the index."""
    answer = version_answers.Resolution(None, "Failed to fetch: http://a.corp/simple")
    monkeypatch.setattr(version_answers, "resolve", lambda _: answer)
    output = run_versions("trl==1.1", "--format", "json")[1]
    assert "Failed to fetch" in output
    assert "a.corp" not in output


def test_missing_uv_leaves_the_command_unresolved(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nothere/python")
    monkeypatch.setitem(sys.modules, "uv", None)
    monkeypatch.setenv("PATH", "/nothere")
    assert version_answers.resolve([NEW]) == version_answers.Resolution(None, "uv is not installed")
