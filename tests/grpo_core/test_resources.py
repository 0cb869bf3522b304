"""Which devices train and which sample is checked before anything starts."""

import pytest

from grpo_core.config import ConfigError
from grpo_core.machine.resources import check_devices, check_processes
from grpo_core.settings import load


def check(mode, train, rollout, processes, visible, port=0):
    """Checks a split of devices."""
    settings = {"rollout.mode": mode, "train.device": train, "rollout.device": rollout, "rollout.port": port}
    check_devices(load(None, [f"--{key}={value}" for key, value in settings.items()]), processes, visible)


@pytest.mark.parametrize(
    "split",
    [
        ("colocate", "cpu", "cpu", 1, 0),
        ("async", "cpu", "cpu", 2, 8),
        ("colocate", "cuda", "cuda", 1, 1),
        ("colocate", "cuda", "cuda", 4, 4),
        ("async", "cuda", "cuda:3", 3, 4),
        ("async", "cuda", "cuda", 1, 1),
        ("server", "cuda", "cuda:0", 1, 1),
        ("server", "cuda:0", "cuda:1", 1, 2),
        ("server", "cuda", "cpu", 4, 4, 8000),
    ],
)
def test_splits_that_work(split):
    """Both sides on all GPUs by turns, or all GPUs shared out; an external server's are not ours to count."""
    check(*split)


@pytest.mark.parametrize(
    ("split", "says"),
    [
        (("colocate", "cuda:0", "cuda:1", 1, 2), "both sides take turns on the same GPUs"),
        (("colocate", "cuda", "cpu", 1, 1), "both sides take turns on the same GPUs"),
        (("async", "cuda", "cuda", 1, 2), "work at once and need GPUs of their own"),
        (("server", "cuda", "cuda:1", 2, 2), "work at once and need GPUs of their own"),
        (("async", "cuda:0", "cuda:1", 1, 4), "2 would be idle"),
        (("server", "cuda", "cpu", 2, 4, 8000), "2 would be idle"),
        (("colocate", "cuda", "cuda", 2, 1), "cuda:1 does not exist here"),
        (("colocate", "cuda", "cuda", 1, 0), "cuda:0 does not exist here"),
    ],
)
def test_splits_that_cannot_work_name_both_sides(split, says):
    """With the keys, what they come to, and what is expected."""
    with pytest.raises(ConfigError, match=says) as caught:
        check(*split)
    assert "train.device = " in str(caught.value)
    assert f"{split[4]} GPU(s) are visible" in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"train.prompts_per_step": 15}, "train.prompts_per_step = 15: 2 processes train on equal shares"),
        ({"rollout.engine": "vllm"}, "vLLM would join their process group; set rollout.mode"),
    ],
)
def test_what_several_processes_cannot_share(settings, says):
    """Alone it is fine, in two processes it is refused by key and value."""
    config = load(None, [f"--{key}={value}" for key, value in settings.items()])
    check_processes(config, 1)
    with pytest.raises(ConfigError, match=says):
        check_processes(config, 2)
