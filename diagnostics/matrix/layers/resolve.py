"""Layer `resolve`: resolve the declared requirements of a trainer and vLLM with uv.

It uses packages up to the cell's date cut, and compares the solution with the committed lock. Differences are
reported, and do not fail the layer.
"""

from collections.abc import Mapping

from diagnostics.matrix import locks
from diagnostics.matrix.cells import Cell
from diagnostics.matrix.context import Context
from diagnostics.matrix.layers.layer import Layer
from diagnostics.matrix.resolve import Resolution, hash_coverage, package_facts, resolve_declared
from diagnostics.matrix.verdicts import Answer, EvidenceLevel, Outcome
from diagnostics.output.redact import truncate

# Packages whose versions the summary lists.
SHOWN = ("torch", "transformers", "accelerate", "ray", "numpy", "xgrammar")


def _inputs(context: Context, cell: Cell) -> Mapping[str, str]:
    """Return the inputs of the answer."""
    return {
        "python": cell.python,
        "platform": context.matrix.platform,
        "exclude_newer": cell.exclude_newer.isoformat(),
        "lock": locks.pins_digest(locks.read_pins(context, cell, runnable=False)),
    }


def _check(context: Context, cell: Cell) -> Answer:
    """Resolve up to the cell's date cut, and compare the result with the committed lock."""
    context.show_status("resolving its declared requirements")
    resolution = resolve_declared(context, cell, timeout_s=context.matrix.settings["resolve"].timeout_s)
    committed = set(locks.read_pins(context, cell, runnable=False))
    if not committed:
        return resolution_answer(resolution, "no lock is committed")
    removed, added = sorted(committed - {*resolution.pins}), sorted({*resolution.pins} - committed)
    changes = (*(f"- {line}" for line in removed), *(f"+ {line}" for line in added))
    note = (
        f"{len(changes)} lines differ from the committed lock; the cell installs its lock"
        if changes
        else "as in the committed lock"
    )
    return resolution_answer(resolution, note, changes)


def resolution_answer(resolution: Resolution, note: str, changes: tuple[str, ...] = ()) -> Answer:
    """Turn a resolution into the layer's answer: pass, unresolvable, or an infrastructure fault.

    Args:
        resolution: The resolution.
        note: Text that is added to the summary of a solution.
        changes: Differences from a committed lock, one per line.
    """
    if resolution.infrastructure:
        summary = f"uv could not resolve: {truncate(resolution.explanation, 200)}"
        return Answer(Outcome.INFRA_ERROR, summary, excerpt=resolution.explanation)
    platform = platform_text(resolution.platform)
    if not resolution.packages:
        explanation = resolution.explanation
        reason = explanation.removeprefix("No solution found when resolving dependencies").lstrip(": ")
        summary = f"{truncate(reason, 300)} (resolved for {platform})"
        return Answer(Outcome.UNRESOLVABLE, summary, signs=(explanation,), excerpt=explanation)
    facts = package_facts(resolution.pins)
    by_name = {name: version for _kind, name, version in facts}
    versions = [f"{name} {by_name[name]}" for name in SHOWN if name in by_name]
    source_only = [item.pin for item in resolution.packages if item.source_only]
    parts = [f"{len(facts)} packages on {platform}: {', '.join(versions)}"]
    if source_only:
        parts.append(f"of {len(source_only)} only a source archive fits")
        changes = (*changes, f"only a source archive fits: {', '.join(source_only)}")
    if resolution.refused:
        parts.append("none on the matrix's older platform")
        changes = (*changes, f"on the matrix's own platform: {resolution.refused}")
    return Answer(
        Outcome.PASS,
        "; ".join([*parts, note]),
        signs=tuple(versions),
        details=(*changes, hash_coverage(resolution.packages)),
        facts=facts,
        excerpt="".join(f"{pin}\n" for pin in resolution.pins),
    )


def platform_text(platform: str) -> str:
    """Return a readable name of uv's platform, with its glibc version.

    >>> platform_text("x86_64-manylinux_2_28"), platform_text("x86_64-manylinux2014"), platform_text("")
    ('x86_64 with glibc 2.28', 'x86_64-manylinux2014', 'this machine')
    """
    machine, separator, minor = platform.partition("-manylinux_2_")
    return f"{machine} with glibc 2.{minor}" if separator else platform or "this machine"


LAYERS = (
    Layer(
        name="resolve",
        question="Do the declared requirements of this pair have a solution among packages up to the date cut?",
        evidence=EvidenceLevel.STATIC, check=_check, inputs=_inputs, code=(__name__, "diagnostics.matrix.resolve"),
    ),
)  # fmt: skip
