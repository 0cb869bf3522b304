"""Lint on anything: 10,000 mangled configs, and inputs that are meant to hurt. No crash, no unbounded time."""

import random
import time

import pytest

from diagnostics.lint import judge, reading
from diagnostics.lint.sources.tree import MAX_BYTES, UnreadableError
from diagnostics.lint.versions import Versions
from tests.diagnostics.lint_helpers import versions

SEEDS = {
    "shell": (
        "N=${N:-4}\nA=(actor_rollout_ref.rollout.n=${N})\nif [ $1 ]; then N=$((N*2)); fi\n"
        'CUDA_VISIBLE_DEVICES=0,1 python3 -m verl.trainer.main_ppo "${A[@]}" data.train_batch_size=$N "$@"\n',
        "cat <<EOF\nx\nEOF\nswift rlhf --rlhf_type grpo --use_vllm true \\\n --vllm_mode colocate --top_p 0.9\n",
        "accelerate launch --num_processes 4 grpo.py --num_generations 8 --vllm_server_port 8000 'a b'\n",
        "python -m openrlhf.cli.train_ppo_ray --vllm.num_engines 2 --train.colocate_all\nvllm serve m --port 1\n",
    ),
    "yaml": (
        "actor_rollout_ref:\n  rollout: &r\n    n: 8\n  actor:\n    <<: *r\n    use_dynamic_bsz: no\n"
        "data:\n  train_batch_size: 64\n",
        "num_generations: 8\nuse_vllm: true\nlist: [1, {a: b}, 'c']\n",
        "worker:\n  rollout:\n    n: 1\n  actor: {global_batch_size: 3}\n",
    ),
    "json": (
        '{"rlhf_type": "grpo", "num_generations": 8, "vllm_server_port": [8000, "x"], "a": {"b": null, "c": 1e3}}',
    ),
    "toml": (
        '[rollout]\nmode = "async"\nmax_staleness = 1\n[sampling]\ngroup_size = 8\ntemperature = 0.0\n',
    ),
    "python": (
        "import os\nos.environ['RAY_ADDRESS'] = 'http://x'\nN = 4 * 2\nargs = GRPOConfig(num_generations=N, top_p=.9,\n"
        "    use_vllm=True, vllm_mode='server', **{'beta': 0})\nargs.temperature = -1\n",
    ),
}
BITS = [
    "\n", "\\\n", "\\ \n", '"', "'", "`", "$", "${", "}", "$((", "))", "(", ")", "[", "]", "{", ":", "=", "#", "&", "*",
    "<<", "|", ";", ";;", "- ", "? ", "!!", "---\n", "\t", "\0", "\1", "\x85", "\u2028", "\ufeff", "é", "漢", "9" * 30,
    "-1", "1e999", "nan", ".inf", "true", "null", "~", "0x10", "if ", "then ", "fi\n", "case x in ", "esac\n", "done\n",
    "for i in ", "do\n", "{ ", "<<EOF\n", "EOF\n", "--", "--x=", "&a ", "*a ", "<<: *a", "\ud800", "%", "@", "-m ",
]  # fmt: skip


def mangled(seed, rng):
    """A seed with pieces of it and of other things put in, taken out, doubled."""
    text = seed
    for _ in range(rng.randint(1, 6)):
        at, end = sorted((rng.randrange(len(text) + 1), rng.randrange(len(text) + 1)))
        end = min(end, at + 40)
        what = rng.random()
        if what < 0.5:
            text = text[:at] + rng.choice(BITS) * rng.choice((1, 1, 1, 2, 40)) + text[at:]
        elif what < 0.8:
            text = text[:at] + text[end:]
        else:
            text = text[:end] + text[at:end] + text[end:]
    return text


def look(text, syntax, known):
    """Reads and judges; returns what is wrong with the tool itself."""
    try:
        plans = judge.plans_of(reading.read_text(text, "fuzz", "", syntax), known)
    except UnreadableError as error:
        return [] if len(str(error).splitlines()) == 1 else [f"refused in more than a line: {error}"]
    return [check.reason for check in judge.judge(plans, known) if check.outcome == "crashed"]


def test_ten_thousand_mangled_configs():
    """Every syntax, judged for known releases and for unknown ones."""
    rng = random.Random(7)
    known = (
        Versions(),
        versions(vllm="0.7.3", trl="0.17.0", ms_swift="3.4.1", verl="0.5.0", openrlhf="0.10.1"),
    )
    for number in range(10_000):
        syntax = list(SEEDS)[number % len(SEEDS)]
        text = mangled(rng.choice(SEEDS[syntax]), rng)
        assert look(text, syntax, known[number % 2]) == [], (syntax, text)


HURTFUL = {
    "shell nested": ("shell", "${X:-" * 20_000),
    "shell arithmetic": ("shell", "a $((" + "(" * 50_000),
    "shell quotes": ("shell", "a " + "'\"" * 50_000),
    "shell ifs": ("shell", "if a; then X=1\n" * 30_000),
    "shell words": ("shell", "swift rlhf " + "--a b " * 50_000),
    "shell variables": ("shell", "".join(f"V{i}=1\nif x; then V{i}=2\n" for i in range(8_000))),
    "shell here": ("shell", "cat > a.yaml <<A\n" * 30_000),
    "shell spaces": ("shell", ">" + " " * 500_000 + "<<A\n"),
    "yaml scripts": ("yaml", "".join(f"k{i}: |\n  vllm serve m\n" for i in range(30_000))),
    "yaml names": (
        "yaml",
        "data: {a: 1}\nactor_rollout_ref: &a\n" + "".join(f"  k{i}: ${{.k{i + 1}}}\n" for i in range(20_000)),
    ),
    "python dicts": ("python", "from trl import GRPOConfig\n" + "k['a'] = {'b': 1}\n" * 9_000),
    "python commands": ("python", "import subprocess\n" + "subprocess.run('vllm serve m')\n" * 9_000),
    "yaml anchors": ("yaml", "".join(f"k{i}: &a{i} {{x: 1}}\n" for i in range(30_000))),
    "yaml merges": ("yaml", "a: &a {x: 1}\n" + "b: {<<: *a, <<: *a}\n" * 10_000),
    "yaml line": ("yaml", "a: " + "x" * 1_900_000),
    "yaml keys": ("yaml", "? " * 50_000),
    "json line": ("json", '{"a": "' + "\\" * 1_000_000),
    "json blanks": ("json", " " * 1_900_000),
    "python": ("python", "GRPOConfig(a=" + "1+" * 20_000 + "1)"),
    "python chain": ("python", "x" + ".a" * 50_000),
    "toml": ("toml", "a.b.c = 1\n" * 50_000),
    "toml dots": ("toml", "a" + ".a" * 20_000 + " = 1"),
    "toml spaces": ("toml", 's = """\n' + " " * 5_000 + '\n"""'),
    "binary": ("shell", "".join(chr(n % 256) for n in range(300_000))),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", HURTFUL)
def test_what_is_meant_to_hurt(name):
    """Large and nasty: done or refused within seconds of CPU."""
    syntax, text = HURTFUL[name]
    started = time.process_time()
    assert look(text, syntax, Versions()) == []
    assert time.process_time() - started < 60


def test_a_large_file_is_refused_unread(tmp_path):
    """By its size alone."""
    path = tmp_path / "big.yaml"
    with path.open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    with pytest.raises(UnreadableError, match="larger than"):
        reading.read_file(path)


def test_bytes_that_are_no_text_are_read(tmp_path):
    """Broken UTF-8, a byte order mark."""
    path = tmp_path / "run.sh"
    path.write_bytes(b"\xef\xbb\xbfswift rlhf --rlhf_type grpo --model \xff\xfe --num_generations 8\n")
    assert reading.read_file(path)[0].items["num_generations"].data == 8
