"""What the tests of lint share: plans and findings of a text, for given releases."""

from packaging.version import Version

from diagnostics.lint import judge, reading
from diagnostics.lint.versions import Versions


def versions(**known):
    return Versions({name.replace("_", "-"): Version(text) for name, text in known.items()})


def plans(text, syntax="shell", framework="", **known):
    return judge.plans_of(reading.read_text(text, "run", framework, syntax), versions(**known))


def findings(text, syntax="shell", framework="", **known):
    checks = judge.judge(plans(text, syntax, framework, **known), versions(**known))
    crashed = [check.reason for check in checks if check.outcome == "crashed"]
    assert crashed == []
    return [finding for check in checks for finding in check.findings]


def codes(text, syntax="shell", framework="", **known):
    return {f"{f.severity.word} {f.code}" for f in findings(text, syntax, framework, **known)}
