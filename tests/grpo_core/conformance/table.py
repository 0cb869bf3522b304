"""Run the conformance suite on many engines and print the results as a Markdown table of tests by engines.

`python tests/grpo_core/conformance/table.py fake transformers process server` runs those that need nothing else.
`vllm=.matrix/environments/vllm-0.31.0+trl-1.16.0/bin/python` runs one by another Python, with pytest from the folder
`--pytest` (made by `uv pip install --target FOLDER pytest`), so that nothing is installed into a cell.
`vllm-serve=PYTHON` and `trl-vllm-serve=PYTHON` start that server with that Python, and run the client with this one.
`vllm-serve:http://127.0.0.1:8000` asks a server that runs, started on the folder of `--model-dir`
(made by `python -m tests.grpo_core.conformance.cases FOLDER`).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
SUITE = Path("tests") / "grpo_core" / "conformance"
MARKS = {"passed": "passed", "failed": "**failed**", "not applicable": "n/a"}
Outcomes = dict[str, dict[str, str]]


def stage(folder: Path) -> None:
    """Copy the trainer and the suite, so that nothing else of ours can be imported."""
    ignored = shutil.ignore_patterns("__pycache__", "test_*")
    shutil.copytree(ROOT / "grpo_core", folder / "grpo_core", ignore=ignored)
    shutil.copytree(ROOT / SUITE, folder / SUITE, ignore=ignored)
    shutil.copy(ROOT / "tests" / "__init__.py", folder / "tests")


def run(engine: str, python: str, options: argparse.Namespace) -> tuple[Outcomes, str]:
    """Return the outcome of each test, and a line if the run crashed or has no outcome for some test."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        stage(folder)
        found = folder / "outcomes.json"
        environment = {
            key: value for key, value in os.environ.items() if not key.startswith(("VLLM_", "PYTHON"))
        }
        environment |= dict(entry.split("=", 1) for entry in options.set)
        environment["PYTHONPATH"] = os.pathsep.join([name, *options.pytest])
        command = [
            python,
            "-P",
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-p",
            f"{module(SUITE)}.plugin",
        ]
        command += ["-c", os.devnull, "--rootdir", name, "--import-mode=importlib", str(SUITE / "suite.py")]
        command += ["--engine", engine, "--outcomes", str(found), *options.select]
        if options.model_dir:
            command += ["--model-dir", str(Path(options.model_dir).resolve())]
        end = ""
        try:
            done = subprocess.run(
                command, cwd=folder, env={"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", **environment},
                stdout=sys.stderr, timeout=options.limit_s, check=False,
            )  # fmt: skip
            if done.returncode not in (0, 1) or not found.exists():
                end = f"pytest ended with {done.returncode}"
        except subprocess.TimeoutExpired:
            end = f"not ended after {options.limit_s} s"
        return (json.loads(found.read_text(encoding="utf-8")) if found.exists() else {}), end


def run_served(engine: str, python: Path, options: argparse.Namespace) -> tuple[Outcomes, str]:
    """Run the suite against an engine behind a server that is started and ended here."""
    sys.path.insert(0, str(ROOT))
    from tests import servers
    from tests.grpo_core.conformance.cases import make_model

    command = servers.vllm_command if engine == "vllm-serve" else servers.trl_command
    with tempfile.TemporaryDirectory() as name:
        model_dir, port = make_model(Path(name) / "model"), servers.free_port()
        try:
            with servers.serving(
                command(python, model_dir, port), Path(name) / "log", timeout_s=options.limit_s
            ):
                options = argparse.Namespace(**{**vars(options), "model_dir": model_dir})
                return run(f"{engine}:http://127.0.0.1:{port}", sys.executable, options)
        except servers.NotStartedError as error:
            return {}, f"the server did not start: {' '.join(str(error).split())[-400:]}"


def module(path: Path) -> str:
    """The dotted name of a folder."""
    return ".".join(path.parts)


def table(results: dict[str, tuple[Outcomes, str]]) -> str:
    """Tests by engines; below, why something failed or doesn't apply."""
    tests = list(dict.fromkeys(test for outcomes, _ in results.values() for test in outcomes))
    lines = ["| test | " + " | ".join(results) + " |", "|---" * (len(results) + 1) + "|"]
    notes: list[str] = []
    for test in tests:
        cells = []
        for engine, (outcomes, _) in results.items():
            outcome = outcomes.get(test, {"outcome": "not run", "why": ""})
            cells.append(MARKS.get(outcome["outcome"], outcome["outcome"]))
            if outcome["why"]:
                notes.append(f"- {engine}, `{test}`, {outcome['outcome']}: {outcome['why']}")
        lines.append("| " + " | ".join([words(test), *cells]) + " |")
    lines.append(
        "| "
        + " | ".join(["**passed, failed, n/a**", *(counts(found) for found, _ in results.values())])
        + " |"
    )
    ends = [f"- {engine}: {end}" for engine, (_, end) in results.items() if end]
    return "\n".join([*lines, "", *ends, *notes])


def words(test: str) -> str:
    """A test's name as a sentence: `test_a_b[0.6]` is `a b (0.6)`."""
    name, _, argument = test.removeprefix("test_").rstrip("]").partition("[")
    return name.replace("_", " ") + (f" ({argument})" if argument else "")


def counts(outcomes: Outcomes) -> str:
    """Count the outcomes."""
    found = [entry["outcome"] for entry in outcomes.values()]
    return ", ".join(str(found.count(kind)) for kind in MARKS)


def main() -> int:
    """Run and prints; 1 if anything failed or a run did not end."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("engines", nargs="*", metavar="ENGINE[=PYTHON]", help="see cases.start")
    parser.add_argument(
        "--pytest", action="append", default=[], help="a folder with pytest, for other Pythons"
    )
    parser.add_argument("--model-dir", help="the folder that running servers were started on")
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="environment of the runs"
    )
    parser.add_argument("--select", nargs=argparse.REMAINDER, default=[], help="what else pytest is told")
    parser.add_argument("--limit-s", type=float, default=900, help="for each engine")
    parser.add_argument(
        "--json", type=Path, help="outcomes are added to those there, and all of them printed"
    )
    options = parser.parse_args()
    results: dict[str, tuple[Outcomes, str]] = {}
    if options.json and options.json.exists():
        results = {
            engine: (old["outcomes"], old["end"])
            for engine, old in json.loads(options.json.read_text()).items()
        }
    for entry in options.engines:
        engine, _, python = entry.partition("=")
        kind = engine.partition("://")[0].removesuffix(":http")
        label = f"{kind} ({Path(python).parents[1].name})" if python else kind
        if python and engine in ("vllm-serve", "trl-vllm-serve"):
            results[label] = run_served(engine, Path(python), options)
        else:
            results[label] = run(engine, python or sys.executable, options)
        if options.json:
            kept = {name: {"outcomes": found, "end": end} for name, (found, end) in results.items()}
            options.json.write_text(json.dumps(kept, indent=1), encoding="utf-8")
    print(table(results))
    failed = any(one["outcome"] == "failed" for found, _ in results.values() for one in found.values())
    return int(failed or any(end for _, end in results.values()))


if __name__ == "__main__":
    sys.exit(main())
