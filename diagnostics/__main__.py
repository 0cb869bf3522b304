"""`grpo-doctor`, or `python -m diagnostics`: its commands, and the way to repro, matrix and train."""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from diagnostics import door, programs, version
from diagnostics.catalogue.loader import CatalogueError
from diagnostics.facts.environment import NoEnvironmentError
from diagnostics.facts.secrets import mask
from diagnostics.report.filters import BaselineError
from diagnostics.report.findings import FINE, INCOMPLETE, USAGE

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; returns its exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments and arguments[0] in programs.PROGRAMS:
        return programs.start(arguments[0], arguments[1:])
    with door.opened():
        return _run(arguments)


def _run(arguments: Sequence[str]) -> int:
    """One command, its words on the way through the door."""
    try:
        options = _parser().parse_args(arguments)
        code: int = options.command(options)
    except (BaselineError, CatalogueError, NoEnvironmentError) as error:
        # An entry's problems are a line each; a file's name is one, whatever stands in it.
        shown = door.visible if isinstance(error, CatalogueError) else door.line
        print(f"diagnostics: {shown(mask(str(error)))}", file=sys.stderr)
        code = USAGE
    except KeyboardInterrupt:
        print("diagnostics: interrupted", file=sys.stderr)
        code = 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = FINE
    except Exception as error:  # noqa: BLE001 - the one place for what nobody foresaw
        code = programs.failed(error, "diagnostics")
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=programs.called(), description="Diagnosis of GRPO runs on vLLM.")
    parser.add_argument("--version", action="version", version=f"{programs.NAME} {version()}")
    from diagnostics.report import output

    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    doctor = commands.add_parser(
        "doctor", help="judge an environment and its machine, by default without importing anything"
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
    from diagnostics.nodes import options as nodes

    nodes.add(
        doctor, "examine these hosts over ssh and compare them", "examine the nodes of a running Ray cluster"
    )
    doctor.set_defaults(command=_doctor)
    from diagnostics.lint import command as lint

    lint.add(commands)
    triage = commands.add_parser(
        "triage",
        help="the known issue behind a failed run's logs",
        description="Exit codes: 0 no failure and an end of the run, 1 a known failure, 2 wrong usage, 3 not judged: a"
        " failure that no entry describes, a log without an end, or one that was not read.",
    )
    triage.add_argument(
        "logs", nargs="+", metavar="LOG", help="logs of one run, packed too; a folder of them; - for stdin"
    )
    output.add_options(triage)
    triage.add_argument(
        "--group", action="store_true", help="each log is a run of its own: group those that failed alike"
    )
    triage.add_argument(
        "--excerpt", action="store_true", help="these are parts of logs: no end of the run is to be expected"
    )
    triage.set_defaults(command=_triage)
    from diagnostics.hang import command as hang

    hang.add(commands)
    from diagnostics.audit import command as audit

    audit.add(commands)
    explain = commands.add_parser("explain", help="what a code means, why it happens, what helps")
    explain.add_argument("code", metavar="CODE")
    explain.add_argument("--format", choices=("terminal", "json"), default="terminal")
    explain.set_defaults(command=_explain)
    catalogue = commands.add_parser("catalogue", help="the known issues")
    catalogue.add_argument(
        "--check",
        nargs="*",
        metavar="CODE",
        help="check every entry and its samples; of these codes, tell all that concerns them",
    )
    catalogue.add_argument("--format", choices=("terminal", "json"), default="terminal")
    catalogue.set_defaults(command=_catalogue)
    for name, (_module, _before, text) in programs.PROGRAMS.items():
        commands.add_parser(name, help=text, add_help=False)
    return parser


def _doctor(options: argparse.Namespace) -> int:
    from diagnostics.doctor import chosen
    from diagnostics.doctor import examine as doctor
    from diagnostics.facts import collection, compat
    from diagnostics.report import output

    if options.hosts or options.ray:
        from diagnostics.doctor.fleet import command as fleet

        return fleet.run(options)
    prefix = chosen.prefix_of(options.python) if options.python else options.prefix
    facts = collection.collect(prefix)
    if options.facts_json:
        from diagnostics.report import clean

        print(json.dumps(clean.shareable(clean.own(facts.to_json())), indent=1))
        return FINE
    report = doctor.examine(facts.environment, doctor.load_catalogue(), compat.load(), facts.machine)
    if none := chosen.nothing_to_run(facts.environment, named=prefix is not None, environ=os.environ):
        report = replace(report, checks=(none, *report.checks))
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
        )
    output.write(report, options)
    code = report.exit_code(output.fail_on(options))
    return INCOMPLETE if code == FINE and incomplete else code


def _triage(options: argparse.Namespace) -> int:
    from diagnostics.triage import command

    return command.run(options)


def _explain(options: argparse.Namespace) -> int:
    from diagnostics import catalogue
    from diagnostics.catalogue import documents, offers
    from diagnostics.report.formats import issue

    if catalogue.is_check(options.code.upper()):
        document = documents.of_check(catalogue.find_check(options.code.upper()))
    else:
        entry = catalogue.find(options.code)
        document = documents.of_issue(entry, offers.remedy(entry))
    if options.format == "json":
        print(issue.as_json(document))
    else:
        issue.render(document, sys.stdout)
    return FINE


def _catalogue(options: argparse.Namespace) -> int:
    from diagnostics import catalogue

    issues, checks = catalogue.load(), catalogue.load_checks()
    told = {}
    if options.check is not None:
        from diagnostics import checking

        if wrong := checking.problems(issues, checks):
            raise CatalogueError("\n".join(wrong))
        told = {code.upper(): checking.concerns(code.upper()) for code in options.check}
    if options.format == "json":
        from diagnostics.catalogue import documents

        document = documents.listing(issues.values(), checks.values())
        document |= (
            {"concerns": {code: {one.name: one.told for one in told[code]} for code in told}} if told else {}
        )
        print(json.dumps(document, indent=1, ensure_ascii=False))
        return FINE
    for code, lines in told.items():
        print(f"{code}  {(issues.get(code) or checks[code]).title}")
        for one in lines:
            print(
                f"  {one.name:<11} {', '.join(one.told) or f'none: {one.wanted}' * bool(one.wanted) or '-'}"
            )
    for entry in () if told else issues.values():
        print(f"{entry.code}  {entry.kind:<7} {entry.title}")
    if options.check is not None:
        print(f"{len(issues)} entries, all samples as they should be")
    return FINE


if __name__ == "__main__":
    sys.exit(main())
