"""Fuzz `audit RUN` with damaged run folders: `python -m evaluation.hostile.fuzz_artifacts COUNT [SEED]`.

The program is separate from `fuzz_readers`, because it imports writers of the tests that need the trainer's packages.
"""

import functools
import json
import struct
import sys
import tempfile
from pathlib import Path

from diagnostics.audit.recorded.run_audit import audit_run
from diagnostics.audit.results import AuditError
from evaluation.hostile.fuzz_readers import damage_bytes, damaged_json, main, refusing
from tests.diagnostics.audit_recorded import runs, test_damaged_runs


def audit_damaged_run(numbers, folder):
    """Write some of the run artifacts, damaged, and audit the folder; only AuditError may be raised."""
    run = folder / "run"
    for path, data in _artifact_files().items():
        if numbers.random() < 0.5:
            (run / path).parent.mkdir(parents=True, exist_ok=True)
            lines = (
                [damaged_json(numbers, json.loads(line)) for line in data.splitlines()]
                if "json" in path
                else []
            )
            (run / path).write_bytes(damage_bytes(numbers, b"\n".join(lines) or data))
    with refusing(AuditError):
        audit_run(run)


@functools.cache
def _artifact_files():
    """Return the intact artifacts by path: samples in three formats, a safetensors file and a trainer state."""
    with tempfile.TemporaryDirectory() as folder:
        for form in ("parquet", "verl", "swift"):
            runs.WRITERS[form](test_damaged_runs.some_rows(2), Path(folder) / form)
        files = {
            path.relative_to(folder).as_posix(): path.read_bytes()
            for path in Path(folder).rglob("*")
            if path.is_file()
        }
    header = json.dumps({"a": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}}).encode()
    files["checkpoint-1/model.safetensors"] = struct.pack("<Q", len(header)) + header + b"\0" * 16
    state = {"log_history": [{"step": 1, "loss": 0.5}, {"step": 2, "reward": 1.0}], "global_step": 2}
    files["checkpoint-1/trainer_state.json"] = json.dumps(state).encode()
    return files


READERS = (audit_damaged_run,)

if __name__ == "__main__":
    sys.exit(main(READERS, *sys.argv[1:]))
