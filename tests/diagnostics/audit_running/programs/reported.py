"""transformers' own Trainer with an AuditCallback, a gradient of 0 beside rewards that differ: `FOLDER REPORT_TO`."""

import sys

import torch
import transformers

from diagnostics.audit.callback import AuditCallback


class Model(torch.nn.Module):
    """One weight, which nothing pulls at."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))

    def forward(self, x=None, **_):
        """The loss, whose gradient is 0."""
        return {"loss": (0.0 * self.weight * x.float()).sum() + 1.0}


class Trainer(transformers.Trainer):
    """Logs, beside the loss, what a GRPO trainer logs."""

    def log(self, logs, *more, **named):
        """Rewards with a spread."""
        if "loss" in logs:
            logs = {**logs, "reward": 0.5, "reward_std": 0.3, "frac_reward_zero_std": 0.0}
        super().log(logs, *more, **named)


def main():
    """Eight steps."""
    folder, where = sys.argv[1:]
    arguments = transformers.TrainingArguments(
        output_dir=folder, max_steps=8, per_device_train_batch_size=2, logging_steps=1, report_to=[where],
        save_strategy="no", use_cpu=True, disable_tqdm=True, remove_unused_columns=False, learning_rate=1e-3,
        lr_scheduler_type="constant",
    )  # fmt: skip
    trainer = Trainer(Model(), arguments, train_dataset=[{"x": place} for place in range(16)])
    AuditCallback(share=1.0).attach(trainer)
    trainer.train()


main()
