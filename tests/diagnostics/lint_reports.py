"""Return the run plans, findings and reports of lint on texts and files, for chosen package releases."""

from packaging.version import Version

from diagnostics.findings import Report
from diagnostics.lint import not_checked
from diagnostics.lint.settings_reader import read_text
from diagnostics.lint.steps import LintRun, check_plans, plans_of, run_lint
from diagnostics.lint.versions import Versions, collect_versions


def versions(**known):
    """Return releases by package; `_` in a keyword stands for `-`."""
    return Versions({name.replace("_", "-"): Version(text) for name, text in known.items()})


def plans(text, syntax="shell", framework="", **known):
    """Return the run plans that a text describes."""
    return plans_of(read_text(text, "run", framework, syntax), versions(**known))


def report(text, syntax="shell", framework="", **known):
    """Return the report of all rules on a text; no rule may crash."""
    run_plans = plans(text, syntax, framework, **known)
    checks = (*check_plans(run_plans), *not_checked.unread_inputs_check(run_plans))
    assert [check.reason for check in checks if check.outcome == "crashed"] == []
    return Report("lint", {}, checks)


def findings(text, syntax="shell", framework="", **known):
    """Return the findings of all rules on a text."""
    return report(text, syntax, framework, **known).findings


def codes(text, syntax="shell", framework="", **known):
    """Return the set of "severity CODE" of the findings in a text."""
    return {f"{f.severity.word} {f.code}" for f in findings(text, syntax, framework, **known)}


def lint(*paths, **known):
    """Lint files with these package releases, without those of the test environment; return the report."""
    releases = {name.replace("_", "-"): text for name, text in known.items()}
    return run_lint(LintRun(list(paths), collect_versions(releases, installed=False)))
