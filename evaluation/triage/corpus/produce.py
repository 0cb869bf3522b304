"""Make the logs of the corpus: real failing and succeeding programs in the environments of the matrix.

    python evaluation/triage/corpus/produce.py --cells .matrix/environments --peers .matrix/peers/bin/python [GROUP ...]

Each log goes to `tests/diagnostics/logs/LABEL/`, where the label is the code of the issue that the case makes, `clean`
or `unknown`, with the machine's paths and names taken out. What is simulated is named in the case. A case that ends
otherwise than expected is not written, and reported. The logs are committed: nobody has to make them to evaluate.
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
    """Cases of one environment with one preamble; a case is (label, name, source)."""

    name: str
    where: str
    preamble: str
    cases: tuple[tuple[str, str, str], ...]
    environ: tuple[tuple[str, str], ...] = ()
    timeout_s: int = 240


@dataclass(frozen=True)
class Program:
    """A program of its own, for what needs several processes; `source` becomes train.py.

    Where it writes files LABEL+NAME.log into its folder, those are the logs, otherwise its output is.
    """

    label: str
    name: str
    where: str
    source: str
    arguments: tuple[str, ...] = ("train.py",)
    environ: tuple[tuple[str, str], ...] = ()


def python_of(where: str, options: argparse.Namespace) -> Path:
    """The interpreter of an environment: `here`, `peers` or the name of a cell."""
    if where == "here":
        return Path(sys.executable)
    return options.peers if where == "peers" else options.cells / where / "bin" / "python"


def stripped(text: str, python: Path, folder: str, model: Path) -> str:
    """Return the log without data of this machine."""
    text = text.replace(str(model), "/opt/models/tiny").replace(str(ROOT), "/opt/doctor")
    prefix = str(python.parent.parent)
    text = text.replace(folder, "/opt/run").replace(prefix, "/opt/env")
    text = re.sub(
        r"/[\w./-]*?/lib/python3\.(\d+)/", r"/opt/python/lib/python3.\1/", text.replace("/opt/env/lib", "\0")
    )
    text = text.replace("\0", "/opt/env/lib").replace(str(Path.home()), "/home/user")
    text = text.replace(platform.node(), "host")
    # Ray lists what else runs on the machine.
    text = re.sub(r"(?m)^\d+(\t\d+\.\d\d\t).*$", r"17\1python train.py", text)
    return re.sub(r"\b(?:172|10|192)\.\d+\.\d+\.\d+\b", "10.0.0.1", text)


def environ_of(python: Path, folder: str, more: tuple[tuple[str, str], ...]) -> dict[str, str]:
    """A clean environment: one thread, no hub, caches of its own."""
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


def produce(group: Group, options: argparse.Namespace) -> None:
    """Run a group and write its logs."""
    python = python_of(group.where, options)
    with tempfile.TemporaryDirectory() as folder:
        cases = [(f"{label}_{name}", filled(source, options, folder)) for label, name, source in group.cases]
        preamble = filled(group.preamble, options, folder)
        plan = {"preamble": preamble, "folder": folder, "timeout_s": group.timeout_s, "cases": cases}
        (Path(folder) / "plan.json").write_text(json.dumps(plan))
        command = [str(python), "-P", str(HERE / "child.py"), f"{folder}/plan.json"]
        done = subprocess.run(
            command,
            env=environ_of(python, folder, group.environ),
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
                stripped(text, python, folder, options.model),
                options.logs,
            )


def produce_programs(program: Program, options: argparse.Namespace) -> None:
    """Run one program and write its log, or the logs that it wrote into its folder."""
    python = python_of(program.where, options)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "train.py").write_text(filled(program.source, options, folder))
        command = [str(python), *[filled(part, options, folder) for part in program.arguments]]
        environ = tuple((name, filled(value, options, folder)) for name, value in program.environ)
        with (Path(folder) / "out").open("wb") as out:
            done = subprocess.run(
                command,
                env=environ_of(python, folder, environ),
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
                stripped(log.read_text(errors="replace"), python, folder, options.model),
                options.logs,
            )
        if not logs:
            text = (Path(folder) / "out").read_text(errors="replace")
            text = stripped(text, python, folder, options.model)
            save_log(program.label, program.name, done.returncode, text, options.logs)


def filled(text: str, options: argparse.Namespace, folder: str) -> str:
    """A source with the places of the model and of the case's folder."""
    text = text.replace("@MODEL", str(options.model)).replace("@DIR", folder).replace("@ROOT", str(ROOT))
    return text.replace("@PEERS", str(options.peers.parents[1] / "lib" / "python3.11" / "site-packages"))


def save_log(label: str, name: str, code: int, text: str, logs: Path) -> None:
    """Write a log, unless the case's outcome differs from its label."""
    wrong = (code == 0) != (label == "clean") or code == 99
    print(f"{label:<8} {name}: exit {code}{' UNEXPECTED' if wrong else ''}: {last(text)}", flush=True)
    if not wrong:
        path = logs / label / f"{name}.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text[-LONGEST:])


def last(text: str) -> str:
    """Return the last line that is not empty."""
    return next((line for line in reversed(text.splitlines()) if line.strip()), "")[:150]


def main() -> None:
    """Run the groups that are named, or all."""
    from groups import GROUPS
    from later import LATER_GROUPS, LATER_PROGRAMS
    from programs import PROGRAMS

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
        help="where to, so that new logs can be judged before they join the others",
    )
    parser.add_argument("groups", nargs="*", metavar="GROUP")
    options = parser.parse_args()
    for group in (*GROUPS, *LATER_GROUPS):
        if not options.groups or group.name in options.groups:
            produce(group, options)
    for program in (*PROGRAMS, *LATER_PROGRAMS):
        if not options.groups or program.name in options.groups:
            produce_programs(program, options)


if __name__ == "__main__":
    main()
