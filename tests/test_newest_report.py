"""The report of `nox -s tests-newest`, which tests the newest releases, names failing tests and changed releases."""

from pathlib import Path

from tests.newest_report import changed, failures, report

LOCK = """\
numpy==2.4.6 ; python_full_version < '3.12'
numpy==2.5.5 ; python_full_version >= '3.12'
torch==2.13.0
rich==15.0.0
"""


def test_only_packages_that_differ_from_the_lock_are_listed():
    installed = "numpy==2.5.5\ntorch==2.13.0+cpu\nrich==16.0.0\nnewcomer==1.0\n"
    assert changed(LOCK, installed) == ["newcomer (not locked) -> 1.0", "rich 15.0.0 -> 16.0.0"]


def test_failures_and_errors_are_named_with_their_first_line(tmp_path: Path):
    junit = tmp_path / "tests.xml"
    junit.write_text(
        '<testsuites><testsuite><testcase classname="a.b" name="c"><failure message="first&#10;second"/></testcase>'
        '<testcase classname="a.b" name="d"><error message="broken"/></testcase>'
        '<testcase classname="a.b" name="e"/></testsuite></testsuites>'
    )
    assert failures(junit) == ["a.b::c: first", "a.b::d: broken"]
    assert report(LOCK, "rich==15.0.0\n", junit).startswith("# 2 tests fail")


def test_missing_results_count_as_a_failure(tmp_path: Path):
    assert len(failures(tmp_path / "none.xml")) == 1
