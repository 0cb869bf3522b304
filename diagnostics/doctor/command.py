"""Run the command `doctor`: check one environment and its machine, or compare the nodes of a job.

For one environment it collects facts, runs the static checks (`static_report`), runs the probes of the chosen tier
(`run_tier`), and prints the report or the fix plan (`print_plan`); `--facts-json` prints the facts alone, redacted for
sharing. If the main probes of the tier did not run, exit code 0 becomes 3. For several machines, `examine_nodes`
collects the facts over ssh, a command or Ray, runs the static checks here on the facts of each, and compares the
machines; --fix-plan, --facts-json and other tiers are then refused.
"""

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import click

from diagnostics import UserError, catalog, compat_table
from diagnostics.cli import Command
from diagnostics.collect import facts
from diagnostics.cpu_limit import cpu_limit
from diagnostics.doctor import run_checks, target_env
from diagnostics.findings import FINE, INCOMPLETE, Report
from diagnostics.multi_node_options import NodeOptions, node_options
from diagnostics.output import progress, report_output, text_filters
from diagnostics.output.report_output import ReportOptions, write_report

# _NODES_S is for the report on several nodes, _NODE_S is added for each node that answered.
_COLLECT_S, _PLAN_S, _NODES_S, _NODE_S = 120.0, 60.0, 20.0, 2.0
_PATH = click.Path(path_type=Path)
FIX_PLAN_FORMATS = ("terminal", "json", "markdown")


@click.command(
    cls=Command,
    examples=(
        ("doctor --prefix ENV", "an environment, read from files"),
        ("doctor --python ENV/bin/python --tier probe", "also import its packages, in child processes"),
        ("doctor --prefix ENV --fix-plan", "one ordered plan for all findings"),
        ("doctor --hosts hostfile --prefix ENV", "compare the nodes of a job over ssh"),
        ("doctor --hosts hostfile --host-command 'srun -w {host} -n1'", "compare the nodes of a Slurm job"),
    ),
    exit_codes={1: "findings at or above --fail-on"},
)
@click.option("--python", type=_PATH, metavar="PATH", help="Examine the environment of this interpreter.")
@click.option("--prefix", type=_PATH, metavar="DIR", help="Examine the environment in this folder.")
@report_output.report_options
@click.option(
    "--tier",
    type=click.Choice(["static", "probe", "live"]),
    default="static",
    show_default=True,
    help="static: read files. probe: also import packages in child processes. live: also start a tiny engine.",
)
@click.option("--facts-json", is_flag=True, help="Only print the collected facts, as JSON.")
@click.option("--fix-plan", is_flag=True, help="Print one ordered plan for all findings; run nothing.")
@node_options("Examine these hosts over ssh and compare them.", "Examine the nodes of a running Ray cluster.")
def command(
    python: Path | None,
    prefix: Path | None,
    output: ReportOptions,
    tier: str,
    facts_json: bool,
    fix_plan: bool,
    nodes: NodeOptions,
) -> int:
    """Check an environment and its machine by reading files."""
    if python and prefix:
        raise click.UsageError("--python and --prefix exclude each other")
    if fix_plan and output.format not in FIX_PLAN_FORMATS:
        raise click.UsageError(f"--format {output.format}: --fix-plan has {', '.join(FIX_PLAN_FORMATS)}")
    local_options = {"--fix-plan": fix_plan, "--facts-json": facts_json, f"--tier {tier}": tier != "static"}
    if nodes and (refused := [option for option, is_given in local_options.items() if is_given]):
        problem = "one environment at a time: run it on the node, without --hosts or --ray"
        raise UserError(f"{refused[0]}: {problem}")
    with progress.show_spinner("doctor"):
        if nodes:
            environment = str(prefix or (python.absolute().parent.parent if python else ""))
            return examine_nodes(nodes, environment, output)
        root = target_env.prefix_of(python) if python else prefix
        with cpu_limit("reading the environment", _COLLECT_S):
            collected = facts.collect(root)
        if facts_json:
            print(json.dumps(text_filters.redact_for_sharing(collected.to_json()), indent=1))
            return FINE
        report = static_report(collected, named=root is not None)
        incomplete = False
        if tier != "static":
            from diagnostics.doctor.probe.tiers import run_tier  # compiles the patterns of triage

            interpreter = python or (root / "bin" / "python" if root else Path(sys.executable))
            report, incomplete = run_tier(report, tier, interpreter, collected)
        code = print_plan(report, collected, output) if fix_plan else write_report(report, output)
    return INCOMPLETE if code == FINE and incomplete else code


def static_report(collected: facts.Facts, *, named: bool) -> Report:
    """Run the static checks; if neither a trainer nor vLLM is installed, add a result "not checked" that says so.

    Args:
        collected: The facts of the environment and the machine.
        named: Whether the user named the environment. If not, the report lists other environments nearby.
    """
    environment = collected.environment
    report = run_checks.examine(environment, catalog.load(), compat_table.load(), collected.machine)
    nearby = target_env.nearby_environments(environment.prefix, os.environ)
    if missing := target_env.check_trainer_installed(environment, nearby, named=named):
        report = replace(report, checks=(missing, *report.checks))
    return report if named else replace(report, subject=report.subject | {"unnamed": nearby})


def print_plan(report: Report, collected: facts.Facts, output: ReportOptions) -> int:
    """Print the fix plan of a report and return the report's exit code."""
    from diagnostics.doctor.fix_plan import plan_builder  # the plan prints with Rich

    report = report_output.filter_report(report, output)
    with cpu_limit("building the fix plan", _PLAN_S):
        plan = plan_builder.build_plan(report, collected.environment, compat_table.load())
    report_output.print_report(replace(report, extra=plan), output)
    return report.exit_code(output.fail_on)


def examine_nodes(options: NodeOptions, environment: str, output: ReportOptions) -> int:
    """Query other machines, check and compare them, and write the report."""
    from diagnostics.doctor import multi_node_report, node_query  # threads, msgspec

    members, note = node_query.collect_nodes(options, environment)
    issues, compat = catalog.load(), compat_table.load()
    answered = sum(node.facts is not None for node in members)
    with cpu_limit("checking the nodes", _NODES_S + _NODE_S * answered):
        return write_report(multi_node_report.report_on_nodes(members, issues, compat, note), output)
