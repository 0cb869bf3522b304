"""Record which source lines that the behaviour rules of the contract layer name are in released wheels.

`python -m evaluation.matrix.contract_lines --wheels DIR` writes tests/matrix/contract_lines.json.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from diagnostics.api_index import rules
from diagnostics.matrix.wheels import find_wheel

if TYPE_CHECKING:
    from diagnostics.api_index.surface import Sources

TARGET = Path(__file__).parents[2] / "tests" / "matrix" / "contract_lines.json"
# (TRL, vLLM) at the boundaries of the rules: the last pair that works and the first that does not, or the reverse.
PAIRS = (
    ("0.14.0", "0.7.3"), ("0.14.0", "0.8.0"), ("0.14.0", "0.11.0"), ("0.15.2", "0.8.0"),
    ("0.16.1", "0.7.3"), ("0.16.1", "0.8.1"), ("0.16.1", "0.8.2"), ("0.16.1", "0.10.2"),
    ("0.17.0", "0.8.1"), ("0.17.0", "0.8.5"), ("0.17.0", "0.9.0"), ("0.18.2", "0.8.5"), ("0.18.2", "0.9.0"),
    ("0.18.2", "0.11.2"), ("0.19.1", "0.9.0"), ("0.24.0", "0.10.2"),
    ("1.11.0", "0.25.1"), ("1.11.0", "0.26.0"), ("1.13.0", "0.25.1"), ("1.13.0", "0.30.0"), ("1.14.2", "0.20.2"),
    ("1.14.2", "0.30.0"), ("1.15.0", "0.20.2"), ("1.16.0", "0.31.0"),
)  # fmt: skip


def main() -> int:
    """Find the lines in the wheels of all pairs, and write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--wheels", type=Path, required=True, help="folder with the cached sources of wheels")
    wheels = parser.parse_args().wheels
    by_package: dict[str, dict[str, dict[str, list[str]]]] = {"trl": {}, "vllm": {}}
    pairs = []
    for trl, vllm in PAIRS:
        trainer, engine = (
            find_wheel(*requirement, cache=wheels) for requirement in (("trl", trl), ("vllm", vllm))
        )
        lines = [line for rule in rules.project_rules().rule for line in rule.trl]
        by_package["trl"][trl] = find_lines(trainer, lines)
        lines = [line for rule in rules.project_rules().rule for case in rule.cases for line in case.vllm]
        by_package["vllm"][vllm] = find_lines(engine, lines)
        rulings = [
            (ruling.rule.subject, ruling.case.outcome if ruling.case else None)
            for ruling in rules.apply_rules(trainer, engine)
        ]
        pairs.append({"trl": trl, "vllm": vllm, "rulings": rulings})
    TARGET.write_text(json.dumps({"pairs": pairs, **by_package}, indent=1) + "\n", encoding="utf-8")
    return 0


def find_lines(sources: Sources, lines: list[rules.SourceLine]) -> dict[str, list[str]]:
    """Return by file the lines of the rules that it contains; a file without any has an empty list."""
    by_file: dict[str, list[str]] = {}
    for line in lines:
        for file in line.files:
            if file in sources.names():
                file_lines = by_file.setdefault(file, [])
                if rules.SourceLine((file,), line.text).find(sources) and line.text not in file_lines:
                    file_lines.append(line.text)
    return by_file


if __name__ == "__main__":
    sys.exit(main())
