"""Define cases of the corpus that need their own process or several processes: engines, launchers and Ray."""
# ruff: noqa: E501 - short programs are single-line strings

from __future__ import annotations

from grouped_cases import BEFORE, NOW, OLD
from produce import Program

RANKS = """
import datetime, os, sys, threading
import torch, torch.distributed as d
d.init_process_group('gloo', timeout=datetime.timedelta(seconds=4))
rank = d.get_rank()
print(f'rank {rank} of {d.get_world_size()} is up', flush=True)
d.all_reduce(torch.ones(1))
"""
TORCHRUN = ("-m", "torch.distributed.run", "--nproc_per_node", "2", "--master_port", "29733")
LAUNCHED = tuple(
    Program(label, f"torchrun_{name}", "here", RANKS + source, (*TORCHRUN, *more, "train.py"))
    for label, name, more, source in (
        ("clean", "fine", (), "d.barrier(); d.destroy_process_group()"),
        (
            "ENV012",
            "missing_on_one",
            (),
            "import importlib\nif rank == 1: importlib.import_module('flash_attn')\nd.all_reduce(torch.ones(1))",
        ),
        ("ENV009", "killed", (), "if rank == 1: os.kill(os.getpid(), 9)\nd.all_reduce(torch.ones(1))"),
        (
            "NET014",
            "one_stays_away",
            (),
            "if rank == 1: threading.Event().wait(20)\nelse: d.all_reduce(torch.ones(1))",
        ),
        ("ENG010", "redirected", ("--redirects", "3", "--log-dir", "@DIR/logs"), "raise KeyError('prompt')"),
        ("ENV003", "disk", (), "with open('/dev/full', 'w') as file: file.write('a' * 100000)"),
        ("unknown", "key", (), "if rank == 1: raise KeyError('prompt')\nd.all_reduce(torch.ones(1))"),
        (
            "NET021",
            "peer_gone",
            ("--redirects", "1:3", "--log-dir", "@DIR/logs"),
            "if rank == 1: os._exit(3)\nd.all_reduce(torch.ones(1)); d.all_reduce(torch.ones(1))",
        ),
    )
)
RAY = "import os, ray, sys\n"
START = RAY + "ray.init(num_cpus=1, include_dashboard=False)\n"
RAYS = (
    Program(
        "RAY011", "ray_http", "peers", RAY + "ray.init()", environ=(("RAY_ADDRESS", "http://127.0.0.1:8265"),)
    ),
    Program(
        "clean",
        "ray_fine",
        "peers",
        START
        + "@ray.remote\ndef f(x): print('task', x); return x\nprint(ray.get([f.remote(i) for i in range(4)]))",
    ),
    Program(
        "ENV012",
        "ray_task",
        "peers",
        START + "@ray.remote\ndef rollout():\n    import vllm\nray.get(rollout.remote())",
    ),
    Program(
        "RAY010",
        "ray_actor_killed",
        "peers",
        START
        + "@ray.remote(max_restarts=0)\nclass Worker:\n    def step(self): os.kill(os.getpid(), 9)\nworker = Worker.remote()\nray.get(worker.step.remote())",
    ),
    Program(
        "RAY012",
        "ray_num_cpus",
        "peers",
        START
        + "import subprocess\naddress = ray.get_runtime_context().gcs_address\nraise SystemExit(subprocess.run([sys.executable, '-c', f'import ray; ray.init(address={address!r}, num_cpus=2)']).returncode)",
    ),
    Program(
        "RAY019",
        "ray_gpus",
        "peers",
        START
        + "from verl.single_controller.ray.base import ResourcePoolManager\nResourcePoolManager({'pool': [8]}, {}).create_resource_pool()",
    ),
    Program(
        "CFG113",
        "ray_verl_sync",
        "peers",
        START
        + "@ray.remote\nclass TaskRunner:\n    def run(self):\n        from verl.workers.config import RolloutConfig\n        RolloutConfig(name='vllm', mode='sync')\nray.get(TaskRunner.remote().run.remote())",
    ),
)
ENGINE = """
import os, sys, traceback
from pathlib import Path
from vllm import LLM, SamplingParams
def attempt(label, name, action):
    try:
        action()
    except BaseException:
        told = traceback.format_exc()
    else:
        told = ''
    sys.stdout.flush(); sys.stderr.flush()
    Path(f'{label}+{name}.log').write_text(Path('out').read_text(errors='replace')[-20000:] + told)
"""
IN_PROCESS = (
    ENGINE
    + """
if __name__ == '__main__':
    llm = LLM(model='@MODEL', dtype='float32', max_model_len=256, enforce_eager=True)
    short = SamplingParams(max_tokens=4)
    attempt('clean', 'start', lambda: print(llm.generate([{'prompt_token_ids': [1, 2]}], short)))
    attempt('TOK001', 'vocabulary', lambda: llm.generate([{'prompt_token_ids': [1, 10**6]}], short))
    attempt('TOK011', 'long_prompt', lambda: llm.generate([{'prompt_token_ids': [1] * 500}], short))
    attempt('unknown', 'no_prompt', lambda: llm.generate([{'prompt_token_ids': []}], short))
    attempt('CMP022', 'sampling', lambda: SamplingParams(guided_decoding=None))
    @MORE
"""
)
MODEL = """
    runner = llm.llm_engine.model_executor.driver_worker
    runner = getattr(runner, 'worker', runner).model_runner
    model = getattr(runner, 'model', None) or runner.get_model()
    import torch
    attempt('SYN010', 'name', lambda: model.load_weights([('base_model.model.lm_head.weight', torch.zeros(2, 2))]))
    attempt('SYN012', 'shape', lambda: model.load_weights([('model.norm.weight', torch.zeros(3))]))
    attempt('SYN012', 'emptied', lambda: model.load_weights([('model.layers.0.mlp.down_proj.weight', torch.zeros(128, 352))]))
"""
HIDDEN = """
    attempt('CMP012', 'hidden', lambda: llm.llm_engine.model_executor)
    import os, signal, subprocess
    children = subprocess.run(['ps', '-o', 'pid=', '--ppid', str(os.getpid())], capture_output=True, text=True).stdout.split()
    for child in children:
        if 'EngineCore' in Path(f'/proc/{child}/cmdline').read_text() + Path(f'/proc/{child}/comm').read_text():
            os.kill(int(child), signal.SIGKILL)
    attempt('ENG002', 'dead', lambda: llm.generate([{'prompt_token_ids': [1, 2]}], short))
"""
HUGE = (
    ENGINE
    + """
import json, shutil
if __name__ == '__main__':
    shutil.copytree('@MODEL', 'huge', dirs_exist_ok=True)
    config = json.loads(Path('huge/config.json').read_text()); config['max_position_embeddings'] = 50_000_000
    Path('huge/config.json').write_text(json.dumps(config))
    LLM(model='huge', dtype='float32', enforce_eager=True)
"""
)
BROKEN = (
    ENGINE
    + """
import shutil
if __name__ == '__main__':
    shutil.copytree('@MODEL', 'broken', dirs_exist_ok=True)
    path = Path('broken/model.safetensors'); path.write_bytes(path.read_bytes()[:-1000])
    LLM(model='broken', dtype='float32', max_model_len=256, enforce_eager=True)
"""
)
# Up to 0.10 the engine refuses the prompt; in later releases the prompt renderer refuses it.
OLDER = "".join(
    line
    for line in IN_PROCESS.replace("'TOK011'", "'TOK012'").splitlines(keepends=True)
    if "'CMP022'" not in line
)
SPACE = (("VLLM_CPU_KVCACHE_SPACE", "1"),)
ENGINES = (
    Program(
        "",
        "engine031",
        NOW,
        IN_PROCESS.replace("@MORE", MODEL),
        environ=(*SPACE, ("VLLM_ENABLE_V1_MULTIPROCESSING", "0")),
    ),
    Program("", "engine031mp", NOW, IN_PROCESS.replace("@MORE", HIDDEN), environ=SPACE),
    Program("MEM010", "engine031_huge", NOW, HUGE, environ=SPACE),
    Program("ENV010", "engine031_broken", NOW, BROKEN, environ=SPACE),
    Program(
        "ENG003",
        "engine031_late",
        NOW,
        IN_PROCESS.replace("@MORE", ""),
        environ=(*SPACE, ("VLLM_ENGINE_READY_TIMEOUT_S", "1")),
    ),
    Program(
        "ENG008",
        "engine031_guard",
        NOW,
        "from vllm import LLM\nLLM(model='@MODEL', dtype='float32', max_model_len=256, enforce_eager=True)",
        environ=(*SPACE, ("VLLM_WORKER_MULTIPROC_METHOD", "spawn")),
    ),
    Program("", "engine085", OLD, OLDER.replace("@MORE", MODEL), environ=(*SPACE, ("VLLM_USE_V1", "0"))),
    Program("MEM010", "engine0102_huge", BEFORE, HUGE, environ=SPACE),
    Program("", "engine0102mp", BEFORE, OLDER.replace("@MORE", HIDDEN), environ=SPACE),
    Program("ENV010", "engine0102_broken", BEFORE, BROKEN, environ=SPACE),
)
PROGRAMS = (*LAUNCHED, *RAYS, *ENGINES)
