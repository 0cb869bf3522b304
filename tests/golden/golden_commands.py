"""Run a golden command in a separate folder, summarise its output, and compare it with commands.json.

`observe` runs and summarises, `differences` compares. A golden command is a command whose result is recorded: exit
code, one line of stderr, and a summary of stdout. The command runs as `python -m ...` in a folder with the files of
`inputs/` and the fake environments below. Paths, dates, durations and growing counts are replaced by placeholders.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from tests.diagnostics.fake_environments import EnvironmentBuilder

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
RECORDED = HERE / "commands.json"
FIRST_LINES = 6
LINE_WIDTH = 110
# Fake environments: folder name -> distributions (name, version, requirements).
ENVIRONMENTS = {
    "env_none": (),
    "env_old": (("vllm", "0.7.3", ()), ("trl", "0.16.1", ()), ("torch", "2.5.1", ())),
    "env_new": (
        ("vllm", "0.10.2", ("torch==2.8.0", "transformers>=4.55.2")),
        ("trl", "0.24.0", ()),
        ("torch", "2.8.0", ()),
        ("transformers", "4.57.1", ()),
    ),
    "env_unmet": (("vllm", "0.10.2", ("torch==2.8.0",)), ("trl", "0.24.0", ()), ("torch", "2.6.0", ())),
    "env_verl": (("verl", "0.5.0", ()), ("vllm", "0.8.5", ())),
}


def load_recorded():
    """Return the entries of commands.json: name, command line and recorded result."""
    return json.loads(RECORDED.read_text(encoding="utf-8"))


def create_inputs(folder):
    """Copy the inputs into a folder and create the fake environments there; env_old has an executable interpreter."""
    shutil.copytree(HERE / "inputs", folder, dirs_exist_ok=True)
    for name, distributions in ENVIRONMENTS.items():
        maker = EnvironmentBuilder(folder / name)
        for package, version, requires in distributions:
            maker.add(package, version, requires=requires)
    (folder / "env_old" / "bin" / "python").chmod(0o755)


def run_module(arguments, *, cwd, env, stdin):
    """Run `python -m` as a new process."""
    words = [sys.executable, "-m", *arguments]
    return subprocess.run(words, input=stdin, capture_output=True, cwd=cwd, env=env, check=False)


def observe(entry, folder, run=run_module):
    """Run an entry's command in a folder with the inputs by `run`; return its summarised result."""
    program, option, *arguments = shlex.split(entry["run"])
    assert (program, option) == ("python", "-m"), f"{entry['run']}: expected python -m ..."
    stdin = (folder / entry["stdin"]).read_bytes() if "stdin" in entry else b""
    done = run(arguments, cwd=folder, env=_environment(folder), stdin=stdin)
    out, err = (_neutral(text.decode(), folder) for text in (done.stdout, done.stderr))
    is_help = {"--help", "-h"} & set(shlex.split(entry["run"]))
    return {
        "exit": done.returncode,
        "stdout": {"options": options_of(out)} if is_help else summary(out, entry.get("first", FIRST_LINES)),
        "stderr": _first_error_line(err),
    }


def _environment(folder):
    """Return the variables of a command: none of the caller's, because doctor reads many of them."""
    return {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), "/usr/bin", "/bin"]),
        "PYTHONPATH": str(ROOT),
        "HOME": str(folder / "home"),
        "LC_ALL": "C.UTF-8",
        "COLUMNS": "110",
        "NO_COLOR": "1",
        "PYTHON_COLORS": "0",
        "HF_HUB_OFFLINE": "1",
        # Durations depend on the machine and are not recorded.
        "GRPO_DOCTOR_QUIET": "1",
    }


def _neutral(text, folder):
    """Replace paths, dates, durations and growing counts by placeholders."""
    for path, name in ((folder, "<here>"), (ROOT, "<project>"), (sys.executable, "<python>")):
        text = text.replace(str(path), name)
    for pattern, name in (
        (r"\b\d{4}-\d\d-\d\d\b", "<day>"),
        (r"\b\d{8}-\d{6}\b", "<moment>"),
        (r"\b\d+(\.\d+)? (m?s|seconds)\b", r"<time>"),
        (r"(choose from).*", r"\1 ...)"),  # argparse's text differs between Python releases
        # Counts that grow with each new file: issues, layers, checks that do not apply here.
        (r"\((known: ).*\)", r"(\1...)"),
        (r"(; there are ).*", r"\1..."),
        (r"\b\d+ entries\b", "<count> entries"),
        (r"\b\d+ of \d+ checks\b", "<count> checks"),
        (r'skipped="\d+"', 'skipped="<count>"'),
        # Lint reads the PyTorch release of the test environment.
        (r"(openrlhf [\d.]+), torch [^,\s]+", r"\1"),
        (r"(step 1/2) .*", r"\1 ..."),
    ):
        text = re.sub(pattern, name, text)
    return text


def _first_error_line(text):
    """Return the first line of stderr, or the last line for an argparse error, which follows the usage."""
    lines = [line for line in text.splitlines() if line.strip()] or [""]
    return lines[-1 if lines[0].startswith("usage:") else 0].strip()


def options_of(text):
    """Return the options and commands that a help text names."""
    words = set(re.findall(r"(?<![\w-])--[a-z][a-z_.-]*[a-z]", text))
    # A subcommand is indented by two to six blanks, followed by its help.
    words |= set(re.findall(r"^ {2,6}([a-z][a-z-]+)(?: {2,}|$)", text, re.MULTILINE))
    return sorted(words)


def summary(text, first=FIRST_LINES):
    """Summarise an output: schema, keys and findings of a JSON document or of JSON lines, otherwise the first lines."""
    document = _json(text)
    if isinstance(document, (dict, list)):
        return {"json": _facts(document)}
    rows = [_json(line) for line in text.splitlines()]
    if len(rows) > 1 and all(isinstance(row, dict) for row in rows):
        return {"jsonl": {"keys": sorted(set().union(*rows)), "findings": _findings(rows)}}
    return {"lines": [line[:LINE_WIDTH].rstrip() for line in text.splitlines()[:first]]}


def _json(text):
    try:
        return json.loads(text)
    except ValueError:
        return None


def _facts(document):
    """Return schema, keys and findings of a JSON document."""
    if isinstance(document, list):
        return {"items": sorted(set().union(*(row for row in document if isinstance(row, dict))))}
    facts = {"schema": document["schema"]} if "schema" in document else {}
    facts["keys"] = sorted(document)
    for key, value in document.items():
        if isinstance(value, dict):
            facts["keys"] += [f"{key}.{name}" for name in sorted(value)]
        elif isinstance(value, list) and value and all(isinstance(row, dict) for row in value):
            common = set.intersection(*(set(row) for row in value))
            facts["keys"] += [f"{key}[].{name}" for name in sorted(common)]
    rows = document.get("findings", [])
    rows = rows or [result for run in document.get("runs", ()) for result in run.get("results", ())]
    if rows or "findings" in document or "runs" in document:
        facts["findings"] = _findings(rows)
    return facts


def _findings(rows):
    """Return "severity CODE" of each finding in order; SARIF calls the two level and ruleId."""
    severities = [(row.get("severity", row.get("level")), row.get("code", row.get("ruleId"))) for row in rows]
    return [f"{severity} {code}" for severity, code in severities if code]


def differences(recorded, observed):
    """Return a line for each recorded fact that differs.

    Additional keys and options are no difference, and additional findings are none in an entry with `grows`.
    """
    lines = [
        f"{name}: expected {recorded[name]!r}, observed {observed[name]!r}"
        for name in ("exit", "stderr")
        if recorded[name] != observed[name]
    ]
    (form, before), (now_form, now) = (next(iter(item["stdout"].items())) for item in (recorded, observed))
    if form != now_form:
        return [*lines, f"stdout: expected {form}: {before!r}, observed {now_form}: {now!r}"]
    if form in {"lines", "options"}:
        before, now = {form: before}, {form: now}
    growing = {"keys", "items", "options"} | ({"findings"} if "grows" in recorded else set())
    for key, value in before.items():
        current = now.get(key)
        holds = set(value) <= set(current or ()) if key in growing else value == current
        lines += [] if holds else [f"stdout {key}: expected {value!r}, observed {current!r}"]
    return lines
