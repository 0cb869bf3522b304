"""Preload the trainer and its server in the parent process that tests fork.

The import also makes the process deterministic with one thread. Some libraries import more at their first use, so a
tiny model samples once, and the server's app is created.
"""

import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from grpo_core import run
from grpo_core.config import ModelConfig, TaskConfig
from grpo_core.machine.process_setup import make_deterministic
from grpo_core.rollout.server import process
from grpo_core.rollout.server.access import Limits
from grpo_core.rollout.server.app import create_app
from grpo_core.rollout.transformers_engine import TransformersEngine
from grpo_core.tasks.model import make_tiny
from grpo_core.types import Request, SamplingParams

assert process.serve
assert run.train
make_deterministic(1)
with tempfile.TemporaryDirectory() as folder:
    make_tiny(Path(folder), ModelConfig(), TaskConfig().letters, seed=0)
    engine = TransformersEngine(folder, max_model_len=64)
engine.generate([Request("r", (1, 2), seed=0)], SamplingParams(max_tokens=2))
create_app(engine, ThreadPoolExecutor(1), token=None, limits=Limits()).openapi()
