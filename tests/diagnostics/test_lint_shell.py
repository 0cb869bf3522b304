"""`lint`'s shell reader splits random scripts and launch-script idioms into the same words as bash.

It also marks unknown parts and defaults, keeps line numbers, refuses endless expansion, and reads `#SBATCH` lines.
`lint` warns of more processes than the devices that these lines request.
"""

import random
import shutil
import subprocess

import pytest

from diagnostics.lint.readers import shell
from diagnostics.lint.readers.shell import read_script
from diagnostics.lint.readers.shell_scope import HOLE, slurm_variables
from diagnostics.lint.readers.structured import UnreadableError
from tests.case_files import each_case, read_cases
from tests.diagnostics.lint_reports import codes
from tests.processes import run_text

CASES = read_cases(__file__, "shell_words.yaml")

NAMES = ["A", "B", "C", "LONG_NAME"]
TEXTS = [
    "4", "0", "x", "a b", "it's", "k=v", "", "--flag", "/p/q.sh", "1e-6", "[1,2]", "a#b", "é", "~", "a\tb", "\\d",
]  # fmt: skip


def command_words(text):
    """Return the words of each command in a script, with `?` for unknown parts."""
    commands = read_script(text, "run.sh")
    return [[word.clean.replace(HOLE, "?") for word in command.words] for command in commands]


def quote_randomly(text, rng):
    """Quote a text in a random style; tabs are always in quotes, because tree-sitter ends a word at an escaped tab."""
    style = rng.randrange(4)
    if (style == 1 or "\t" in text) and "'" not in text:
        return f"'{text}'"
    if style == 0:
        return '"' + text.translate(str.maketrans({char: f"\\{char}" for char in '\\"$`'})) + '"'
    plain = [char if char.isalnum() or char in "-_./=," or ord(char) > 127 else f"\\{char}" for char in text]
    return "".join(plain) or "''"


def random_word(rng, depth=0):
    """Return a random shell word of text, variables, defaults and arithmetic."""
    name = rng.choice(NAMES)
    numbers = [str(rng.randint(1, 9)) for _ in range(3)]
    kinds = [
        lambda: quote_randomly(rng.choice(TEXTS), rng),
        lambda: rng.choice(("${%s}", "$%s", '"$%s"', '"${%s}"', 'x"${%s}"y', "pre${%s}")) % name,
        lambda: f"$(({numbers[0]} {rng.choice('+-*')} {numbers[1]} {rng.choice('+-*/%')} {numbers[2]}))",
        lambda: f'"${{ARR[@]}}{rng.choice(("", "z"))}"',
    ]
    if depth < 3:
        mark = rng.choice((":-", "-", ":+", "+"))
        plain = rng.choice(("8", "$B", "a b", "${C:-7}", ""))
        kinds.append(lambda: f"${{{name}{mark}{random_word(rng, depth + 1)}}}")
        kinds.append(lambda: f'"${{{name}{mark}{plain}}}"')
        kinds.append(lambda: random_word(rng, depth + 1) + quote_randomly(rng.choice(TEXTS), rng))
    return rng.choice(kinds)()


def random_script(rng):
    """Return a random script with assignments and branches that ends with the command `swift`."""
    lines = []
    for _ in range(rng.randint(1, 6)):
        name = rng.choice(NAMES)
        forms = (
            f"{name}={quote_randomly(rng.choice(TEXTS), rng)}",
            f'{name}="${{{rng.choice(NAMES)}:-{rng.choice("48x")}}}"',
            f"export {name}={rng.randint(0, 64)}",
            f"ARR=({random_word(rng)} {random_word(rng)})",
            f"ARR+=({quote_randomly(rng.choice(TEXTS), rng)})  # more",
            f"if [ 1 = {rng.randint(1, 2)} ]; then {name}=5; else {name}=6; fi",
            f"case {rng.choice('ab')} in a) {name}=7;; *) {name}=8;; esac",
            f"for {name} in 1 2; do {rng.choice(NAMES)}=3; done",
            f"{name}+=z",
            "# swift \\",
            "cat > /dev/null <<'END'\nswift here $A\nEND",
            f": ${{{name}:=9}}",
        )
        lines.append(rng.choice(forms))
    arguments = (" " + rng.choice(("", "\\\n  "))).join(random_word(rng) for _ in range(rng.randint(1, 5)))
    redirect = rng.choice(("", " 2>&1", " 2>/dev/null", " < /dev/null 2> /dev/null"))
    return "\n".join([*lines, f"swift {arguments}{redirect}", ""])


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not here")
def test_known_words_equal_those_of_bash():
    """In 300 random scripts the reader returns bash's words, or marks the unknown part with HOLE.

    Words beside and after an unknown one are not compared.
    """
    rng = random.Random(11)
    scripts = [random_script(rng) for _ in range(300)]
    head = 'swift() { for w in "$@"; do printf "%s\\037" "$w"; done; }\n'
    program = head + "".join(f"(\n{text})\nprintf '\\036'\n" for text in scripts)
    shell = ["bash", "--norc", "--noprofile"]
    environ = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "HOME": "/nowhere"}
    done = subprocess.run(shell, input=program.encode(), capture_output=True, check=False, env=environ)
    answers = done.stdout.decode().split("\036")[:-1]
    assert len(answers) == len(scripts), done.stderr
    known = 0
    for text, answer in zip(scripts, answers, strict=True):
        expected_words = answer.split("\037")[:-1]
        [command] = [item for item in read_script(text, "run.sh") if item.words[0].clean == "swift"]
        words = [word.clean for word in command.words[1:]]
        if any(HOLE in word for word in words):
            # An unknown word can expand to several words or none, so the words after it are not comparable.
            words = words[: max(0, next(i for i, word in enumerate(words) if HOLE in word) - 1)]
            expected_words = expected_words[: len(words)]
        known += len(words)
        assert words == expected_words, text
    assert known > 200


IDIOMS = read_cases(__file__, "shell_idioms.yaml")


@pytest.mark.parametrize("name", IDIOMS)
def test_words_of_an_idiom_equal_those_of_bash(name, tmp_path):
    script = tmp_path / "runs" / "run.sh"
    script.parent.mkdir()
    script.write_text(IDIOMS[name] + "\n")
    expected = run_text(["bash", str(script)], check=True, stdin=subprocess.DEVNULL)
    words = [
        word.clean
        for command in read_script(script.read_text(), str(script))
        if command.words[0].clean == "printf"
        for word in command.words[2:]
    ]
    assert "".join(f"<{word}>" for word in words) == expected.stdout


@each_case(CASES["commands"])
def test_words_of_commands(script, expected):
    """Redirects are no words, and variables that a branch changes are unknown after the branch."""
    assert command_words(script) == expected


def test_defaults_are_soft_values_and_lines_are_those_of_the_file():
    """A default such as `${X:-8}` is a soft value, and each command has its first line in the file."""
    [command] = read_script("a ${X:-8} 9", "run.sh")
    assert [word.to_value("run.sh").soft for word in command.words] == [False, True, False]
    script = 'a \\\n b\nc "x\ny"\ncat <<E\n1\n2\nE\nd'
    lines = {command.words[0].clean: command.line for command in read_script(script, "run.sh")}
    assert lines == {"a": 1, "c": 3, "cat": 5, "d": 9}


def test_long_default_hides_no_later_command():
    """tree-sitter does not parse a default of several lines with quotes and parentheses; its value is then unknown."""
    script = 'P="${P:-a\nFor each (T), (P).\n(T1=..., En1=\\"...\\"); (T2=..., En2=\\"...\\")\nDo not.}"\na --x "$P"'
    [command] = read_script(script, "run.sh")
    assert (command.words[0].clean, command.line) == ("a", 5)
    assert command.words[2].to_value("run.sh").known is False


def test_path_of_a_program_is_its_name():
    """`"$(which swift)"` starts the same program as `swift`, also from an array."""
    script = 'cmd=("$(which swift)" rlhf)\ntorchrun "${cmd[@]}"\n`command -v trl` grpo'
    assert command_words(script) == [["torchrun", "swift", "rlhf"], ["trl", "grpo"]]


def test_exponential_expansion_is_refused():
    for line in ('X="$X$X"', 'A=("${A[@]}" "${A[@]}")'):
        with pytest.raises(UnreadableError, match="expand without end"):
            read_script("X=1234567890\nA=('' '')\n" + f"{line}\n" * 64, "run.sh")


@pytest.mark.parametrize(
    ("start", "unit"),
    [
        ("<<A ", "$["), ("", "[${a^"), ('<<"A B" ', "${a^`"), ("", "a|"), ("", "a=("), ("", ")"), ("", "a@"), ("", "<")
    ],
)  # fmt: skip
def test_script_that_keeps_the_parser_busy_is_refused(start, unit, monkeypatch):
    """tree-sitter takes quadratic time on these shapes: up to 5 minutes, in one call of C. Here the limit is 0.2 s."""
    assert shell._PARSE_S == 1
    monkeypatch.setattr(shell, "_PARSE_S", 0.2)
    with pytest.raises(UnreadableError, match="parsing it needed more than 0 s of processor time"):
        read_script(start + unit * (198_000 // len(unit)), "run.sh")


@each_case(CASES["sbatch"])
def test_sbatch_lines_set_the_jobs_variables(lines, expected):
    script = f"#!/bin/bash\n##SBATCH --nodes=7\n#SBATCH {lines}\npython x.py\n#SBATCH --nodes=9\n"
    reported = {name.removeprefix("SLURM_"): number for name, number, _line in slurm_variables(script)}
    reported.pop("JOB_NUM_NODES", None)
    assert reported == expected


def test_more_processes_than_the_job_has_devices_is_a_warning():
    """More processes than devices are a warning, because the sbatch command line may set another number."""
    script = (
        "#SBATCH --gres=gpu:{}\ntorchrun --nproc_per_node 8 train_grpo.py --num_generations 8 --use_vllm true"
    )
    assert "warning CFG104" in codes(script.format(4), trl="1.9.0")
    assert not {"warning CFG104", "error CFG104"} & codes(script.format(8), trl="1.9.0")
