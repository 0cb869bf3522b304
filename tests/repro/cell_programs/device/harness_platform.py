"""Provide a vLLM platform plugin without a device; `whole_engine.py` configures the engine with it without a GPU."""

from vllm.platforms import interface


class Platform(interface.Platform):
    """A platform that answers like CUDA's platform where the engine's control flow depends on the answer."""

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
        """Fill in settings without a default."""
        if vllm_config.parallel_config.worker_cls == "auto":
            vllm_config.parallel_config.worker_cls = "vllm.worker.worker.Worker"
