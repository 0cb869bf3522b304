"""A scratch folder for a program's other files, which is deleted once it has answered."""

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
    """Put all temporary files, also of child processes, into one folder and remove it at the end.

    Clean-up at exit does not run in programs that end by `os._exit`, such as those with an engine's threads.
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
    """Print a measurement's report and end the process, because threads of libraries may outlive `main`.

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
