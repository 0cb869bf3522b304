"""Reads what others took: dumps of stack tools, recorders of collectives, our own bundles."""


class ReadError(ValueError):
    """Raised when a file is none of the dumps that are known; the message is one line for the user."""
