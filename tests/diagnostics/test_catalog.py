"""The shipped catalog entries are consistent, and an invalid entry is refused with file, line, key and expectation.

Most tests change one line of the entry SCH001. Edits of an entry become actions for a framework and its releases.
"""

import re

import pytest
from msgspec.structs import replace

from diagnostics import catalog
from diagnostics.catalog import FOLDER, CatalogError, load_check_file, signatures
from diagnostics.catalog.model import Bound, ConfigRule
from diagnostics.commands.catalog import find_problems
from diagnostics.fixes import Advice, Install
from diagnostics.lint.rules.registry import find_table_conflicts
from diagnostics.triage.rules import Rules
from tests.case_files import each_case, read_cases

CASES = read_cases(__file__, "invalid_entries.yaml")


@pytest.fixture(scope="module")
def issues():
    """Load the shipped catalog."""
    return catalog.load()


def test_no_pattern_escapes_quotes(issues):
    """No signature escapes quotes; RE2 accepts that, but ripgrep, which triage is compared with, does not."""
    patterns = (rule.pattern for rule in Rules(issues).rules)
    assert [item for item in patterns if re.search(r"(?<!\\)(?:\\\\)*\\['\"]", item)] == []


def test_catalog_check_finds_no_problem_in_the_shipped_entries(issues):
    """The catalog check finds no problem; for example, each positive sample matches only its own entry."""
    assert find_problems(issues) == []


@pytest.fixture
def entry(tmp_path):
    """Return a function that writes SCH001 with one replacement and returns its path."""

    def write(old, new, name="SCH001"):
        text = (FOLDER / "SCH001.toml").read_text()
        assert old in text, f"{old!r} is not in the entry: this test would change nothing"
        path = tmp_path / f"{name}.toml"
        path.write_text(text.replace(old, new, 1))
        return path

    return write


# A line of SCH001 with an edit for vLLM, which tests replace.
(VLLM_EDIT,) = re.findall(
    r"^.*call generate\(\) from one thread only.*$", (FOLDER / "SCH001.toml").read_text(), re.MULTILINE
)


@each_case(CASES["replacements"])
def test_invalid_entry_is_refused_with_file_and_line(entry, old, new, line, message):
    """The error is one line with the file, the line of the key, the value and the expectation."""
    path = entry(old, new)
    with pytest.raises(CatalogError) as refused:
        catalog.load_file(path)
    text = str(refused.value)
    assert message in text
    assert str(path) in text
    assert "\n" not in text
    if line is not None:
        number = path.read_text().splitlines().index(line) + 1
        assert re.search(rf":{number}:|\(at line {number},", text), text


def test_install_and_advice_edits_become_actions(entry):
    """`install` takes requirements and `advice` takes text; both become an action of the framework."""
    issue = catalog.load_file(entry(VLLM_EDIT, 'vllm = { install = ["numpy<2"], note = "or wait" }'))
    first = issue.mitigations[0]
    assert [*first.actions(["vllm"])] == [Install(("numpy<2",), note="or wait", framework="vllm")]
    assert dict(first.edits)["vllm"] == "pip install 'numpy<2', or wait"
    advised = catalog.load_file(entry(VLLM_EDIT, 'vllm = { advice = "don\'t" }')).mitigations[0]
    assert [*advised.actions(["vllm"])] == [Advice("don't", "vllm")]


def test_edits_of_one_framework_have_release_ranges_and_tested_triggers(entry):
    """Several edits of one framework are loaded with their release ranges and the triggers that they were run with."""
    two = 'vllm = [{ set = "a", versions = "<1" }, { set = "b", versions = ">=1", ran = ["two_owners"] }]'
    record = catalog.load_file(entry(VLLM_EDIT, two)).mitigations[0]
    bounds = [bound for edit, bound in record.known_edits() if edit.framework == "vllm"]
    assert bounds == [Bound("<1"), Bound(">=1", ("two_owners",))]
    assert record.by_framework()["vllm"] == "a (<1); b (>=1)"


@each_case(CASES["edits"])
def test_invalid_edit_is_refused(entry, wrong):
    with pytest.raises(CatalogError, match=r"mitigations\.one_owner\.edits"):
        catalog.load_file(entry(VLLM_EDIT, f"vllm = {wrong}"))


def test_config_table_is_marked_by_rule_exactly_if_a_rule_replaces_it(entry):
    """A missing mark and a mark without a rule are conflicts; the shipped entries have none."""
    issue = catalog.load_file(entry("by_rule = true\n", ""))
    message = find_table_conflicts([issue])[0]
    assert message.startswith("SCH001: [[config]] 'evaluation during training")
    assert "by_rule = true" in message
    second = catalog.load()["MEM001"]
    unread = replace(second, config=(ConfigRule("x", (("rollout.mode", "server"),), has_own_rule=True),))
    assert "no rule replaces it" in find_table_conflicts([unread])[0]
    assert find_table_conflicts(catalog.load().values()) == []


def test_check_codes_are_strict_entries_apart_from_issues(tmp_path):
    """No check code is the code of an issue; an entry with a wrong key, code or schema is refused."""
    assert not set(catalog.load_checks()) & set(catalog.load())
    assert "CMP901" in catalog.load_checks()
    assert "SCH001" not in catalog.load_checks()
    good = (catalog.FOLDER.parent / "checks" / "CMP901.toml").read_text()
    for old, new, message in (
        ("title =", "titel =", "title"),
        ("CMP901", "CMP902", "the file's name, 'CMP901'"),
        ("check.v1", "issue.v1", "expected 'grpo-doctor.check.v1'"),
    ):
        (tmp_path / "CMP901.toml").write_text(good.replace(old, new, 1))
        with pytest.raises(CatalogError, match=message):
            load_check_file(tmp_path / "CMP901.toml")


@each_case(CASES["signatures"])
def test_invalid_signature_is_refused_with_file_and_line(entry, new, wrong, message):
    """The error names the line of the pattern, or the first line of the sample."""
    path = entry("any = ['assert len", new)
    line = next(n for n, text in enumerate(path.read_text().splitlines(), start=1) if text.startswith(wrong))
    with pytest.raises(CatalogError, match=message) as refused:
        signatures.check(catalog.load_file(path), path.parent)
    assert str(refused.value).startswith(f"{path}:{line}: signature")


def test_confirmation_of_an_unknown_code_is_refused(issues, monkeypatch):
    wrong = replace(issues["ENG001"].signature, role="confirmation", confirms=("ENG999",))
    # This takes seconds, and test_catalog_check_finds_no_problem_in_the_shipped_entries does it.
    monkeypatch.setattr(signatures, "ambiguous_samples", lambda _issues: [])
    entries = {**issues, "ENG001": replace(issues["ENG001"], signature=wrong)}
    (message,) = find_problems(entries)
    assert message.startswith("diagnostics/catalog/issues/ENG001.toml: ")
    assert "not ENG999" in message


def test_entry_without_a_negative_sample_is_refused(entry):
    """A signature needs a negative sample, which should be a near miss."""
    path = entry("[[signature.negative]]", "[[signature.positive]]")
    path.write_text(path.read_text().replace("[[signature.negative]]", "[[signature.positive]]"))
    with pytest.raises(CatalogError, match="at least one"):
        catalog.load_file(path)
