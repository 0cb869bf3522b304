"""Record the results of the golden commands, all or those named, again after an intended change.

usage: python -m tests.golden.record [NAME ...]
Commit the new commands.json with the change, and describe it in CHANGELOG.md. A new entry needs only `name` and `run`.
Optional keys: `stdin` (an input file), `needs` (packages), `first` (number of recorded lines), `grows` (additional
findings are no difference).
"""

import json
import sys
import tempfile
from pathlib import Path

from tests.golden import golden_commands


def main(names: list[str]) -> int:
    """Run the named or all commands and rewrite commands.json; return 2 for an unknown name."""
    entries = golden_commands.load_recorded()
    unknown = set(names) - {entry["name"] for entry in entries}
    if unknown:
        print(f"record: no such entry: {', '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    for entry in entries:
        if names and entry["name"] not in names:
            continue
        with tempfile.TemporaryDirectory() as folder:
            folder_of_run = Path(folder).resolve() / "work"
            golden_commands.create_inputs(folder_of_run)
            entry.update(golden_commands.observe(entry, folder_of_run))
        print(f"{entry['exit']}  {entry['name']}", file=sys.stderr)
    golden_commands.RECORDED.write_text(
        json.dumps(entries, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
