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


@each_case(CASES["valid_splits"])
def test_valid_device_splits(split, processes, visible, shared):
    """Trainer and engine take turns, share one GPU or have their own; an external server's GPUs don't count."""
    check_devices(make_split(*split), processes, visible)
    assert shared_gpu(make_split(*split), processes) is shared


@each_case(CASES["invalid_splits"])
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


@each_case(CASES["default_devices"])
def test_default_devices(mode, devices, processes, visible, chosen):
    """`auto` gives the trainer a GPU if there is one.

    If both run at the same time on GPUs, the engine gets a free GPU if there is one; else it gets the trainer's device.
    """
    resolved = with_devices(make_split(mode, *devices), processes, visible)
    assert [resolved.train.device, resolved.rollout.device] == chosen


@each_case(CASES["defaults"])
def test_default_engine_dtype_and_tolerance(settings, dtype, tolerance):
    """The engine's dtype is the trainer's, or float32 for a running server; explicit settings are kept.

    The tolerance is that of the less exact dtype.
    """
    resolved = with_devices(make_config(settings), 1, 0)
    assert (resolved.rollout.dtype, resolved.rollout.sync_tolerance) == (dtype, tolerance)
