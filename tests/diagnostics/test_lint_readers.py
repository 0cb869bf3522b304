"""`lint`'s readers keep lines and types of YAML, JSON and Python; mangled or hostile input crashes no reader or rule.

A text is read in time in proportion to its size, or refused.
"""

import json
import random
import time

import pytest

from diagnostics.lint import option_index
from diagnostics.lint.readers.python import read_configs
from diagnostics.lint.readers.structured import MAX_BYTES, UnreadableError, flatten, parse_json, parse_yaml
from diagnostics.lint.settings_reader import read_file, read_text
from diagnostics.lint.steps import check_plans, plans_of
from diagnostics.lint.values import UNKNOWN, parse_scalar
from diagnostics.lint.versions import Versions
from tests.case_files import read_cases
from tests.diagnostics.lint_reports import versions

FORMS = read_cases(__file__, "lint_forms.yaml")
SEEDS = [(form["syntax"], form["text"]) for form in FORMS["found"] + FORMS["accepted"]]
FRAGMENTS = [
    "\n", "\\\n", "\\ \n", '"', "'", "`", "$", "${", "}", "$((", "))", "(", ")", "[", "]", "{", ":", "=", "#", "&", "*",
    "<<", "|", ";", ";;", "- ", "? ", "!!", "---\n", "\t", "\0", "\1", "\x85", "\u2028", "\ufeff", "é", "漢", "9" * 30,
    "-1", "1e999", "nan", ".inf", "true", "null", "~", "0x10", "if ", "then ", "fi\n", "case x in ", "esac\n", "done\n",
    "for i in ", "do\n", "{ ", "<<EOF\n", "EOF\n", "--", "--x=", "&a ", "*a ", "<<: *a", "\ud800", "%", "@", "-m ",
]  # fmt: skip


def mangle(seed, rng):
    """Insert, delete and duplicate random pieces of a valid input."""
    text = seed
    for _ in range(rng.randint(1, 6)):
        at, end = sorted((rng.randrange(len(text) + 1), rng.randrange(len(text) + 1)))
        end = min(end, at + 40)
        choice = rng.random()
        if choice < 0.5:
            text = text[:at] + rng.choice(FRAGMENTS) * rng.choice((1, 1, 1, 2, 40)) + text[at:]
        elif choice < 0.8:
            text = text[:at] + text[end:]
        else:
            text = text[:end] + text[at:end] + text[end:]
    return text


def find_crashes(text, syntax, known):
    """Read and check a text; return the errors of crashed rules, or a refusal that is longer than a line."""
    try:
        plans = plans_of(read_text(text, "fuzz", "", syntax), known)
    except UnreadableError as error:
        return [] if len(str(error).splitlines()) == 1 else [f"refused in more than a line: {error}"]
    return [check.reason for check in check_plans(plans) if check.outcome == "crashed"]


def test_mangled_configs_crash_no_rule():
    """No rule crashes on 500 mangled inputs in five syntaxes, half of them with known package releases."""
    rng = random.Random(7)
    known = versions(vllm="0.7.3", trl="0.17.0", ms_swift="3.4.1", verl="0.5.0", openrlhf="0.10.1")
    for number in range(500):
        syntax, seed = rng.choice(SEEDS)
        text = mangle(seed, rng)
        assert find_crashes(text, syntax, known if number % 2 else Versions()) == [], (syntax, text)


def test_lists_and_tables_in_place_of_values_crash_no_rule():
    """Seven options of a TRL config are lists or tables."""
    known = versions(trl="0.25.1")
    options = ["loss_type", "vllm_mode", "num_generations", "beta", "delta", "max_prompt_length", "use_vllm"]
    for value in ("[1, a]", "{a: [1]}"):
        text = "".join(f"{name}: {value}\n" for name in options)
        assert find_crashes(f"{text}generation_batch_size: 8\nsteps_per_generation: 2\n", "yaml", known) == []


HOSTILE = {
    "shell nested": ("shell", "${X:-" * 20_000),
    "shell arithmetic": ("shell", "a $((" + "(" * 50_000),
    "shell ifs": ("shell", "if a; then X=1\n" * 30_000),
    "shell words": ("shell", "swift rlhf " + "--a b " * 50_000),
    "shell variables": ("shell", "".join(f"V{i}=1\nif x; then V{i}=2\n" for i in range(8_000))),
    "shell here": ("shell", "cat > a.yaml <<A\n" * 30_000),
    "shell functions": ("shell", "a() {\n" * 5000),
    "shell loops": ("shell", "for a in 1; do\n" * 1000 + "x\n" + "done\n" * 1000),
    "shell calls": (
        "shell",
        "".join(f'f{n}() {{ f{n + 1} "$@" "$@"; }}\n' for n in range(40)) + "f0 a b c\n",
    ),
    "shell recursion": ("shell", "f() { f; f; train; }\nf\n"),
    "shell pipes": ("shell", "a | " * 20_000),
    "shell substitutions": ("shell", "A=(" * 5_000 + "$(a " * 5_000),
    "shell outputs": ("shell", "a > b\n" * 10_000),
    "shell spaces": ("shell", ">" + " " * 500_000 + "<<A\n"),
    "yaml names": (
        "yaml",
        "data: {a: 1}\nactor_rollout_ref: &a\n" + "".join(f"  k{i}: ${{.k{i + 1}}}\n" for i in range(20_000)),
    ),
    "python dicts": ("python", "from trl import GRPOConfig\n" + "k['a'] = {'b': 1}\n" * 9_000),
    "yaml anchors": ("yaml", "".join(f"k{i}: &a{i} {{x: 1}}\n" for i in range(30_000))),
    "yaml merges": ("yaml", "a: &a {x: 1}\n" + "b: {<<: *a, <<: *a}\n" * 10_000),
    "yaml aliases": (
        "yaml",
        "a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [{f'*a{i - 1},' * 9}]\n" for i in range(1, 30)),
    ),
    "yaml nested": ("yaml", "[" * 5000),
    "toml nested": ("toml", "a = " + "[" * 5000),
    "python nested": ("python", "GRPOConfig(a=" + "(" * 5000),
    "yaml line": ("yaml", "a: " + "x" * 1_900_000),
    "yaml keys": ("yaml", "? " * 50_000),
    "json line": ("json", '{"a": "' + "\\" * 1_000_000),
    "python": ("python", "GRPOConfig(a=" + "1+" * 20_000 + "1)"),
    "python chain": ("python", "x" + ".a" * 50_000),
    "toml": ("toml", "a.b.c = 1\n" * 50_000),
    "toml tables": ("toml", "".join(f"[orchestrator.a{i}]\nb = 1\n" for i in range(60_000))),
    "toml dots": ("toml", "a" + ".a" * 20_000 + " = 1"),
    "toml spaces": ("toml", 's = """\n' + " " * 5_000 + '\n"""'),
    "binary": ("shell", (bytes(range(256)) * 1_172)[:300_000].decode("latin-1")),
}


@pytest.mark.parametrize(("syntax", "text"), HOSTILE.values(), ids=HOSTILE)
def test_hostile_input_is_read_or_refused(syntax, text):
    assert find_crashes(text, syntax, Versions()) == []


TRL_RUN = "trl grpo --use_vllm true --vllm_mode server --num_generations 8 --per_device_train_batch_size 3\n"
# For each case: syntax, function that makes a text whose size grows with n, and n.
GROWING = {
    "shell programs": ("shell", lambda n: "-m x -c y a.py " * n, 300),
    "shell runs": ("shell", lambda n: TRL_RUN * n, 20),
    "shell sources": ("shell", lambda n: "source x.sh\n" * n + TRL_RUN * min(n, 160), 20),
    "shell servers": ("shell", lambda n: ("trl vllm-serve --port 1\n" + TRL_RUN) * n, 10),
    "shell placeholders": ("shell", lambda n: TRL_RUN[:-1] + "".join(f" --a{i} TODO" for i in range(n)), 200),
    "shell interpolations": (
        "shell", lambda n: f"python3 -m verl.trainer.main_ppo a.b='${{{' ' * n}$x'\n", 500,
    ),
    "yaml placeholders": ("yaml", lambda n: f'use_vllm: true\nrun_name: "{"xxx/" * n}\\nq"\n', 500),
    "yaml options": ("yaml", lambda n: "use_vllm: true\n" + "".join(f"num{i}: 1\n" for i in range(n)), 200),
    "python lists": ("python", lambda n: f"x = [{'1, ' * n}]\n" + "GRPOConfig(model_init_kwargs=x)\n" * (n // 8), 160),
    "notebook commands": (
        "notebook", lambda n: json.dumps({"cells": [{"cell_type": "code", "source": "!a\n" * n}]}), 60,
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        "export A=1\n" * 9_000 + "a\n" * 30_000,
        "".join(f"A{i}=1\n" for i in range(5_000)) + "B=1 a\n" * 5_000,
        "A+=(x)\n" * 20_000,
        "".join(f"export A{i}=1\n" for i in range(2_000)) + TRL_RUN,
        TRL_RUN * 501,
        TRL_RUN[:-1] + "".join(f" --opt_{i} 1" for i in range(4_000)),
    ],
    ids=["commands", "assignments", "arrays", "exports", "runs", "options"],
)
def test_script_over_a_limit_of_work_or_count_is_refused(text):
    with pytest.raises(UnreadableError, match="more than"):
        read_text(text, "run.sh")


@pytest.mark.parametrize(
    "text",
    [
        "use_vllm: true\nx: " + f"{{? {'k' * 600} : " * 40 + "{a: 1, b: 2}" + "}" * 40,
        f"use_vllm: true\nx: &x {'word ' * 5_000}\n" + "".join(f"num{i}: *x\n" for i in range(2_000)),
        "use_vllm: true\n" + "".join(f"num{i}: 1\n" for i in range(4_000)),
    ],
    ids=["names of nested tables", "aliases of a long text", "options"],
)
def test_config_over_a_limit_of_size_or_count_is_refused(text):
    with pytest.raises(UnreadableError, match="more than"):
        read_text(text, "config.yaml", "trl", "yaml")


@pytest.mark.parametrize(("syntax", "text_of", "size"), GROWING.values(), ids=GROWING)
def test_time_grows_in_proportion_to_the_text(syntax, text_of, size):
    """Eight times the text takes less than 24 times as long; quadratic reading takes 64 times as long."""

    def seconds(number):
        text = text_of(number)
        option_index.suggest.cache_clear()  # it may have the names of one size only
        started = time.process_time()
        assert find_crashes(text, syntax, Versions()) == []
        return time.process_time() - started

    seconds(size)
    limit = 24 * min(seconds(size) for _ in range(3))
    assert any(seconds(size * 8) < limit for _ in range(2))  # the second is for a busy machine


def test_script_with_long_chains_of_calls_and_sums_is_read(tmp_path, run_command):
    imports = "from trl import GRPOConfig\nfrom transformers import HfArgumentParser\n"
    (tmp_path / "train.py").write_text(f"{imports}x = f{'()' * 1500}\nclass Own({'x+' * 900}x): y = 1\n")
    (tmp_path / "run.sh").write_text("python train.py --num_generations 8\n")
    result = run_command("lint", tmp_path / "run.sh")
    assert (result.code, result.err) == (0, "")


def test_too_large_file_is_refused_by_its_size(tmp_path):
    path = tmp_path / "big.yaml"
    with path.open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    with pytest.raises(UnreadableError, match="larger than"):
        read_file(path)


def test_invalid_utf8_and_byte_order_mark_are_read(tmp_path):
    path = tmp_path / "run.sh"
    path.write_bytes(b"\xef\xbb\xbfswift rlhf --rlhf_type grpo --model \xff\xfe --num_generations 8\n")
    assert read_file(path)[0].options["num_generations"].data == 8


def test_yaml_keeps_lines_and_types():
    """Values keep their lines and types, also lists, quoted numbers and the booleans of YAML 1.1."""
    [tree] = parse_yaml("a:\n  b: 1\n  c: [x, 2]\nd: '3'\ne: yes\nf: 1e-6\n", "c.yaml")
    read = {key: (value.data, value.place.line) for key, value in flatten(tree).items()}
    assert read == {"a.b": (1, 2), "a.c": (["x", 2], 3), "d": ("3", 4), "e": (True, 5), "f": (1e-6, 6)}


def test_number_of_5000_digits_stays_text():
    digits = "9" * 5000
    assert parse_scalar(digits) == digits
    assert flatten(parse_json(f'{{"a": {digits}}}', "c.json"))["a"].data == digits
    assert flatten(parse_yaml(f"a: {digits}", "c.yaml")[0])["a"].data == digits


def test_json_keeps_lines():
    tree = parse_json('{\n "a": {"b": [1,\n 2]},\n "c\\n": null\n}', "args.json")
    read = {key: (value.data, value.place.line) for key, value in flatten(tree).items()}
    assert read == {"a.b": ([1, 2], 2), "c\n": (None, 4)}


def test_python_config_is_read_without_running_it():
    """Constants, arithmetic, dicts and later assignments are evaluated without running the file; calls are unknown."""
    source = (
        "import os\nos.environ['CUDA_VISIBLE_DEVICES'] = '0,1'\nN = 4\n"
        "args = GRPOConfig(num_generations=N * 2, top_p=f(), **{'beta': 0.0})\nargs.use_vllm = True\n"
    )
    [settings] = read_configs(source, "train.py")
    read = {key: (value.data, value.place.line) for key, value in settings.options.items()}
    assert read == {"num_generations": (8, 4), "top_p": (UNKNOWN, 4), "beta": (0.0, 4), "use_vllm": (True, 5)}
    assert settings.env["CUDA_VISIBLE_DEVICES"].data == "0,1"
    assert read_configs("GRPOConfig(**kwargs)", "train.py")[0].has_unread_options
