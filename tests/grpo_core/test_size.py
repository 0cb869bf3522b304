"""Small enough to read in an evening: the core is counted, so is what one run reads of it, and there are no circles."""

from __future__ import annotations

import ast
import io
import os
import subprocess
import sys
import tokenize
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import grpo_core

ROOT = Path(grpo_core.__file__).parent
# Code lines, where a reader begins and how much there is: what the way of a number takes, room by room.
CORE = {
    "types.py versions.py": 80,
    "config.py settings.py rules.py usage.py": 440,  # 35 for settings beside the core, and notes
    "tasks": 667,
    "learn/advantages.py": 46,
    "learn/loss.py learn/kl.py learn/reference.py learn/entropy.py": 209,
    "learn/logprobs.py learn/batch.py learn/sharing.py": 196,
    "learn/policy.py learn/equipped.py learn/adapters.py learn/memory.py learn/parallel.py learn/resumed.py": 212,
    "learn/update.py": 140,  # several updates on one rollout, and what `forms` puts in place of its parts
    "learn/pool.py learn/dynamic.py learn/staleness.py": 82,
    "publish.py": 64,
    "trainer.py resumed.py evaluation.py": 282,
    "modes": 290,  # 3 ask for conversations, which are beside the core
    "machine run.py files.py metrics.py": 466,
    "rollout/engine.py rollout/build.py rollout/checks.py rollout/shared.py": 224,  # 9 ask for routing, and say who can
    "rollout/embedded": 242,  # 6 for the keys of a prompt, which all rows share; 25 for joined layers
    "__main__.py": 149,  # two tell an old Python what is needed
}
# Of what a run in colocate mode has read when it ends, with the embedded engine, on the shipped task: called from
# Python, and by its command, which reads settings, checks them and shows how far it is. 80 of the latter: what is given
# twice is noted, a folder that is not there is told before torch, settings beside the core are looked for, a step
# that takes long says so, a name that leaves its folder and an old Python are refused, and what a terminal would obey
# is spelled out. Of both, one leaves new memory unfilled, and eight ask for routing or say why there is none.
RUN, COMMAND = 2000, 2550
# Files of ours that a program rests on, by any import: what it answered is asked again when one of them changes.
# One of the probe's has the names of extras.
CLOSURES = {"grpo_core.config": 1, "grpo_core.versions": 1, "grpo_core.probe": 25}
PROGRAMS = {
    "run": "from grpo_core.config import Config, OutputConfig, TrainConfig; from grpo_core.run import train; "
    "document = train(Config(train=TrainConfig(steps=2), output=OutputConfig(dir=sys.argv[1])), print); "
    "assert document['outcome'] == 'ok'",
    "command": "from grpo_core.__main__ import main; "
    "assert main(['train', '--train.steps=2', '--output.dir', sys.argv[1]]) == 0",
}


def code_lines(path: Path) -> int:
    """Lines with code: no blank ones, comments or docstrings."""
    source = path.read_text(encoding="utf-8")
    skipped = {
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENDMARKER,
    }
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in skipped:
            lines |= set(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        for statement in (
            getattr(node, "body", None) or [] if not isinstance(node, ast.Lambda | ast.IfExp) else []
        ):
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                lines -= set(range(statement.lineno, (statement.end_lineno or 0) + 1))
    return len(lines)


def files(names: str) -> list[Path]:
    """Those of some files and folders."""
    paths = [ROOT / name for name in names.split()]
    assert all(path.exists() for path in paths), names
    return [file for path in paths for file in (path.rglob("*.py") if path.is_dir() else [path])]


@pytest.mark.parametrize(("names", "most"), CORE.items())
def test_a_part_of_the_core_is_small(names, most):
    """What grows over its size has to say what for."""
    assert sum(map(code_lines, files(names))) <= most


def test_the_core_is_small():
    """All that a number passes through, beside the engines that are somewhere else."""
    found = {file for names in CORE for file in files(names)}
    # 36 of these are imports of what stands in files of its own since a plain run has to load no more than RUN.
    assert sum(map(code_lines, found)) <= 3729


@pytest.mark.parametrize(("kind", "most"), [("run", RUN), ("command", COMMAND)])
def test_a_run_reads_what_it_needs(tmp_path, kind, most):
    """Nothing of servers, child processes, records, other modes, data sets, KL, adapters; counted when it ends."""
    program = (
        f"import sys; {PROGRAMS[kind]}; "
        "print(*[m.__file__ for n, m in sys.modules.items() if n.partition('.')[0] == 'grpo_core'], file=sys.stderr)"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT.parent), "TERM": "dumb"}
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        capture_output=True, text=True, timeout=300, env=environment, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    read = [Path(name) for name in done.stderr.splitlines()[-1].split()]
    rooms = {path.relative_to(ROOT).as_posix() for path in read}
    assert "rollout/embedded/transformers.py" in rooms
    others = (
        "records/",
        "rollout/http/",
        "rollout/serve/",
        "rollout/child/",
        "rollout/connect/",
        "rollout/vllm/",
    )
    assert [name for name in rooms if name.startswith(others)] == []
    assert sum(map(code_lines, read)) <= most, sorted((code_lines(path), path.name) for path in read)


@pytest.fixture(scope="module")
def needed() -> dict[str, set[str]]:
    """Module -> those of ours that it imports, late or for type checkers alone, too."""
    graph = {}
    for path in ROOT.rglob("*.py"):
        parts = path.relative_to(ROOT.parent).with_suffix("").parts
        graph[".".join(parts).removesuffix(".__init__")] = path
    return {name: (imported(path) & graph.keys()) - {name} for name, path in graph.items()}


def test_there_are_no_circles(needed):
    """Between files."""
    assert needed["grpo_core.trainer"]
    try:
        TopologicalSorter(needed).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


@pytest.mark.parametrize(("name", "most"), CLOSURES.items())
def test_a_question_rests_on_few_files(needed, name, most):
    """Not on the whole trainer."""
    due, found = [name], set()
    while due:
        module = due.pop()
        if module not in found:
            found.add(module)
            due += needed[module]
    code = {module for module in found if code_lines(path_of(module))}
    assert len(code) <= most, sorted(code)


def path_of(module: str) -> Path:
    """The file of a module of ours."""
    path = ROOT.parent / module.replace(".", "/")
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def imported(path: Path) -> set[str]:
    """The modules that a file imports, or takes a name from."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def test_functions_are_short():
    """Nearly all of them have fewer than 40 lines, docstrings included; none has a hundred."""
    lengths = [
        (node.end_lineno - node.lineno + 1, f"{path.name}:{node.name}")
        for path in ROOT.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    long = sorted((length, name) for length, name in lengths if length >= 40)
    assert len(long) < 0.05 * len(lengths), long
    assert max(lengths)[0] < 100, long[-3:]  # the longest is the table of rules between settings
