"""`doctor` without a probe tier finds problems of an environment by its package metadata, and imports no package.

It checks known issues, the pair of vLLM and TRL by the compatibility table, and declared requirements. Broken
metadata is reported, and a check that crashes or lacks its input is not ok.
"""

import json
from dataclasses import replace

import pytest

from diagnostics import compat_table
from diagnostics.collect import python_environment
from diagnostics.compat_table import Compat
from diagnostics.doctor import run_checks
from diagnostics.doctor.checks.registry import REGISTERED
from diagnostics.findings import Severity
from diagnostics.fixes import commands_of, fix_text
from tests.case_files import each_case, read_cases
from tests.diagnostics.fake_environments import cell, load_catalog
from tests.processes import run_python

CELL = cell("0.12.0", "0.23.1", "fail", contract=("expected_fail", "static"))
CELL.layers["contract"].summary = "GuidedDecodingParams is gone"
ENGINE = ("pass", "executed", {"vllm": "vllm", "trl": "trl"})
GOOD = cell("0.31.0", "1.16.0", engine=ENGINE)
TABLE = Compat(cells=(CELL, GOOD), generated="2026-11-21")
PAIRS = read_cases(__file__, "pairs_without_a_run.yaml")


def examine(maker, *, compat=TABLE):
    """Return doctor's report on a fake environment."""
    return run_checks.examine(python_environment.collect(maker.prefix, {}), load_catalog(), compat)


def codes(report):
    """Return the codes of a report's findings."""
    return [finding.code for finding in report.findings]


def outcome(report, check):
    """Return the outcome of one check of a report."""
    (outcome,) = [result.outcome for result in report.checks if result.check == check]
    return outcome


def test_affected_release_is_reported_with_fixes_and_failed_mitigations(environment):
    """vLLM 0.7.3 has both scheduler issues, with fixes that help and mitigations that do not."""
    report = examine(environment.add("vllm", "0.7.3"))
    results = {finding.code: finding for finding in report.findings}
    assert results["SCH001"].known_by == results["SCH002"].known_by == "executed"
    assert "Does not help against: min tokens" in fix_text(results["SCH002"].remedy)
    remedy = results["SCH001"].remedy
    assert "lock_around_step" in {offer.mitigation for offer in remedy.does_not_help}
    assert "Does not help against " in fix_text(remedy)
    assert "lock_around_step" not in {offer.mitigation for offer in remedy.offers}
    assert report.exit_code(Severity.ERROR) == 3, "the machine was not examined"
    assert report.exit_code(Severity.WARNING) == 1


def test_issue_affects_only_environments_with_its_first_component(environment):
    """RAY001 needs an affected verl, although its entry names vLLM releases too."""
    assert "RAY001" not in codes(examine(environment.add("vllm", "0.8.5")))
    report = examine(environment.add("verl", "0.4.1"))
    assert "SYN033" in report.notes[0], "wrong weights with a setting"
    [found] = [item for item in report.findings if item.code == "RAY001"]
    assert found.severity is Severity.INFO, "a setting of the run decides whether it occurs"


def test_fix_uses_the_options_of_the_installed_framework(environment):
    report = examine(environment.add("vllm", "0.7.3").add("ms-swift", "3.4.1"))
    (finding,) = [finding for finding in report.findings if finding.code == "SCH001"]
    assert "ms-swift>=3.5.0" in fix_text(finding.remedy)
    assert "trl vllm-serve" not in fix_text(finding.remedy)


def test_failed_pair_is_an_error_with_a_working_pair(environment):
    """A pair that failed in the table is an error with the failed layer's summary and a working pair."""
    report = examine(environment.add("vllm", "0.12.0").add("trl", "0.23.1"))
    (finding,) = [finding for finding in report.findings if finding.code == "CMP902"]
    assert finding.severity is Severity.ERROR
    assert finding.known_by == "static"
    assert any("GuidedDecodingParams is gone" in item.text for item in finding.evidence)
    assert "vllm-0.31.0+trl-1.16.0." in fix_text(finding.remedy)
    assert report.exit_code(Severity.ERROR) == 1


@pytest.mark.parametrize("version", ["0.31.0", "0.31.0+cpu"])
def test_passed_pair_has_no_finding(environment, version):
    report = examine(environment.add("vllm", version).add("trl", "1.16.0"))
    assert codes(report) == []
    assert outcome(report, "compatibility table") == "ok"


def pair_finding(maker, vllm, trl, cells=(GOOD,)):
    """Return the compatibility finding of a pair."""
    report = examine(maker.add("vllm", vllm).add("trl", trl), compat=replace(TABLE, cells=cells))
    (finding,) = [finding for finding in report.findings if finding.code in {"CMP901", "CMP902", "CMP905"}]
    return finding


def test_pair_with_a_missing_name_is_an_error_with_working_pairs(environment):
    """A pair whose TRL imports a name that this vLLM lacks is an error; executed pairs are suggested."""
    finding = pair_finding(environment, "0.13.0", "0.23.1")
    assert (finding.code, finding.severity, finding.known_by) == ("CMP905", Severity.ERROR, "static")
    assert "vLLM 0.13.0: declared: vllm>=0.10.0" in finding.detail
    assert "vllm.sampling_params.GuidedDecodingParams" in finding.detail
    assert "The table has no run of this pair" in finding.detail
    assert "missing at import: vllm.sampling_params.GuidedDecodingParams" in finding.evidence[1].text
    ran, more = fix_text(finding.remedy).split(". `")
    assert ran == "Pairs that ran and passed: vllm-0.31.0+trl-1.16.0"
    assert "diagnostics versions vllm==0.13.0 trl`" in more
    assert "vllm==0.31.0 trl==1.16.0" in commands_of(finding.remedy.actions)[0]


def test_failed_pair_is_not_suggested_as_its_own_fix(environment):
    """A pair whose run failed is not suggested, although metadata and source allow it; another pair is, once."""
    failed = cell("0.12.0", "0.27.2", "fail", engine=("fail", "executed"))
    finding = pair_finding(environment, "0.12.0", "0.27.2", cells=(failed, GOOD))
    assert finding.code == "CMP902"
    assert "no missing names" in finding.detail
    assert "vllm-0.12.0+trl-0.27.2" not in fix_text(finding.remedy)
    assert fix_text(finding.remedy).count("vllm-0.31.0+trl-1.16.0") == 1


@pytest.mark.parametrize("contract", ["not_judged", "expected_fail", ""])
def test_pair_without_a_passed_contract_is_not_suggested(environment, contract):
    without = cell("0.31.0", "1.16.0", engine=ENGINE, contract=(contract, "static"))
    if not contract:
        del without.layers["contract"]
    finding = pair_finding(environment, "0.13.0", "0.23.1", cells=(without,))
    assert finding.code == "CMP905"
    assert "vllm-0.31.0+trl-1.16.0" not in fix_text(finding.remedy)


@each_case(PAIRS)
def test_pair_that_never_ran_has_a_finding(environment, vllm, trl, code, severity, message):
    """A pair without a run has a finding, from comparing its source or because it is unknown.

    The names that TRL 0.19.1 uses and vLLM 0.11.0 lacks are used only with an option.
    """
    finding = pair_finding(environment, vllm, trl)
    assert (finding.code, finding.severity.word) == (code, severity)
    assert message in finding.detail
    assert finding.known_by == ("declared" if message == "is unknown" else "static")


def test_fix_names_the_package_that_pins_the_failed_pair(environment):
    """If a third package pins a failed pair, the fix names this package and its requirement."""
    environment.add("vllm", "0.32.0").add("trl", "0.17.0")
    environment.add("openrlhf", "0.9.3", requires=["vllm==0.32.0", "trl==0.17.0"])
    report = examine(environment, compat=compat_table.load())
    (finding,) = [item for item in report.findings if item.code == "CMP902"]
    assert "openrlhf 0.9.3 needs" in str(finding.remedy)


@pytest.mark.parametrize(
    "change",
    [
        "", "{", "[]", "\x00", {"schema": "other"}, {"cells": [{"id": "a"}]}, {"cells": {}},
    ],
)  # fmt: skip
def test_malformed_compatibility_table_is_a_skipped_check(environment, tmp_path, change):
    path = tmp_path / "compat.json"
    published = json.loads(compat_table.PATH.read_text())
    path.write_text(change if isinstance(change, str) else json.dumps(published | change))
    report = examine(environment.add("vllm", "0.30.0").add("trl", "1.14.2"), compat=compat_table.load(path))
    assert outcome(report, "compatibility table") == "skipped"


def test_key_of_an_older_table_is_ignored(tmp_path):
    path = tmp_path / "compat.json"
    published = json.loads(compat_table.PATH.read_text())
    path.write_text(json.dumps(published | {"pairs_read": {"trl": []}}))
    assert compat_table.load(path) == compat_table.load()


@pytest.mark.parametrize("version", ["", "built-at-noon"])
def test_environment_without_a_readable_release_is_skipped_not_ok(environment, version):
    """Without packages nothing is checked; a release that is no version is reported as broken metadata."""
    report = examine(environment.add("vllm", version) if version else environment)
    assert codes(report) == (["ENV901"] if version else [])
    for name in ("known issues", "compatibility table", "declared requirements"):
        assert outcome(report, name) == "skipped"


def test_missing_torch_is_an_error_and_other_releases_a_warning(environment):
    """A missing torch is an error, another NumPy a warning, and requirements with a false marker are ignored."""
    other_machines = ["pywin32; sys_platform == 'win32'", "tomli; python_version < '3.11'"]
    environment.add("vllm", "0.8.5", requires=["torch==2.6.0", "numpy<2.0.0", *other_machines])
    environment.add("numpy", "2.4.0")
    results = [(item.severity, item.title) for item in examine(environment).findings if item.code == "CMP904"]
    assert results == [
        (Severity.ERROR, "vllm 0.8.5 needs torch==2.6.0, not installed"),
        (Severity.WARNING, "vllm 0.8.5 needs numpy<2.0.0, found 2.4.0"),
    ]


def test_broken_and_duplicate_metadata_are_reported(environment, tmp_path, monkeypatch):
    """Broken metadata is moved into a new folder in the home folder, through no link of the environment."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "set-aside").symlink_to("elsewhere")
    environment.add("trl", "1.16.0").add("trl", "1.9.2")
    (environment.site / "half.dist-info").mkdir()
    report = examine(environment)
    assert codes(report).count("ENV901") == 2
    [broken] = [item for item in report.findings if "half" in item.evidence[0].place]
    assert commands_of(broken.actions)[0] == "mkdir ~/set-aside-2"
    assert commands_of(broken.actions)[1].endswith("/half.dist-info ~/set-aside-2/half.dist-info")
    assert any("half.dist-info" in item.place for finding in report.findings for item in finding.evidence)


def test_crashed_check_makes_the_report_incomplete(environment, monkeypatch):
    """If a check crashes, the other checks still run, and the exit code is 3."""
    monkeypatch.setitem(REGISTERED, "environment variables", [lambda _case: 1 / 0])
    report = examine(environment.add("vllm", "0.11.0"))
    assert outcome(report, "environment variables") == "crashed"
    assert outcome(report, "known issues") == "ok"
    assert report.exit_code(Severity.ERROR) == 3


def test_environment_with_broken_packages_is_examined_without_imports(environment):
    """Doctor imports no heavy package, and its JSON report has the known issues of vLLM 0.8.5."""
    broken = "raise ImportError('libcudart.so.12: cannot open shared object file')"
    for name, version in (("torch", "2.6.0"), ("vllm", "0.8.5"), ("trl", "0.17.0")):
        environment.add(name, version, module=broken)
    program = (
        "import sys; from diagnostics.__main__ import main;"
        f"code = main(['doctor', '--prefix', {str(environment.prefix)!r}, '--format', 'json']);"
        "heavy = sorted({'torch', 'vllm', 'ray', 'transformers', 'numpy', 'trl'} & set(sys.modules));"
        "print(code, heavy, file=sys.stderr)"
    )
    done = run_python("-c", program)
    code, heavy = done.stderr.split()
    assert (code, heavy) == ("3", "[]")
    document = json.loads(done.stdout)
    assert document["schema"] == "grpo-doctor.report.v1"
    assert {"SCH001", "SCH002"} <= {finding["code"] for finding in document["findings"]}


@pytest.mark.parametrize(
    ("package", "release", "transformers", "code"),
    [
        ("trl", "0.17.0", "5.3.0", "CMP003"), ("trl", "0.28.0", "5.3.0", "CMP003"), ("trl", "0.28.0", "5.2.0", ""),
        ("trl", "0.17.0", "4.57.6", ""), ("trl", "0.29.0", "5.3.0", ""),
        ("vllm", "0.10.0", "5.16.1", "CMP017"), ("vllm", "0.10.0", "4.57.6", ""), ("vllm", "0.12.0", "5.0.0", ""),
        ("vllm", "0.9.2", "4.54.0", "CMP031"), ("vllm", "0.8.5", "4.57.6", ""),
    ],
)  # fmt: skip
def test_releases_that_fail_together_are_an_error(environment, package, release, transformers, code):
    """Each run fails: TRL before 0.29 with transformers 5.3, vLLM before 0.12 with 5, vLLM 0.9 with 4.54."""
    report = examine(environment.add(package, release).add("transformers", transformers))
    errors = [item.code for item in report.findings if item.code in {"CMP003", "CMP017", "CMP031"}]
    assert errors == [code] * bool(code)
