"""Devices, and settings for several processes, are checked; automatic devices, dtype and tolerance are filled in."""

import pytest

from grpo_core.config import Config, ConfigError
from grpo_core.machine.devices import check_devices, shared_gpu, with_devices
from tests.case_files import each_case, read_cases
from tests.grpo_core.conftest import make_config

CASES = read_cases(__file__, "device_settings.yaml")


def make_split(mode, train, rollout, port=0) -> Config:
    """Return settings with these devices for trainer and engine."""
    devices = {"train.device": train, "rollout.device": rollout}
    return make_config({"rollout.mode": mode, "rollout.port": port, **devices})


@pytest.mark.parametrize(
    ("split", "processes", "visible", "shared"),
    [
        (("colocate", "cpu", "cpu"), 1, 0, False), (("async", "cpu", "cpu"), 2, 8, False),
        (("colocate", "cuda", "cuda"), 4, 4, False), (("async", "cuda", "cuda:2"), 2, 3, False),
        (("async", "cuda", "cuda"), 1, 1, True), (("server", "cuda", "cuda:0"), 1, 1, True),
        (("server", "cuda", "cuda", 8000), 4, 4, False),
    ],
)  # fmt: skip
def test_valid_device_splits(split, processes, visible, shared):
    """Trainer and engine take turns, share one GPU or have their own; an external server's GPUs don't count."""
    check_devices(make_split(*split), processes, visible)
    assert shared_gpu(make_split(*split), processes) is shared


@pytest.mark.parametrize(
    ("split", "processes", "visible", "message"),
    [
        (("colocate", "cuda:0", "cuda:1"), 1, 2, "both sides take turns on the same GPUs"),
        (("colocate", "cuda", "cpu"), 1, 1, "both sides take turns on the same GPUs"),
        (("async", "cuda", "cuda"), 2, 2, "several processes and the engine need GPUs of their own"),
        (("server", "cuda", "cuda:1"), 2, 2, "several processes and the engine need GPUs of their own"),
        (("colocate", "cuda", "cuda"), 2, 1, "cuda:1 does not exist here"),
    ],
)
def test_invalid_device_splits_are_refused(split, processes, visible, message):
    """The error has the key, the number of visible GPUs and the rule that the devices break."""
    with pytest.raises(ConfigError, match=rf"^train.device = .* {visible} GPU\(s\) are visible: .*{message}"):
        check_devices(make_split(*split), processes, visible)


@each_case(CASES["two_processes"])
def test_settings_are_refused_in_two_processes(settings, message):
    """The settings are accepted in one process and refused in two."""
    config = with_devices(make_config(settings), 1, 0)
    check_devices(config, 1, 0)
    with pytest.raises(ConfigError, match=message):
        check_devices(config, 2, 0)


@pytest.mark.parametrize(
    ("mode", "devices", "processes", "visible", "chosen"),
    [
        ("colocate", ("auto", "auto"), 1, 0, ("cpu", "cpu")),
        ("colocate", ("auto", "auto"), 1, 8, ("cuda", "cuda")),
        ("async", ("auto", "auto"), 1, 1, ("cuda", "cuda")),
        ("async", ("auto", "auto"), 1, 2, ("cuda", "cuda:1")),
        ("server", ("auto", "auto"), 3, 4, ("cuda", "cuda:3")),
        ("server", ("cuda:2", "auto"), 1, 4, ("cuda:2", "cuda:0")),
        ("async", ("cpu", "auto"), 1, 2, ("cpu", "cpu")),
        ("async", ("auto", "cpu"), 1, 2, ("cuda", "cpu")),
    ],
)
def test_default_devices(mode, devices, processes, visible, chosen):
    """`auto` gives the trainer a GPU if there is one.

    If both run at the same time on GPUs, the engine gets a free GPU if there is one; else it gets the trainer's device.
    """
    resolved = with_devices(make_split(mode, *devices), processes, visible)
    assert (resolved.train.device, resolved.rollout.device) == chosen


@each_case(CASES["defaults"])
def test_default_engine_dtype_and_tolerance(settings, dtype, tolerance):
    """The engine's dtype is the trainer's, or float32 for a running server; explicit settings are kept.

    The tolerance is that of the less exact dtype.
    """
    resolved = with_devices(make_config(settings), 1, 0)
    assert (resolved.rollout.dtype, resolved.rollout.sync_tolerance) == (dtype, tolerance)
