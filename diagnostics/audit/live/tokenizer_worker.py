"""Load a checkpoint's tokenizer and call its methods: the program that `checkpoint_tokenizer` starts.

It imports nothing of the project. PyTorch is hidden, because importing it takes seconds. The process can write no file,
and ends with its parent. Argument: the descriptor of a connection. A request has a limit of processor time in seconds,
the checkpoint's folder, the name of an attribute of the tokenizer, and positional and keyword arguments for a method. A
request of `__len__`, or of another folder, loads the tokenizer. The answer has an error message and a value. A forked
process answers; if a limit ends it, another one is forked.
"""

import ctypes
import json
import os
import resource
import signal
import sys
from multiprocessing.connection import Connection
from typing import Any


class _Refused:
    """In place of a tokenizer whose class does not use tokenizer.json.

    Such a class may give a text of the settings to a library, which reads the files that are named in it.
    """

    is_fast = False

    def __init__(self, *_arguments: Any, **_options: Any) -> None: ...

    def __len__(self) -> int:
        return 0


def main() -> None:
    """Answer requests until the connection is closed; if a signal ends a process, the signal's name is the answer."""
    prctl, connection = ctypes.CDLL(None).prctl, Connection(int(sys.argv[1]))
    prctl(1, int(signal.SIGKILL))  # PR_SET_PDEATHSIG: the kernel ends this process together with its parent
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.modules["torch"] = None  # type: ignore[assignment] # as if it were not installed
    from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

    load = PreTrainedTokenizerBase.from_pretrained.__func__

    def load_fast(kind: Any, *arguments: Any, **options: Any) -> Any:
        return (load if issubclass(kind, PreTrainedTokenizerFast) else _Refused)(kind, *arguments, **options)

    PreTrainedTokenizerBase.from_pretrained = classmethod(load_fast)
    while child := os.fork():
        if os.WIFEXITED(status := os.waitpid(child, 0)[1]):
            return
        connection.send_bytes(json.dumps([signal.Signals(os.WTERMSIG(status)).name, None]).encode())
    prctl(1, int(signal.SIGKILL))
    loaded = tokenizer = None
    while True:
        seconds, folder, name, arguments, options = json.loads(connection.recv_bytes())
        # The timer's signal ends this process, also during a call of C.
        signal.setitimer(signal.ITIMER_PROF, seconds)
        try:
            if name == "__len__" or folder != loaded:
                loaded, tokenizer = folder, None
                tokenizer = AutoTokenizer.from_pretrained(
                    folder, local_files_only=True, trust_remote_code=False
                )
            value = getattr(tokenizer, name)
            answer = json.dumps(["", value(*arguments, **options) if callable(value) else value])
        except BaseException as error:  # noqa: BLE001 - a panic of the tokenizers package is no Exception
            # Long enough that the parent cuts the message after it masked it.
            answer = json.dumps([" ".join(str(error).split())[:100_000] or type(error).__name__, None])
        signal.setitimer(signal.ITIMER_PROF, 0)  # a part of an answer would make the parent wait for the rest
        connection.send_bytes(answer.encode())


if __name__ == "__main__":
    main()
