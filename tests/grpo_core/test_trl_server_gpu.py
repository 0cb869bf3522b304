"""`trl vllm-serve` takes weights from TRL's client by NCCL, which needs two GPUs.

test_real_servers.py tests the updates by files.
"""

import copy
import sys
from contextlib import closing
from pathlib import Path

import pytest
import torch

from grpo_core.config import ModelConfig, TaskConfig
from grpo_core.rollout.vllm_server_engine import VllmServerEngine
from grpo_core.tasks import model
from grpo_core.tasks.model import load_model
from tests.grpo_core.conftest import perturb
from tests.processes import free_port
from tests.servers import (
    PARAMS,
    REQUESTS,
    largest_difference,
    serving,
    trl_command,
)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="NCCL needs two GPUs, one for each side"),
]
TOLERANCE = 1e-3  # of a log-prob in float32, by another card's kernels


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Start `trl vllm-serve` on the first GPU; yield its port and the model it was started on."""
    pytest.importorskip("vllm")
    pytest.importorskip("trl")
    folder, port = tmp_path_factory.mktemp("trl"), free_port()
    model.make_tiny(folder / "model", ModelConfig(), TaskConfig().letters, seed=0)
    command = trl_command(Path(sys.executable), folder / "model", port, "--enforce_eager=true")
    with serving(command, folder / "log", variables={"CUDA_VISIBLE_DEVICES": "0"}, timeout_s=600):
        yield port, folder / "model"


def test_nccl_updates_from_trls_client(server, tmp_path):
    """Log-probs after each of five updates over NCCL are those of the weights that were sent."""
    from trl.generation.vllm_client import VLLMClient

    port, model_dir = server
    client = VLLMClient(host="127.0.0.1", server_port=port)
    client.init_communicator(device="cuda:1")
    engine = VllmServerEngine("127.0.0.1", port, timeout_s=500, folder=tmp_path)
    trained = load_model(model_dir)
    with closing(engine):
        for version in range(5):
            perturb(trained.parameters(), seed=version)
            client.update_model_params(copy.deepcopy(trained).to("cuda:1"))
            client.reset_prefix_cache()
            completions = engine.generate(REQUESTS, PARAMS)
            assert largest_difference(trained, REQUESTS, completions) < TOLERANCE
    client.close_communicator()
