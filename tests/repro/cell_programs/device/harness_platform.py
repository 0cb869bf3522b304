"""Provide a vLLM platform without a device, with which `driver_against_engine.py` runs the engine without a GPU."""

from vllm.platforms import interface


class Platform(interface.Platform):
    """A platform that answers as CUDA's platform does where the engine's control flow depends on the answer."""

    _enum = interface.PlatformEnum.OOT
    device_name = "harness"
    device_type = "cpu"
    dispatch_key = "CPU"
    supported_quantization = ()

    @classmethod
    def is_async_output_supported(cls, enforce_eager):
        """Return true, as on a GPU."""
        return True

    @classmethod
    def get_device_name(cls, device_id=0):
        """Return a placeholder name."""
        return cls.device_name

    @classmethod
    def check_and_update_config(cls, vllm_config):
        """Set the worker class if it is `auto`."""
        if vllm_config.parallel_config.worker_cls == "auto":
            vllm_config.parallel_config.worker_cls = "vllm.worker.worker.Worker"
