"""The pytest plugin: real failures in a separate session, and the text of their reports."""

import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from diagnostics.triage import command

pytest_plugins = ["pytester"]
ROOT = Path(__file__).parents[2]

# A real failure: a server on a port that is taken, as two trainers on one machine have it.
TAKEN = """
import http.server, logging, socket, sys
import pytest

@pytest.fixture
def port():
    with socket.socket() as first:
        first.bind(("127.0.0.1", 0))
        first.listen()
        yield first.getsockname()[1]

def start(port):
    print("INFO 07-01 10:00:00 [api_server.py:1] vLLM API server version 0.10.2")
    http.server.HTTPServer(("127.0.0.1", port), http.server.BaseHTTPRequestHandler)

@pytest.mark.gpu
def test_gpu(port):
    start(port)

def test_no_gpu(port):
    start(port)

def test_other():
    assert [1, 2] == [1, 3]

def test_fine():
    print("OSError: [Errno 98] Address already in use")

@pytest.mark.xfail
def test_expected(port):
    start(port)

def test_raises():
    with pytest.raises(ValueError, match="Address already in use"):
        int("1")

@pytest.fixture
def engine(port):
    start(port)

def test_setup(engine):
    pass
"""
OUTCOMES = {"passed": 1, "failed": 4, "errors": 1, "xfailed": 1}


@pytest.fixture
def session(pytester, monkeypatch):
    """A folder with tests that really fail, and where pytest finds the plugin."""
    pytester.makepyfile(test_it=TAKEN)
    pytester.makeini("[pytest]\nmarkers = gpu: needs a device\n")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    return pytester


def run(session, *options):
    return session.runpytest_inprocess("-p", "diagnostics.pytest_plugin", "-p", "no:cacheprovider", *options)


def sections(result):
    """The plugin's section by test: from the headline of a failure to its end."""
    by_name, name, inside = {}, "", False
    for line in result.outlines:
        if line.startswith("___"):
            name, inside = line.strip("_ ").rpartition(" ")[2], False
        elif line.startswith(("---", "===")):
            inside = line.strip("- ") == "grpo-doctor"
            if inside:
                by_name[name] = ""
        elif inside:
            by_name[name] += line + "\n"
    return by_name


def test_a_failing_test_is_triaged_in_its_report(session):
    """The issue with its evidence and what helps; nothing for what no entry describes, and nothing is changed."""
    bare = session.runpytest_inprocess("-p", "no:cacheprovider")
    result = run(session, "--grpo-doctor")
    bare.assert_outcomes(**OUTCOMES)
    result.assert_outcomes(**OUTCOMES)
    assert result.ret == bare.ret == 1
    report_sections = sections(result)
    assert set(report_sections) == {"test_gpu", "test_no_gpu", "test_other", "test_raises", "test_setup"}
    for name in ("test_gpu", "test_no_gpu", "test_setup"):
        assert report_sections[name].startswith("error   CFG109 ")
        assert "- OSError: [Errno 98] Address already in use [captured:" in report_sections[name]
        assert "python -m diagnostics explain CFG109" in report_sections[name]
    # Text in a test's source is expected text, not a failure.
    assert (
        report_sections["test_other"]
        == report_sections["test_raises"]
        == "no issue of the catalogue in what this test printed and raised\n"
    )


def test_it_is_off_until_asked_for(session):
    """Loaded, and silent."""
    assert sections(run(session)) == {}


@pytest.mark.parametrize("how", ["option", "ini"])
def test_one_marker_alone(session, how):
    """`--grpo-doctor-only gpu`, or the same in the ini file."""
    if how == "option":
        result = run(session, "--grpo-doctor-only", "gpu")
    else:
        options = "grpo_doctor = true\ngrpo_doctor_only = gpu\n"
        session.makeini(f"[pytest]\nmarkers = gpu: needs a device\n{options}")
        result = run(session)
    assert list(sections(result)) == ["test_gpu"]


def test_the_issue_stands_in_junit(session):
    """The issue is a property of the test case in JUnit, also if its setup failed."""
    run(session, "--grpo-doctor", "--junitxml", "out.xml")
    properties = {
        case.get("name"): [(p.get("name"), p.get("value").split()[0]) for p in case.iter("property")]
        for case in ET.parse(session.path / "out.xml").iter("testcase")
    }
    issue = [("grpo-doctor", "CFG109")]
    assert properties == {
        "test_gpu": issue,
        "test_no_gpu": issue,
        "test_setup": issue,
        "test_other": [],
        "test_raises": [],
        "test_fine": [],
        "test_expected": [],
    }


def test_its_own_fault_is_a_line_in_the_report(session, monkeypatch):
    """A crash of triage does not change the session's results."""

    def broken(sources, rules):
        raise RuntimeError("a fault\nof its own")

    monkeypatch.setattr(command, "triage", broken)
    # pytest warns because the plugin is already imported here.
    result = run(session, "--grpo-doctor", "-W", "error", "-W", "ignore::pytest.PytestAssertRewriteWarning")
    result.assert_outcomes(**OUTCOMES)
    line = "warning: it could not look at this failure: RuntimeError: a fault of its own\n"
    assert set(sections(result).values()) == {line}


def test_a_session_that_passes_loads_nothing(session):
    """Neither the catalogue nor triage, and none of the heavy packages."""
    session.makepyfile(test_it="def test_fine():\n    pass\n")
    session.makeconftest(
        "import sys\n"
        "def pytest_unconfigure():\n"
        "    names = {'torch', 'vllm', 'ray', 'transformers', 'numpy', 'rich', 'diagnostics.catalog', 're2'}\n"
        "    print('LOADED', sorted(names & set(sys.modules)))\n"
    )
    options = ("-p", "diagnostics.pytest_plugin", "--grpo-doctor", "-p", "no:cacheprovider")
    result = session.runpytest_subprocess(*options, "-p", "no:randomly")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["LOADED []"])


def test_workers_triage_their_own_tests(session):
    """With xdist: the same sections and properties as without."""
    pytest.importorskip("xdist")
    result = session.run(
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "diagnostics.pytest_plugin",
        "--grpo-doctor",
        "-p",
        "no:cacheprovider",
        "-n",
        "2",
        "--junitxml",
        "out.xml",
    )
    result.assert_outcomes(**OUTCOMES)
    report_sections = sections(result)
    assert {name for name, text in report_sections.items() if text.startswith("error   CFG109 ")} == {
        "test_gpu",
        "test_no_gpu",
        "test_setup",
    }
    names = [p.get("name") for p in ET.parse(session.path / "out.xml").iter("property")]
    assert names == ["grpo-doctor"] * 3


def test_a_test_that_takes_too_long_is_looked_at_from_outside(session):
    """The stuck test and its stack are printed while it hangs; the session then continues and passes."""
    session.makepyfile(
        test_slow="""
        def wait_for_rollouts():
            with open("answer") as answer:
                assert answer.read() == "go on"

        def test_before():
            pass

        def test_slow():
            wait_for_rollouts()
        """
    )
    os.mkfifo(session.path / "answer")
    words = [
        "-p",
        "diagnostics.pytest_plugin",
        "--grpo-doctor-hang",
        "0.2",
        "-p",
        "no:cacheprovider",
        "-k",
        "slow",
    ]
    with subprocess.Popen(
        [sys.executable, "-m", "pytest", *words],
        cwd=session.path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as running:
        output = ""
        while "observed for" not in output:
            line = running.stderr.readline()
            assert line, output
            output += line
        (session.path / "answer").write_text("go on")
        remaining = running.stdout.read()
    assert running.returncode == 0, remaining
    assert "test_slow.py::test_slow: no heartbeat" in output
    assert "test_before" not in output
    assert "wait_for_rollouts" in output
