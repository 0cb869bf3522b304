"""What a start costs, in CPU seconds: `first_step.py imports|model|train FOLDER`.

`imports`: PyTorch and transformers, as `import` has them. `model`: and the class of the model, which brings half of
PyTorch with it, as transformers has it. `train`: all that a run does to the end of its first step.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time


class FirstStepError(Exception):
    """Raised to end a run behind its first step."""


def imports(*, model: bool) -> None:
    """As any trainer imports them."""
    import torch
    import transformers

    assert torch.__version__
    assert not model or transformers.LlamaForCausalLM


def train(folder: str) -> None:
    """The shipped task at its own size, through `grpo_core`'s own settings and run."""
    from grpo_core.run import train as run
    from grpo_core.settings import load

    def stop(_: object) -> None:
        raise FirstStepError

    options = {"train.steps": 2, "output.dir": folder, "train.prompts_per_step": 4, "sampling.group_size": 4}
    with contextlib.suppress(FirstStepError):
        run(load(None, [f"--{key}={value}" for key, value in options.items()]), stop)


train(sys.argv[2]) if sys.argv[1] == "train" else imports(model=sys.argv[1] == "model")
os.write(1, f"{time.process_time()}\n".encode())
os._exit(0)
