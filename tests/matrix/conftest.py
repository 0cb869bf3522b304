"""Build toy projects for the matrix tests: tiny real wheels in a package index on loopback, and tiny cell programs.

The fixture `kit` is this module.
"""

import contextlib
import hashlib
import http.server
import io
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import ClassVar
from unittest import mock

import pytest

from diagnostics.matrix import command
from tests.processes import run_server
from tests.wheels import make_wheel, wheel_name

ROOT = Path(__file__).resolve().parents[2]
PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"


def build_wheel(
    folder: Path,
    name: str,
    version: str,
    files: dict[str, str],
    **more: Iterable[str] | dict[str, Iterable[str]],
) -> Path:
    """Write a pure wheel into a folder; return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / wheel_name(name, version)
    wheel.write_bytes(make_wheel(name, version, files, **more))
    return wheel


JSON_PAGE = "application/vnd.pypi.simple.v1+json"


@dataclass
class Index:
    """A package index on loopback: JSON pages with upload times, and wheels."""

    folder: Path
    address: str
    uploaded: str = "2025-01-01T00:00:00Z"

    def add(self, name: str, version: str, files: dict[str, str] | None = None, **more: object) -> Path:
        """Build a wheel and list it in the index; return its path."""
        package = name.replace("-", "_")
        wheel = build_wheel(self.folder, name, version, files or {f"{package}/__init__.py": ""}, **more)
        page = self.folder / "simple" / name / "index.html"
        page.parent.mkdir(parents=True, exist_ok=True)
        listed = [
            {
                "filename": path.name,
                "url": f"{self.address}/{path.name}",
                "upload-time": self.uploaded,
                "hashes": {"sha256": hashlib.sha256(path.read_bytes()).hexdigest()},
            }
            for path in sorted(self.folder.glob(f"{package}-*.whl"))
        ]
        document = {"meta": {"api-version": "1.1"}, "name": name, "files": listed, "versions": []}
        page.write_text(json.dumps(document))
        return wheel


class _Handler(http.server.SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    extensions_map: ClassVar[dict[str, str]] = {".html": JSON_PAGE, ".whl": "application/octet-stream"}

    def log_message(self, *_: object) -> None:
        """Print nothing."""


class _Server(http.server.ThreadingHTTPServer):
    """HTTP server that ignores broken pipes: some tests kill a client in the middle of a response."""

    def handle_error(self, *arguments: object) -> None:
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(*arguments)  # type: ignore[arg-type]


# Programs for toy cells. They implement the protocol of the real programs; their results come from the toy vLLM.
REPRO = """
    import json, sys
    import vllm
    command, *rest = sys.argv[1:]
    behaviour = getattr(vllm, "BEHAVIOUR", {})
    exec(behaviour.get("before", ""))
    if command == "imports":
        modules = {}
        for name in rest:
            if name.startswith("-"):
                continue
            modules[name] = {"ok": True, "version": None, "seconds": 0.01, "error": None, "where": None}
            try:
                modules[name]["version"] = getattr(__import__(name), "__version__", None)
            except Exception as error:
                modules[name] |= {"ok": False, "error": repr(error), "where": "toy.py:1"}
        print(json.dumps({"schema": "grpo-doctor.imports.v1", "modules": modules}))
        sys.exit(0 if all(item["ok"] for item in modules.values()) else 1)
    attempts = behaviour.get("attempts", [])
    asked = [code for code in rest if code.startswith("SCH")]
    codes = {code: {"attempts": [item for item in attempts if item["code"] == code]} for code in asked}
    print(json.dumps({"schema": "grpo-doctor.repro.v1", "versions": {"vllm": vllm.__version__}, "codes": codes,
                      "upstream": {"distribution": "vllm", "files_checked": 1, "modified": []}}))
    sys.exit(1 if attempts else 0)
"""
ENGINE_PROBE = """
    import json
    print(json.dumps({"schema": "grpo-doctor.engine.v1", "outcome": "ok", "engine": "toy", "engine_version": "V1",
                      "tokens": 8, "max_logprob_difference_before": 1e-6, "max_logprob_difference_after": 1e-6,
                      "change_seen": True, "versions": {}}))
"""
GRPO_CORE = """
    import json, sys
    print(json.dumps({"schema": "grpo-doctor.train.v1", "outcome": "ok", "mode": sys.argv[3], "engine": "toy",
                      "steps": 2, "reward_first": 0.0, "reward_last": 1.0, "syncs": 2, "syncs_proven": 2,
                      "max_staleness": 0, "versions": {}}))
"""
CRASH = {
    "code": "SCH001", "trigger": "lost_step", "mitigation": None, "outcome": "reproduced",
    "where": "vllm/core/scheduler.py:7", "function": "f", "assertion": "assert False", "simulated": [],
}  # fmt: skip
MITIGATED = {**CRASH, "mitigation": "abort_orphans", "outcome": "mitigated", "where": None}
NOT_REPRODUCED = {**CRASH, "outcome": "not_reproduced", "where": None}


def toy_vllm(version: str, *attempts: dict[str, object], before: str = "") -> dict[str, str]:
    """Return the files of a toy vLLM: the attempts that the toy `repro` reports, and code that it runs `before`."""
    behaviour = {"attempts": list(attempts), "before": before}
    body = f"__version__ = {version!r}\nBEHAVIOUR = {behaviour!r}\n"
    return {"vllm/__init__.py": body}


HEAD = Path(__file__).with_name("toy_matrix.toml").read_text(encoding="utf-8")


def cell_table(
    vllm: str, trl: str, layers: tuple[str, ...], *, recipe: str | None = "toy", more: str = ""
) -> str:
    """Return the TOML table of a cell."""
    name = f'cells."vllm-{vllm}+trl-{trl}"'
    lines = [
        f"[{name}]",
        f'python = "{PYTHON}"',
        "exclude_newer = 2025-06-01",
        f'recipe = "{recipe}"' if recipe else "",
        f"layers = {json.dumps(layers)}",
        'profiles = ["quick"]',
        more.replace("CELL", name),
    ]
    return "\n" + "\n".join(lines) + "\n"


@dataclass
class ToyProject:
    """A toy project: matrix file, index, programs, store and environment variables."""

    folder: Path
    index: Index
    environ: dict[str, str]

    @property
    def store(self) -> Path:
        """The store's folder."""
        return self.folder / ".matrix"

    def write(self, *cells: str, head: str = HEAD) -> Path:
        """Write the matrix file; return its path."""
        path = self.folder / "matrix.toml"
        path.write_text(head + "".join(cells), encoding="utf-8")
        return path

    def command(self, *arguments: str, store: Path | None = None) -> list[str]:
        """Return the command line that runs the matrix."""
        places = {"file": self.folder / "matrix.toml", "store": store or self.store}
        places["programs"] = self.folder / "programs"
        shared = [word for name, path in places.items() for word in (f"--{name}", str(path))]
        return [sys.executable, "-m", "diagnostics.matrix", arguments[0], *shared, *arguments[1:]]

    def run(
        self, *arguments: str, store: Path | None = None, **environ: str
    ) -> subprocess.CompletedProcess[str]:
        """Run the matrix command in this process; return its exit code and output."""
        out, errors = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
        with (
            mock.patch.dict(os.environ, {**self.environ, **environ}, clear=True),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(errors),
        ):
            code = command.main(self.command(*arguments, store=store)[3:])
        texts = (stream.buffer.getvalue().decode() for stream in (out, errors))
        return subprocess.CompletedProcess(arguments, code, *texts)

    def report(self, store: Path | None = None) -> dict[str, dict[str, dict[str, object]]]:
        """Return the layers of each cell from report.json of the last run."""
        document = json.loads(((store or self.store) / "report" / "report.json").read_text(encoding="utf-8"))
        return {item["id"]: item["layers"] for item in document["cells"]}


@contextlib.contextmanager
def make_project(folder: Path) -> Iterator[ToyProject]:
    """Write a toy project without cells, whose only configured index is an empty one on loopback; yield it."""
    programs = folder / "project" / "programs"
    modules = {
        "repro/__main__": REPRO, "repro/cell_programs/engine_probe": ENGINE_PROBE, "grpo_core/__main__": GRPO_CORE,
    }  # fmt: skip
    for name, text in modules.items():
        path = programs / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        (path.parent / "__init__.py").write_text("")
        path.write_text(textwrap.dedent(text))
    inherited = {
        key: value for key, value in os.environ.items() if not key.startswith(("PIP_", "UV_", "GRPO_"))
    }
    environ = {
        **inherited,
        "UV_CACHE_DIR": str(folder / "uv-cache"),
        "PYTHONPATH": str(ROOT),
        "PIP_CONFIG_FILE": os.devnull,
    }
    environ |= {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1", "GRPO_DOCTOR_QUIET": "1"}
    (folder / "index").mkdir()
    with run_server(partial(_Handler, directory=str(folder / "index")), _Server) as address:
        environ["PIP_INDEX_URL"] = f"{address}/simple/"
        yield ToyProject(folder / "project", Index(folder / "index", address), environ)


@pytest.fixture
def project(tmp_path: Path) -> Iterator[ToyProject]:
    """Yield a toy project without cells."""
    with make_project(tmp_path) as made:
        yield made


LIGHT_LAYERS = ("resolve", "contract")
CELL_LAYERS = ("resolve", "contract", "install", "import", "scheduler")


@pytest.fixture(scope="session")
def kit() -> ModuleType:
    """Return this module, for tests that use its functions and constants."""
    return sys.modules[__name__]
