"""Import `module` or `module:name`, the argument, and answer its release."""

from __future__ import annotations

import importlib
import sys

import doctor_child  # type: ignore[import-not-found] # beside this file when run


def main() -> None:
    """Answer `ok` and `version`, or `error` and `where`."""
    doctor_child.begin()
    module, _, name = sys.argv[1].partition(":")
    try:
        if module.endswith("._C"):
            importlib.import_module("torch")  # its extensions expect its libraries in the process
        imported = importlib.import_module(module)
        if name:
            getattr(imported, name)  # lazy packages import here
        version = getattr(imported, "__version__", None)
        doctor_child.write_answer({"ok": True, "version": version if isinstance(version, str) else ""})
    except BaseException as error:  # noqa: BLE001 - SystemExit at import is an answer too
        doctor_child.write_answer(doctor_child.failure(error))
    doctor_child.end_process()


if __name__ == "__main__":
    main()
