"""Run a preamble once, then each case of a group in a fork of this process, with its output in a log file.

The argument is a JSON file with `preamble`, `folder`, `timeout_s` and `cases` as (name, source). Prints the exit codes
by name as JSON.
"""

import json
import os
import signal
import sys
import threading
import traceback
from pathlib import Path


def main() -> None:
    """Run the preamble and all cases; print their exit codes."""
    plan = json.loads(Path(sys.argv[1]).read_text())
    scope = {"__name__": "__main__"}
    exec(compile(plan["preamble"], "/opt/run/preamble.py", "exec"), scope)
    done = {}
    for name, source in plan["cases"]:
        log = Path(plan["folder"]) / f"{name}.log"
        pid = os.fork()
        if pid == 0:
            run(name, source, log, scope, plan["timeout_s"])
        done[name] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    print(json.dumps(done))


def run(name: str, source: str, log: Path, scope: dict, timeout_s: float) -> None:
    """Run a case and end the process: code 99 after the time limit; a traceback has no frames of this file."""
    stream = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(stream, 1)
    os.dup2(stream, 2)
    sys.stdout, sys.stderr = os.fdopen(1, "w", 1), os.fdopen(2, "w", 1)
    signal.signal(signal.SIGALRM, lambda *_: os._exit(99))
    signal.alarm(int(timeout_s))
    script = log.with_suffix(".py")
    script.write_text(source)
    code = 0
    try:
        exec(compile(source, str(script), "exec"), scope)
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException as error:  # noqa: BLE001 - the exception belongs in the case's log
        traceback.print_exception(type(error), error, error.__traceback__.tb_next)
        code = 1
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join(10)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
