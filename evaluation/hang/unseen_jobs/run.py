"""Run `hang` on each unseen job and record what it reports: python -m evaluation.hang.unseen_jobs.run."""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from typing import Any

from evaluation.hang.unseen_jobs.jobs import Job, RunningJob, find_pids, read_jobs

ROOT = pathlib.Path(__file__).parents[3]


def run_hang(pids: list[int], options: list[str]) -> tuple[int, str, str]:
    """Run `hang` on these processes; return its exit code, its JSON and its errors."""
    words = [word for pid in pids for word in ("--pid", str(pid))]
    done = subprocess.run(
        [sys.executable, "-m", "diagnostics", "hang", "--format", "json", *options, *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def describe_processes(folder: pathlib.Path) -> str:
    """Return the job's processes with their states and kernel wait channels."""
    pids = ",".join(map(str, find_pids(folder))) or "1"
    return subprocess.run(
        ["ps", "-o", "pid,ppid,stat,wchan:20,pcpu,args", "-p", pids],
        capture_output=True,
        text=True,
        check=False,
    ).stdout


def run_job(job: Job, age_s: float, tool: bool, out: pathlib.Path) -> str:
    """Start a job, wait until it has reached its state, run `hang` on it, and write the record to `out`.

    Args:
        job: The job.
        age_s: Seconds to wait between the state and the first run of `hang`.
        tool: Whether `hang` runs; otherwise only the processes are recorded.
        out: Folder for records and snapshots.
    """
    folder = pathlib.Path(tempfile.mkdtemp(prefix="job", dir="/tmp"))
    running = RunningJob(job, folder)
    runs: list[dict[str, Any]] = []
    record: dict[str, Any] = {"name": job.name, "state": job.state, "runs": runs}
    try:
        record["roles"] = running.wait_until_ready()
        time.sleep(age_s)
        record["processes"] = describe_processes(folder)
        if tool:
            pids = [process.pid for process in running.processes]
            for number, options in enumerate(([], ["--seconds", "65"])):
                options += ["--save", str(out / f"{job.name}.{number}.snapshot")]
                code, report, errors = run_hang(pids, options)
                runs.append({"options": options, "exit": code, "report": report, "errors": errors})
                if code == 1:
                    break
            record["processes_after"] = describe_processes(folder)
        record["alive"] = [process.poll() is None for process in running.processes]
    except (TimeoutError, subprocess.TimeoutExpired):
        record["error"] = traceback.format_exc()
    finally:
        running.end()
    record["output"] = (folder / "output.log").read_text(errors="replace")[-3000:]
    shutil.rmtree(folder)
    (out / f"{job.name}.json").write_text(json.dumps(record, indent=1))
    codes = [run["exit"] for run in runs]
    return f"{job.name} {job.state} {codes or record.get('error', 'ready')}"


def main() -> None:
    """Run the chosen jobs, several at a time, and print one line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="jobs to run (default: all)")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="folder of the records")
    parser.add_argument("--age", type=float, default=3.0, help="seconds in the state before the tool")
    parser.add_argument("--jobs", type=int, default=3, help="jobs at the same time")
    parser.add_argument("--no-tool", action="store_true", help="only check that jobs get ready")
    parser.add_argument("--labels", action="store_true", help="print the labels and end")
    options = parser.parse_args()
    jobs = [job for job in read_jobs() if not options.names or job.name in options.names]
    if options.labels:
        print("\n".join(job.label for job in jobs))
        return
    options.out.mkdir(parents=True, exist_ok=True)
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        futures = [pool.submit(run_job, job, options.age, not options.no_tool, options.out) for job in jobs]
        for future in concurrent.futures.as_completed(futures):
            print(future.result(), flush=True)


if __name__ == "__main__":
    main()
