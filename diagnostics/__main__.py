"""Start the command line: entry point of `grpo-doctor` and of `python -m diagnostics`.

With `-m`, the working folder is first removed from the import path, unless it contains this package. A Python older
than 3.11 and a missing dependency are reported in one line on standard error, with exit code 2.
"""

import sys
from collections.abc import Sequence

# `-m` puts the working folder first on the import path, where a user's random.py or logging.py would replace Python's.
if __name__ == "__main__" and not getattr(sys.flags, "safe_path", False):
    sys.path[:1] = [folder for folder in sys.path[:1] if __file__.startswith(f"{folder}/diagnostics/")]

_OLDEST_PYTHON = (3, 11)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; an old Python or a missing package is reported in one line."""
    if sys.version_info[:2] < _OLDEST_PYTHON:
        release = ".".join(map(str, sys.version_info[:2]))
        problem = f"needs Python 3.11 or newer; this is {release}, {sys.executable}"
        print(f"grpo-doctor: {problem}", file=sys.stderr)
        return 2
    from diagnostics.missing_packages import install_hint

    try:
        from diagnostics import cli
    except KeyboardInterrupt:
        return 130
    except ModuleNotFoundError as error:
        if not (hint := install_hint(error)):
            raise
        print(f"grpo-doctor: {hint}", file=sys.stderr)
        return 2
    return cli.main(arguments)


if __name__ == "__main__":
    sys.exit(main())
