"""`triage` explains version skew in logs: missing names and refused arguments (CMP906), unmet requirements (CMP904).

Names and arguments are looked up in the API index. The tests check the caller and the releases that are read from the
log, the proposed releases, and that a skew comes before a generic catalog entry. Two tests limit the time.
"""

import time

import pytest

from diagnostics.fixes import commands_of, fix_text
from diagnostics.triage.command import exit_code
from diagnostics.triage.report import report
from tests.case_files import each_case, read_cases

CASES = read_cases(__file__, "pasted_logs.yaml")


def findings(triage_lines, code, *lines):
    """Return the findings with a code in the report on these lines."""
    return [finding for finding in report(triage_lines(*lines), ["a.log"]).findings if finding.code == code]


@each_case(CASES["tracebacks"])
def test_caller_and_name_are_read_from_pasted_tracebacks(triage_lines, lines):
    """The title has the name and its caller, and the fix a newer caller, in each form of a pasted traceback."""
    (finding,) = findings(triage_lines, "CMP906", *lines)
    assert (
        "peft (peft/peft_model.py) uses transformers.HybridCache. transformers has it from 4.44.0"
        in finding.title
    )
    assert "peft uses this name from 0.16.0 to 0.17.1." in finding.title
    assert "peft>=0.18.0" in fix_text(finding.remedy)


@pytest.mark.parametrize("case", CASES["explained"], ids=lambda case: case["id"])
def test_explanation_has_the_texts_of_its_case(triage_lines, case):
    """Title, fix and certainty of the one finding have the texts of the case, and not those under `no`."""
    (finding,) = findings(triage_lines, case.get("code", "CMP906"), *case["log"].splitlines())
    summary = {"title": finding.title, "fix": fix_text(finding.remedy), "certainty": finding.certainty}
    assert [text for part in summary for text in case.get(part, ()) if text not in summary[part]] == []
    assert [text for part in summary for text in case.get(f"no {part}", ()) if text in summary[part]] == []


@each_case(CASES["unexplained"])
def test_line_without_a_skew_has_no_finding(triage_lines, code, log):
    """Requirements that are met, only stated or of other packages, warnings and other errors are not reported."""
    assert findings(triage_lines, code, *log.splitlines()) == []


@each_case(CASES["releases"])
def test_releases_are_read_from_reports_of_users(triage_lines, line, package, version):
    """Releases that a report names as installed are read, and required or recommended ones are not."""
    verdict = triage_lines("Traceback (most recent call last):", line)
    assert verdict.versions.get(package, (None,))[0] == version


SCRIPT = '  File "/home/me/train.py", line 3, in <module>'
HEADER = "Traceback (most recent call last):"


@each_case(CASES["unnamed_exceptions"])
def test_explanation_by_the_index_is_the_verdict(triage_lines, line):
    """A message without its exception's name is explained by the first finding; nothing is unresolved or unchecked."""
    verdict = triage_lines("loading", line)
    assert (verdict.state, exit_code(verdict)) == ("known", 1)
    result = report(verdict, ["a.log"])
    assert result.findings[0].code == "CMP906"
    assert not result.unresolved
    assert not any(check.not_judged for check in result.checks)


def test_message_below_a_traceback_needs_no_exception_name(triage_lines):
    """A known issue and the exception's type are found although the traceback's last line does not name it."""
    lines = [HEADER, SCRIPT, "    llm = LLM()", "Qwen2Tokenizer has no attribute all_special_tokens_extended"]
    verdict = triage_lines(*lines)
    assert [candidate.issue.code for candidate in verdict.candidates] == ["CMP017"]
    assert verdict.logs[0].failures[0].type == "AttributeError"


@each_case(CASES["calling_lines"])
def test_class_is_read_from_the_calling_line(triage_lines, source, message, found):
    """A constructor's message without the class is explained if the line above calls exactly one class."""
    frames = [HEADER, SCRIPT, source, f"TypeError: {message}"]
    assert bool(findings(triage_lines, "CMP906", *frames)) is found
    assert bool(findings(triage_lines, "CMP906", *frames[2:])) is found


@pytest.mark.parametrize(
    ("lines", "entry"),
    [
        (
            [
                "INFO Initializing a V1 LLM engine (v0.10.0) with config",
                HEADER,
                '  File "/opt/env/lib/python3.12/site-packages/vllm/entrypoints/llm.py", line 200, in __init__',
                "TypeError: EngineArgs.__init__() got an unexpected keyword argument 'device'",
            ],
            "CMP022",
        ),
        (["ImportError: cannot import name 'StructuredOutputsParams' from 'vllm.sampling_params'"], "CMP002"),
    ],
)
def test_explanation_by_the_index_comes_before_a_generic_entry(triage_lines, lines, entry):
    """An explanation by the index comes before the catalog's entry for such messages."""
    assert [finding.code for finding in report(triage_lines(*lines), ["a.log"]).findings] == ["CMP906", entry]


def test_generic_entry_after_the_index_has_no_fix(triage_lines):
    """The entry for removed names, which advises an older release, has no fix if only newer releases have the name."""
    error = "ImportError: cannot import name 'PreTrainedConfig' from 'transformers.configuration_utils'"
    first, second = report(triage_lines("transformers==4.50.0", error), ["a.log"]).findings
    assert (first.code, second.code, second.remedy) == ("CMP906", "CMP023", None)
    assert "transformers>=5.0.0" in fix_text(first.remedy)


def test_requirements_with_thousands_of_ranges_take_less_than_5_s(triage_lines):
    """200 lines of 40 ranges take less than 5 s of CPU time; the fix says that no release was searched for."""
    ranges = [",".join(f"!={line}.{part}" for part in range(40)) for line in range(200)]
    lines = [
        f"vllm 0.9.0 requires foo{text}, but you have foo {line}.1 which is incompatible."
        for line, text in enumerate(ranges)
    ]
    start = time.process_time()
    (finding,) = findings(triage_lines, "CMP904", *lines)
    assert time.process_time() - start < 5
    assert "Not searched for a release, because of too many requirements: foo." in fix_text(finding.remedy)


def test_ranges_before_unexpected_words_take_less_than_5_s(triage_lines):
    """400 lines with a range of 40 parts, followed by words that no pattern has, take less than 5 s of CPU time."""
    text = "vllm 0.9.0 requires foo" + ",".join(["!=1.2"] * 40)
    start = time.process_time()
    report(triage_lines(*[f"{text} and 9999 {number}" for number in range(400)]), ["a.log"])
    assert time.process_time() - start < 5


@pytest.mark.parametrize("case", CASES["stated_requirements"], ids=lambda case: case["title"])
def test_requirement_that_a_message_states_is_read(triage_lines, case):
    """The messages are of exceptions, of pip, of uv in several lines, and of checks in transformers and xformers."""
    (finding,) = findings(triage_lines, "CMP904", *case["lines"])
    assert (finding.title, fix_text(finding.remedy)) == (case["title"], case["fix"])


@pytest.mark.parametrize(("transformers", "titles"), [("4.48.0", 1), ("4.57.1", 0)])
def test_only_an_unmet_requirement_of_a_listed_package_is_a_finding(triage_lines, transformers, titles):
    """TRL's unmet requirement is reported although the failure stays unknown; a met one is not reported."""
    lines = ("trl==0.24.0", f"transformers=={transformers}", "RuntimeError: 78 main specs are required")
    skew = findings(triage_lines, "CMP904", *lines)
    assert [finding.title for finding in skew] == [
        "trl 0.24.0 requires transformers>=4.56.1, found 4.48.0."
    ] * titles
    assert triage_lines(*lines).state == "unknown"


def test_change_that_the_log_shows_as_refused_is_not_proposed(triage_lines):
    """The model type needs a release that another line of the log refuses, so no fix has a command."""
    lines = (
        "ValueError: The checkpoint has model type `qwen2_5_vl` but Transformers does not recognize this architecture.",
        "ImportError: transformers>=4.41.2,<=4.48.1 ,!=4.48.0 is required for a normal functioning of this module, but"
        " found transformers==4.49.0.",
    )
    (missing,) = findings(triage_lines, "CMP906", *lines)
    (refusal,) = findings(triage_lines, "CMP904", *lines)
    assert "requires transformers<=4.48.1" in fix_text(missing.remedy)
    assert not commands_of(missing.remedy.actions)
    assert refusal.remedy is None
