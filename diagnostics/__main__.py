"""Start the command line: entry point of `grpo-doctor` and of `python -m diagnostics`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

# `-m` puts the working folder first on the import path, where a user's random.py or logging.py would replace Python's.
if __name__ == "__main__" and not getattr(sys.flags, "safe_path", False):
    sys.path[:1] = [folder for folder in sys.path[:1] if __file__.startswith(f"{folder}/diagnostics/")]

_OLDEST = (3, 11)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; with an old Python, print one line that says so."""
    if sys.version_info[:2] < _OLDEST:
        running = ".".join(map(str, sys.version_info[:2]))
        print(
            f"grpo-doctor: needs Python 3.11 or newer; this is {running}, {sys.executable}", file=sys.stderr
        )
        return 2
    try:
        from diagnostics import cli
    except KeyboardInterrupt:
        return 130
    except ModuleNotFoundError as error:
        name = (error.name or "").partition(".")[0]
        if name in ("", "diagnostics"):
            raise
        # The table of distributions is in `cli`, which cannot be imported here.
        package = {"re2": "google-re2", "yaml": "pyyaml"}.get(name, name)
        print(f"grpo-doctor: {package} is not installed here: pip install {package}", file=sys.stderr)
        return 2
    return cli.main(arguments)


if __name__ == "__main__":
    sys.exit(main())
