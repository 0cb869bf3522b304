"""Which devices train and which sample is checked before anything starts."""

import pytest

from grpo_core.config import ConfigError
from grpo_core.machine.resources import check_devices, check_processes, with_devices
from grpo_core.settings import load


def check(mode, train, rollout, processes, visible, port=0):
    """Check a split of devices."""
    settings = {"rollout.mode": mode, "train.device": train, "rollout.device": rollout, "rollout.port": port}
    return check_devices(
        load(None, [f"--{key}={value}" for key, value in settings.items()]), processes, visible
    )


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
        (("async", "cuda", "cuda", 2, 2), "several processes and the engine need GPUs of their own"),
        (("server", "cuda", "cuda:1", 2, 2), "several processes and the engine need GPUs of their own"),
        (("colocate", "cuda", "cuda", 2, 1), "cuda:1 does not exist here"),
        (("colocate", "cuda", "cuda", 1, 0), "cuda:0 does not exist here"),
    ],
)
def test_splits_that_cannot_work_name_both_sides(split, says):
    """The error has the keys, the actual and the expected numbers."""
    with pytest.raises(ConfigError, match=says) as caught:
        check(*split)
    assert "train.device = " in str(caught.value)
    assert f"{split[4]} GPU(s) are visible" in str(caught.value)


@pytest.mark.parametrize(
    ("split", "says"),
    [
        (
            ("async", "cuda", "cuda", 1, 1),
            "share cuda:0: the engine may use 45% of its memory, the trainer 55%",
        ),
        (("server", "cuda:1", "cuda:1", 1, 2), "share cuda:1: the engine may use 45%"),
        (("async", "cuda:0", "cuda:1", 1, 4), "2 of 4 visible GPUs are idle"),
        (("server", "cuda", "cpu", 2, 4, 8000), "2 of 4 visible GPUs are idle"),
    ],
)
def test_a_shared_gpu_and_an_idle_one_are_named(split, says):
    """Both work, with a note to the user."""
    assert says in " ".join(check(*split))


@pytest.mark.parametrize(
    ("mode", "devices", "processes", "visible", "chosen"),
    [
        ("colocate", ("auto", "auto"), 1, 0, ("cpu", "cpu")),
        ("colocate", ("auto", "auto"), 1, 8, ("cuda", "cuda")),
        ("colocate", ("cpu", "auto"), 1, 1, ("cpu", "cpu")),
        ("async", ("auto", "auto"), 1, 1, ("cuda", "cuda")),
        ("async", ("auto", "auto"), 1, 2, ("cuda", "cuda:1")),
        ("server", ("auto", "auto"), 3, 4, ("cuda", "cuda:3")),
        ("server", ("cuda:2", "auto"), 1, 4, ("cuda:2", "cuda:0")),
        ("async", ("cpu", "auto"), 1, 2, ("cpu", "cpu")),
        ("async", ("auto", "cpu"), 1, 2, ("cuda", "cpu")),
    ],
)
def test_devices_that_are_not_set_are_gpus_where_there_are_any(mode, devices, processes, visible, chosen):
    """In the modes that sample and train at once the engine gets its own GPU, if there is one."""
    settings = {"rollout.mode": mode, "train.device": devices[0], "rollout.device": devices[1]}
    config = load(None, [f"--{key}={value}" for key, value in settings.items()])
    resolved = with_devices(config, processes, visible)
    assert (resolved.train.device, resolved.rollout.device) == chosen


@pytest.mark.parametrize(
    ("settings", "dtype", "tolerance"),
    [
        ({}, "float32", 1e-3),
        ({"model.dtype": "bfloat16"}, "bfloat16", 0.2),
        ({"rollout.dtype": "float16", "rollout.mode": "server"}, "float16", 0.05),
        ({"model.dtype": "bfloat16", "rollout.mode": "server", "rollout.port": 80}, "float32", 0.2),
        ({"rollout.dtype": "bfloat16"}, "bfloat16", 0.2),
        ({"model.dtype": "bfloat16", "rollout.sync_tolerance": 0.01}, "bfloat16", 0.01),
    ],
)
def test_the_engines_type_and_the_tolerance_follow_the_trainers_type(settings, dtype, tolerance):
    """Explicit settings are not changed."""
    resolved = with_devices(load(None, [f"--{key}={value}" for key, value in settings.items()]), 1, 0)
    assert getattr(resolved.rollout, "dtype", "float32") == dtype
    assert resolved.rollout.sync_tolerance == tolerance


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
