"""Run the command `completion`: print the script that makes a shell complete commands, options, codes and formats."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from diagnostics import cli

SHELLS = ("bash", "zsh", "fish")


@click.command(
    cls=cli.Command,
    examples=(
        ("completion bash", "save as ~/.local/share/bash-completion/completions/grpo-doctor"),
        ("completion zsh", "append to ~/.zshrc"),
        ("completion fish", "save as ~/.config/fish/completions/grpo-doctor.fish"),
    ),
    exit_codes={0: "the script was printed", 1: None, 3: None},
)
@click.argument("shell", type=click.Choice(SHELLS))
def command(shell: str) -> int:
    """Print a shell's completion script."""
    completion = get_completion_class(shell)
    assert completion is not None
    variables = completion(cli.app, {}, cli.PROGRAM, "_GRPO_DOCTOR_COMPLETE").source_vars()
    print(completion.source_template % variables)  # `source()` would start bash to check its version
    return 0
