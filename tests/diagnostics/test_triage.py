"""`triage` finds root causes in logs of several ranks and formats, and gives no verdict without evidence.

The state of a verdict is `known`, `wrapper` (only consequences of a root cause elsewhere), `hypothesis`, `unknown`,
`not_judged`, `clean` or `empty`. Secrets in the quoted lines are masked. Releases, triggers, fingerprints, groups and
the search for logs are tested, too.
"""

import gzip
import json
import os

import pytest

from diagnostics import catalog
from diagnostics.fixes import fix_text
from diagnostics.logs.prefixes import parse_line
from diagnostics.triage.command import exit_code, triage
from diagnostics.triage.report import report
from diagnostics.triage.sources import SkippedFiles, find_logs
from evaluation.triage.corpus.sweep import MemoryLog
from tests.case_files import read_cases

LINES = read_cases(__file__, "log_lines.yaml")

SITE = "/opt/env/lib/python3.12/site-packages"
WRAPPER = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"
SCH001 = [
    "Traceback (most recent call last):",
    f'  File "{SITE}/vllm/core/scheduler.py", line 1278, in _schedule_default',
    "    assert len(running_scheduled.prefill_seq_groups) == 0",
    "AssertionError",
]
ROOT = "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`."


def traceback_of(error, path="vllm/v1/core/kv_cache_utils.py", function="check"):
    """Return the lines of a traceback with one frame."""
    frame = f'  File "{SITE}/{path}", line 7, in {function}'
    return ["Traceback (most recent call last):", frame, "    raise_it()", "    ^^^^^^^^^^", error]


def prefixed(prefix, lines):
    """Return the lines with a prefix."""
    return [f"{prefix}{line}" for line in lines]


@pytest.fixture
def triage_logs(rules):
    """Return a function that triages logs, one per rank, each a list of lines."""

    def triage_logs(*logs):
        texts = (("\n".join(lines) + "\n").encode() for lines in logs)
        return triage([MemoryLog(text, f"rank_{number}.log") for number, text in enumerate(texts)], rules)

    return triage_logs


def codes(verdict):
    """Return the codes of a verdict's candidates."""
    return [candidate.issue.code for candidate in verdict.candidates]


def test_wrapper_error_is_not_the_root_cause(triage_logs):
    """If the log has the cause, the wrapper error, which only reports it, is listed as a consequence."""
    engine = prefixed("(EngineCore_DP0 pid=77) ERROR 01-31 10:00:00 [core.py:708] ", traceback_of(ROOT))
    verdict = triage_logs([*engine, *traceback_of(WRAPPER)])
    assert (verdict.state, codes(verdict)) == ("known", ["MEM005"])
    assert [candidate.issue.code for candidate in verdict.consequences] == ["ENG001"]
    assert verdict.candidates[0].first.line == 5


def test_unknown_failure_names_the_search_in_the_issues_of_the_package_that_raised_it(triage_logs):
    verdict = triage_logs(traceback_of("ValueError: level 7 of '/a/b' is odd", "vllm/core.py"))
    (missing,) = report(verdict, ["a.log"]).checks[0].not_judged
    assert missing.remedy == "search the issues of vllm for: ValueError: level of is odd"


def test_confirmation_counts_only_with_its_own_failure(triage_logs):
    """A confirmation alone is not judged; with another failure it changes nothing, with its own it adds evidence."""
    wait = "INFO 01-31 10:00:00 [shm_broadcast.py:692] No available shared memory broadcast block found in 60 seconds."
    alone = triage_logs(["step 1", wait, wait, "step 2"])
    assert (alone.state, alone.candidates, alone.consequences, exit_code(alone)) == ("not_judged", (), (), 3)
    unknown = triage_logs([wait, *traceback_of("KeyError: 'reward'", "my_rewards.py")])
    assert (unknown.state, unknown.candidates, unknown.consequences) == ("unknown", (), ())
    root = triage_logs([wait, *traceback_of(ROOT)])
    assert (root.state, codes(root)) == ("known", ["MEM005"])
    assert root.candidates[0].confirmed_by == root.consequences == ()
    verdict = triage_logs([wait, wait, *traceback_of("TimeoutError: RPC call to execute_model timed out.")])
    assert (verdict.state, codes(verdict), verdict.consequences) == ("wrapper", ["ENG030"], ())
    assert [item.issue.code for item in verdict.candidates[0].confirmed_by] == ["ENG012"]
    document = report(verdict, ["rank_0.log"])
    assert [item.place for item in document.findings[0].evidence] == ["rank_0.log:7", "rank_0.log:1"]
    assert "Confirmed by ENG012 (rank_0.log:1)." in document.findings[0].detail
    assert [item["code"] for item in document.subject["candidates"][0]["confirmed_by"]] == ["ENG012"]


def test_interleaved_tracebacks_of_two_ranks_are_separated(triage_logs):
    """The candidate has both ranks, and each of its tracebacks has one frame."""
    first = prefixed("[rank0]: ", traceback_of(ROOT))
    second = prefixed("[rank3]: ", traceback_of(ROOT))
    verdict = triage_logs([line for pair in zip(first, second, strict=True) for line in pair])
    assert codes(verdict) == ["MEM005"]
    assert verdict.candidates[0].ranks == ("0", "3")
    assert all(hit.traceback and len(hit.traceback.frames) == 1 for hit in verdict.candidates[0].hits)


def test_first_exception_of_a_chain_is_the_root_cause(triage_logs):
    """The first exception of a chain is the root cause, also without a catalog entry."""
    chain = [
        *traceback_of("KeyError: 'prompt'", "own/rewards.py", "score"),
        "",
        "The above exception was the direct cause of the following exception:",
        "",
        *traceback_of("RuntimeError: rollout failed", "own/loop.py", "run"),
    ]
    verdict = triage_logs(chain)
    assert verdict.state == "unknown"
    assert verdict.anchors[0].text == "KeyError: 'prompt' (in own/rewards.py, score)"
    assert [anchor.traceback.link for anchor in verdict.anchors] == [0, 1]
    assert exit_code(verdict) == 3


def test_releases_are_read_from_banners_pip_lists_and_metadata_paths(triage_logs):
    verdict = triage_logs(
        [
            "(APIServer pid=7) INFO 01-31 10:00:00 [api_server.py:1885] vLLM API server version 0.31.0",
            "trl==1.16.0",
            "torch                2.13.0+cpu",
            f"{SITE}/ray-2.60.0.dist-info/METADATA",
            # Requirements do not state installed releases.
            "trl 0.15.2 requires accelerate==0.7.2, but you have vllm 0.9.0 which is incompatible.",
            "Requirement already satisfied: peft>=2.0",
        ]
    )
    releases = {name: version for name, (version, _) in verdict.versions.items()}
    assert releases == {"vllm": "0.31.0", "trl": "1.16.0", "torch": "2.13.0+cpu", "ray": "2.60.0"}


def test_log_without_failures_is_clean(triage_logs):
    """A log with only progress bars, metrics, warnings and exceptions that Python ignores at exit is clean."""
    lines = [
        "  0%|          | 0/10 [00:00<?, ?it/s]\r 50%|#####     | 5/10 [00:01<00:01, 5.0it/s]\r",
        "{'loss': 0.01, 'grad_norm': 0.5, 'reward': 0.25, 'epoch': 0.1}",
        "[rank0]:[W131 10:00:00.1 ProcessGroupNCCL.cpp:1496] Warning: destroy_process_group() was not called",
        "Exception ignored in: <function Pool.__del__ at 0x7f00>",
        *traceback_of("OSError: [Errno 9] Bad file descriptor", "own/pool.py", "__del__"),
        "{'train_runtime': 12.3, 'train_loss': 0.01}",
    ]
    verdict = triage_logs(lines)
    assert (verdict.state, verdict.fingerprint, exit_code(verdict)) == ("clean", "", 0)
    assert verdict.lines == len(lines)


def test_timeout_of_a_client_comes_after_the_crash_of_its_server(triage_logs):
    """The crash in the server's log comes first, and the timeout of its client second."""
    waited = "ConnectionError: The vLLM server can't be reached at http://127.0.0.1:8000 after 240.0 seconds."
    client, server = traceback_of(waited, "trl/extras/vllm_client.py"), ["started"] * 50 + traceback_of(ROOT)
    verdict = triage_logs(client, server)
    assert codes(verdict) == ["MEM005", "NET012"]


def test_fingerprint_ignores_paths_lines_and_values(triage_logs):
    first = triage_logs(traceback_of("KeyError: 'a17'", "own/x.py", "f"))
    moved = "\n".join(traceback_of("KeyError: 'b2'", "own/x.py", "f")).replace("/opt/env", "/srv/x")
    same = triage_logs(moved.replace("line 7", "line 9").split("\n"))
    different = triage_logs(traceback_of("IndexError: 3", "own/x.py", "f"))
    assert first.fingerprint == same.fingerprint != different.fingerprint


def test_fingerprint_of_an_error_without_frames_has_its_quoted_names(triage_logs):
    names = ("mine.alpha", "mine.beta", "mine.beta")
    alpha, beta, again = [triage_logs([f"ModuleNotFoundError: No module named '{name}'"]) for name in names]
    assert alpha.fingerprint != beta.fingerprint == again.fingerprint


def test_log_prefixes_are_removed():
    """Prefixes such as time, rank, actor and level are removed; the indentation of the message stays."""
    parsed = [[raw, parse_line(raw).text, parse_line(raw).rank] for raw, _, _ in LINES["prefixed"]]
    assert parsed == LINES["prefixed"]


BOX, CELL = LINES["rich_box"], LINES["ipython_cell"]


@pytest.mark.parametrize(
    "lines",
    [
        LINES["python_3_13_colours"],
        LINES["ipython_colours"],
        [*BOX, ROOT],
        [*BOX, "ValueError: No available memory for the cache", "blocks. Try increasing `gpu_memory_utilization`."],
        ["[01/31/26 10:00:00] ERROR    the engine failed                     train.py:8",
         *prefixed(" " * 29, [line.replace("─" * 40, "").replace(" " * 40, "") for line in BOX]),
         *prefixed(" " * 29, ["ValueError: No available memory for the cache    ", "blocks. Try increasing"])],
        [*CELL, ROOT],
        [json.dumps({"level": "error", "rank": 3, "message": "\n".join(["failed:", *traceback_of(ROOT)])})],
        [json.dumps({"log": f"{line}\n", "stream": "stderr"}) for line in traceback_of(ROOT)],
        [json.dumps({"event": "failed", "exception": [{"exc_type": "ValueError", "exc_value": ROOT[12:], "frames": [
            {"filename": f"{SITE}/vllm/v1/core/kv_cache_utils.py", "lineno": 7, "name": "check"}]}]})],
        [json.dumps({"severity": "ERROR", "error": {
            "type": "ValueError", "message": ROOT[12:], "stack_trace": "\n".join(traceback_of(ROOT))}})],
        [f"remote failed: {chr(10).join(traceback_of(ROOT))!r}"],
        ["Traceback (most recent call last):", "", f'> File "{SITE}/vllm/v1/core/kv_cache_utils.py", line 7, in check',
         "    raise ValueError(", "          └ <class 'ValueError'>", "", ROOT],
        ["  + Exception Group Traceback (most recent call last):", '  |   File "/opt/env/a.py", line 1, in f',
         "  | ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)",
         "  +-+---------------- 1 ----------------", *prefixed("    | ", traceback_of(ROOT))],
        ["multiprocessing.pool.RemoteTraceback: ", '"""', *traceback_of(ROOT), '"""', "",
         "The above exception was the direct cause of the following exception:", "", *traceback_of(ROOT)],
    ],
    ids=[
        "python3.13", "ipython_plain", "rich", "rich_broken", "rich_handler", "ipython", "json", "docker", "structlog",
        "fields", "repr", "loguru", "group", "pool",
    ],
)  # fmt: skip
def test_tracebacks_in_other_formats(triage_logs, lines):
    """Coloured, boxed, grouped, escaped and JSON tracebacks give the same root cause and last function."""
    verdict = triage_logs(["step 1", *lines, "step 2"])
    assert codes(verdict) == ["MEM005"]
    about = verdict.candidates[0].first.traceback or verdict.candidates[0].hits[-1].traceback
    assert about.frames[-1][1] == "check"


def test_thousand_similar_lines_do_not_hide_the_root_cause(triage_logs):
    """The root cause is found after 1000 lines that pass the prefilter and match no pattern."""
    noise = ["EngineArgs.__init__() got an unexpected keyword argument 'x' was fixed"] * 1000
    error = "TypeError: EngineArgs.__init__() got an unexpected keyword argument 'device'"
    assert codes(triage_logs(noise + traceback_of(error))) == ["CMP022"]


def test_rank_with_another_traceback_comes_first(triage_logs):
    """The rank with another traceback comes first if seven ranks report a lost peer.

    The fingerprint does not depend on the number of that rank.
    """
    error = (
        "torch.distributed.DistBackendError: [../gloo/pair.cc:553] Connection closed by peer [10.0.0.1]:29500"
    )
    lost_peer = traceback_of(error, "torch/distributed/x.py")
    cause = traceback_of("KeyError: 'answer'", "own/rewards.py", "score")
    verdict = triage_logs(*[lost_peer] * 3, cause, *[traceback_of(error, "torch/x.py")] * 4)
    assert verdict.state == "unknown"
    assert verdict.anchors[0].source == "rank_3.log"
    elsewhere = triage_logs(cause, *[lost_peer] * 7)
    assert elsewhere.fingerprint == verdict.fingerprint


def test_logs_of_a_run_folder_are_found(tmp_path, run_triage):
    """Logs are recognised by name and first bytes; other files are counted by kind, except those in `.git`."""
    (tmp_path / "checkpoint-1").mkdir()
    (tmp_path / "checkpoint-1" / "model.safetensors").write_bytes(b"\x10" * 100)
    (tmp_path / "checkpoint-1" / "rng_state").write_bytes(b"\x00\x01" * 100)
    (tmp_path / "curve.png").write_bytes(b"\x89PNG")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "log").write_text("\n".join(traceback_of("KeyError: 1")))
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "slurm-17_3.out.1").write_text("\n".join(traceback_of(ROOT)))
    (tmp_path / "latest.log").symlink_to(tmp_path / "logs" / "slurm-17_3.out.1")
    (tmp_path / "gone.log").symlink_to(tmp_path / "nothing.log")
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "utf16.txt").write_text("all is well\n", "utf-16")
    os.mkfifo(tmp_path / "pipe.log")
    skipped = SkippedFiles()
    assert [source.name for source in find_logs([str(tmp_path)], skipped)] == ["latest.log", "utf16.txt"]
    assert skipped.kinds == {".safetensors": 1, ".png": 1, "binary": 1, "dangling": 1, "not a file": 1}
    done = run_triage(tmp_path)
    assert (done.code, "5 files not read" in done.out.replace("\n", " ")) == (1, True)


def test_first_bytes_of_a_file_are_read_for_a_limited_time(tmp_path, monkeypatch):
    """A gzip file of an empty member and a hole of 100 GB is named as unread, and the other log is found."""
    monkeypatch.setattr("diagnostics.triage.sources._FIRST_BYTES_S", 0.2)
    (tmp_path / "a.log.gz").write_bytes(gzip.compress(b""))
    os.truncate(tmp_path / "a.log.gz", 10**11)
    (tmp_path / "b.log").write_text("all is well\n")
    skipped = SkippedFiles()
    assert [source.name for source in find_logs([str(tmp_path)], skipped)] == ["b.log"]
    assert skipped.unread == ["a.log.gz (reading its first bytes needed more than 0 s of processor time)"]


def test_group_has_runs_with_one_verdict(tmp_path, run_triage):
    """Runs that wait or are empty are not grouped with runs that ended; equal names in two folders are two runs."""
    ended = "Training completed."
    logs = {"home/run/1": ended, "home/2": "waiting\n" * 4, "home/3": "", "b/run/1": ended}
    for name, text in logs.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / f"{name}.log").write_text(text)
    done = run_triage("--group", "--format", "json", tmp_path / "home", f"{tmp_path}/b/")
    groups = [(len(group["logs"]), group["title"].partition(":")[0]) for group in done.document["groups"]]
    assert (done.code, groups) == (3, [(2, "no failure"), *[(1, "not checked")] * 2])
    assert "/home/<user>" in str(done.document)  # folders of users


def test_wrapper_report_says_where_the_framework_logs_the_root_cause(triage_logs):
    """The report of a wrapper names the rank that torchrun reports, and where the framework logs."""
    lines = [
        "[INFO:swift] Global seed set to 42",
        *traceback_of("torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ", "torch/run.py"),
        "Root Cause (first observed failure):", "[0]:", "  time      : 2026-01-31_10:00:00", "  host      : node3",
        "  rank      : 3 (local_rank: 1)", "  exitcode  : 1 (pid: 77)", "  error_file: <N/A>",
    ]  # fmt: skip
    verdict = triage_logs(lines)
    result = report(verdict, ["a.log"])
    note = result.notes[0]
    assert (verdict.state, exit_code(verdict)) == ("wrapper", 1)
    assert "the rank that failed first: host: node3, rank: 3 (local_rank: 1), exitcode: 1 (pid: 77)" in note
    assert "because swift does not set torchrun's --log-dir" in fix_text(result.findings[0].remedy)


def test_root_cause_is_found_in_a_ray_session_folder(tmp_path, rules):
    """The root cause is found in a worker's file, and the hash in the file's name is not read as a rank."""
    (tmp_path / "worker-77ab09-01000000-25323.err").write_text("\n".join(traceback_of(ROOT)))
    (tmp_path / "worker-520709-ffffffff-23513.out").write_text(":job_id:01000000\n")
    (tmp_path / "raylet.out").write_text("[2026-01-31 10:00:00,123 I 17 18] (raylet) main.cc:7: ready\n")
    wrapper = "ray.exceptions.RayTaskError(ValueError): ray::TaskRunner.run() (pid=77, ip=10.0.0.1)"
    (tmp_path / "python-core-driver-01_1.log").write_text("\n".join(traceback_of(wrapper)))
    verdict = triage(find_logs([str(tmp_path)]), rules)
    assert codes(verdict) == ["MEM005"]
    assert [item.issue.code for item in verdict.consequences] == ["RAY010"]
    assert verdict.candidates[0].ranks == ()


def test_every_positive_sample_is_found_by_triage(triage_logs):
    """Each positive sample is found by the whole of triage, and no negative sample is."""
    missed, issues = [], catalog.load()
    for code, issue in issues.items():
        for sample in issue.signature.samples if issue.signature else ():
            # A confirmation only counts with the failure it confirms.
            confirmed = [issues[name].signature.samples[0].text for name in issue.signature.confirms]
            verdict = triage_logs([sample.text, *confirmed])
            candidates = (*verdict.candidates, *verdict.consequences)
            reported = {entry.issue.code for item in candidates for entry in (item, *item.confirmed_by)}
            if sample.matches:
                # A pattern that other causes print too only gives a hypothesis.
                reported |= {lead.issue.code for lead in verdict.leads if lead.issue.signature.broad}
            # At most three candidates are reported; no sample has more.
            if (code in reported) != sample.matches:
                missed.append((code, sample.about))
    assert not missed


ENGINE = ("vllm/entrypoints/llm.py", "_run_engine")


@pytest.mark.parametrize(
    ("log", "triggers"),
    [
        (SCH001, ()),
        ([*traceback_of("KeyboardInterrupt", *ENGINE), *SCH001], ("cancelled_step",)),
        # The interrupt came after the failure, or was in another program.
        ([*SCH001, *traceback_of("KeyboardInterrupt", *ENGINE)], ()),
        ([*traceback_of("KeyboardInterrupt", "rich/live.py", "wait"), *SCH001], ()),
        ([*traceback_of("torch.OutOfMemoryError: CUDA", "vllm/engine/llm_engine.py", "step"), *SCH001],
         ("lost_step",)),
        # The interrupt was in another rank.
        ([*prefixed("[rank1]: ", traceback_of("KeyboardInterrupt", *ENGINE)), *prefixed("[rank0]: ", SCH001)], ()),
        ([SCH001[0], f'  File "{SITE}/swift/trainers/rlhf_trainer/grpo_trainer.py", line 1202, in evaluation_loop',
          *SCH001[1:]], ("two_owners",)),
    ],
)  # fmt: skip
def test_trigger_is_read_from_the_log(triage_logs, log, triggers):
    """The trigger is found by a frame of the traceback, or by an earlier failure in the same process.

    An interrupt after the failure, in another program or in another rank does not count.
    """
    (candidate, *_) = triage_logs(log).candidates
    assert (candidate.issue.code, candidate.triggers) == ("SCH001", triggers)


@pytest.mark.parametrize(
    ("length", "note"), [(1500, ""), (3000, " … 1026 more characters, --verbose shows all")]
)
def test_long_line_is_shown_whole_or_with_the_number_of_missing_characters(
    tmp_path, run_triage, length, note
):
    """The first screen shows a line of up to 2,000 characters; of a longer one, it says how many are missing."""
    (tmp_path / "a.log").write_text("ValueError: not known " + "x" * length + " END\n")
    screen = run_triage(tmp_path / "a.log").out
    assert ("x END" in screen) is not bool(note)
    assert note in screen


SECRETS_BELOW_LABELS = [
    *LINES["secrets_below_labels"],
    # A secret, name or path where a long line, a message or a function's name is cut.
    f"{'launch --master_addr kestrel7 ' * 200}{'y' * 20} RuntimeError: a",
    f"passwords={['hunter2 abcdef'] * 260}{' x' * 2000} RuntimeError: CUDA error: a",
    f"{'a ' * 2000}Cookie: {'a=hunter2abcdef1; ' * 260}{' x' * 2000} RuntimeError: CUDA error: a",
    f"secrets={['hunter2abcdefgh'] * 1500} RuntimeError: CUDA error: a",
    # A label in another field, a removed prefix, sequence or class, or overwritten text, and what is made of the line.
    '\n{"event": "bad api key", "exc": "Traceback (most recent call last):\\n  File \\"/a.py\\", line 3, in f\\n'
    """FileNotFoundError: No such file: 'hunter2Kes7'"}""",
    '\n{"log": "{\\"message\\": \\"bad password\\", \\"error.message\\": \\"OSError: hunter2Kes7 a\\"}\\n"}',
    "\nERROR bad api key: 'Traceback (most recent call last):\\n  File \"/a.py\", line 3, in f\\nOSError: hunter2Kes7'",
    *(
        f'\n{prefix}Traceback (most recent call last):\n{prefix}  File "/opt/a.py", line 3, in f\n{prefix}{message}'
        for prefix, message in [
            ("2025-11-01 10:00:00,123 - auth.password - ERROR - ", "ValueError: hunter2Kes7 denied"),
            (
                "hf_token-1  | ",
                "ImportError: cannot import name 'hunter2Kes7' from 'vllm' (/x/vllm/__init__.py)",
            ),
            (
                "",
                "password:\rImportError: cannot import name 'hunter2Kes7' from 'vllm' (/x/vllm/__init__.py)",
            ),
            ("", "InvalidPassword(LDAPError): hunter2Kes7"),
            ("", f"OSError: \x1b]8;;https://h/{'a' * 250}?key=hunter2Kes7\x1b\\link\x1b]8;;\x1b\\ Error: a"),
            ("", "OSError: \x1b]0;password is\x07 hunter2Kes7 Error: a"),
        ]
    ),
    "\n2025-11-01 10:00:00 - hf_token - ERROR - ImportError: vllm>=0.9 is required but found vllm==0.8, hunter2Kes7",
    f'Traceback (most recent call last):\n  File "a.py", line 3, in {"f" * 180} ghp_{"hunter2" * 6}\nValueError: boom',
    f"DB_PASSWORD={'hunter2' * 6}{' x' * 2032} RuntimeError: boom{' y' * 3000}",
    f"DB_PASSWORD= {'hunter2' * 6}{' x' * 2022} RuntimeError: boom{' y' * 3000}",
    f"{'x ' * 1570795}ghp_{'hunter2' * 6} RuntimeError: boom{' y' * 9000}",
    f"{'a ' * 1000}/home/{'hunter2' * 6}{' b' * 1010} torch.OutOfMemoryError: CUDA out of memory.{' c' * 1500}",
    'Traceback (most recent call last):\n  File "a.py", line 3, in f\nRuntimeError: password='
    f"{'k7x' * 700} {'x ' * 984}ghp_{'hunter2' * 6}",
]


@pytest.mark.parametrize("log", SECRETS_BELOW_LABELS, ids=range(len(SECRETS_BELOW_LABELS)))
@pytest.mark.parametrize("form", ["terminal", "json", "markdown"])
def test_secret_below_its_label_is_masked_in_a_line_that_is_quoted_alone(tmp_path, run_triage, log, form):
    (tmp_path / "a.log").write_text(f"INFO step 1\nINFO {log}\n")
    result = run_triage("--format", form, tmp_path / "a.log")
    assert "hunter2" not in result.out + result.err
    assert form == "terminal" or "kestrel7" not in result.out


def test_release_of_too_many_digits_crashes_nothing(run_triage):
    """The exit code is 3. Python converts no text of more than 4,300 digits to a number."""
    log = "vllm=={0}.0\nvllm 1.0 requires torch>={0}, but you have torch {0}\n".format("9" * 5000)
    assert run_triage("-", stdin=log.encode()).code == 3
