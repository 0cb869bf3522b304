"""What `resolve` says of platforms: which one, its glibc, and what fits as a source archive alone."""

from __future__ import annotations

import datetime
from types import SimpleNamespace

import pytest

from diagnostics.matrix.ask.layers.resolve import answer
from diagnostics.matrix.build import resolving
from diagnostics.matrix.build.pylock import Locked
from diagnostics.matrix.build.resolving import Resolution, declared
from diagnostics.matrix.plan.verdicts import Outcome

NO_WHEEL = "No solution found: Because vllm==0.15.0 has no wheels with a matching platform tag"
HINT = f"{NO_WHEEL} hint: Wheels are available on: `manylinux_2_31_aarch64`, `manylinux_2_31_x86_64`"
SOLVED = Resolution(
    ("vllm==0.15.0",), "", infrastructure=False, packages=(Locked("vllm==0.15.0", ("sha256:0",)),)
)


def resolved(monkeypatch, **by_platform):
    """Resolves a pair where uv answers by platform; returns the resolution and the platforms asked for."""
    asked = []

    def uv(_workplace, _cell, _requirements, _overrides, _cut, arguments, **_rest):
        asked.append(arguments[-1])
        return by_platform[arguments[-1].rpartition("_")[2]]

    monkeypatch.setattr(resolving, "_compile", uv)
    workplace = SimpleNamespace(matrix=SimpleNamespace(platform="x86_64-manylinux_2_28"))
    cell = SimpleNamespace(trl="1.1.0", vllm="0.15.0", exclude_newer=datetime.date(2026, 5, 1))
    return declared(workplace, cell, timeout_s=1), asked


def test_a_wheel_that_asks_for_a_newer_glibc_is_looked_for_there(monkeypatch):
    """No statement about the pair: it has a solution, on that platform, and the older one is told."""
    found, asked = resolved(monkeypatch, **{"28": Resolution((), HINT, infrastructure=False), "31": SOLVED})
    assert asked == ["x86_64-manylinux_2_28", "x86_64-manylinux_2_31"]
    said = answer(found)
    assert said.outcome is Outcome.PASS
    assert said.summary == "1 packages on x86_64 with glibc 2.31: ; none on the matrix's older platform"
    assert said.told("platform") == [("x86_64-manylinux_2_31",)]
    assert any(NO_WHEEL in line for line in said.details)


@pytest.mark.parametrize("explanation", [NO_WHEEL, "No solution found: Because a==1 and a==2"])
def test_no_solution_names_the_platform_it_was_looked_for(monkeypatch, explanation):
    """Nothing newer is named: once is enough."""
    found, asked = resolved(monkeypatch, **{"28": Resolution((), explanation, infrastructure=False)})
    assert len(asked) == 1
    said = answer(found)
    assert said.outcome is Outcome.UNRESOLVABLE
    assert said.summary.endswith("(asked for x86_64 with glibc 2.28)")


def test_what_fits_as_a_source_archive_alone_is_named():
    """Whoever installs it has to build it."""
    packages = (Locked("a==1", ("sha256:0",)), Locked("vllm==0.5", ("sha256:1",), archive=True))
    said = answer(
        Resolution(("a==1", "vllm==0.5"), "", infrastructure=False, packages=packages, platform="x")
    )
    assert said.summary.endswith("; of 1 only a source archive fits")
    assert said.told("archive") == [("vllm==0.5",)]
    assert "only a source archive fits: vllm==0.5" in said.details
