"""Import the modules of the commands (diagnostics, matrix, repro) in the process that tests fork for each command.

Load and compile what most commands use first, too: the catalog and the patterns of redaction.
"""

import diagnostics.matrix.command
import repro.issues
from diagnostics import catalog, cli
from diagnostics.output import redact

for name in cli.COMMANDS:
    cli.load_command(name)
assert diagnostics.matrix.command
assert repro.issues
catalog.load()
for rule in (*redact._SECRETS, *redact._IDENTITY):
    assert rule.pattern
