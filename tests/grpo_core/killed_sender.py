"""Start an engine in a child process, print its process id, and die by SIGKILL in the middle of an update."""

import os
import signal
import sys

import torch

from grpo_core.config import Config, RolloutConfig
from grpo_core.rollout.remote_engines import ProcessEngine
from grpo_core.rollout.weights.transport import TensorFile

if __name__ == "__main__":
    engine = ProcessEngine(Config(rollout=RolloutConfig(device="cpu", sync="shm")), sys.argv[1])
    print(engine.pid, flush=True)
    TensorFile.write = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    engine.update_weights([("a", torch.zeros(1000))], 0)
