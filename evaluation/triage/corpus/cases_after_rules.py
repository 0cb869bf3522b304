"""Define cases of the corpus that were written after the triage rules, and triaged once before rules changed for them.

`tests/diagnostics/logs/first_judgement.json` has the first verdicts.
"""
# ruff: noqa: E501 - short programs are single-line strings

from __future__ import annotations

from grouped_cases import BEFORE, NOW, OLD, TRL, train
from process_cases import ENGINE, HUGE, RANKS, RAY, SPACE, START, TORCHRUN
from produce import Group, Program

# ms-swift's argument class; simulated: the accelerators, by the stand-in of evaluation/repro.
SWIFT = """
import os, sys
sys.path.insert(0, '@ROOT/evaluation/repro/accelerators')
os.environ.update(GRPO_DOCTOR_ACCELERATORS='2', CUDA_VISIBLE_DEVICES='')
from swift.arguments import RLHFArguments
open('data.jsonl', 'w').write('{"messages": [{"role": "user", "content": "w1"}]}\\n' * 8)
def arguments(**more):
    options = dict(rlhf_type='grpo', model='@MODEL', model_type='llama', template='llama3', torch_dtype='float32',
        dataset=['data.jsonl'], val_dataset=['data.jsonl'], reward_funcs=['format'], use_hf=True, output_dir='out',
        add_version=False, per_device_train_batch_size=8, per_device_eval_batch_size=8, num_generations=8,
        max_completion_length=8)
    return RLHFArguments(**options | more)
"""
SWIFT_CASES = (
    ("CFG001", "async_colocate", "arguments(use_vllm=True, vllm_mode='colocate', async_generate=True)"),
    ("CFG017", "mode_without_vllm", "arguments(vllm_mode='colocate')"),
)
VERL = """
from verl.workers.config import FSDPActorConfig
def actor(**more):
    return FSDPActorConfig(**dict(strategy='fsdp', rollout_n=8, optim={'lr': 1e-6}) | more)
"""
VERL_CASES = (
    ("CFG019", "neither", "actor()"),
    ("CFG019", "both", "actor(ppo_micro_batch_size=4, ppo_micro_batch_size_per_gpu=4)"),
    (
        "CFG102",
        "mini_batch",
        "actor(ppo_micro_batch_size_per_gpu=4, ppo_mini_batch_size=256).validate(8, 64)",
    ),
    ("CFG102", "micro_batch", "actor(ppo_micro_batch_size=3, ppo_mini_batch_size=256).validate(8, 512)"),
    ("unknown", "aggregation", "actor(ppo_micro_batch_size_per_gpu=4, loss_agg_mode='mean')"),
    ("clean", "actor", "print(actor(ppo_micro_batch_size_per_gpu=4).ppo_epochs)"),
)
NOISY = (
    (
        "clean",
        "train_warnings",
        "import os, logging\nlogging.basicConfig(level=logging.INFO)\nos.environ['TRANSFORMERS_VERBOSITY'] = 'debug'\nimport transformers\ntransformers.logging.set_verbosity_debug()\n"
        + train(beta=0.1, gradient_checkpointing=True),
    ),
    (
        "clean",
        "train_completions",
        train(log_completions=True, temperature=1.5, scale_rewards=False),
    ),
    (
        "clean",
        "train_evaluates",
        train(
            eval_strategy="steps",
            eval_steps=1,
            per_device_eval_batch_size=4,
            save_strategy="steps",
            save_steps=1,
        ).replace("train_dataset=dataset)", "train_dataset=dataset, eval_dataset=dataset)"),
    ),
    (
        "clean",
        "train_two_rewards",
        train(reward_weights=[1.0, 0.5]).replace(
            "reward_funcs=length", "reward_funcs=[length, lambda completions, **c: [0.0] * len(completions)]"
        ),
    ),
    (
        "clean",
        "train_caught",
        "import logging\n"
        + train().replace(
            "trainer.train()",
            "try:\n    trainer.push_to_hub()\nexcept Exception as error:\n    logging.warning('not pushed: %s', error)\ntrainer.train()",
        ),
    ),
    ("unknown", "train_none", train(value="None")),
    ("unknown", "train_column", train(value="[float(a) for a in columns['answer']]")),
)
RAYS = (
    Program("RAY013", "ray_auto", "peers", RAY + "ray.init(address='auto')"),
    Program(
        "RAY020",
        "ray_memory",
        "peers",
        START
        + "@ray.remote(max_retries=0)\ndef rollout():\n    kept = []\n    while True:\n        kept.append(bytearray(1 << 20)); __import__('time').sleep(0.05)\nray.get(rollout.remote())",
        environ=(("RAY_memory_usage_threshold", "0.01"), ("RAY_memory_monitor_refresh_ms", "100")),
    ),
    Program(
        "unknown",
        "ray_task_error",
        "peers",
        START
        + "@ray.remote\nclass TaskRunner:\n    def run(self): return {'prompt': 1}['responses']\nray.get(TaskRunner.remote().run.remote())",
    ),
    Program(
        "RAY022",  # the machine was so busy that the node started too late
        "ray_nested",
        "peers",
        START
        + "@ray.remote\ndef inner(): raise ValueError('a reward of nothing')\n@ray.remote(num_cpus=0)\ndef outer(): return ray.get(inner.remote())\nray.get(outer.remote())",
    ),
    Program(
        "clean",
        "ray_retry",
        "peers",
        START
        + "from pathlib import Path\n@ray.remote(max_retries=2)\ndef once():\n    mark = Path('@DIR/mark')\n    if not mark.exists():\n        mark.write_text('x'); os._exit(1)\n    return 'second time'\nprint(ray.get(once.remote()))",
    ),
    Program(
        "clean",
        "ray_actors",
        "peers",
        START
        + "import logging, warnings\n@ray.remote(num_cpus=0)\nclass Worker:\n    def step(self, n):\n        warnings.warn('flash attention is not used'); print('step', n, 'reward', n / 7); return n\nworkers = [Worker.remote() for _ in range(3)]\nfor n in range(5): ray.get([w.step.remote(n) for w in workers])",
    ),
)
LAUNCHES = tuple(
    Program(label, f"torchrun_{name}", "here", RANKS + source, (*TORCHRUN, *more, "train.py"))
    for label, name, more, source in (
        (
            "ENV005",
            "no_folder_on_one",
            (),
            "import transformers\nif rank == 1: transformers.AutoConfig.from_pretrained('/data/models/tiny')\nd.all_reduce(torch.ones(1))",
        ),
        (
            "clean",
            "warnings",
            ("--tee", "3"),
            "import warnings, logging\nlogging.error('rank %d: no wandb key, not logged', rank)\nwarnings.warn('a hook was ignored')\nd.barrier()",
        ),
        (
            "clean",
            "tee",
            ("--tee", "3", "--log-dir", "@DIR/logs"),
            "for step in range(20): print({'loss': step / 20, 'rank': rank})\nd.barrier(); d.destroy_process_group()",
        ),
        (
            "unknown",
            "tee_key",
            ("--tee", "3"),
            "if rank == 1: raise KeyError('prompt')\nd.all_reduce(torch.ones(1))",
        ),
        (
            "NET014",
            "uneven",
            ("--tee", "3"),
            "if rank == 0: d.all_reduce(torch.ones(1))\nelse: threading.Event().wait(20)",
        ),
    )
)
# Run in a separate mount namespace with 1 MB of shared memory.
SHARED_MEMORY = "import torch\nfrom torch.utils.data import DataLoader\nclass Data(torch.utils.data.Dataset):\n    def __len__(self): return 64\n    def __getitem__(self, i): return torch.zeros(1 << 18)\nfor batch in DataLoader(Data(), batch_size=8, num_workers=1): print(batch.shape)"
SMALL = (
    Program(
        "ENV001",
        "shm_loader",
        "here",
        "import os, sys\nif 'again' not in os.environ:\n    os.environ['again'] = '1'\n    os.execvp('unshare', ['unshare', '-m', 'sh', '-c', 'mount -t tmpfs -o size=1m none /dev/shm && exec \"$0\" train.py', sys.executable])\n"
        + SHARED_MEMORY,
    ),
    Program(
        "ENV001",
        "shm_segment",
        "here",
        "import os, sys\nif 'again' not in os.environ:\n    os.environ['again'] = '1'\n    os.execvp('unshare', ['unshare', '-m', 'sh', '-c', 'mount -t tmpfs -o size=1m none /dev/shm && exec \"$0\" train.py', sys.executable])\nimport torch\ntorch.zeros(1 << 22).share_memory_()",
    ),
)
# The engine process prints elsewhere: the log has only the lines of the trainer's logger.
OWN_LOG = """
    import logging
    try:
        LLM(model='broken', dtype='float32', max_model_len=256, enforce_eager=True)
    except Exception:
        logger = logging.FileHandler('ENG001+own_log.log'); logger.setFormatter(logging.Formatter('%(asctime)s - %(levelname)s - %(message)s'))
        logging.getLogger('trainer').addHandler(logger); logging.getLogger('trainer').exception('the engine could not be made')
"""
ENGINES = (
    Program(
        "",
        "engine031_wrapped",
        NOW,
        ENGINE
        + "import shutil\nif __name__ == '__main__':\n    shutil.copytree('@MODEL', 'broken', dirs_exist_ok=True)\n    path = Path('broken/model.safetensors'); path.write_bytes(path.read_bytes()[:-1000])"
        + OWN_LOG,
        environ=SPACE,
    ),
    Program("MEM006", "engine031_longer", NOW, HUGE.replace("50_000_000", "1_600_000"), environ=SPACE),
)
NO_FOLDER = "import transformers\ntransformers.AutoConfig.from_pretrained('/data/models/tiny')"
JSON_LOGGER = """
import json, logging, sys
class Json(logging.Formatter):
    def format(self, record):
        told = {'ts': self.formatTime(record), 'level': record.levelname, 'msg': record.getMessage(), 'pid': record.process}
        if record.exc_info: told['exc_info'] = self.formatException(record.exc_info)
        return json.dumps(told)
handler = logging.StreamHandler(); handler.setFormatter(Json()); logging.basicConfig(level=10, handlers=[handler])
log = logging.getLogger('trainer'); log.info('started')
try:
    @CASE
except BaseException:
    log.exception('the run failed'); raise SystemExit(1)
"""
# The same failures, printed by other loggers and traceback formatters.
DRESSED = (
    Program("ENV012", "rich_missing", "here", "from rich.traceback import install\ninstall(show_locals=True)\nimport flash_attn"),
    Program("ENV005", "rich_no_folder", "here", "from rich.traceback import install\ninstall()\n" + NO_FOLDER),
    Program("NET011", "rich_clients", "here", "from rich.traceback import install\ninstall(width=80)\nimport datetime\nimport torch.distributed as d\nd.TCPStore('127.0.0.1', 0, 2, is_master=True, timeout=datetime.timedelta(seconds=2))"),
    Program("unknown", "rich_key", "here", "from rich.traceback import install\ninstall()\ndef score(row): return row['answer']\nscore({'prompt': 'w1'})"),
    Program("ENV005", "json_no_folder", "here", JSON_LOGGER.replace("@CASE", NO_FOLDER.replace("\n", "; "))),
    Program("NUM020", "json_multinomial", "here", JSON_LOGGER.replace("@CASE", "import torch; torch.multinomial(torch.tensor([float('nan'), 1.0]), 1)")),
    Program("unknown", "json_key", "here", JSON_LOGGER.replace("@CASE", "{'prompt': 'w1'}['answer']")),
    Program("clean", "json_fine", "here", JSON_LOGGER.replace("@CASE", "[log.info('step %d', n) for n in range(30)]; log.error('no run is logged: no key')")),
    Program("ENV012", "rich_handler", "here", "import logging\nfrom rich.logging import RichHandler\nlogging.basicConfig(level=10, handlers=[RichHandler(rich_tracebacks=True)])\nlog = logging.getLogger('trainer'); log.info('started')\ntry:\n    import flash_attn\nexcept ImportError:\n    log.exception('the rollout failed'); raise SystemExit(1)"),
    Program("clean", "rich_handler_fine", "here", "import logging\nfrom rich.logging import RichHandler\nlogging.basicConfig(level=10, handlers=[RichHandler()])\nlog = logging.getLogger('trainer')\nfor n in range(30): log.info('step %d of a run whose line is so long that it is broken at the width of the terminal: %s', n, {'reward': n / 7})\nlog.error('no checkpoint was written')"),
)  # fmt: skip
# Real wheels with other releases than they pin: a cell's vLLM with the peers' PyTorch and transformers 5.
BESIDE = (("PYTHONPATH", "@PEERS"),)
OVER = "import os, sys, sysconfig\nos.makedirs('over')\nos.symlink(sysconfig.get_paths()['purelib'] + '/trl', 'over/trl')\nsys.path.insert(0, os.path.abspath('over'))\n"
MIXED = (
    Program("CMP015", "mixed_extension", BEFORE, "import vllm._C", environ=BESIDE),
    Program("CMP017", "mixed_tokenizer", BEFORE, "from vllm.transformers_utils.tokenizer import get_tokenizer\nget_tokenizer('@MODEL')", environ=BESIDE),
    Program("CMP003", "mixed_trl", BEFORE, OVER + "from trl import GRPOTrainer", environ=BESIDE),
)  # fmt: skip
LATER_GROUPS = (
    Group(
        "swift46",
        "peers",
        SWIFT,
        SWIFT_CASES,
        (
            ("WORLD_SIZE", "1"),
            ("RANK", "0"),
            ("LOCAL_RANK", "0"),
            ("MASTER_ADDR", "127.0.0.1"),
            ("MASTER_PORT", "29741"),
        ),
    ),
    Group("verl09", "peers", VERL, VERL_CASES),
    Group("noisy116", NOW, TRL, NOISY),
    Group("noisy025", BEFORE, TRL, NOISY),
    Group("noisy017", OLD, TRL, NOISY[:4]),
)
LATER_PROGRAMS = (*RAYS, *LAUNCHES, *SMALL, *DRESSED, *MIXED, *ENGINES)
