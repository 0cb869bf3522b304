"""Read the cases of a test from a YAML file next to it, and parametrize the test with them.

`read_cases` reads them, and `each_case` parametrizes.
"""

from pathlib import Path
from typing import Any

import pytest
import yaml

CASE_ID = "id"
# libyaml parses the files in a tenth of the time, if this PyYAML was built with it.
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def load_yaml(path: Path) -> Any:
    """Return the content of a YAML file."""
    return yaml.load(path.read_text(encoding="utf-8"), Loader=LOADER)


def read_cases(test_file: str, name: str) -> Any:
    """Return the content of a YAML file next to a test file: tables of cases by name, or one table."""
    return load_yaml(Path(test_file).with_name(name))


def each_case(cases: list[dict[str, Any]]) -> pytest.MarkDecorator:
    """Parametrize a test with cases whose keys are the names of its parameters; `id` names a case."""
    names = tuple(name for name in cases[0] if name != CASE_ID)
    ids = [case[CASE_ID] for case in cases] if CASE_ID in cases[0] else None
    return pytest.mark.parametrize(names, [tuple(case[name] for name in names) for case in cases], ids=ids)
