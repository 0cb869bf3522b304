"""Parse dumps that other tools wrote: stacks, recorders of collectives, watchdog lines, our own bundles."""


class ParseError(ValueError):
    """Raised when a file is no known dump; the message is one line for the user."""
