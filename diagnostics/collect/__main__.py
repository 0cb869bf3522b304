"""`python -m diagnostics.collect [PREFIX]`: prints what doctor's static tier knows, with the standard library alone."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from diagnostics.collect.collection import collect
from diagnostics.collect.names import NoEnvironmentError


def main() -> int:
    """Prints one JSON document; 2 where there is no environment."""
    try:
        facts = collect(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
    except NoEnvironmentError as error:
        print(f"diagnostics.collect: {str(error)!a}", file=sys.stderr)
        return 2
    except Exception as error:  # noqa: BLE001 - what nobody foresaw is no answer, and nobody's finding
        print(f"diagnostics.collect: failed: {type(error).__name__}: {error}", file=sys.stderr)
        return 2
    print(json.dumps(facts.to_json(), indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
