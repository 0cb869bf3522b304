"""Programs that layers of the matrix run in a cell; each prints one report, as JSON with `--json`, else as lines.

`run_program` parses a program's command line; `print_report` prints its report and ends its process.
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Collection
from typing import Any

from grpo_core.console_text import escape


def run_program(description: str, observe: Callable[..., dict[str, Any]], **choices: Collection[str]) -> None:
    """Print the report of `observe`, called with the arguments of the command line: a word for each of `choices`."""
    parser = argparse.ArgumentParser(description=description)
    for name, words in choices.items():
        parser.add_argument(name, choices=words)
    parser.add_argument("--json", action="store_true", help="one JSON document")
    options = vars(parser.parse_args())
    as_json = options.pop("json")
    print_report(lambda: observe(*options.values()), as_json=as_json)


def print_report(observe: Callable[[], dict[str, Any]], *, as_json: bool) -> None:
    """Print the report that `observe` returns and end the process, because threads of libraries may outlive `main`.

    Output of libraries goes to standard error. `os._exit` skips all clean-up, so temporary files, also of child
    processes, go to one folder that is removed here. The exit code is 1 if the report's `outcome` is `failed`, else 0.
    """
    answer = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    with tempfile.TemporaryDirectory(prefix="grpo-doctor-", ignore_cleanup_errors=True) as folder:
        os.environ["TMPDIR"], tempfile.tempdir = folder, None
        document = observe()
    lines = "\n".join(f"{key}: {value}" for key, value in document.items())
    print(escape(json.dumps(document) if as_json else lines), file=answer)
    answer.close()
    sys.stderr.flush()
    os._exit(1 if document["outcome"] == "failed" else 0)
