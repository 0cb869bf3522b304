"""Feeds the readers of others' dumps and records damaged and hostile ones, as the readers of diagnostics are fed.

`python -m tests.grpo_core.programs.fuzz_records COUNT [SEED [READER...]]`
"""

import sys

from grpo_core.config import ConfigError, LossConfig, RecordError
from grpo_core.records.dumps import check_advantages, read_verl_dump
from grpo_core.records.recording import SCHEMA, SCHEMA_2, read_step
from tests.diagnostics.programs.fuzz_readers import as_json, main, refusing


def dumps(numbers, folder):
    """A dump of verl's, and the check of its advantages."""
    rows = [
        {
            "input": f"p{number // 2}",
            "output": "o",
            "score": float(number % 2),
            "step": 1,
            "uid": f"u{number // 2}_0_0",
        }
        for number in range(4)
    ]
    (folder / "1.jsonl").write_bytes(b"\n".join(as_json(numbers, row) for row in rows))
    with refusing(ConfigError):
        for step in read_verl_dump(folder):
            check_advantages(step, LossConfig(), 2)


def records(numbers, folder):
    """A recorded step, with a file that may be named anywhere."""
    (folder / "run" / "rollouts").mkdir(parents=True)
    (folder / "secret").write_bytes(b"secret")
    entry = {
        "schema": numbers.choice((SCHEMA, SCHEMA_2)),
        "step": 1,
        "file": numbers.choice(("rollouts/a", "../secret", "/etc/hostname", "rollouts/../../secret")),
        "sha256": "0" * 64,
    }
    (folder / "run" / "rollouts.jsonl").write_bytes(as_json(numbers, entry) + b"\n")
    with refusing(RecordError):
        try:
            read_step(folder / "run", 1)
        except RecordError as error:
            if "secret: torn" in str(error) or "hostname: torn" in str(error):
                raise AssertionError("a file outside of the run was read") from error
            raise


READERS = {dumps: 1, records: 1}

if __name__ == "__main__":
    sys.exit(main(READERS, *sys.argv[1:]))
