"""Fuzz the readers of untrusted files with damaged and hostile input.

`python -m evaluation.hostile.fuzz_readers COUNT [SEED [READER...]]`

A reader is a function of READERS that gets random numbers and a folder, writes damaged input, and reads it. A case
passes if the reader returns or raises an exception that it documents, within MAX_CPU_S; `merge` also checks that
nothing outside of its store is written. Prints a line for each reader: cases, answers, refusals, failures and the
slowest case. The exit code is 1 if a case fails.
"""

import bz2
import collections
import contextlib
import copy
import faulthandler
import gzip
import io
import json
import lzma
import os
import pickle
import random
import signal
import struct
import sys
import tarfile
import tempfile
import time
import traceback
import zipfile
from pathlib import Path

# CPU time does not depend on the load of the machine; undamaged input takes at most a hundredth of this.
MAX_CPU_S = 2.0
HOSTILE = (
    None,
    True,
    0,
    -1,
    1 << 70,
    1e308,
    float("inf"),
    float("nan"),
    "",
    "\0",
    "../../x",
    "/etc/passwd",
    "logs/../../x",
    "logs/a/../b",
    "a" * 5000,
    "\u202e",
    "\ud800",
    "\x1b]52;c;x\x07",
    [],
    {},
    [[]],
    {"": {}},
    "1" * 5000,
    "::error::x",
    "9" * 20,
    [None] * 50,
    "-rf",
    "$(x)",
    "logs\\x",
    "logs//x",
)
TOKENS = (
    b"\0",
    b"\n",
    b"\r",
    b" " * 3000,
    b"[" * 3000,
    b"{" * 3000,
    b"(" * 3000,
    b"&a *a",
    b"<<: *a\n",
    b"'",
    b'"',
    b"\\",
    b"\xff\xfe",
    b"\xed\xa0\x80",
    b"9" * 5000,
    b"1e999",
    b"NaN",
    b"$((",
    b"<<EOF\n",
    b"a." * 60,
    b"../" * 9,
    b"\x1f\x8b\x08\x00",
    b"PK\x03\x04",
    b"=" * 99,
    b"_" * 3000,
    b"# \xe2\x80\xae",
    b"!!python/object:x",
    b"---\n",
    b"Name: x" + b" " * 3000,
    b",sha256=x,9\n",
)


def damage_bytes(numbers, data):
    """Change, delete, insert or repeat random bytes, some of which have a meaning for a reader; or cut the data."""
    data = bytearray(data)
    for _ in range(numbers.choice((0, 1, 1, 2, 3, 8))):
        place = numbers.randrange(len(data) + 1)
        what = numbers.randrange(6)
        if what == 0 and data:
            data[place % len(data)] = numbers.randrange(256)
        elif what == 1:
            data[place:place] = numbers.choice(TOKENS)
        elif what == 2:
            del data[place : place + numbers.randrange(1, 40)]
        elif what == 3:
            data[place:place] = data[place : place + numbers.randrange(1, 400)] * numbers.choice((1, 2, 20))
        elif what == 4:
            data[place : place + 8] = struct.pack(
                "<Q", numbers.choice((0, 1, 2**31, 2**63, 2**64 - 1, numbers.getrandbits(40)))
            )
        else:
            del data[place:]
        data = data[:200_000]
    return bytes(data)


def spoil_document(numbers, document):
    """Return a copy of a document in which random values have another type or size, or are missing."""
    document = copy.deepcopy(document)
    for _ in range(numbers.choice((0, 1, 1, 2, 4))):
        node, inner = document, document
        while isinstance(inner, dict | list) and inner and numbers.random() < 0.85:
            node = inner
            key = numbers.choice(list(node)) if isinstance(node, dict) else numbers.randrange(len(node))
            inner = node[key]
        if node is not inner or node:
            if isinstance(node, dict) and node:
                key = numbers.choice(list(node))
            elif isinstance(node, list) and node:
                key = numbers.randrange(len(node))
            else:
                continue
            if numbers.random() < 0.2:
                del node[key]
            elif numbers.random() < 0.1 and isinstance(node, dict):
                node[numbers.choice([str(value) for value in HOSTILE if isinstance(value, str)])] = node[key]
            else:
                node[key] = copy.deepcopy(
                    numbers.choice(HOSTILE)
                )  # the inserted value may be damaged again later
    return document


def damaged_json(numbers, document):
    """Return a spoiled document as JSON, sometimes with damaged bytes."""
    text = json.dumps(spoil_document(numbers, document)).encode("utf-8", "replace")
    return damage_bytes(numbers, text) if numbers.random() < 0.2 else text


class RefusedError(Exception):
    """Raised if a reader refuses its input with an exception that it documents."""


@contextlib.contextmanager
def refusing(*kinds):
    """Turn exceptions that a reader documents into RefusedError; their message must be one line."""
    try:
        yield
    except kinds as error:
        if "\n" in str(error).strip():
            raise AssertionError(f"more than one line: {error!r}") from error
        raise RefusedError from error


def metadata(numbers, folder):
    """Collect an environment with one package whose metadata is damaged."""
    from diagnostics.collect import python_environment
    from diagnostics.doctor.installers import install

    site = folder / "lib" / "python3.11" / "site-packages"
    info = site / "torch-2.0.dist-info"
    info.mkdir(parents=True)
    head = b"Metadata-Version: 2.1\nName: torch\nVersion: 2.0\nRequires-Dist: a>=1; extra == 'b'\n"
    head += b"Requires-Python: >=3.8\n\nx\n"
    record = b"torch/__init__.py,sha256=abc,12\ntorch/_C.so,sha256=abc,99\ntorch-2.0.dist-info/RECORD,,\n"
    for name, data in (
        ("METADATA", head),
        ("RECORD", record),
        ("INSTALLER", b"pip\n"),
        ("WHEEL", b"Tag: py3-none-any\n"),
    ):
        (info / name).write_bytes(damage_bytes(numbers, data))
    (folder / "pyvenv.cfg").write_bytes(damage_bytes(numbers, b"home = /usr\nversion = 3.11.7\n"))
    found = python_environment.collect(folder, {"VLLM_X": "1"})
    assert len(found.packages) + len(found.broken) == 1
    assert isinstance(found.releases, dict)
    assert install(found, "torch")


_ELF = []


def elf(numbers, folder):
    """Read a compiled module with a damaged header, tables and names."""
    from diagnostics.collect import elf as extensions

    if not _ELF:
        import _ctypes

        _ELF.append(Path(_ctypes.__file__).read_bytes())
    data = bytearray(_ELF[0])
    (table,) = struct.unpack_from("<Q", data, 0x28)
    for _ in range(numbers.randrange(1, 12)):
        place = numbers.choice(
            (
                numbers.randrange(64),
                table + numbers.randrange(max(1, len(data) - table)),
                numbers.randrange(len(data)),
            )
        )
        size = numbers.choice((1, 2, 4, 8))
        data[place : place + size] = numbers.choice((b"\xff", b"\0", numbers.randbytes(1))) * size
    data = data[: numbers.randrange(len(data))] if numbers.random() < 0.2 else data
    (folder / "x.so").write_bytes(data)
    with refusing(OSError, ValueError, struct.error, IndexError, OverflowError):
        needed, versions = extensions.read_elf(folder / "x.so")
        assert len(needed) + len(versions) <= 10_000


def configs(numbers, folder):
    """Read accelerate's default config."""
    from diagnostics.collect import machine as reader

    place = folder / ".cache" / "huggingface" / "accelerate"
    place.mkdir(parents=True)
    (place / "default_config.yaml").write_bytes(
        damage_bytes(numbers, b"compute_environment: LOCAL\nnum_processes: 8\n")
    )
    assert len(reader.collect_configs({"HOME": str(folder)})) == 1


_DOCUMENTS = {}


def load_published(name):
    """Return a published document of diagnostics/data, cached; compat.json is shortened."""
    if name not in _DOCUMENTS:
        document = json.loads((Path(__file__).parents[2] / "diagnostics" / "data" / name).read_text())
        if name == "compat.json":
            document["cells"] = document["cells"][:2]
        _DOCUMENTS[name] = document
    return _DOCUMENTS[name]


def compat(numbers, folder):
    """Read the table of published verdicts, and query it."""
    from diagnostics import compat_table as reader

    (folder / "compat.json").write_bytes(damaged_json(numbers, load_published("compat.json")))
    found = reader.load(folder / "compat.json")
    assert found.problem or found.cells is not None
    if found.problem:
        raise RefusedError


def nodes(numbers, _folder):
    """Read damaged answers of a node."""
    from diagnostics.collect import facts as collection
    from diagnostics.collect.remote import MARK, read_output
    from diagnostics.doctor import node_query as reader

    if "facts" not in _DOCUMENTS:
        facts = collection.collect(None).to_json()
        facts["environment"]["packages"] = dict(list(facts["environment"]["packages"].items())[:3])
        _DOCUMENTS["facts"] = facts
    document = {
        "schema": "grpo-doctor.node.v1",
        "facts": _DOCUMENTS["facts"],
        "nccl": ["2.21.5"],
        "models": ["a/b"],
    }
    line = damaged_json(numbers, document).decode("utf-8", "replace").replace("\n", " ")
    found = reader.read_answer(read_output(f"{MARK} {line}\n", ""))
    assert ("facts" in found) != ("problem" in found)
    if "problem" in found:
        assert "\n" not in found["problem"]
        raise RefusedError


def fleet(numbers, _folder):
    """Examine a fleet of two nodes, one of which answers with spoiled facts."""
    from diagnostics.collect import facts as collection
    from diagnostics.collect.remote import MARK, read_output
    from diagnostics.compat_table import Compat
    from diagnostics.doctor import node_query as reader
    from diagnostics.doctor.multi_node_report import report_on_nodes
    from tests.diagnostics.fake_environments import load_catalog

    if "facts" not in _DOCUMENTS:
        _DOCUMENTS["facts"] = collection.collect(None).to_json()
    answers = []
    for number in range(2):
        document = {
            "facts": spoil_document(numbers, _DOCUMENTS["facts"]) if number else _DOCUMENTS["facts"],
            "nccl": [],
            "models": [],
        }
        text = f"{MARK} {json.dumps(document)}\n"
        answers.append(reader.Node(f"node {number} (n)", **reader.read_answer(read_output(text, ""))))
    report = report_on_nodes(answers, load_catalog(), Compat(problem="none"), "")
    crashed = [
        check.reason for check in report.checks if check.outcome == "crashed" and "Error" in check.reason
    ]
    assert not [
        reason for reason in crashed if "broken" not in reason and not reason.startswith("unreadable answer")
    ], crashed
    if answers[1].facts is None:
        raise RefusedError


def hosts(numbers, folder):
    """Read a damaged list of hosts."""
    from diagnostics.collect import remote as reader

    (folder / "hosts").write_bytes(damage_bytes(numbers, b"# nodes\na@b.c slots=8\n::1\nd slots=2\n"))
    with refusing(reader.RemoteError):
        reader.read_hosts(folder / "hosts")


_LOG = (
    b"\n".join(b"step %d loss 0.1" % number for number in range(60))
    + b'\nTraceback (most recent call last):\n  File "/x/vllm/a.py", line 3, in f\n    x()\nKeyError: 1\n'
)


def _compress_log(numbers):  # noqa: PLR0911 - one for each kind
    """Return a log, compressed, archived or encoded in a random way, or random bytes."""
    kind = numbers.randrange(8)
    if kind == 0:
        return gzip.compress(_LOG) + (gzip.compress(b"") * numbers.choice((0, 3, 50)))
    if kind == 1:
        return bz2.compress(_LOG)
    if kind == 2:
        return lzma.compress(_LOG)
    if kind == 3:
        raw = io.BytesIO()
        with zipfile.ZipFile(raw, "w", numbers.choice((0, 8, 12))) as archive:
            archive.writestr("a.log", _LOG)
            archive.writestr("../b.log", gzip.compress(_LOG))
        return raw.getvalue()
    if kind == 4:
        raw = io.BytesIO()
        with tarfile.open(fileobj=raw, mode="w") as archive:
            archive.addfile(tarfile.TarInfo("a"), io.BytesIO())
        return raw.getvalue()
    if kind == 5:
        return _LOG.decode().encode(numbers.choice(("utf-16", "utf-16-le", "utf-32")))
    if kind == 6:
        return bytes(numbers.choice((0, 20, 5000))) + _LOG
    return numbers.randbytes(numbers.randrange(3000))


def log_blocks(numbers, folder):
    """Read all blocks of a damaged log, compressed or not."""
    from diagnostics.triage.sources import SourceError, find_logs

    (folder / "a.log").write_bytes(damage_bytes(numbers, _compress_log(numbers)))
    with refusing(SourceError):
        for source in find_logs([str(folder if numbers.random() < 0.3 else folder / "a.log")]):
            for block in source.blocks():
                assert len(block) < 4 << 20


_RULES = []


def triage(numbers, folder):
    """Run triage on a damaged log."""
    from diagnostics import catalog
    from diagnostics.triage import command
    from diagnostics.triage.rules import Rules
    from diagnostics.triage.sources import SourceError, find_logs

    if not _RULES:
        _RULES.append(Rules(catalog.load()))
    data = damage_bytes(numbers, _compress_log(numbers) if numbers.random() < 0.5 else _LOG)
    (folder / "a.log").write_bytes(data)
    with refusing(SourceError):
        verdict = command.triage(find_logs([str(folder / "a.log")]), _RULES[0])
        assert verdict.lines or verdict.problems or not data or command.exit_code(verdict) == 3


_CONFIGS = {
    "a.yaml": b"""\
# trl
use_vllm: true
vllm_mode: colocate
num_generations: 8
a: &a [1, 2]
b: *a
c:
  <<: {d: 1}
""",
    "a.json": b'{"use_vllm": true, "vllm_mode": "server", "num_generations": 8, "a": [1, {"b": null}]}',
    "a.toml": b'[rollout]\nmode = "colocate"\n[sampling]\ngroup_size = 8\n[a.b]\nc = [1, 2]\n',
    "a.py": b"""\
from trl import GRPOConfig
x = GRPOConfig(use_vllm=True, num_generations=4 * 2, **{'a': 1})
import subprocess
subprocess.run(['swift', 'rlhf', '--rlhf_type', 'grpo'])
""",
    "a.sh": b"""\
export A=1
CUDA_VISIBLE_DEVICES=0 swift rlhf --rlhf_type grpo --use_vllm true \\
 --vllm_mode ${B:-server} "$@" <<EOF
x
EOF
""",
}


def lint(numbers, folder):
    """Read a damaged config or script of a random format."""
    from diagnostics.lint import settings_reader
    from diagnostics.lint.readers.structured import UnreadableError

    name = numbers.choice(list(_CONFIGS))
    (folder / name).write_bytes(damage_bytes(numbers, _CONFIGS[name]))
    with refusing(UnreadableError):
        settings_reader.read_file(folder / name)


def store_event(numbers=None):
    """Return a valid event of a matrix store, with a random identity if `numbers` is given."""
    answer = {
        "outcome": "pass",
        "summary": "s",
        "evidence": "static",
        "codes": ["A"],
        "signs": ["b"],
        "facts": [["package", "a", "1"]],
        "details": [],
        "grids": [{"title": "t", "columns": ["a"], "rows": [["1"]]}],
        "curve": [1.0],
        "ran_with": [["a", "b"]],
        "excerpt": "",
        "log": "logs/cell/import.log",
    }
    number = numbers.getrandbits(64) if numbers else 0
    return {
        "schema": "grpo-doctor.event.v1",
        "identity": f"{number:064x}",
        "cell": "cell",
        "layer": "import",
        "answer": answer,
        "inputs": [["layer", "import"]],
        "command": "x",
        "started": "2026-01-01T00:00:00Z",
        "seconds": 1.0,
        "run": "r",
    }


def _obstruct_log(numbers, folder, outside):
    """Put a link, pipe or folder in place of the log or of its folder, or write a log, or nothing."""
    log = folder / "logs" / "cell" / "import.log"
    kind = numbers.randrange(20)
    if kind == 0:
        (folder / "logs").symlink_to(outside)
        return
    if kind == 1:
        (folder / "logs").mkdir()
        (folder / "logs" / "cell").symlink_to(outside)
        return
    log.parent.mkdir(parents=True)
    if kind == 2:
        log.symlink_to(outside / "secret")
    elif kind == 3:
        os.mkfifo(log)
    elif kind == 4:
        log.mkdir()
    elif kind < 15:
        log.write_bytes(b"seen")


def _read_tree(folder):
    """Return the contents of all files below a folder by path."""
    return {
        str(path): path.read_bytes() if path.is_file() else b""
        for path in sorted(folder.rglob("*"))
        if not path.is_symlink()
    }


def merge(numbers, folder):
    """Merge a matrix store with spoiled events, links and pipes into another store, twice."""
    from diagnostics.matrix.store import Store

    outside = folder / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(b"secret")
    for name in ("mine", "theirs"):
        (folder / name).mkdir()
        if name == "theirs" or numbers.random() < 0.3:
            _obstruct_log(numbers, folder / name, outside)
    event = spoil_document(numbers, store_event(numbers))
    if numbers.random() < 0.3 and isinstance(event.get("answer"), dict):
        parts = [
            numbers.choice(
                ("logs", "..", ".", "", "cell", "import.log", "/etc", "a b", "\0", "~", "sitecustomize.py")
            )
        ]
        parts += numbers.choices(
            ("..", ".", "", "cell", "logs", "x.log", "\ud800", "a\n", "-"), k=numbers.randrange(5)
        )
        event["answer"]["log"] = "/".join(parts)
    lines = [json.dumps(store_event(numbers)), json.dumps(event), '{"torn": ']
    (folder / "theirs" / "store.jsonl").write_bytes(
        damage_bytes(numbers, "\n".join(lines).encode("utf-8", "replace"))
        if numbers.random() < 0.3
        else "\n".join(lines).encode()
    )
    mine = merge_and_check(folder, outside)
    known = mine.read_events()
    with mine.locked():
        assert mine.merge(Store(folder / "theirs")) == 0
    assert mine.read_events() == known


def merge_and_check(folder, outside):
    """Merge `theirs` into `mine` and return `mine`; nothing outside of it may be read or written."""
    from diagnostics.matrix.store import Store, StoreError

    before = _read_tree(outside)
    mine = Store(folder / "mine")
    try:
        with refusing(StoreError), mine.locked():
            mine.merge(Store(folder / "theirs"))
    finally:
        assert _read_tree(outside) == before, "something outside of the store was written"
        assert {path.name for path in folder.iterdir()} == {"outside", "mine", "theirs"}
        names = {path.name for path in (folder / "mine").iterdir()}
        assert names <= {"store.jsonl", "lock", "logs"}, names
        for path, data in _read_tree(folder / "mine").items():
            assert data != b"secret", path
    return mine


def stories(numbers, folder):
    """Read a damaged story of the scheduler fuzzer."""
    from repro.fuzz import stories as reader

    story = {
        "schema": reader.SCHEMA,
        "engine": "v1",
        "setup": {"a": 1},
        "steps": [{"do": "x"}],
        "finding": None,
        "versions": {},
    }
    (folder / "s.json").write_bytes(damaged_json(numbers, story))
    with refusing(reader.StoryError):
        reader.load(folder / "s.json")


def baseline(numbers, folder):
    """Read an earlier report as the baseline of a new one."""
    from diagnostics import UserError
    from diagnostics.output import finding_filters

    finding = {"code": "A", "evidence": [{"text": "x", "place": "f:1"}]}
    (folder / "b.json").write_bytes(damaged_json(numbers, {"tool": "lint", "findings": [finding]}))
    with refusing(UserError):
        finding_filters._baseline_fingerprints(folder / "b.json", "lint")


def stacks(numbers, folder):
    """Diagnose a damaged snapshot, flight recorder pickle, or text of py-spy, faulthandler or gdb."""
    from diagnostics.hang.diagnosis import diagnose
    from diagnostics.hang.parsers import ParseError
    from diagnostics.hang.parsers.dump_files import read_files

    snapshots = Path(__file__).parents[2] / "tests" / "diagnostics" / "hang" / "snapshots"
    kind = numbers.randrange(4)
    if kind == 0:
        chosen = numbers.choice(sorted(snapshots.glob("*.json")))
        data = damaged_json(numbers, json.loads(chosen.read_text(encoding="utf-8")))
    elif kind == 1:
        entries = [
            {"collective_seq_id": n, "process_group": ("0", "x"), "state": "started"} for n in range(3)
        ]
        document = {"version": "2.4", "entries": entries, "pg_config": {}}
        data = damage_bytes(
            numbers, pickle.dumps(spoil_document(numbers, document), protocol=numbers.randrange(5))
        )
    else:
        place = numbers.choice(("/home/a/b.py", "x" * 5000, "\x1b]0;\n::error::", "\ud800"))
        text = (
            f'Process 12: python {place}\nPython v3.11.2 (/x)\n\nThread 12 (idle): "Main"\n    wait ({place}:1)\n'
            if kind == 2
            else f'Thread 0x00007f (most recent call first):\n  File "{place}", line 3 in f\n#0 0x7f in g ()\n'
        )
        data = damage_bytes(numbers, text.encode("utf-8", "surrogatepass") * numbers.choice((1, 2, 200)))
    if numbers.random() < 0.2:
        data = gzip.compress(data)
    (folder / "dump").write_bytes(data)
    with refusing(ParseError):
        diagnose(read_files([str(folder / "dump")]))


READERS = (
    metadata,
    elf,
    configs,
    compat,
    nodes,
    fleet,
    hosts,
    log_blocks,
    triage,
    lint,
    merge,
    stories,
    baseline,
    stacks,
)


def fuzz_reader(reader, count, seed):
    """Run cases of a reader; return counts of answers and refusals, the slowest case, and up to 5 failures."""
    outcomes, slowest, wrong = collections.Counter(), (0.0, 0), []
    for number in range(seed, seed + count):
        numbers = random.Random(f"{reader.__name__} {number}")
        with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
            started = time.process_time()
            try:
                reader(numbers, Path(folder))
                outcomes["answers"] += 1
            except RefusedError:
                outcomes["refusals"] += 1
            except Exception:  # noqa: BLE001 - any unexpected exception is a result
                wrong.append((number, traceback.format_exc(limit=-4)))
            cpu_s = time.process_time() - started
        slowest = max(slowest, (cpu_s, number))
        if cpu_s > MAX_CPU_S:
            wrong.append((number, f"{cpu_s:.1f} s of CPU time"))
        if len(wrong) >= 5:
            break
    return outcomes, slowest, wrong


def main(readers, count, seed=0, *only):
    """Run COUNT cases of every reader, or of the named ones, and print the results; return 1 if a case fails."""
    # SIGALRM prints the stack of a case that hangs.
    faulthandler.register(signal.SIGALRM, all_threads=False, chain=True)
    count, seed = int(count), int(seed)
    total, failed = 0, False
    for reader in readers:
        if only and reader.__name__ not in only:
            continue
        outcomes, (cpu_s, number), wrong = fuzz_reader(reader, count, seed)
        total += outcomes.total() + len(wrong)
        print(
            f"{reader.__name__:<10} {outcomes.total() + len(wrong):>7} cases: {outcomes['answers']} answers, "
            f"{outcomes['refusals']} refusals, {len(wrong)} wrong; slowest {cpu_s:.3f} s (case {number})",
            flush=True,
        )
        for case, text in wrong:
            print(f"--- {reader.__name__} {case}\n{text}", flush=True)
        failed |= bool(wrong)
    print(f"{total} cases", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(READERS, *sys.argv[1:]))
