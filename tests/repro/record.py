"""Record outputs of `python -m repro run CODE --json` in diagnostics/data/attempts.json, as evidence for entries.

Usage: `python -m tests.repro.record ENVIRONMENT FILE...`. The files contain the outputs; they replace earlier records
of the same codes in the same environment. ENVIRONMENT is a command that builds the environment. An attempt with an
error, a timeout, or another outcome than the catalog's ends the program. Inapplicable attempts are left out.
"""

import datetime
import json
import sys
from pathlib import Path
from typing import Any

RECORD = Path(__file__).parents[2] / "diagnostics" / "data" / "attempts.json"
SCHEMA = "grpo-doctor.attempts.v1"


def recorded_runs(document: dict[str, Any], environment: str, day: str) -> dict[str, dict[str, Any]]:
    """Return for each code the entry for the record: command, environment, date, versions, and outcomes.

    Raises:
        SystemExit: An attempt has an error, a timeout, or another outcome than the catalog's.
    """
    result: dict[str, dict[str, Any]] = {}
    for code, reported in document["codes"].items():
        outcomes: dict[str, dict[str, str]] = {}
        for sample in reported["attempts"]:
            if sample["outcome"] == "inapplicable":
                continue
            if sample["outcome"] in {"error", "timeout"} or sample["as_recorded"] is False:
                raise SystemExit(
                    f"{code} {sample['trigger']} {sample['mitigation']}: {sample['outcome']}: {sample['detail']}"
                )
            observed = f"{sample['outcome']} {sample['where'] or ''}".strip()
            outcomes.setdefault(sample["trigger"], {})[sample["mitigation"] or "unmitigated"] = observed
        if outcomes:
            common = {"day": day, "python": document["python"], "versions": document["versions"]}
            command = f"python -m repro run {code}"
            result[code] = {"command": command, "environment": environment, **common, "outcomes": outcomes}
    return result


def main() -> None:
    """Merge the documents named on the command line into the record."""
    environment, *files = sys.argv[1:]
    known: dict[str, Any] = {"runs": []}
    if RECORD.exists():
        known = json.loads(RECORD.read_text())
    runs = {(run["code"], run["environment"]): run for run in known["runs"]}
    day = datetime.datetime.now(datetime.UTC).date().isoformat()
    for file in files:
        for code, run in recorded_runs(json.loads(Path(file).read_text()), environment, day).items():
            runs[code, environment] = {"code": code, **run}
    document = {"schema": SCHEMA, "runs": [*runs.values()]}
    RECORD.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
