"""Make the logs of the corpus: real failing and succeeding programs in the environments of the matrix.

    python evaluation/triage/corpus/produce.py --cells .matrix/environments --peers .matrix/peers/bin/python [GROUP ...]

Each log is written to `tests/diagnostics/logs/LABEL/`, without paths and names of this machine. LABEL is the code of
the issue that the case causes, `clean` or `unknown`. Comments in the cases name what is simulated. A case with an
unexpected exit code is reported, but not written. The logs are committed, so the evaluation does not need this program.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
LOGS = ROOT / "tests" / "diagnostics" / "logs"
LONGEST = 60_000


@dataclass(frozen=True)
class Group:
    """Cases that run in one environment after one preamble; a case is (label, name, source)."""

    name: str
    where: str
    preamble: str
    cases: tuple[tuple[str, str, str], ...]
    environ: tuple[tuple[str, str], ...] = ()
    timeout_s: int = 240


@dataclass(frozen=True)
class Program:
    """A case that needs a separate process or several processes; `source` is written to train.py.

    If it writes files LABEL+NAME.log into its folder, these are the logs; otherwise its output is the log.
    """

    label: str
    name: str
    where: str
    source: str
    arguments: tuple[str, ...] = ("train.py",)
    environ: tuple[tuple[str, str], ...] = ()


def find_python(where: str, options: argparse.Namespace) -> Path:
    """Return the interpreter of an environment: `here`, `peers` or the name of a cell."""
    if where == "here":
        return Path(sys.executable)
    return options.peers if where == "peers" else options.cells / where / "bin" / "python"


def anonymize(text: str, python: Path, folder: str, model: Path) -> str:
    """Replace paths, names and addresses of this machine in a log."""
    text = text.replace(str(model), "/opt/models/tiny").replace(str(ROOT), "/opt/doctor")
    prefix = str(python.parent.parent)
    text = text.replace(folder, "/opt/run").replace(prefix, "/opt/env")
    text = re.sub(
        r"/[\w./-]*?/lib/python3\.(\d+)/", r"/opt/python/lib/python3.\1/", text.replace("/opt/env/lib", "\0")
    )
    text = text.replace("\0", "/opt/env/lib").replace(str(Path.home()), "/home/user")
    text = text.replace(platform.node(), "host")
    # Ray lists other processes of the machine.
    text = re.sub(r"(?m)^\d+(\t\d+\.\d\d\t).*$", r"17\1python train.py", text)
    return re.sub(r"\b(?:172|10|192)\.\d+\.\d+\.\d+\b", "10.0.0.1", text)


def build_environment(python: Path, folder: str, more: tuple[tuple[str, str], ...]) -> dict[str, str]:
    """Return the variables of a case: one thread, no access to a hub, a separate cache."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("VLLM_", "PYTHON", "HF_", "RAY_"))}
    path = f"{python.parent}:{os.environ['PATH']}"
    quiet = {
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "RAY_DISABLE_USAGE_STATS": "1",
    }
    fixed = {"HF_HOME": folder, "TERM": "dumb", "TOKENIZERS_PARALLELISM": "false", "PATH": path}
    return inherited | quiet | fixed | dict(more)


def run_group(group: Group, options: argparse.Namespace) -> None:
    """Run all cases of a group and write their logs."""
    python = find_python(group.where, options)
    with tempfile.TemporaryDirectory() as folder:
        cases = [
            (f"{label}_{name}", fill_placeholders(source, options, folder))
            for label, name, source in group.cases
        ]
        preamble = fill_placeholders(group.preamble, options, folder)
        plan = {"preamble": preamble, "folder": folder, "timeout_s": group.timeout_s, "cases": cases}
        (Path(folder) / "plan.json").write_text(json.dumps(plan))
        command = [str(python), "-P", str(HERE / "forked_cases.py"), f"{folder}/plan.json"]
        done = subprocess.run(
            command,
            env=build_environment(python, folder, group.environ),
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            print(f"{group.name}: the preamble failed: {(done.stderr.splitlines() or ['?'])[-1][:300]}")
            return
        codes = json.loads(done.stdout.splitlines()[-1])
        for label, name, _ in group.cases:
            text = (Path(folder) / f"{label}_{name}.log").read_text(errors="replace")
            save_log(
                label,
                f"{group.name}_{name}",
                codes[f"{label}_{name}"],
                anonymize(text, python, folder, options.model),
                options.logs,
            )


def run_program(program: Program, options: argparse.Namespace) -> None:
    """Run one program and write its log, or the logs that it wrote into its folder."""
    python = find_python(program.where, options)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "train.py").write_text(fill_placeholders(program.source, options, folder))
        command = [str(python), *[fill_placeholders(part, options, folder) for part in program.arguments]]
        environ = tuple((name, fill_placeholders(value, options, folder)) for name, value in program.environ)
        with (Path(folder) / "out").open("wb") as out:
            done = subprocess.run(
                command,
                env=build_environment(python, folder, environ),
                cwd=folder,
                stdout=out,
                stderr=subprocess.STDOUT,
                timeout=400,
                check=False,
            )
        logs = sorted(Path(folder).glob("*+*.log"))
        for log in logs:
            label, _, name = log.stem.partition("+")
            save_log(
                label,
                f"{program.name}_{name}",
                1 if label != "clean" else 0,
                anonymize(log.read_text(errors="replace"), python, folder, options.model),
                options.logs,
            )
        if not logs:
            text = (Path(folder) / "out").read_text(errors="replace")
            text = anonymize(text, python, folder, options.model)
            save_log(program.label, program.name, done.returncode, text, options.logs)


def fill_placeholders(text: str, options: argparse.Namespace, folder: str) -> str:
    """Replace @MODEL, @DIR, @ROOT and @PEERS in a source by paths."""
    text = text.replace("@MODEL", str(options.model)).replace("@DIR", folder).replace("@ROOT", str(ROOT))
    return text.replace("@PEERS", str(options.peers.parents[1] / "lib" / "python3.11" / "site-packages"))


def save_log(label: str, name: str, code: int, text: str, logs: Path) -> None:
    """Print the outcome of a case, and write its log unless the exit code contradicts the label."""
    wrong = (code == 0) != (label == "clean") or code == 99
    print(f"{label:<8} {name}: exit {code}{' UNEXPECTED' if wrong else ''}: {last_line(text)}", flush=True)
    if not wrong:
        path = logs / label / f"{name}.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text[-LONGEST:])


def last_line(text: str) -> str:
    """Return the last line that is not empty, cut to 150 characters."""
    return next((line for line in reversed(text.splitlines()) if line.strip()), "")[:150]


def main() -> None:
    """Run the named groups and programs, or all."""
    from cases_after_rules import LATER_GROUPS, LATER_PROGRAMS
    from grouped_cases import GROUPS
    from process_cases import PROGRAMS

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cells", type=Path, required=True)
    parser.add_argument("--peers", type=Path, required=True)
    parser.add_argument(
        "--model",
        type=Path,
        required=True,
        help="a tiny model, as written by benchmarks/programs/benchmark_inputs.py",
    )
    parser.add_argument(
        "--logs",
        type=Path,
        default=LOGS,
        help="folder for the logs (default: that of the committed logs)",
    )
    parser.add_argument("groups", nargs="*", metavar="GROUP")
    options = parser.parse_args()
    for group in (*GROUPS, *LATER_GROUPS):
        if not options.groups or group.name in options.groups:
            run_group(group, options)
    for program in (*PROGRAMS, *LATER_PROGRAMS):
        if not options.groups or program.name in options.groups:
            run_program(program, options)


if __name__ == "__main__":
    main()
