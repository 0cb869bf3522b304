"""Use the tokenizer of an untrusted checkpoint in a child process, because its files can take any time and memory.

The kernel limits the memory of the child process (`tokenizer_worker.py`) and its processor time for each call, and lets
it write no file. This process limits the time of each call, and validates the answer. A call that fails raises
NotAvailableError in one line; a refused file or class raises AuditError. All tokenizers use one child process. After a
failure that ended it, the next call starts another one.
"""

import os
import subprocess
import sys
from functools import cache
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Timer
from typing import Annotated, Any

import msgspec

from diagnostics import process, safe_io
from diagnostics.audit.checkpoint_validation import check_tokenizer, one_line_message
from diagnostics.audit.results import AuditError, NotAvailableError

# The largest known tokenizers take 0.6 GiB of addresses and 5 s to load; a text or a chat takes milliseconds.
_ADDRESS_SPACE, _CALL_S = 3 * safe_io.GIB, 15.0
# Seconds that a call may wait, also for a processor, and bytes of its answer.
_WAIT_S, _MAX_ANSWER = 60.0, 4 * safe_io.MIB
# One thread for each library, because a thread reserves addresses.
_THREADS = ("RAYON_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", **dict.fromkeys(_THREADS, "1")}
_PROBLEMS = dict.fromkeys(("MemoryError", "SIGABRT"), "it needs more than 3 GiB of memory, or crashed")
_Id = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]


class Tokenizer:
    """A checkpoint's tokenizer in the child process; its methods raise NotAvailableError if they fail.

    Attributes:
        size: The number of ids.
        bos: The begin-of-sequence id, in a list; empty for none.
        all_special_ids: The ids of special tokens.
        has_chat_template: Whether the checkpoint has a chat template.
    """

    def __init__(self, folder: Path) -> None:
        """Check the files of a folder, and load its tokenizer.

        Raises:
            AuditError: A file or setting is refused, or the tokenizer cannot be loaded within the limits.
        """
        check_tokenizer(folder)
        self._folder = str(folder.absolute())
        self.size = self._call(_Id, "__len__")
        if not self._call(bool, "is_fast"):
            raise AuditError(f"{folder}: its tokenizer cannot be read: its class does not use tokenizer.json")
        self.bos = [] if (token := self._call(_Id, "bos_token_id")) is None else [token]
        self.all_special_ids = self._call(list[_Id], "all_special_ids")
        self.has_chat_template = bool(self._call(str | dict[str, str], "chat_template"))

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Return the ids of a text, with special tokens or without."""
        return list(self._call(list[_Id], "encode", text, add_special_tokens=special))

    def chat_ids(self, messages: list[dict[str, str]]) -> list[int]:
        """Return the ids of a conversation with the generation prompt."""
        text = self._call(str, "apply_chat_template", messages, add_generation_prompt=True, tokenize=False)
        return self.encode(text, special=False)

    def decode(self, ids: list[int]) -> str:
        """Return the text of some ids."""
        return str(self._call(str, "decode", ids))

    def _call(self, kind: Any, name: str, *arguments: Any, **options: Any) -> Any:
        """Return the value of an attribute or method; it is None or has the type `kind`.

        Raises:
            NotAvailableError: The call failed or exceeded a limit.
        """
        child, connection = _start_child()
        what = "the chat template" if "chat" in name else f"{self._folder}: its tokenizer"
        timer = Timer(_WAIT_S, child.kill)  # then the connection ends, also in the middle of an answer
        timer.start()
        try:
            connection.send_bytes(msgspec.json.encode((_CALL_S, self._folder, name, arguments, options)))
            answer = connection.recv_bytes(_MAX_ANSWER)
            error, value = msgspec.json.decode(answer, type=tuple[str, kind | None])
        except BaseException as failure:  # also Ctrl-C
            _start_child.cache_clear()
            connection.close()
            process.end_group(child)
            if not isinstance(failure, (OSError, EOFError, msgspec.MsgspecError)):
                raise
            error = f"its process made no valid answer of 4 MiB in {_WAIT_S:g} s"
        finally:
            timer.cancel()
        if error:
            error = {"SIGPROF": f"it took more than {_CALL_S:g} s"}.get(error, _PROBLEMS.get(error, error))
            raise NotAvailableError(f"{what} failed: {one_line_message(error)}")
        return value


@cache
def _start_child() -> tuple[subprocess.Popen[bytes], Connection]:
    """Start the child process, or use the one that was started; return it and the connection to it."""
    ours, theirs = Pipe()
    with theirs:
        program, number = Path(__file__).with_name("tokenizer_worker.py"), theirs.fileno()
        environment, command = os.environ | _ENVIRONMENT, [sys.executable, "-P", str(program), str(number)]
        options: Any = {"cwd": Path("/"), "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        options |= {"pass_fds": [number], "address_space": _ADDRESS_SPACE}
        return process.start(command, env=environment, **options), ours
