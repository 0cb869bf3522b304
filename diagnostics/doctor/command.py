"""The command `doctor`: collect facts, run the checks, probe, and print a report or a fix plan."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import click

from diagnostics import UserError, compat_table
from diagnostics.cli import Command
from diagnostics.collect import facts
from diagnostics.doctor import run_checks, target_env
from diagnostics.findings import FINE, INCOMPLETE, Report
from diagnostics.node_options import NodeOptions, node_options
from diagnostics.output import prepare, progress
from diagnostics.output.report_output import (
    ReportOptions,
    filter_report,
    print_report,
    report_options,
    write_report,
)

_PATH = click.Path(path_type=Path)
PLAN_FORMATS = ("terminal", "json", "markdown")


@click.command(
    cls=Command,
    examples=(
        ("doctor --prefix ENV", "an environment, read from files"),
        ("doctor --python ENV/bin/python --tier probe", "also import what is installed, in child processes"),
        ("doctor --prefix ENV --fix-plan", "one ordered plan for all findings"),
        ("doctor --hosts hostfile --prefix ENV", "compare the nodes of a job over ssh"),
        ("doctor --hosts hostfile --host-command 'srun -w {host} -n1'", "the same in a Slurm allocation"),
    ),
    exit_codes={1: "findings at or above --fail-on"},
)
@click.option("--python", type=_PATH, metavar="PATH", help="Examine the environment of this interpreter.")
@click.option("--prefix", type=_PATH, metavar="DIR", help="Examine the environment in this folder.")
@report_options
@click.option(
    "--tier",
    type=click.Choice(["static", "probe", "live"]),
    default="static",
    show_default=True,
    help="static: read files. probe: also import, in child processes. live: also start a tiny engine.",
)
@click.option("--facts-json", is_flag=True, help="Print the collected facts as JSON; check nothing.")
@click.option("--fix-plan", is_flag=True, help="Print one ordered plan for all findings; runs nothing.")
@click.option(
    "--resolve",
    "resolving",
    is_flag=True,
    help="With --fix-plan: ask the package index what can be installed.",
)
@node_options("Examine these hosts over ssh and compare them.", "Examine the nodes of a running Ray cluster.")
def command(
    python: Path | None, prefix: Path | None, output: ReportOptions, tier: str, facts_json: bool, fix_plan: bool,
    resolving: bool, nodes: NodeOptions,
) -> int:  # fmt: skip
    """Check an environment and its machine by reading files."""
    _check_options(python, prefix, fix_plan=fix_plan, resolving=resolving, form=output.format)
    with progress.running("doctor"):
        if nodes:
            return _examine_fleet(nodes, python, prefix, output, fix_plan=fix_plan)
        chosen = target_env.prefix_of(python) if python else prefix
        collected = facts.collect(chosen)
        if facts_json:
            print(json.dumps(prepare.for_sharing(prepare.for_screen(collected.to_json())), indent=1))
            return FINE
        report = _static_report(collected, named=chosen is not None)
        incomplete = False
        if tier != "static":
            interpreter = target_env.interpreter_of(python, chosen)
            from diagnostics.doctor.probe.command import run_tier  # compiles the patterns of triage

            report, incomplete = run_tier(report, tier, interpreter, collected)
        code = (
            _print_plan(report, collected, output, resolving=resolving)
            if fix_plan
            else write_report(report, output)
        )
    return INCOMPLETE if code == FINE and incomplete else code


def _check_options(
    python: Path | None, prefix: Path | None, *, fix_plan: bool, resolving: bool, form: str
) -> None:
    if python and prefix:
        raise click.UsageError("--python and --prefix exclude each other")
    if resolving and not fix_plan:
        raise click.UsageError("--resolve needs --fix-plan")
    if fix_plan and form not in PLAN_FORMATS:
        raise click.UsageError(f"--format {form}: --fix-plan has {', '.join(PLAN_FORMATS)}")


def _static_report(collected: facts.Facts, *, named: bool) -> Report:
    environment = collected.environment
    report = run_checks.examine(
        environment, run_checks.load_catalog(), compat_table.load(), collected.machine
    )
    if missing := target_env.nothing_to_run(environment, named=named, environ=os.environ):
        report = replace(report, checks=(missing, *report.checks))
    if not named:
        report = replace(
            report, subject=report.subject | target_env.other_environments(environment, os.environ)
        )
    return report


def _print_plan(report: Report, collected: facts.Facts, output: ReportOptions, *, resolving: bool) -> int:
    from diagnostics.doctor.fix_plan import build, resolve  # the plan prints with Rich

    report = filter_report(report, output)
    environment = collected.environment
    plan = build.fix_plan(report, environment, compat_table.load())
    plan = resolve.resolve_plan(plan, environment) if resolving else resolve.mark_unresolved(plan)
    print_report(replace(report, extra=plan), output)
    return report.exit_code(output.fail_on)


def _examine_fleet(
    options: NodeOptions,
    python: Path | None,
    prefix: Path | None,
    output: ReportOptions,
    *,
    fix_plan: bool,
) -> int:
    from diagnostics.doctor import fleet  # asyncio

    if fix_plan:
        raise UserError("--fix-plan: one environment at a time: run it on the node, without --hosts or --ray")
    where = str(prefix or (python.absolute().parent.parent if python else ""))
    members, note = fleet.query_nodes(options, where)
    issues, compat = run_checks.load_catalog(), compat_table.load()

    def report_of(nodes: list[fleet.Node]) -> Report:
        return fleet.examine_fleet(nodes, issues, compat, note)

    report = report_of(members) if output.format == "terminal" else fleet.shareable_report(report_of, members)
    return write_report(report, output)
