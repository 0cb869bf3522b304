"""Run the command `versions`: show which releases of packages work together.

Without arguments it shows the recorded runs of vLLM and TRL (compatibility table). For named packages, and with
`--python` for installed ones, it answers from recorded runs, requirements and the API index; `version_answers` does
the work.
"""

from pathlib import Path

import click

from diagnostics import UserError, compat_table
from diagnostics.cli import Command
from diagnostics.commands import version_answers
from diagnostics.findings import FINDINGS, FINE, INCOMPLETE
from diagnostics.output import json_output, release_pairs, sanitize, text_filters


@click.command(
    cls=Command,
    examples=(
        ("versions", "the recommended pair, and the result of six pairs"),
        ("versions vllm==0.10 trl", "which TRL to install with your vLLM"),
        ("versions verl==0.7.1", "which vLLM, transformers and peft to install with verl 0.7.1"),
        ("versions ms-swift==4.6 vllm", "which vLLM to install with ms-swift 4.6"),
        ("versions trl==1.16 vllm==0.31", "whether these two releases fit, and if not, why"),
        ("versions --python ENV/bin/python", "whether the installed packages fit"),
    ),
    exit_codes={
        0: "these releases ran together, or their requirements and imports fit (not run)",
        1: "the named or installed releases do not fit",
        3: "nothing is known about these releases, or no release fits them",
    },
)
@click.argument("questions", metavar="[PACKAGE==VERSION] [PACKAGE]...", nargs=-1)
@click.option("--python", type=click.Path(path_type=Path), help="Check this interpreter's packages.")
@click.option("--all", "every", is_flag=True, help="Show every pair that was tried.")
@click.option("--format", type=click.Choice(["terminal", "json"]), default="terminal", help="Output format.")
def command(
    questions: tuple[str, ...],
    python: Path | None,
    every: bool,
    format: str,  # noqa: A002 - the option's name
) -> int:
    """Show which releases work together, and which to install; without arguments, which vLLM and TRL ran together."""
    if python and questions:
        raise UserError("versions: --python checks what is installed; name no packages with it")
    if python:
        return _check_environment(python, format)
    if questions:
        return _answer_questions(questions, format, every=every)
    published = compat_table.load()
    if published.problem:
        raise UserError(f"versions: {published.problem}")
    tried = release_pairs.published_pairs(published.cells)
    if format == "json":
        print(json_output.dump(release_pairs.document(tried, published)))
    else:
        release_pairs.render(sanitize.console(), tried, published, every=every)
    return FINE if release_pairs.best_pair(tried) else INCOMPLETE


def _answer_questions(questions: tuple[str, ...], output_format: str, *, every: bool) -> int:
    """Print the answer from the index and return the exit code; exact releases that do not fit are a finding."""
    answers = version_answers.find_answers(version_answers.parse_questions(questions))
    chosen = version_answers.choose_set(answers)
    resolution = version_answers.resolve(chosen)
    if output_format == "json":
        document = version_answers.document(answers, chosen, resolution)
        print(json_output.dump(text_filters.redact_for_sharing(document)))
    else:
        version_answers.render(sanitize.console(), answers, chosen, resolution, every=every)
    if all(answer.best for answer in answers):
        return FINE
    exact = len(questions) > 1 and all("==" in word for word in questions)
    return FINDINGS if exact and any(answer.pairs[0].contradicted for answer in answers) else INCOMPLETE


def _check_environment(python: Path, output_format: str) -> int:
    """Print how the installed releases of an environment fit each other, and return the exit code."""
    installed = version_answers.installed_pairs(python)
    if output_format == "json":
        pairs = text_filters.redact_for_sharing([version_answers.pair_document(pair) for pair in installed])
        print(json_output.dump({"schema": version_answers.SCHEMA, "pairs": pairs}))
    else:
        version_answers.render_installed(sanitize.console(), installed)
    if any(pair.contradicted for pair in installed):
        return FINDINGS
    return FINE if all(pair.fits for pair in installed) and installed else INCOMPLETE
