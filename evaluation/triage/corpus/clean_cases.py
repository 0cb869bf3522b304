"""Define cases of the corpus that succeed with noisy output, in which triage must not report a failure."""
# ruff: noqa: E501 - short programs are single-line strings

from __future__ import annotations

SERVED = """
import http.server, threading, urllib.request
server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), http.server.SimpleHTTPRequestHandler)
threading.Thread(target=server.serve_forever, daemon=True).start()
"""
LOGGER = "import logging, sys\nlogging.basicConfig(level=logging.DEBUG, format={!r}, stream=sys.stdout)\nlog = logging.getLogger('trainer')\n"
STEPS = "for step in range(30):\n    log.info('step %d reward %.3f kl %.4f', step, step / 30, 0.001 * step)\nlog.warning('clip ratio is high'); log.error('evaluation was skipped: no dataset')\n"
FORMATS = (
    "%(asctime)s - %(name)s - %(levelname)s - %(message)s",
    "[%(levelname)s:swift] %(message)s",
    "%(levelname)s %(asctime)s [trainer.py:%(lineno)d] %(message)s",
    "[rank0]: %(message)s",
    "(WorkerDict pid=%(process)d) %(message)s",
    "\x1b[36m(TaskRunner pid=%(process)d)\x1b[0m %(message)s",
    '{"time": "%(asctime)s", "level": "%(levelname)s", "message": "%(message)s"}',
    "trainer-1  | %(message)s",
)
QUIET = (
    *(("clean", f"logger{number}", LOGGER.format(style) + STEPS) for number, style in enumerate(FORMATS)),
    (
        "clean",
        "served",
        SERVED
        + "for path in ('/', '/none', '/'):\n    try:\n        urllib.request.urlopen(f'http://127.0.0.1:{server.server_port}{path}').read()\n    except OSError as error:\n        print(error)",
    ),
    (
        "clean",
        "unittest",
        "import unittest\nclass A(unittest.TestCase):\n    def test_a(self): self.assertTrue(1)\n    @unittest.skip('needs a GPU')\n    def test_b(self): pass\nunittest.main(argv=['x', '-v'], exit=False)",
    ),
    (
        "clean",
        "doctest",
        "import doctest, textwrap\nprint(doctest.run_docstring_examples(textwrap.dedent, {}, verbose=True))",
    ),
    (
        "clean",
        "importtime",
        "import subprocess, sys\nprint(subprocess.run([sys.executable, '-X', 'importtime', '-c', 'import asyncio'], capture_output=True, text=True).stderr)",
    ),
    (
        "clean",
        "verbose",
        "import subprocess, sys\nprint(subprocess.run([sys.executable, '-v', '-c', 'import json'], capture_output=True, text=True).stderr)",
    ),
    (
        "clean",
        "profiler",
        "from torch.profiler import profile\nwith profile() as p:\n    torch.randn(64, 64) @ torch.randn(64, 64)\nprint(p.key_averages().table(row_limit=8))",
    ),
    (
        "clean",
        "anomaly",
        "torch.autograd.set_detect_anomaly(True)\nx = torch.ones(2, requires_grad=True); (x * 2).sum().backward(); print(x.grad)",
    ),
    ("clean", "show_config", "print(torch.__config__.show()); print(torch.__config__.parallel_info())"),
    (
        "clean",
        "warnings",
        "import warnings\nfor text in ('The tokenizer has no pad token', 'CUDA is not available', 'out of memory is possible with this batch size', 'falling back to eager'):\n    warnings.warn(text)",
    ),
    (
        "clean",
        "caught",
        "import traceback\ntry:\n    {}['a']\nexcept KeyError as error:\n    print('skipped a row without', error)",
    ),
    (
        "clean",
        "retry",
        "import urllib.request\nfor attempt in range(3):\n    try:\n        urllib.request.urlopen('http://127.0.0.1:9/health', timeout=1)\n    except OSError as error:\n        print(f'Server is not up yet ({error.reason}). Retrying in 2.0 seconds...')\nprint('Server is up!')",
    ),
    (
        "clean",
        "metrics",
        "import json\nfor step in range(40):\n    print(json.dumps({'step': step, 'loss': 1 / (step + 1), 'grad_norm': 0.3, 'completions/clipped_ratio': 0.0, 'reward_std': 0.1}))",
    ),
    (
        "clean",
        "completions",
        "for text in ('I would raise a ValueError here.', 'def f():\\n    raise RuntimeError', 'The error is in line 3.', 'Out of range? No.'):\n    print('| prompt | completion |'); print('|', 'w1', '|', text, '|')",
    ),
    (
        "clean",
        "bars",
        "from tqdm import tqdm\nfor name in ('Loading checkpoint shards', 'Capturing CUDA graph shapes', 'Processed prompts'):\n    for _ in tqdm(range(50), desc=name): pass",
    ),
    (
        "clean",
        "rich",
        "from rich.console import Console\nfrom rich.table import Table\ntable = Table('metric', 'value')\nfor i in range(10): table.add_row(f'm{i}', str(i / 3))\nConsole(width=80).print(table)",
    ),
    (
        "clean",
        "asyncio",
        "import asyncio, logging\nlogging.basicConfig(level=logging.DEBUG)\nasync def main():\n    await asyncio.gather(*[asyncio.sleep(0) for _ in range(5)])\nasyncio.run(main(), debug=True)",
    ),
    (
        "clean",
        "cancelled",
        "import asyncio\nasync def main():\n    task = asyncio.create_task(asyncio.sleep(60)); await asyncio.sleep(0); task.cancel()\n    try:\n        await task\n    except asyncio.CancelledError:\n        print('the rollout was cancelled, as asked')\nasyncio.run(main())",
    ),
    (
        "clean",
        "processes",
        "import multiprocessing as m\nwith m.get_context('fork').Pool(2) as pool:\n    print(pool.map(len, [[1], [2, 3]]))",
    ),
    (
        "clean",
        "faulthandler",
        "import faulthandler, sys\nfaulthandler.enable(); print(faulthandler.is_enabled())",
    ),
    ("clean", "stack", "import traceback\ntraceback.print_stack()"),
    (
        "clean",
        "late",
        "import atexit\nclass A:\n    def __del__(self): raise OSError(9, 'Bad file descriptor')\nkept = A()\ndel kept\nprint('done')",
    ),
    ("clean", "compile", "import compileall\ncompileall.compile_dir('@DIR', force=True)"),
    (
        "clean",
        "pip_list",
        "import importlib.metadata as m\nfor d in sorted(m.distributions(), key=lambda d: d.name.lower()):\n    print(f'{d.name:<30} {d.version}')",
    ),
    (
        "clean",
        "freeze",
        "import importlib.metadata as m\nfor d in sorted(m.distributions(), key=lambda d: d.name.lower()):\n    print(f'{d.name}=={d.version}')",
    ),
    (
        "clean",
        "sysconfig",
        "import sysconfig\nfor item in sorted(sysconfig.get_paths().items()): print(*item)",
    ),
    ("clean", "dis", "import dis, textwrap\ndis.dis(textwrap.dedent)"),
    (
        "clean",
        "sqlite",
        "import sqlite3\nc = sqlite3.connect(':memory:'); c.set_trace_callback(print); c.execute('create table a (b)'); c.execute('insert into a values (1)'); print(c.execute('select * from a').fetchall())",
    ),
    ("clean", "gc", "import gc\ngc.set_debug(gc.DEBUG_STATS); gc.collect()"),
    ("clean", "zen", "import this"),
    (
        "clean",
        "datasets",
        "from datasets import Dataset\nprint(Dataset.from_list([{'a': i} for i in range(10)]).map(lambda r: {'b': r['a'] + 1})[:3])",
    ),
    (
        "clean",
        "hypothesis",
        "from hypothesis import given, settings, strategies as st, Verbosity\n@settings(max_examples=5, verbosity=Verbosity.verbose, database=None)\n@given(st.integers())\ndef f(x): pass\nf()",
    ),
    (
        "clean",
        "pytest",
        "import pytest\nopen('@DIR/test_a.py', 'w').write('def test_a(): pass\\n')\nassert pytest.main(['-v', '-p', 'no:cacheprovider', '@DIR/test_a.py']) == 0",
    ),
    (
        "unknown",
        "pytest",
        "import pytest\nopen('@DIR/test_b.py', 'w').write('def test_b():\\n    assert {}[1]\\n')\nraise SystemExit(int(pytest.main(['-v', '-p', 'no:cacheprovider', '@DIR/test_b.py'])))",
    ),
    (
        "unknown",
        "thread",
        "import threading\ndef work(): {}['a']\nthread = threading.Thread(target=work); thread.start(); thread.join()\nraise SystemExit(1)",
    ),
    (
        "unknown",
        "pool",
        "import multiprocessing as m\nwith m.get_context('fork').Pool(2) as pool:\n    pool.map(int, ['1', 'a'])",
    ),
    ("ENG011", "segfault", "import ctypes, faulthandler\nfaulthandler.enable()\nctypes.string_at(0)"),
    ("ENG011", "abort", "import faulthandler, os\nfaulthandler.enable()\nos.abort()"),
)
