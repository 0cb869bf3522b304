"""TRL's own GRPOTrainer on a tiny model with an AuditCallback, in a cell: `FOLDER HOW REWARD STEPS KEY=VALUE...`.

HOW is `attached` or `given`; REWARD `spread` or `constant`. Prints JSON: what a callback behind it saw of the logs, the
lines of its log, and seconds.
"""

import json
import logging
import os
import sys
import time

os.environ["CUDA_VISIBLE_DEVICES"] = ""

import transformers

from diagnostics.audit.callback import AuditCallback
from repro.drivers import tiny_trl


class Behind(transformers.TrainerCallback):
    """Collect the audit's curves from the logs that later callbacks receive."""

    def __init__(self):
        self.logs = []

    def on_log(self, args, state, control, logs=None, **_):
        self.logs.append({name: value for name, value in logs.items() if name.startswith("audit/")})


def spread(completions, **_):
    """Tells completions apart."""
    return [text.count("a") - len(text) / 7 + len(set(text)) for text in completions]


def constant(completions, **_):
    """Return nothing."""
    return [0.5 for _ in completions]


def main():
    folder, how, reward, steps, *more = sys.argv[1:]
    settings = {
        "max_steps": int(steps),
        "per_device_train_batch_size": 16,
        "num_generations": 4,
        "max_completion_length": 12,
        "learning_rate": 0.01,
        "logging_strategy": "steps",
        "logging_steps": 1,
    } | {key: json.loads(value) for key, _, value in (item.partition("=") for item in more)}
    lines = []

    class Lines(logging.Handler):
        def emit(self, record):
            lines.append(record.getMessage())

    logging.getLogger("grpo_doctor.audit").addHandler(Lines())
    behind = Behind()
    letters = "abcdefghijklm"
    prompts = [f"{a} {b}" for a in letters for b in letters if a < b]
    trainer = tiny_trl.trainer(
        {"spread": spread, "constant": constant}[reward],
        behind,
        prompts=prompts,
        policy=tiny_trl.model(0),
        **settings,
    )
    trainer.args.output_dir = folder
    audit = AuditCallback()
    if how == "attached":
        audit.attach(trainer)
    else:
        trainer.add_callback(audit)
    began = time.perf_counter()
    trainer.train()
    seconds = time.perf_counter() - began
    print(json.dumps({"logs": behind.logs, "lines": lines, "seconds": seconds}))
    sys.stdout.flush()
    # TRL's process groups outlive main in some releases.
    os._exit(0)


main()
