"""The command `versions`: which releases of which packages work together, from runs and from the API index."""

from __future__ import annotations

from typing import Any

import click

from diagnostics import UserError, compat_table
from diagnostics.cli import Command
from diagnostics.commands import version_answers
from diagnostics.findings import FINDINGS, FINE, INCOMPLETE
from diagnostics.output import json_output, pairs, sanitize
from diagnostics.versions import is_release


class ReleaseType(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.2 on
    """A release such as 0.10 or 0.10.2."""

    name = "RELEASE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Refuse a text that is no release."""
        if not is_release(value):
            self.fail(f"{value!r}: expected a release, such as 0.10 or 0.10.2", param, ctx)
        return str(value)


@click.command(
    cls=Command,
    examples=(
        ("versions", "the recommended pair, and the result of six pairs"),
        ("versions --vllm 0.10", "which TRL to install with your vLLM"),
        ("versions --trl 1.16.0 --format json", "for a program"),
        ("versions verl==0.7.1", "which vLLM, transformers and peft to install with it"),
        ("versions ms-swift==4.6 vllm", "which vLLM to install with it"),
        ("versions trl==1.16 vllm==0.31", "whether two releases fit, and why not"),
    ),
    exit_codes={
        0: "a pair of these releases ran, or fits by requirements and names",
        1: "the releases that were named do not fit",
        3: "no pair of these releases was run, or none fits",
    },
)
@click.argument("questions", metavar="[PACKAGE==VERSION] [PACKAGE]...", nargs=-1)
@click.option("--vllm", type=ReleaseType(), help="Only pairs with this vLLM.")
@click.option("--trl", type=ReleaseType(), help="Only pairs with this TRL.")
@click.option("--all", "every", is_flag=True, help="Show every pair that was tried.")
@click.option("--format", type=click.Choice(["terminal", "json"]), default="terminal", help="Output format.")
def command(
    questions: tuple[str, ...],
    vllm: str | None,
    trl: str | None,
    every: bool,
    format: str,  # noqa: A002 - the option's name
) -> int:
    """Show which releases work together, and which to install; without arguments, which vLLM and TRL ran together."""
    if questions:
        return _answer(questions, format, every=every)
    published = compat_table.load()
    if published.problem:
        raise UserError(f"versions: {published.problem}")
    tried, expected = pairs.tried(published.cells), (vllm or "", trl or "")
    if format == "json":
        print(json_output.dump(pairs.document(tried, published, *expected)))
    else:
        pairs.render(sanitize.console(), tried, published, expected, every=every)
    return FINE if pairs.best(pairs.matching_pairs(tried, *expected)) else INCOMPLETE


def _answer(questions: tuple[str, ...], output: str, *, every: bool) -> int:
    """Answer from the index; two exact releases that do not fit are a finding."""
    answers = version_answers.find_answers(version_answers.parse_questions(questions))
    if output == "json":
        print(json_output.dump(version_answers.document(answers)))
    else:
        version_answers.render(sanitize.console(), answers, every=every)
    if all(answer.best for answer in answers):
        return FINE
    return FINDINGS if len(questions) > 1 and all("==" in word for word in questions) else INCOMPLETE
