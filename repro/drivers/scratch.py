"""A folder for all that a program writes aside, which is gone when the program has answered."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from unittest import mock


@contextlib.contextmanager
def scratch() -> Iterator[str]:
    """Has everything that is temporary made in one folder, by children too, and removes it at the end.

    A program that ends by `os._exit`, as those do in which an engine's threads go on, runs no clean-up of its own.
    """
    with tempfile.TemporaryDirectory(prefix="grpo-doctor-", ignore_cleanup_errors=True) as folder:
        before = tempfile.tempdir
        with mock.patch.dict(os.environ, TMPDIR=folder):
            tempfile.tempdir = None
            try:
                yield folder
            finally:
                tempfile.tempdir = before
