"""The ranges of the rules on vLLM's behaviour are the releases in whose source the rules' lines were found.

A rule that matters only with an option breaks no pair. An unknown key is refused.
"""

import json
from pathlib import Path

import msgspec
import pytest

from diagnostics.api_index import query, rules
from diagnostics.api_index.rules import broken_rules, matching_cases, project_rules
from diagnostics.versions import in_range

# The releases in whose wheels the lines were found, written by `python -m evaluation.matrix.rule_releases`.
FOUND = json.loads(Path(__file__).with_name("rule_releases.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize(("rule", "found"), [*zip(project_rules().rule, FOUND, strict=True)])
def test_recorded_ranges_are_the_releases_that_have_the_lines(rule, found):
    """A range has these releases of the index and no others, so a release that was not searched is in no range."""

    def releases_in(package, versions):
        return [item for item in reversed(query.find_releases(package, "")) if in_range(item, versions)]

    assert releases_in("trl", rule.releases) == found["trl"]
    assert [releases_in("vllm", case.releases) for case in rule.cases] == found["cases"]


def test_rule_that_only_an_option_needs_does_not_break_the_pair():
    """TRL 1.13.0 uses routes for prompts with images, which vLLM 0.30.0 serves only with --enable-scale-out."""
    outcomes = {rule.subject: case and case.outcome for rule, case in matching_cases("1.13.0", "0.30.0")}
    assert outcomes["--enable-scale-out"] == "breaks"
    assert not list(broken_rules("1.13.0", "0.30.0"))


def test_rule_with_an_unknown_key_is_refused(tmp_path, monkeypatch):
    """A rule file with an unknown key is refused with the name of the key."""
    path = tmp_path / "rules.toml"
    path.write_text(
        'grpo_files = []\noff_by_default = []\n[[rule]]\nsubject = "a"\nstatement = "s"\naffected_runs = "w"\n'
        'releases = ""\ntrl = []\ncase = []\ncolour = 1\n'
    )
    monkeypatch.setattr(rules, "PATH", path)
    with pytest.raises(msgspec.ValidationError, match="unknown field `colour`"):
        project_rules.__wrapped__()
