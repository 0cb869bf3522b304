"""Define the main cases of the corpus: short programs, their environments, and the issues that they cause."""
# ruff: noqa: E501 - short programs are single-line strings

from __future__ import annotations

from clean_cases import QUIET
from produce import Group

NOW, BEFORE, OLD = "vllm-0.31.0+trl-1.16.0", "vllm-0.10.2+trl-0.25.1", "vllm-0.8.5+trl-0.17.0"
# Cells with vLLM's real wheels and PyTorch for the CPU, in which vLLM detects no platform.
BARE = {
    "0.6.6": "vllm-0.6.6.post1+trl-0.14.0",
    "0.7.2": "vllm-0.7.2+trl-0.15.2",
    "0.7.3": "vllm-0.7.3+trl-0.16.1",
    "0.8.5": "vllm-0.8.5.post1+trl-0.17.0",
    "0.10.2": "vllm-0.10.2+trl-0.24.0",
}

CONFIG = "GRPOConfig(output_dir='out', report_to=[], use_cpu=True, bf16=False, {})"


def config(**settings: object) -> str:
    """Return a program that constructs a GRPOConfig with settings."""
    return CONFIG.format(", ".join(f"{key}={value!r}" for key, value in settings.items()))


CONFIG_CASES = (
    ("CFG101", "batch", config(per_device_train_batch_size=3, num_generations=8)),
    (
        "CFG101",
        "generation_batch",
        config(generation_batch_size=6, per_device_train_batch_size=4, num_generations=2),
    ),
    (
        "CFG101",
        "eval_batch",
        config(
            per_device_train_batch_size=8,
            num_generations=8,
            per_device_eval_batch_size=3,
            eval_strategy="steps",
        ),
    ),
    ("CFG110", "one_generation", config(per_device_train_batch_size=1, num_generations=1)),
    (
        "CFG111",
        "both",
        config(
            per_device_train_batch_size=8, num_generations=8, generation_batch_size=16, steps_per_generation=2
        ),
    ),
    ("CFG113", "vllm_device", config(vllm_device="cuda:1")),
    ("CFG113", "max_prompt_length", config(max_prompt_length=512)),
    ("CFG113", "guided", config(vllm_guided_decoding_regex="a+")),
    (
        "CFG023",
        "auto_find",
        config(per_device_train_batch_size=8, num_generations=8, auto_find_batch_size=True),
    ),
    ("unknown", "clip", config(per_device_train_batch_size=8, num_generations=8, num_train_epochs="three")),
    ("clean", "config", "print(" + config(per_device_train_batch_size=8, num_generations=8) + ")"),
)
# TRL 0.17 checks batch sizes in the trainer, and has no option generation_batch_size.
OLD_CONFIG_CASES = (
    ("CFG113", "generation_batch", CONFIG_CASES[1][2]),
    ("CFG113", "both", CONFIG_CASES[4][2]),
    CONFIG_CASES[-1],
)
TRL = "import warnings; from trl import GRPOConfig, GRPOTrainer"
HUB = (
    (
        "ENV004",
        "offline_model",
        "from transformers import AutoModelForCausalLM\nAutoModelForCausalLM.from_pretrained('org/tiny')",
    ),
    (
        "ENV004",
        "offline_tokenizer",
        "from transformers import AutoTokenizer\nAutoTokenizer.from_pretrained('org/tiny')",
    ),
    (
        "ENV004",
        "offline_snapshot",
        "from huggingface_hub import snapshot_download\nsnapshot_download('org/tiny')",
    ),
    (
        "ENV005",
        "no_folder",
        "from transformers import AutoConfig\nAutoConfig.from_pretrained('/data/models/tiny')",
    ),
    (
        "ENV005",
        "no_such_name",
        "from transformers import AutoTokenizer\nAutoTokenizer.from_pretrained('/data/models/tiny/checkpoint-10')",
    ),
    (
        "TOK013",
        "template",
        "from transformers import AutoTokenizer\ntokenizer = AutoTokenizer.from_pretrained('@MODEL')\ntokenizer.apply_chat_template([{'role': 'user', 'content': 'w1'}])",
    ),
    (
        "ENV010",
        "pointer",
        "from pathlib import Path\nimport shutil\nshutil.copytree('@MODEL', '@DIR/pointer', dirs_exist_ok=True)\nPath('@DIR/pointer/model.safetensors').write_text('version https://git-lfs.github.com/spec/v1\\noid sha256:00\\nsize 10\\n')\nfrom transformers import AutoModelForCausalLM\nAutoModelForCausalLM.from_pretrained('@DIR/pointer')",
    ),
    (
        "ENV010",
        "cut_off",
        "from pathlib import Path\nimport shutil\nshutil.copytree('@MODEL', '@DIR/cut', dirs_exist_ok=True)\npath = Path('@DIR/cut/model.safetensors')\npath.write_bytes(path.read_bytes()[:-1000])\nfrom transformers import AutoModelForCausalLM\nAutoModelForCausalLM.from_pretrained('@DIR/cut')",
    ),
    (
        "NUM020",
        "sampling",
        "import torch\nfrom transformers import AutoModelForCausalLM\nmodel = AutoModelForCausalLM.from_pretrained('@MODEL')\nmodel.lm_head.weight.data.fill_(float('nan'))\nmodel.generate(torch.tensor([[1, 2, 3]]), attention_mask=torch.ones(1, 3, dtype=torch.long), do_sample=True, max_new_tokens=4, pad_token_id=0)",
    ),
    ("unknown", "shapes", "import torch\ntorch.zeros(2, 3) @ torch.zeros(2, 3)"),
    (
        "unknown",
        "reward",
        "def reward(completions):\n    return [float(c['score']) for c in completions]\nreward([{'text': 'a'}])",
    ),
    (
        "clean",
        "generate",
        "import torch\nfrom transformers import AutoModelForCausalLM\nmodel = AutoModelForCausalLM.from_pretrained('@MODEL')\nprint(model.generate(torch.tensor([[1, 2, 3]]), attention_mask=torch.ones(1, 3, dtype=torch.long), do_sample=True, max_new_tokens=4, pad_token_id=0))",
    ),
    (
        "clean",
        "tokenize",
        "from transformers import AutoTokenizer\nprint(AutoTokenizer.from_pretrained('@MODEL')('w1 w2 ' * 1000)['input_ids'][:5])",
    ),
)
BACKEND = (
    (
        "CMP018",
        "backend",
        "import json, shutil\nfrom pathlib import Path\nshutil.copytree('@MODEL', '@DIR/five', dirs_exist_ok=True)\nPath('@DIR/five/tokenizer_config.json').write_text(json.dumps({'tokenizer_class': 'TokenizersBackend', 'eos_token': '<end>'}))\nfrom transformers import AutoTokenizer\nAutoTokenizer.from_pretrained('@DIR/five')",
    ),
)
CLIENT = (
    (
        "NET012",
        "no_server",
        "from trl.extras.vllm_client import VLLMClient\nVLLMClient(base_url='http://127.0.0.1:9', connection_timeout=0.2)",
    ),
)
# Simulated: a server that answers only its health check.
STUB = """
import http.server, threading
class Stub(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        found = self.path.startswith(('/health', '/v1/models'))
        self.send_response(200 if found else 404); self.end_headers(); self.wfile.write(b'{"data": [{"id": "tiny"}]}')
    do_POST = do_GET
    def log_message(self, *args): pass
server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Stub)
threading.Thread(target=server.serve_forever, daemon=True).start()
url = f'http://127.0.0.1:{server.server_port}'
from trl.generation.vllm_client import VLLMClient
client = VLLMClient(base_url=url)
"""
EXTENSION = """
from trl.scripts.vllm_serve import WeightSyncWorkerExtension
worker = WeightSyncWorkerExtension()
"""
EXTENSION_CASES = (
    (
        "SYN014",
        "not_initialised",
        EXTENSION + "worker.update_named_param('lm_head.weight', 'torch.float32', (2, 2))",
    ),
    # Simulated: an existing communicator.
    (
        "NET017",
        "twice",
        EXTENSION
        + "worker.communicator = worker.pynccl_comm = object()\nworker.init_communicator('127.0.0.1', 51216, 2, *(['0'] if worker.init_communicator.__code__.co_argcount > 4 else []))",
    ),
)
# Simulated: nothing. A tiny model is trained on the CPU.
TRAIN = """
from datasets import Dataset
def {name}(completions, **columns):
    return {value}
dataset = Dataset.from_list([{{'prompt': 'w1 w2 w3'}}] * 8)
arguments = GRPOConfig(output_dir='@DIR/out', report_to=[], use_cpu=True, bf16=False, per_device_train_batch_size=4,
    num_generations=4, max_completion_length=8, max_steps=2, logging_steps=1, {more})
trainer = GRPOTrainer(model='{model}', reward_funcs={name}, args=arguments, train_dataset={dataset})
trainer.train()
"""


def train(
    name="length", value="[float(len(c)) for c in completions]", model="@MODEL", dataset="dataset", **more
):
    """Return a program that trains a tiny model with TRL."""
    return TRAIN.format(
        name=name,
        value=value,
        model=model,
        dataset=dataset,
        more=", ".join(f"{k}={v!r}" for k, v in more.items()),
    )


TRAIN_CASES = (
    ("clean", "train", train()),
    ("clean", "train_dr_grpo", train(loss_type="dr_grpo", beta=0.04, save_strategy="no")),
    ("CFG022", "reward_count", train(value="[1.0]")),
    ("ENV004", "train_offline", train(model="org/tiny")),
    ("ENV005", "train_no_folder", train(model="/data/models/tiny")),
    ("unknown", "train_reward", train(value="[c['score'] for c in completions]")),
    (
        "TOK013",
        "train_chat",
        train(dataset="dataset.map(lambda row: {'prompt': [{'role': 'user', 'content': 'w1'}]})"),
    ),
)
UTILITIES = (
    (
        "CFG109",
        "http",
        "import http.server\none = http.server.HTTPServer(('127.0.0.1', 0), None)\nhttp.server.HTTPServer(('127.0.0.1', one.server_port), None)",
    ),
    (
        "CFG109",
        "asyncio",
        "import asyncio, socket\none = socket.socket(); one.bind(('127.0.0.1', 0)); one.listen()\nasync def main():\n    await asyncio.start_server(lambda r, w: None, '127.0.0.1', one.getsockname()[1])\nasyncio.run(main())",
    ),
    (
        "CFG109",
        "store",
        "import socket\nimport torch.distributed as d\none = socket.socket(); one.bind(('', 0)); one.listen()\nd.TCPStore('127.0.0.1', one.getsockname()[1], is_master=True, wait_for_workers=False)",
    ),
    (
        "NET011",
        "clients",
        "import datetime\nimport torch.distributed as d\nd.TCPStore('127.0.0.1', 0, 2, is_master=True, timeout=datetime.timedelta(seconds=2))",
    ),
    (
        "NET011",
        "key",
        "import datetime\nimport torch.distributed as d\nstore = d.TCPStore('127.0.0.1', 0, is_master=True, wait_for_workers=False, timeout=datetime.timedelta(seconds=1))\nstore.get('0')",
    ),
    (
        "ENV002",
        "files",
        "import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))\nkept = [open('/dev/null') for _ in range(100)]",
    ),
    (
        "ENV002",
        "sockets",
        "import resource, socket\nresource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))\nkept = [socket.socket() for _ in range(100)]",
    ),
    (
        "ENV003",
        "json",
        "import json\nwith open('/dev/full', 'w') as file:\n    json.dump(list(range(100000)), file)",
    ),
    ("ENV003", "checkpoint", "import torch\ntorch.save(torch.zeros(100000), '/dev/full')"),
    ("ENV003", "copy", "import shutil, sys\nshutil.copyfile(sys.executable, '/dev/full')"),
    ("ENV012", "flash", "import flash_attn"),
    ("ENV012", "vllm", "from vllm import LLM"),
    ("ENV012", "deepspeed", "import deepspeed"),
    (
        "ENV010",
        "zip",
        "import torch\nopen('@DIR/a.pt', 'wb').write(b'PK\\x03\\x04' + b'0' * 1000)\ntorch.load('@DIR/a.pt')",
    ),
    (
        "ENV010",
        "header",
        "from safetensors.torch import load_file\nopen('@DIR/a.safetensors', 'wb').write(b'0' * 200)\nload_file('@DIR/a.safetensors')",
    ),
    (
        "ENV011",
        "cuda_home",
        "from torch.utils.cpp_extension import CUDAExtension\nCUDAExtension('fused', ['fused.cu'])",
    ),
    ("NUM020", "multinomial", "import torch\ntorch.multinomial(torch.tensor([float('nan'), 1.0]), 1)"),
    ("NUM021", "json", "import json\njson.dumps({'logprob': float('nan')}, allow_nan=False)"),
    (
        "NUM021",
        "response",
        "from starlette.responses import JSONResponse\nJSONResponse({'logprobs': [-0.1, float('-inf')]})",
    ),
    (
        "REW001",
        "thread",
        "import threading\nfrom math_verify import parse\nerrors = []\ndef work():\n    parse('$4$')\nthread = threading.Thread(target=work); thread.start(); thread.join()\nraise SystemExit(1)",
    ),
    (
        "REW001",
        "alarm",
        "import signal, threading\ndef work():\n    signal.signal(signal.SIGALRM, print)\nthread = threading.Thread(target=work); thread.start(); thread.join()\nraise SystemExit(1)",
    ),
    ("ENV014", "no_cuda", "import torch\ntorch.zeros(1).cuda()"),
    ("unknown", "key", "rows = [{'prompt': 'a'}]\nprint(rows[0]['completion'])"),
    (
        "unknown",
        "chain",
        "try:\n    int('a')\nexcept ValueError as error:\n    raise RuntimeError('the dataset is broken') from error",
    ),
    ("unknown", "asserted", "loss = float('nan')\nassert loss == loss, 'loss is nan'"),
    ("unknown", "interrupt", "raise KeyboardInterrupt"),
    ("unknown", "recursion", "def f(x):\n    return f(x)\nf(1)"),
    ("unknown", "json_value", "import json\njson.loads('')"),
    ("unknown", "own_module", "import my_rewards"),
    ("unknown", "group", "raise ExceptionGroup('rewards', [ValueError('a'), KeyError('b')])"),
    ("unknown", "dtype", "import torch\ntorch.nn.Linear(2, 2)(torch.zeros(1, 2, dtype=torch.float64))"),
    ("unknown", "backward", "import torch\ntorch.zeros(1).backward()"),
    (
        "unknown",
        "http404",
        "import http.server, threading, urllib.request\ns = http.server.HTTPServer(('127.0.0.1', 0), http.server.BaseHTTPRequestHandler)\nthreading.Thread(target=s.serve_forever, daemon=True).start()\nurllib.request.urlopen(f'http://127.0.0.1:{s.server_port}/v1/models')",
    ),
    (
        "unknown",
        "refused",
        "import urllib.request\nurllib.request.urlopen('http://127.0.0.1:9/v1/models', timeout=2)",
    ),
    ("unknown", "pickle", "import pickle\npickle.dumps(lambda: 0)"),
    ("clean", "warning", "import warnings\nwarnings.warn('torch is old')\nprint('done')"),
    (
        "clean",
        "logging",
        "import logging\nlogging.basicConfig(level=10)\nlog = logging.getLogger('trainer')\nfor i in range(50):\n    log.info('step %d loss %.3f', i, 1 / (i + 1))\nlog.warning('gradient norm is large')\nlog.error('could not upload to the hub, will try again')",
    ),
    (
        "clean",
        "caught",
        "import logging\ntry:\n    int('a')\nexcept ValueError:\n    logging.warning('a bad row was skipped: %s', 'a')\nprint('done')",
    ),
    (
        "clean",
        "ignored",
        "class A:\n    def __del__(self):\n        raise ValueError('too late')\nA()\nprint('done')",
    ),
    (
        "clean",
        "progress",
        "import sys, time\nfor i in range(101):\n    sys.stderr.write(f'\\r{i}%|' + '#' * (i // 10) + f'| {i}/100 [00:01<00:00, 12.0it/s]')\nprint('\\n{\\'train_loss\\': 0.1}')",
    ),
    ("clean", "tqdm", "from tqdm import tqdm\nfor _ in tqdm(range(1000)): pass"),
    (
        "clean",
        "store",
        "import torch.distributed as d\nstore = d.TCPStore('127.0.0.1', 0, is_master=True, wait_for_workers=False)\nstore.set('a', '1'); print(store.get('a'))",
    ),
    (
        "clean",
        "gloo",
        "import torch, torch.distributed as d\nd.init_process_group('gloo', init_method='tcp://127.0.0.1:29711', rank=0, world_size=1)\nt = torch.ones(2); d.all_reduce(t); print(t)",
    ),
    ("clean", "verify", "from math_verify import parse, verify\nprint(verify(parse('$4$'), parse('$2+2$')))"),
    (
        "clean",
        "env",
        "import platform\nfor name in ('torch', 'transformers', 'numpy'):\n    import importlib.metadata as m\n    print(f'{name}=={m.version(name)}')\nprint(platform.python_version())",
    ),
)


def bare(version: str) -> tuple[tuple[str, str, str], ...]:
    """Return the cases of a vLLM release that detects no platform."""
    model = "model='@MODEL', tokenizer='@MODEL', dtype='float32', max_model_len=100000"
    if version != "0.10.2":
        model = f"{model}, task='auto', tokenizer_mode='auto', trust_remote_code=False, seed=0"
    runner = "'generate'" if version == "0.6.6" else "runner_type='generate'"
    cases = [
        ("ENG004", "no_device", "from vllm import LLM\nLLM(model='@MODEL')"),
        # In 0.10.2 the import of a module fails before the length is checked.
        (
            "unknown" if version == "0.10.2" else "CFG024",
            "too_long",
            f"from vllm.config import ModelConfig\nModelConfig({model})",
        ),
        (
            "CFG103",
            "batched_tokens",
            f"from vllm.config import SchedulerConfig\nSchedulerConfig({runner}, max_num_batched_tokens=128, max_num_seqs=16, max_model_len=512)",
        ),
        ("CMP021", "extension", "import vllm._C"),
    ]
    if version == "0.10.2":
        cases += [
            ("CMP022", "device", "from vllm import LLM\nLLM(model='@MODEL', device='cuda', dtype='float32')"),
            ("ENV006", "expandable", EXPANDABLE),
        ]
    elif version in {"0.6.6", "0.8.5"}:
        cases += [
            (
                # The fallback of 0.8.5 does not import.
                "unknown" if version == "0.8.5" else "ENG007",
                "architecture",
                "from vllm import ModelRegistry\nModelRegistry.resolve_model_cls(['TinyNetForCausalLM'])",
            )
        ]
    if version in {"0.7.2", "0.7.3", "0.8.5"}:
        cases += [
            (
                "unknown" if version == "0.8.5" else "CMP001",
                "platform",
                "from vllm import LLM\nLLM(model='@MODEL', device='cuda', dtype='float32')",
            )
        ]
    if version == "0.8.5":
        cases += [("ENV006", "expandable", EXPANDABLE)]
    return tuple(cases)


EXPANDABLE = "import os\nos.environ['PYTORCH_CUDA_ALLOC_CONF'] = 'expandable_segments:True'\nfrom vllm.device_allocator.cumem import CuMemAllocator\nCuMemAllocator()"
# Triggers of the repros on vLLM's unmodified scheduler; simulated: the forward pass.
HERE = "import sys\nsys.path.insert(0, '@ROOT')\n"
SCHEDULERS = tuple(
    (code, name, f"{HERE}from repro.issues.{module} import {name}\n{name}(None)")
    for code, module, names in (
        ("SCH001", "sch001", ("_lost_step", "_cancelled_step", "_two_owners")),
        ("SCH002", "sch002", ("_overlong_prompt", "_overlong_poisons_next")),
    )
    for name in names
)
ENGINE_ARGUMENTS = (
    (
        "ENG006",
        "heads",
        "EngineArgs(model='@MODEL', tensor_parallel_size=3, distributed_executor_backend='mp').create_engine_config()",
    ),
    ("CFG024", "too_long", "EngineArgs(model='@MODEL', max_model_len=100000).create_engine_config()"),
    (
        "CFG103",
        "batched_tokens",
        "EngineArgs(model='@MODEL', max_num_batched_tokens=128, enable_chunked_prefill=False, max_num_seqs=16).create_engine_config()",
    ),
    ("MEM009", "sleep", "EngineArgs(model='@MODEL', enable_sleep_mode=True).create_engine_config()"),
    ("ENV005", "no_folder", "EngineArgs(model='/data/models/tiny').create_engine_config()"),
    ("ENV004", "offline", "EngineArgs(model='org/tiny').create_engine_config()"),
    (
        "ENG007",
        "architecture",
        "import json, shutil\nfrom pathlib import Path\nshutil.copytree('@MODEL', '@DIR/net', dirs_exist_ok=True)\nc = json.loads(Path('@DIR/net/config.json').read_text()); c['architectures'] = ['TinyNetForCausalLM']\nPath('@DIR/net/config.json').write_text(json.dumps(c))\nEngineArgs(model='@DIR/net', model_impl='vllm').create_engine_config()",
    ),
    ("clean", "config", "print(EngineArgs(model='@MODEL').create_engine_config())"),
    ("unknown", "dtype", "EngineArgs(model='@MODEL', dtype='float7').create_engine_config()"),
    ("ENV012", "swift", "import swift"),
)
REMOVED = (
    ("CMP002", "guided", "from vllm.sampling_params import GuidedDecodingParams"),
    ("CMP002", "port", "from vllm.utils import get_open_port"),
    ("CMP002", "worker", "from vllm.worker.worker_base import WorkerWrapperBase"),
    ("CMP002", "protocol", "from vllm.entrypoints.openai.protocol import ChatCompletionRequest"),
    ("CMP002", "scheduler", "from vllm.core.scheduler import Scheduler"),
    ("CMP002", "executor", "from vllm.executor.executor_base import ExecutorBase"),
    (
        "SYN013",
        "backend",
        "from vllm.distributed.weight_transfer import WeightTransferEngineFactory as F\nfrom types import SimpleNamespace as N\nF.create_engine(*[N(backend='nccl2')] + [None] * (F.create_engine.__func__.__code__.co_argcount - 2))",
    ),
    ("unknown", "name", "from vllm import LLMs"),
)
GROUPS = (
    Group(
        "trl116",
        NOW,
        TRL,
        CONFIG_CASES
        + TRAIN_CASES
        + CLIENT[:0]
        + (
            (
                "NET012",
                "no_server",
                "from trl.generation.vllm_client import VLLMClient\nVLLMClient(base_url='http://127.0.0.1:9', connection_timeout=0.2)",
            ),
            ("NET015", "dev_mode", STUB + "client.get_server_info()"),
        ),
    ),
    Group("trl025", BEFORE, TRL, CONFIG_CASES + TRAIN_CASES[:2] + TRAIN_CASES[3:] + CLIENT + EXTENSION_CASES),
    Group("trl029", "peers", TRL, CONFIG_CASES + EXTENSION_CASES),
    Group(
        "trl017",
        OLD,
        TRL,
        (
            *OLD_CONFIG_CASES,
            *TRAIN_CASES[:2],
            *TRAIN_CASES[3:],
            *EXTENSION_CASES,
            (
                "NET012",
                "no_server",
                "from trl.extras.vllm_client import VLLMClient\nVLLMClient(host='127.0.0.1', server_port=9, connection_timeout=0.2)",
            ),
        ),
    ),
    Group("hub517", NOW, "import transformers", HUB),
    Group("hub457", BEFORE, "import transformers", HUB + BACKEND),
    Group("hub453", OLD, "import transformers", HUB + BACKEND),
    Group("here", "here", "import torch", UTILITIES),
    Group("quiet", "here", "import torch", QUIET),
    Group("args031", NOW, "from vllm import EngineArgs", ENGINE_ARGUMENTS + REMOVED),
    Group("args0102", BEFORE, "from vllm import EngineArgs", ENGINE_ARGUMENTS),
    *(
        Group(f"bare{version.replace('.', '')}", cell, "import torch", bare(version), (("VLLM_USE_V1", "0"),))
        for version, cell in BARE.items()
    ),
    # From 0.8 on the engine refuses the over-long prompts that SCH002 is about.
    *(
        Group(f"scheduler{name}", BARE[version], "import torch", cases, (("VLLM_USE_V1", "0"),))
        for name, version, cases in (
            ("066", "0.6.6", SCHEDULERS),
            ("072", "0.7.2", SCHEDULERS),
            ("073", "0.7.3", SCHEDULERS),
            ("085", "0.8.5", SCHEDULERS[:3]),
            ("0102", "0.10.2", SCHEDULERS[:3]),
        )
    ),
)
