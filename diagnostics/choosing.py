"""The command `versions`: which releases of vLLM and TRL ran together, offline, out of the published table."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from diagnostics.output.findings import FINE, INCOMPLETE, USAGE


def add(commands: Any) -> None:
    """Adds the command to a parser's commands."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "versions", help="which versions of vLLM and TRL ran together, offline"
    )
    parser.add_argument("--vllm", type=_release, metavar="RELEASE", help="with this vLLM, as 0.10 or 0.10.2")
    parser.add_argument("--trl", type=_release, metavar="RELEASE", help="with this TRL")
    parser.add_argument("--all", action="store_true", help="every pair that was tried")
    parser.add_argument("--format", choices=("terminal", "json"), default="terminal")
    parser.set_defaults(command=run)


def _release(text: str) -> str:
    from packaging.version import InvalidVersion, Version

    try:
        Version(text)
    except InvalidVersion:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a release, as 0.10 or 0.10.2") from None
    return text


def run(options: argparse.Namespace) -> int:
    """Prints which to take; 3 where no pair of what was asked for ran."""
    from diagnostics.collect import compat
    from diagnostics.output import pairs
    from diagnostics.output.paper import Paper

    published = compat.load()
    if published.problem:
        print(f"diagnostics: versions: {published.problem}", file=sys.stderr)
        return USAGE
    asked = (options.vllm or "", options.trl or "")
    tried = pairs.tried(published.cells)
    if options.format == "json":
        print(json.dumps(pairs.document(tried, published, *asked), indent=1, ensure_ascii=False))
    else:
        pairs.render(Paper(sys.stdout), tried, published, asked, every=options.all)
    return FINE if pairs.best(pairs.chosen(tried, *asked)) else INCOMPLETE
