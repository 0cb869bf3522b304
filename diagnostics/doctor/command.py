"""The command `doctor`: its options, and the way from facts to a report or a plan."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diagnostics.nodes import options as nodes
from diagnostics.output import output
from diagnostics.output.findings import FINE, INCOMPLETE, USAGE
from diagnostics.uncollected import uncollected

if TYPE_CHECKING:
    import argparse


def add(commands: Any) -> None:
    """Adds the command to a parser's commands."""
    doctor: argparse.ArgumentParser = commands.add_parser(
        "doctor", help="judge an environment and its machine from their files"
    )
    where = doctor.add_mutually_exclusive_group()
    where.add_argument("--python", type=Path, metavar="PATH", help="the environment of that interpreter")
    where.add_argument("--prefix", type=Path, metavar="DIR", help="the environment in that folder")
    output.add_options(doctor)
    doctor.add_argument(
        "--tier",
        choices=("static", "probe", "live"),
        default="static",
        help="static: read files (default); probe: also import, in child processes; live: also start a tiny engine",
    )
    doctor.add_argument(
        "--facts-json", action="store_true", help="print what was found, judge nothing (static facts alone)"
    )
    doctor.add_argument(
        "--fix-plan", action="store_true", help="one ordered plan out of all findings; runs nothing"
    )
    doctor.add_argument(
        "--resolve",
        action="store_true",
        help="of --fix-plan: ask the package index whether it can be had here",
    )
    nodes.add(
        doctor, "examine these hosts over ssh and compare them", "examine the nodes of a running Ray cluster"
    )
    doctor.set_defaults(command=run)


def run(options: argparse.Namespace) -> int:
    """Runs the command; returns its exit code."""
    if options.resolve and not options.fix_plan:
        print("diagnostics: doctor: --resolve is of --fix-plan: give both", file=sys.stderr)
        return USAGE
    if options.hosts or options.ray:
        from diagnostics.doctor.fleet import command as fleet

        return fleet.run(options)
    return _here(options)


@uncollected()
def _here(options: argparse.Namespace) -> int:
    from diagnostics.collect import collection, compat
    from diagnostics.doctor import chosen
    from diagnostics.doctor import examine as doctor

    prefix = chosen.prefix_of(options.python) if options.python else options.prefix
    facts = collection.collect(prefix)
    if options.facts_json:
        from diagnostics.output import clean

        print(json.dumps(clean.shareable(clean.own(facts.to_json())), indent=1))
        return FINE
    report = doctor.examine(facts.environment, doctor.load_catalogue(), compat.load(), facts.machine)
    named = prefix is not None
    if none := chosen.nothing_to_run(facts.environment, named=named, environ=os.environ):
        report = replace(report, checks=(none, *report.checks))
    if not named:
        report = replace(report, subject=report.subject | chosen.told(facts.environment, os.environ))
    incomplete = False
    if options.tier != "static":
        from diagnostics.doctor.probe import command

        python = chosen.interpreter_of(options.python, prefix)
        report, incomplete = command.tried(report, options.tier, python, facts)
    report = output.filtered(report, options)
    if options.fix_plan:
        from diagnostics.doctor.fixplan import build

        return build.run(
            report,
            facts.environment,
            compat.load(),
            options.format,
            output.fail_on(options),
            resolve=options.resolve,
            verbose=options.verbose,
        )
    output.write(report, options)
    code = report.exit_code(output.fail_on(options))
    return INCOMPLETE if code == FINE and incomplete else code
