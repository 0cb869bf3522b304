"""Import the modules of all commands (diagnostics, matrix, repros) in the process that tests fork to run one."""

import diagnostics.matrix.command
import repro.issues
from diagnostics import cli

for name in cli.COMMANDS:
    cli.load_command(name)
assert diagnostics.matrix.command
assert repro.issues
