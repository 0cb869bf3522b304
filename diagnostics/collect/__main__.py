"""Run `python -m diagnostics.collect [PREFIX]`: print the collected facts, with the standard library only."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from diagnostics.collect.facts import collect
from diagnostics.collect.names import NoEnvironmentError


def main() -> int:
    """Print one JSON document; return 2 if there is no environment."""
    try:
        facts = collect(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
    except NoEnvironmentError as error:
        print(f"diagnostics.collect: {str(error)!a}", file=sys.stderr)
        return 2
    except Exception as error:  # noqa: BLE001 - an unforeseen error is no finding
        print(f"diagnostics.collect: failed: {type(error).__name__}: {error}", file=sys.stderr)
        return 2
    print(json.dumps(facts.to_json(), indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
