"""A platform without a device, by vLLM's own plugin interface: it lets the engine be configured, and runs nothing."""

from vllm.platforms import interface


class Platform(interface.Platform):
    """Answers as CUDA does where the engine's control flow depends on it."""

    _enum = interface.PlatformEnum.OOT
    device_name = "harness"
    device_type = "cpu"
    dispatch_key = "CPU"
    supported_quantization = ()

    @classmethod
    def is_async_output_supported(cls, enforce_eager):
        """Yes, as on a GPU."""
        return True

    @classmethod
    def get_device_name(cls, device_id=0):
        """Some name."""
        return cls.device_name

    @classmethod
    def check_and_update_config(cls, vllm_config):
        """Fill in what has no default."""
        if vllm_config.parallel_config.worker_cls == "auto":
            vllm_config.parallel_config.worker_cls = "vllm.worker.worker.Worker"
