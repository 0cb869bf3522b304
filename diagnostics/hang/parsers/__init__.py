"""Parse dumps of other tools (stacks, flight recorders, watchdog messages) and our own bundles into snapshots."""


class ParseError(ValueError):
    """Raised when a file is no known dump; the message is one line for the user."""
