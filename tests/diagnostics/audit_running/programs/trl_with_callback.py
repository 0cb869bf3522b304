"""Train TRL's GRPOTrainer with AuditCallback on a tiny model; test_audit_callback_in_trl.py runs it in a cell.

The arguments are the output folder and the reward function (`spread` or `constant`). The program trains on the CPU, and
prints JSON: the audit's scalars that a later callback received, and the lines that the audit logged.
"""

import json
import logging
import os
import sys

os.environ["CUDA_VISIBLE_DEVICES"] = ""

import transformers

from diagnostics.audit.callback import AuditCallback
from repro.drivers import tiny_trl


class LaterCallback(transformers.TrainerCallback):
    """Collect the audit's scalars as later callbacks, such as TensorBoard's, receive them."""

    def __init__(self):
        self.logs = []

    def on_log(self, args, state, control, logs=None, **_):
        self.logs.append({name: value for name, value in logs.items() if name.startswith("audit/")})


REWARDS = {
    "spread": lambda completions, **_: [
        text.count("a") - len(text) / 7 + len(set(text)) for text in completions
    ],
    "constant": lambda completions, **_: [0.5 for _ in completions],
}


def main():
    """Train 20 steps and print what the audit reported."""
    folder, reward = sys.argv[1:]
    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logging.getLogger("grpo_doctor.audit").addHandler(handler)
    later, letters = LaterCallback(), "abcdefghijklm"
    REWARDS[reward].__name__ = reward
    trainer = tiny_trl.trainer(
        REWARDS[reward],
        later,
        prompts=[f"{a} {b}" for a in letters for b in letters if a < b],
        policy=tiny_trl.model(0),
        max_steps=20,
        per_device_train_batch_size=16,
        num_generations=4,
        max_completion_length=12,
        learning_rate=0.01,
        logging_strategy="steps",
        logging_steps=1,
    )
    trainer.args.output_dir = folder
    AuditCallback().attach(trainer)
    trainer.train()
    print(json.dumps({"logs": later.logs, "lines": lines}))
    sys.stdout.flush()
    # TRL's process groups outlive main in some releases.
    os._exit(0)


main()
