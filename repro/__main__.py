"""`python -m repro`: make known failures happen, and see which mitigation helps."""

from __future__ import annotations

import argparse
import difflib
import json
import os
import platform
import sys
from typing import TYPE_CHECKING, Any, TextIO

from repro import imports, runner, upstream
from repro.base import INCOMPLETE, Attempt, Outcome, overall
from repro.registry import REPROS

if TYPE_CHECKING:
    from collections.abc import Sequence

FINE, FINDINGS, USAGE, UNFINISHED = 0, 1, 2, 3


class UsageError(Exception):
    """Raised when the command line names something that does not exist; the text says what does."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; returns its exit code."""
    options = _parser().parse_args(arguments)
    answer = _keep_stdout()
    try:
        code: int = options.command(options, answer)
    except UsageError as error:
        print(f"repro: {error}", file=sys.stderr)
        return USAGE
    except KeyboardInterrupt:
        print("repro: interrupted; its processes are gone", file=sys.stderr)
        return 130
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m repro", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    listing = commands.add_parser("list", help="the failures, their triggers and mitigations")
    listing.set_defaults(command=_list)
    run = commands.add_parser("run", help="make failures happen in this environment")
    run.add_argument("codes", nargs="+", metavar="CODE")
    run.add_argument("--trigger", default="all", metavar="NAME", help="one trigger (default: all)")
    run.add_argument(
        "--mitigation", default="all", metavar="NAME", help="one mitigation, none or all (default)"
    )
    run.add_argument(
        "--timeout", type=float, default=60.0, metavar="S", help="seconds for one attempt (default: 60)"
    )
    run.set_defaults(command=_run)
    imported = commands.add_parser("imports", help="import modules, each in a process of its own")
    imported.add_argument("modules", nargs="+", metavar="MODULE")
    imported.add_argument(
        "--timeout", type=float, default=240.0, metavar="S", help="seconds for one (default: 240)"
    )
    imported.set_defaults(command=_imports)
    for command in (listing, run, imported):
        command.add_argument("--json", action="store_true", help="one JSON document on standard output")
    return parser


def _keep_stdout() -> TextIO:
    """Keeps the standard output for the answer; whatever else is printed there, by anybody, goes to stderr."""
    answer = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    sys.stdout.flush()
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return answer


def _pick(kind: str, name: str, known: Sequence[str]) -> str:
    if name in known:
        return name
    close = difflib.get_close_matches(name, known, n=2, cutoff=0.4)
    hint = f"did you mean {' or '.join(close)}?" if close else f"expected one of {', '.join(known)}"
    raise UsageError(f"unknown {kind} {name!r}: {hint}")


def _list(options: argparse.Namespace, answer: TextIO) -> int:
    if options.json:
        document = {
            "schema": "grpo-doctor.repro-list.v1",
            "codes": {
                repro.code: {
                    "title": repro.title,
                    "assertion": repro.assertion,
                    "simulated": repro.simulated,
                    "triggers": {trigger.name: trigger.about for trigger in repro.triggers},
                    "mitigations": {
                        m.name: {"about": m.about, "helps": sorted(m.helps)} for m in repro.mitigations
                    },
                }
                for repro in REPROS.values()
            },
        }
        return _write(answer, json.dumps(document, indent=1))
    lines = []
    for repro in REPROS.values():
        lines += [f"{repro.code}  {repro.title}", f"  {repro.assertion}", "  triggers"]
        lines += [f"    {trigger.name:<24}{trigger.about}" for trigger in repro.triggers]
        lines += ["  mitigations"]
        lines += [f"    {mitigation.name:<24}{mitigation.about}" for mitigation in repro.mitigations]
    return _write(answer, "\n".join(lines))


def _run(options: argparse.Namespace, answer: TextIO) -> int:
    if options.timeout <= 0:
        raise UsageError(f"--timeout {options.timeout:g}: expected seconds above zero")
    codes = [_pick("code", code, list(REPROS)) for code in dict.fromkeys(options.codes)]
    plans = {code: _plan(code, options.trigger, options.mitigation) for code in codes}
    proof = upstream.vllm_unmodified()
    results = {}
    for code, (triggers, mitigations) in plans.items():
        say = lambda line: print(line, file=sys.stderr, flush=True)  # noqa: E731
        results[code] = runner.run(
            REPROS[code], triggers=triggers, mitigations=mitigations, limit_s=options.timeout, say=say
        )
    if options.json:
        _write(answer, json.dumps(_document(proof, results), indent=1))
    else:
        _write(answer, "\n".join(_text(proof, results)))
    return exit_code([attempt for attempts in results.values() for attempt in attempts])


def _plan(code: str, trigger: str, mitigation: str) -> tuple[list[str], list[str | None]]:
    repro = REPROS[code]
    triggers = [t.name for t in repro.triggers]
    names = [m.name for m in repro.mitigations]
    if trigger != "all":
        triggers = [_pick(f"trigger of {code}", trigger, triggers)]
    if mitigation == "all":
        return triggers, [None, *names]
    if mitigation == "none":
        return triggers, [None]
    return triggers, [None, _pick(f"mitigation of {code}", mitigation, names)]


def exit_code(attempts: Sequence[Attempt]) -> int:
    """0: all went as recorded; 1: a mitigation did otherwise than recorded; 3: something gave no answer."""
    if any(attempt.as_recorded is False for attempt in attempts):
        return FINDINGS
    if any(attempt.outcome in INCOMPLETE for attempt in attempts):
        return UNFINISHED
    return FINE


def _document(proof: dict[str, object] | None, results: dict[str, list[Attempt]]) -> dict[str, Any]:
    return {
        "schema": "grpo-doctor.repro.v1",
        "python": platform.python_version(),
        "versions": upstream.versions(),
        "upstream": proof,
        "codes": {
            code: {
                "outcome": overall(attempts).value,
                "attempts": [attempt.to_json() for attempt in attempts],
            }
            for code, attempts in results.items()
        },
    }


def _text(proof: dict[str, object] | None, results: dict[str, list[Attempt]]) -> list[str]:
    lines = [" ".join(f"{name} {version}" for name, version in upstream.versions().items())]
    if proof:
        changed = proof["modified"]
        state = f"MODIFIED: {changed}" if changed else "none modified"
        lines.append(
            f"{proof['distribution']}: {proof['files_checked']} Python files checked against RECORD, {state}"
        )
    for code, attempts in results.items():
        repro = REPROS[code]
        lines += [
            "",
            f"{code}  {repro.title}: {overall(attempts).value}",
            f"simulated: {'; '.join(repro.simulated)}",
        ]
        for attempt in attempts:
            indent = "  " if attempt.mitigation is None else "    "
            name = attempt.trigger if attempt.mitigation is None else f"with {attempt.mitigation}"
            told = ": ".join(part for part in (attempt.where, attempt.assertion) if part)
            told = "; ".join(part for part in (told, attempt.detail) if part)
            mark = "  (NOT as recorded)" if attempt.as_recorded is False else ""
            lines.append(f"{indent}{name:<26}{attempt.outcome.value:<16}{told}{mark}".rstrip())
        lines += _verdicts(code, attempts)
    return lines


def _verdicts(code: str, attempts: Sequence[Attempt]) -> list[str]:
    """One line for each mitigation that was tried: against which triggers it helped, and against which not."""
    lines = []
    for mitigation in REPROS[code].mitigations:
        tried = [attempt for attempt in attempts if attempt.mitigation == mitigation.name]
        helped = [attempt.trigger for attempt in tried if attempt.outcome is Outcome.MITIGATED]
        failed = [attempt.trigger for attempt in tried if attempt.outcome is Outcome.NOT_MITIGATED]
        if helped or failed:
            word = "does not help" if not helped else "helps" if not failed else "does NOT help in every case"
            told = [f"helped: {', '.join(helped)}"] * bool(helped) + [f"did not: {', '.join(failed)}"] * bool(
                failed
            )
            lines.append(f"  => {mitigation.name} {word} ({'; '.join(told)})")
    return lines


def _imports(options: argparse.Namespace, answer: TextIO) -> int:
    results = {module: imports.try_import(module, options.timeout) for module in options.modules}
    if options.json:
        _write(answer, json.dumps({"schema": "grpo-doctor.imports.v1", "modules": results}, indent=1))
    else:
        for module, result in results.items():
            told = (
                f"ok {result['version']} in {result['seconds']} s"
                if result["ok"]
                else f"FAILED {result['error']}"
            )
            _write(answer, f"{module}: {told}")
    if any(result.get("timeout") for result in results.values()):
        return UNFINISHED
    return FINE if all(result["ok"] for result in results.values()) else FINDINGS


def _write(answer: TextIO, text: str) -> int:
    answer.write(text + "\n")
    answer.flush()
    return FINE


if __name__ == "__main__":
    sys.exit(main())
