"""The checks of `doctor`: pure functions from facts to findings.

A check is a function under `@check` in a file of this folder; nothing else has to name it.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from diagnostics.doctor.checks.registered import CHECKS, DoctorCheck, checks

for _path in sorted(Path(__file__).parent.glob("[a-z]*.py")):
    import_module(f"{__name__}.{_path.stem}")

BY_NAME: dict[str, list[DoctorCheck]] = {
    name: [check for check in checks() if check.name == name] for name in CHECKS
}
