"""Put random hostile text into inputs of commands: output in each format must be inert and leak no secret.

A scene is a function that writes the inputs of one command into a folder, each with its own hostile text, and returns
the arguments of the command. The format is added to them. pytest runs this file only if it is named.
"""

from __future__ import annotations

import functools
import gzip
import importlib
import json
import os
import pickle
import random
import re
import shlex
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from diagnostics import __main__ as diagnostics
from diagnostics.audit.report import FORMATS as AUDIT
from diagnostics.collect import facts as collection
from diagnostics.collect.gpus import Gpu, Gpus
from diagnostics.collect.remote import MARK
from diagnostics.doctor.command import FIX_PLAN_FORMATS as PLAN
from diagnostics.hang.command import FORMATS as HANG
from diagnostics.matrix import command as matrix
from diagnostics.matrix.identity import question_identity
from diagnostics.output.report_output import FORMATS as REPORT
from evaluation.hostile.fuzz_readers import store_event
from evaluation.hostile.hostile_text import HostileTexts, PlainTexts, problems_in
from tests.diagnostics.fake_environments import EnvironmentBuilder
from tests.diagnostics.hang.test_dump_parsers import recorder
from tests.diagnostics.test_report_options import LOG, SCRIPT

ROOT = Path(__file__).parents[2]
BRIEF = ("terminal", "json")
# Characters that JSON writes as two escapes, which YAML and TOML read as two surrogates.
ASTRAL = "\U000e0041\U0001f600\udc80"
Make = Callable[[Path, HostileTexts], list[str]]


@dataclass(frozen=True)
class Scene:
    """A command with hostile text in its inputs.

    Attributes:
        make: Writes the inputs into a folder, the current one of the command; returns the arguments of the command.
        forms: Output formats with which the command runs.
        files: Glob pattern of shareable files that the command writes below the folder.
    """

    make: Make
    forms: tuple[str, ...]
    files: str = ""


SCENES: dict[str, Scene] = {}


def register_scene(forms: Sequence[str], files: str = "") -> Callable[[Make], Make]:
    """Return a decorator that adds a scene to SCENES with its output formats."""

    def register(make: Make) -> Make:
        SCENES[make.__name__] = Scene(make, tuple(forms), files)
        return make

    return register


def encode(text: str) -> bytes:
    """Encode a text as UTF-8, with lone surrogates."""
    return text.encode("utf-8", "surrogatepass")


@register_scene(("terminal", "json", "markdown"))
def triage_known(place, texts):
    """Triage a log with a hostile name and a line that matches a known issue."""
    log = place / f"{texts.file_name('file name')}.log"
    log.write_bytes(encode(LOG.replace("already in use", f"already in use {texts.text_line('line')}")))
    return ["triage", str(log)]


@register_scene(REPORT)
def triage_unknown(place, texts):
    """Triage a failure that no issue matches, with hostile rank, path, function, error, thread name and release."""
    put = texts.text_line
    text = (
        f"INFO 11-22 10:00:00 llm_engine.py:1] Initializing a V0 LLM engine (v{put('release')})\n"
        f"Thread {put('thread')} died\n"
        f'Traceback (most recent call last):\n  File "/job/{put("path")}/train.py", line 3, in {put("function")}\n'
        f"    {put('source')}\nOwnError: {put('error')}\n[rank1 {put('rank')}]: KeyError: {put('error')}\n"
    )
    (place / "a.log").write_bytes(encode(text))
    return ["triage", "a.log"]


@register_scene(BRIEF)
def triage_groups(place, texts):
    """Triage a folder with two runs that fail alike."""
    for number in range(2):
        log = place / "runs" / f"{number}{texts.file_name('file name')}.log"
        log.parent.mkdir(exist_ok=True)
        log.write_bytes(encode(f"{LOG}KeyError: {texts.text_line('error')}\n"))
    return ["triage", "--group", "runs"]


@register_scene(BRIEF)
def triage_packed(place, texts):
    """Triage an archive with hostile member names, and a broken archive."""
    with zipfile.ZipFile(place / "a.zip", "w") as archive:
        archive.writestr(texts("name within", without="\0\udc80\ud800", most=200) + ".log", LOG)
        archive.writestr(
            texts("packed within", without="\0\udc80\ud800", most=200) + ".gz", b"\x1f\x8b\x08broken"
        )
    (place / f"{texts.file_name('file name')}.gz").write_bytes(gzip.compress(LOG.encode())[:-9])
    return ["triage", "."]


@register_scene(REPORT)
def lint_script(place, texts):
    """Lint a shell script with a hostile name, options, values and variables, and hostile files next to it."""
    put = texts.text_line
    script = place / f"{texts.file_name('file name')}.sh"
    values = " ".join(
        f"--{name} {shlex.quote(put(name))}" for name in ("output_dir", "beta", "model", "top_p")
    )
    values += f" --{shlex.quote(put('option'))} 1"
    text = f"export VLLM_USE_V1={shlex.quote(put('variable'))}\n{SCRIPT.rstrip()} {values}\n"
    script.write_bytes(encode(text))
    (place / "requirements.txt").write_bytes(encode(f"trl=={put('release')}\nvllm @ {put('address')}\n"))
    return ["lint", str(script)]


@register_scene(REPORT)
def lint_yaml(place, texts):
    """Lint a YAML config with hostile keys and values."""
    put = functools.partial(texts, without=ASTRAL)
    keys = {put("key"): 1, "top_p": put("value"), "num_generations": 7, "use_vllm": put("switch")}
    (place / "a.yaml").write_text(json.dumps({**keys, "vllm_mode": "colocate", "beta": [put("list")]}))
    return ["lint", "a.yaml"]


@register_scene(BRIEF)
def lint_nested(place, texts):
    """Lint a nested verl config in YAML."""
    put = functools.partial(texts, without=ASTRAL)
    rollout = {
        "n": put("value"),
        "name": "vllm",
        put("key"): put("other value"),
        "temperature": put("number"),
    }
    (place / "a.yaml").write_text(
        json.dumps({"actor_rollout_ref": {"rollout": rollout}, "data": {"train_batch_size": 3}})
    )
    return ["lint", "a.yaml"]


@register_scene(BRIEF)
def lint_toml(place, texts):
    """Lint a TOML config of grpo_core."""
    quoted = {name: json.dumps(texts(name, without="\x7f" + ASTRAL)) for name in ("key", "value")}
    (place / "a.toml").write_text(
        f"[sampling]\ngroup_size = {quoted['value']}\n[rollout]\nmode = 'async'\n{quoted['key']} = 1\n"
    )
    return ["lint", "a.toml"]


@register_scene(BRIEF)
def lint_python(place, texts):
    """Lint a Python script."""
    keywords = f"vllm_mode={texts('value')!a}, **{{{texts('key')!a}: 1}}"
    text = f"from trl import GRPOConfig\nGRPOConfig(use_vllm=True, num_generations=7, {keywords})\n"
    (place / "a.py").write_text(text)
    return ["lint", "a.py"]


@register_scene(BRIEF)
def lint_words(_place, texts):
    """Lint a command line with hostile options."""
    return ["lint", "--", *shlex.split(SCRIPT)[3:], f"--{texts('option')}", texts("value")]


def _environment(place, texts):
    environment = EnvironmentBuilder(place / texts.file_name("prefix"))
    put = texts.text_line
    environment.add("trl", f"1.0 {put('version')}", folder="trl-1.0.dist-info").add(
        "vllm", "0.7.3", requires=[f"torch=={put('requirement')}"]
    )
    environment.add(f"odd{put('name')}", "1.0", folder=f"odd-{texts.file_name('folder')}.dist-info")
    environment.add("ray", "2.40", installer=put("installer"))
    (environment.prefix / "pyvenv.cfg").write_bytes(
        encode(f"home = {put('base')}\nversion = 3.11.{put('python')}\n")
    )
    (place / ".nccl.conf").write_bytes(encode(f"NCCL_DEBUG={put('nccl value')}\n{put('nccl key')}=1\n"))
    return environment


VARIABLES = (
    "RAY_ADDRESS",
    "VLLM_USE_V1",
    "NCCL_SOCKET_IFNAME",
    "https_proxy",
    "CUDA_VISIBLE_DEVICES",
    "VLLM_ATTENTION_BACKEND",
)


@register_scene(REPORT)
def doctor_environment(place, texts):
    """Check an environment with hostile metadata, folders, configs and variables."""
    return ["doctor", "--prefix", str(_environment(place, texts).prefix)]


@register_scene(PLAN)
def doctor_plan(place, texts):
    """Print the fix plan of a hostile environment."""
    return ["doctor", "--fix-plan", "--prefix", str(_environment(place, texts).prefix)]


@register_scene(("",))
def doctor_facts(place, texts):
    """Print the facts of a hostile environment."""
    return ["doctor", "--facts-json", "--prefix", str(_environment(place, texts).prefix)]


@functools.cache
def _facts():
    return collection.collect(None, {})


@register_scene(REPORT)
def doctor_hosts(place, texts):
    """Check nodes with hostile names, packages, variables, GPUs and models; one node runs another program."""
    for number in range(3):
        facts = _facts()
        package = replace(
            next(iter(facts.environment.packages.values())),
            name="nvidia-nccl-cu12",
            version=f"2.{number}",
            requires=(),
        )
        odd = replace(package, name=texts("package"), version=texts("version"))
        variables = {"NCCL_DEBUG": texts("variable"), texts("variable's name"): "1"}
        environment = replace(
            facts.environment,
            packages={"nvidia-nccl-cu12": package, odd.name: odd},
            variables=variables,
            prefix=texts("prefix"),
            python=f"3.1{number}",
        )
        gpus = Gpus("ok", texts("problem"), texts("driver"), "12.8", (Gpu(0, texts("gpu"), texts("uuid")),))
        machine = replace(facts.machine, host=texts("host"), gpus=gpus)
        document = {
            "facts": replace(facts, environment=environment, machine=machine).to_json(),
            "nccl": [texts("nccl")],
            "models": [texts("model")],
        }
        reply = f"{MARK} {json.dumps(document)}\n" if number < 2 else texts("answer")
        (place / f"gpu-{number}").write_bytes(encode(reply))
    (place / "gpu-3").write_text(f"{MARK} {json.dumps({'error': texts('error')})}\n")
    (place / "hosts").write_text("".join(f"gpu-{number}\n" for number in range(4)))
    (place / "go").write_text(f"#!/bin/sh\ncat > {place}/in.$$\ncat {place}/$1\n")
    (place / "go").chmod(0o755)
    return ["doctor", "--hosts", "hosts", "--host-command", f"{place}/go {{host}}"]


@register_scene(HANG)
def hang_bundle(place, texts):
    """Diagnose a snapshot with hostile titles, threads, frames, sockets and groups."""
    bundle = json.loads((ROOT / "examples" / "hangs" / "paused_engine.json").read_text())
    for process in bundle["processes"]:
        process |= {"title": texts("title"), "shared": [texts("shared")]}
        for thread in process["threads"]:
            thread |= {"name": texts("thread"), "wchan": texts("wchan"), "syscall": texts("syscall")}
            for frame in thread["frames"]:
                frame |= {"path": texts("path"), "function": texts("function"), "calls": texts("calls")}
    name = texts.file_name("file name")
    (place / name).write_text(json.dumps(bundle))
    return ["hang", "--verbose", "--from", name]


@register_scene(HANG)
def hang_titles(place, texts):
    """Diagnose a snapshot with hostile process titles and the usual frames."""
    bundle = json.loads((ROOT / "examples" / "hangs" / "ranks_apart.json").read_text())
    for process in bundle["processes"]:
        process["title"] = f"python {texts('title')}"
        for thread in process["threads"]:
            thread["name"] = texts("thread")
    (place / "a.json").write_text(json.dumps(bundle))
    return ["hang", "--verbose", "--from", "a.json"]


@register_scene(HANG)
def hang_texts(place, texts):
    """Diagnose hostile texts of py-spy, faulthandler and gdb."""
    put = texts.text_line
    texts = {
        texts.file_name(
            "file name"
        ): f"Process 12: python {put('title')}\nPython v3.11.2 ({put('python')})\n\n"
        f'Thread 12 (idle): "{put("thread")}"\n    wait (threading.py:1)\n    {put("function")} ({put("path")}.py:3)\n',
        "b": f'Thread 0x00007f (most recent call first):\n  File "{put("file")}", line 3 in {put("name")}\n',
        "c": f'Thread 1 (Thread 0x7f (LWP 14) "{put("native")}"):\n'
        f"#0  0x7f in {put('symbol')} () from {put('library')}\n",
    }
    for name, text in texts.items():
        (place / name).write_bytes(encode(text))
    return ["hang", "--verbose", "--from", *texts]


@register_scene(HANG)
def hang_recorder(place, texts):
    """Diagnose hostile pickles of the flight recorder."""
    names = []
    for rank in range(3):
        frames = [{"name": texts("function"), "filename": texts("file"), "line": 3}]
        document = recorder(3 if rank == 1 else 4, f"gloo:{texts('operation')}", frames)
        document["entries"][0]["process_group"] = ("0", texts("group"))
        document["entries"][0]["state"] = texts("state")
        (place / f"trace_rank_{rank}").write_bytes(pickle.dumps(document))
        names.append(f"trace_rank_{rank}")
    return ["hang", "--verbose", "--from", *names]


@register_scene(HANG)
def hang_ras(place, texts):
    """Diagnose a hostile report of NCCL RAS."""
    ranks = [
        {
            "rank": n,
            "host": texts("host"),
            "pid": 10 + n,
            "collective_counts": {texts("operation"): 5 - (n == 2)},
        }
        for n in range(4)
    ]
    (place / "ras.json").write_text(json.dumps({"communicators": [{"hash": texts("hash"), "ranks": ranks}]}))
    return ["hang", "--verbose", "--from", "ras.json"]


@register_scene(AUDIT)
def audit_run(place, texts):
    """Audit a run with a hostile name, samples, columns, trainer state, tensors and tracker series."""
    run_folder = place / texts.file_name("run")
    run_folder.mkdir()
    rows = [
        {
            "input": texts("prompt"),
            "output": texts("completion"),
            "gts": texts("answer"),
            "score": float(n % 2),
            "step": step,
            texts("column"): n,
        }
        for step in (1, 2)
        for n in range(4)
    ]
    for step in (1, 2):
        (run_folder / f"{step}.jsonl").write_text(
            "".join(json.dumps(row) + "\n" for row in rows if row["step"] == step)
        )
        folder = run_folder / f"checkpoint-{step}"
        folder.mkdir()
        header = {
            texts("tensor"): {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]},
            "b": {"dtype": texts("dtype"), "shape": [0], "data_offsets": [16, 16]},
        }
        data = json.dumps(header).encode()
        (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(data)) + data + bytes(16))
        state = {
            "log_history": [
                {"step": 1, "loss": float("nan"), texts("metric"): 1e9},
                {"step": 2, "reward": 1.0},
            ],
            "global_step": texts("step"),
        }
        (folder / "trainer_state.json").write_text(json.dumps(state))
    (run_folder / "completions_00001.parquet").write_bytes(encode(texts("parquet")))
    (run_folder / f"{texts.file_name('file name')}.jsonl").write_text(json.dumps(rows[0]) + "\n{")
    (run_folder / "metrics.jsonl").write_text(
        "".join(
            json.dumps({"step": n, texts("series"): n, "kl": 1e9 * n, "reward/mean": 0.0}) + "\n"
            for n in range(9)
        )
    )
    return ["audit", str(run_folder)]


@register_scene(("json",))
def audit_model(place, texts):
    """Audit a run together with hostile model settings, tokenizer and chat template."""
    command = audit_run(place, texts)
    for folder in place.glob("*/checkpoint-*"):
        (folder / "config.json").write_text(
            json.dumps({"model_type": texts("kind"), texts("key"): texts("value")})
        )
        (folder / "tokenizer_config.json").write_text(
            json.dumps({"chat_template": texts("template"), "eos_token": texts("token")})
        )
    return command


@register_scene(AUDIT)
def audit_silent(place, texts):
    """Audit faulty samples with hostile texts."""
    rows = [json.loads(line) for line in (ROOT / "examples" / "silent_run.jsonl").read_text().splitlines()]
    changed = [
        {key: (f"{value}{texts(key)}" if isinstance(value, str) else value) for key, value in row.items()}
        for row in rows
    ]
    name = texts.file_name("file name")
    (place / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in changed))
    return ["audit", "--verbose", f"{name}.jsonl"]


@register_scene(("terminal", "jsonl"))
def audit_watched(place, texts):
    """Watch growing metrics and a log with hostile text."""
    lines = [{"step": n, "kl": 10.0**n, "loss": 1.0, texts("metric"): texts("value")} for n in range(12)]
    (place / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    log = place / f"{texts.file_name('file name')}.log"
    log.write_bytes(
        encode(
            "".join(
                f"{{'loss': 0.1, '{texts.text_line('key')}': 3.0}}\n{texts.text_line('line')}\n"
                for _ in range(3)
            )
            + LOG
        )
    )
    return ["audit", "--watch", "metrics.jsonl", str(log), "--idle", "0"]


@register_scene(BRIEF)
def versions(_place, texts):
    """Ask for the verdict of hostile versions."""
    return ["versions", texts("vllm"), texts("trl")]


@register_scene(BRIEF)
def explain(_place, texts):
    """Explain a hostile phrase and a hostile log line."""
    return ["explain", texts("words"), f"AssertionError: {texts('line')}"]


@register_scene(BRIEF)
def catalogue(_place, texts):
    """Check a hostile code."""
    return ["catalogue", "--check", f"{texts('code')}x"]


@register_scene(BRIEF)
def baseline(place, texts):
    """Compare with a hostile baseline report."""
    (place / "a.log").write_text(LOG)
    finding = {"code": texts("code"), "evidence": [{"text": texts("text"), "place": texts("place")}]}
    (place / texts.file_name("file name")).write_text(
        json.dumps({"tool": texts("tool"), "findings": [finding]})
    )
    return ["triage", "a.log", "--baseline", *[path.name for path in place.iterdir() if path.name != "a.log"]]


def register_wrong_usage(*command):
    """Add a wrong use of a command to SCENES, with hostile text in place of each `?`."""

    def build_arguments(_place, texts):
        return [
            texts(f"argument {n}", without="\0\udc80\ud800") if word == "?" else word
            for n, word in enumerate(command)
        ]

    build_arguments.__name__ = build_arguments.__doc__ = " ".join(command)
    register_scene(("",))(build_arguments)


for _command in re.split(
    r"[|\n]",
    """\
?|doctor --format ?|doctor --python ?|doctor --prefix ?|doctor --hosts ?|doctor --host-command ? --hosts .
doctor --select ?|doctor --fail-on ?|lint ?|lint a ?|lint --format ?|triage ?|triage --fail-on ? .
triage --baseline ? .|hang --from ?|hang --pid ?|hang --match ?|hang --hosts ?|hang --stall ?
hang --save ? --from .|hang --format ?|audit ?|audit --server ?|audit --server ? --checkpoint .
audit --reward ? .|audit --trainer-config ? .|audit --checkpoint ? .|audit --watch ? --idle 0
audit --tokens ?|versions --format ?|catalogue --check --format ?|completion ?
matrix report --merge ?|matrix lock --check --file ?|matrix run --file ?|matrix ?|matrix run --cells ?
matrix report --store ?|matrix publish --file ?|repro list ?|repro run ?|repro run SCH001 --trigger ?
repro run SCH001 --times ?|repro fuzz --replay ?|repro ?|grpo_core ?|grpo_core train ?
grpo_core train --? 1|grpo_core train --loss.kind ?|grpo_core train --json --rollout.engine ?
grpo_core check ?|grpo_core check --json ?|grpo_core replay ? 1|grpo_core replay --json ? 1
grpo_core replay . ?|grpo_core --help-settings ?""",
):
    register_wrong_usage(*_command.split())


@register_scene(("", "--json"))
def core_check(place, texts):
    """Check a dump of verl whose advantages do not follow from its rewards."""
    rows = [
        {
            "input": texts("prompt"),
            "output": texts("completion"),
            "score": float(n % 2),
            "step": 1,
            "uid": texts("uid"),
            "advantage": 9.0,
            texts("column"): 1,
        }
        for n in range(4)
    ]
    folder = place / texts.file_name("folder")
    folder.mkdir()
    (folder / "1.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return ["grpo_core", "check", str(folder), "--sampling.group_size", "4"]


@register_scene(("", "--json"))
def core_replay(place, texts):
    """Replay a record that names a hostile file."""
    run_folder = place / texts.file_name("run")
    run_folder.mkdir()
    (run_folder / "rollouts.jsonl").write_text(
        json.dumps({"schema": texts("schema"), "step": 1, "file": texts("file"), "sha256": texts("sha")})
        + "\n"
    )
    return ["grpo_core", "replay", str(run_folder), "1"]


@register_scene(("", "--json"))
def core_settings(place, texts):
    """Train with a config that has hostile keys and values."""
    quoted = {name: json.dumps(texts(name, without="\x7f" + ASTRAL)) for name in ("table", "key", "value")}
    name = texts.file_name("file name")
    (place / f"{name}.toml").write_text(
        f"[loss]\nkind = {quoted['value']}\n{quoted['key']} = 1\n[{quoted['table']}]\n"
    )
    return ["grpo_core", "train", f"{name}.toml"]


@register_scene(("", "--json"))
def repro_story(place, texts):
    """Replay a hostile story."""
    name = texts.file_name("file name")
    (place / name).write_text(json.dumps({"schema": texts("schema"), "engine": texts("engine")}))
    return ["repro", "fuzz", "--replay", name]


@register_scene(("",), files="mine/report/*")
def matrix_merge(place, texts):
    """Merge a matrix store with hostile events, name and log names."""
    (place / "matrix.toml").write_bytes((ROOT / "matrix.toml").read_bytes())
    theirs = place / texts.file_name("store")
    theirs.mkdir()
    damaged = store_event()
    damaged["inputs"] = [["layer", "import"], [texts("input"), texts("input's value")]]
    damaged["identity"] = question_identity(dict(map(tuple, damaged["inputs"])))
    damaged["command"], damaged["run"] = texts("command"), texts("run")
    damaged["answer"] |= {
        "summary": texts("summary"),
        "signs": [texts("sign")],
        "details": [texts("detail")],
        "excerpt": texts("excerpt"),
        "facts": [],
        "codes": [],
        "ran_with": [[texts("package"), texts("release")]],
    }
    (theirs / "store.jsonl").write_text(json.dumps(damaged) + "\n")
    return ["matrix", "report", "--merge", str(theirs), "--file", "matrix.toml", "--store", "mine"]


def run_scene(name, form, texts, place, capfd, monkeypatch):
    """Run a scene in a format; return stdout, stderr, and the shareable files that it wrote."""
    place.mkdir()
    monkeypatch.chdir(place)
    monkeypatch.setenv("HOME", str(place))
    for variable in VARIABLES if name.startswith("doctor") else ():
        monkeypatch.setenv(variable, texts(f"variable {variable}", without="\0\udc80\ud800"))
    program, *rest = SCENES[name].make(place, texts)
    rest += [form] if form.startswith("--") else ["--format", form] if form not in {"", "text"} else []
    capfd.readouterr()
    with suppress(SystemExit):
        if program == "repro":
            # repro redirects standard output, so it needs a separate process.
            subprocess.run(
                [sys.executable, "-m", program, *rest],
                check=False,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )
        elif program == "grpo_core":
            pytest.importorskip("torch")
            importlib.import_module("grpo_core.__main__").main(rest)
        elif program == "matrix":
            matrix.main(rest)
        else:
            diagnostics.main([program, *rest])
    out, err = capfd.readouterr()
    return out, err, [path.read_text() for path in sorted(place.glob(SCENES[name].files or "nothing"))]


KIND = {"--json": "json", "text": "terminal", "": "terminal"}
# Commands without redaction, because their output is for the user who typed the input.
UNREDACTED = ("repro", "core", "grpo_core", "matrix")
# Scenes that take more than a second each.
SLOW = ("catalogue", "matrix report --store ?")
CASES = [
    pytest.param(name, form, marks=pytest.mark.long if name in SLOW else (), id=f"{name} {form}".strip())
    for name, entry in SCENES.items()
    for form in entry.forms
]


def find_problems(name, form, rounds, place, capfd, monkeypatch):
    """Run a scene once for each round with new hostile text; yield the round and its problems."""
    plain = ""
    if form == "html":
        plain, *_ = run_scene(name, form, PlainTexts(random.Random(0)), place / "plain", capfd, monkeypatch)
    kind = "json" if name == "doctor_facts" else KIND.get(form, form)
    for number in rounds:
        texts = HostileTexts(random.Random(f"{name} {form} {number}"), lone_surrogates=number % 3 == 2)
        out, err, written = run_scene(name, form, texts, place / str(number), capfd, monkeypatch)
        if name.startswith(UNREDACTED):
            texts.secrets.clear()
            texts.persons.clear()
        assert out or err
        yield (
            number,
            [
                *problems_in(out, err, kind, texts, plain),
                *(
                    f"in a file: {problem}"
                    for page in written
                    for problem in problems_in(page, "", "", texts)
                ),
            ],
        )


@pytest.mark.parametrize(("name", "form"), CASES)
def test_output_is_inert_in_every_format(tmp_path, capfd, monkeypatch, name, form):
    """Output has no active text, secret or personal data, and no text ends its document."""
    for number, wrong in find_problems(name, form, range(1), tmp_path, capfd, monkeypatch):
        assert wrong == [], number


@pytest.mark.long
@pytest.mark.parametrize(("name", "form"), CASES)
def test_output_is_inert_with_more_texts(tmp_path, capfd, monkeypatch, name, form):
    """Output stays inert with three more texts per scene, one of them with lone surrogates."""
    for number, wrong in find_problems(name, form, range(1, 4), tmp_path, capfd, monkeypatch):
        assert wrong == [], number
