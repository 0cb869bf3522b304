"""`python -m tests.golden.record [NAME ...]`: record the commands' results again, all or the named ones.

For a change on purpose: the difference of commands.json goes into the same commit, a line of it into CHANGELOG.md.
A new entry needs only `name` and `run`; `stdin` is an input's name, `needs` names packages, `first` says how many
lines are held, `grows` that further findings are no change.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from tests.golden import workbench


def main(names: list[str]) -> int:
    """Run the commands and rewrite the file; return 2 for an unknown name."""
    entries = workbench.recorded()
    unknown = set(names) - {entry["name"] for entry in entries}
    if unknown:
        print(f"record: no such entry: {', '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    for entry in entries:
        if names and entry["name"] not in names:
            continue
        with tempfile.TemporaryDirectory() as folder:
            folder_of_run = Path(folder).resolve() / "work"
            workbench.furnish(folder_of_run)
            entry.update(workbench.observe(entry, folder_of_run))
        print(f"{entry['exit']}  {entry['name']}", file=sys.stderr)
    workbench.RECORDED.write_text(json.dumps(entries, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
