"""stub"""

from grpo_core import task


class _T:
    dropped = truncated = 0

    def __init__(self, config, tok):
        self.c, self.t = config, tok

    def batch(self, number, count):
        return task.rows(self.c.task, self.t, seed=self.c.train.seed, step=number, count=count)


def build_prompts(config, tokenizer):
    return _T(config, tokenizer)


def build_eval_prompts(config, tokenizer):
    return task.rows(config.task, tokenizer, seed=config.train.seed, step="eval", count=config.eval.prompts)
