"""A folder for all that a program writes aside, which is gone when the program has answered."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any
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


def print_answer(
    observe: Callable[[], dict[str, Any]], describe: Callable[[dict[str, Any]], str], *, as_json: bool
) -> None:
    """Print what a measurement observed, and end the process: threads of what it used may outlive `main`.

    What libraries print goes to standard error. Exit code 1: its outcome is `failed`.
    """
    answer = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    with scratch():
        document = observe()
    print(json.dumps(document) if as_json else describe(document), file=answer)
    answer.close()
    sys.stderr.flush()
    os._exit(1 if document["outcome"] == "failed" else 0)
