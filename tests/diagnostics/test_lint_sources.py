"""The readers: shell, YAML, JSON, TOML and Python into values with their lines, and their bounds."""

import pytest

from diagnostics.lint.sources import json_file, python_file, shell, shell_words, toml_file, yaml_file
from diagnostics.lint.sources.tree import UnreadableError, flat
from diagnostics.lint.values import UNKNOWN, scalar


def words(text):
    return [
        [word.clean.replace(shell_words.HOLE, "?") for word in c.words]
        for c in shell.commands(text, "run.sh")
    ]


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("a --x 1 \\\n  --y 2", [["a", "--x", "1", "--y", "2"]]),
        ("a 'b c' \"d e\" f\\ g", [["a", "b c", "d e", "f g"]]),
        ('X=4\na $X ${X} "$X"', [["a", "4", "4", "4"]]),
        ("a ${X:-8} ${Y:=9} $Y", [["a", "8", "9", "9"]]),
        ("a $X $(nproc) `id`", [["a", "?", "?", "?"]]),
        ("X=2\na $((X * 3 + 10 / 4)) $((Z + 1))", [["a", "8", "?"]]),
        ('A=(x y=1)\nA+=(z)\nrun "${A[@]}"', [["run", "x", "y=1", "z"]]),
        ("O='--a 1 --b'\nrun $O \"$O\"", [["run", "--a", "1", "--b", "--a 1 --b"]]),
        ("cat <<EOF\nswift rlhf --x 1\nEOF\nb", [["cat"], ["b"]]),
        ("# swift rlhf\na b # c\n", [["a", "b"]]),
        ("a > out 2>&1 < in b", [["a", "2", "b"]]),
        ("a b#c", [["a", "b#c"]]),
    ],
)  # fmt: skip
def test_a_script_is_read_as_the_shell_reads_it(script, expected):
    """Words, quotes, continuations, variables, arithmetic, arrays, here-documents, comments."""
    assert words(script) == expected


def test_what_a_branch_sets_is_not_known_after_it():
    """And known within it, and known after it where it says the same."""
    script = "X=1\nS=7\nif [ $1 ]; then X=2; S=7; a $X; else X=3; fi\nb $X $S\ncase $Z in p) X=4;; esac\nc $X"
    assert [line for line in words(script) if line[0] in "abc"] == [["a", "2"], ["b", "?", "7"], ["c", "?"]]


def test_what_a_branch_adds_to_an_array_is_a_key_without_a_value():
    """`EXTRA+=(k=v)` under a condition: k may be set, to v or not."""
    assert words('A=(k=1)\nif x; then A+=(n=2); fi\nrun "${A[@]}"')[-1] == ["run", "k=1", "n=?"]


def test_a_default_of_a_variable_is_soft():
    """`${X:-8}`: a real run may have another one."""
    word = shell.commands("a ${X:-8} 9", "run.sh")[0].words
    assert [w.value("run.sh").soft for w in word] == [False, True, False]


def test_lines_are_those_of_the_file():
    """Over continuations, quotes with newlines and here-documents."""
    script = 'a \\\n b\nc "x\ny"\ncat <<E\n1\n2\nE\nd'
    assert [(c.words[0].clean, c.line) for c in shell.commands(script, "run.sh")] == [
        ("a", 1), ("c", 3), ("cat", 5), ("d", 9),
    ]  # fmt: skip


def test_a_script_that_doubles_itself_is_refused():
    """Bounded in memory, for variables as for arrays."""
    for line in ('X="$X$X"', 'A=("${A[@]}" "${A[@]}")'):
        with pytest.raises(UnreadableError, match="expand without end"):
            shell.commands("X=1234567890\nA=('' '')\n" + f"{line}\n" * 64, "run.sh")


def test_yaml_keeps_lines_and_types():
    """Dotted keys, lists, quoted numbers, YAML 1.1's words."""
    [tree] = yaml_file.read("a:\n  b: 1\n  c: [x, 2]\nd: '3'\ne: yes\nf: 1e-6\n", "c.yaml")
    read = {key: (value.data, value.place.line) for key, value in flat(tree).items()}
    assert read == {"a.b": (1, 2), "a.c": (["x", 2], 3), "d": ("3", 4), "e": (True, 5), "f": (1e-6, 6)}


def test_a_yaml_bomb_is_refused():
    """Aliases of aliases count each time they are used."""
    bomb = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
        f"{chr(98 + i)}: &{chr(98 + i)} [{','.join(['*' + chr(97 + i)] * 9)}]\n" for i in range(8)
    )
    with pytest.raises(UnreadableError, match="no config has them"):
        yaml_file.read(bomb, "c.yaml")


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (yaml_file.read, "[" * 5000),
        (json_file.read, "[" * 5000),
        (json_file.read, '{"a":' * 5000),
        (toml_file.read, "a = " + "[" * 5000),
        (python_file.read, "GRPOConfig(a=" + "(" * 5000),
        (python_file.read, "GRPOConfig(a=" + "-" * 5000 + "1)"),
    ],
)
def test_what_is_nested_too_deep_is_refused(read, text):
    """In one line, whatever the syntax."""
    with pytest.raises(UnreadableError) as caught:
        read(text, "c")
    assert len(str(caught.value).splitlines()) == 1


def test_a_huge_number_stays_a_text():
    """No arithmetic on a number with a thousand digits."""
    digits = "9" * 5000
    assert scalar(digits) == digits
    assert flat(json_file.read(f'{{"a": {digits}}}', "c.json"))["a"].data == digits
    assert flat(yaml_file.read(f"a: {digits}", "c.yaml")[0])["a"].data == digits


def test_json_keeps_lines():
    """Nested tables, lists, escapes."""
    tree = json_file.read('{\n "a": {"b": [1,\n 2]},\n "c\\n": null\n}', "args.json")
    read = {key: (value.data, value.place.line) for key, value in flat(tree).items()}
    assert read == {"a.b": ([1, 2], 2), "c\n": (None, 4)}


def test_python_is_read_without_being_run():
    """Constants, arithmetic, dicts, later assignments; what is computed is not known."""
    source = (
        "import os\nos.environ['CUDA_VISIBLE_DEVICES'] = '0,1'\nN = 4\n"
        "args = GRPOConfig(num_generations=N * 2, top_p=f(), **{'beta': 0.0})\nargs.use_vllm = True\n"
    )
    [made] = python_file.read(source, "train.py")
    read = {key: (value.data, value.place.line) for key, value in made.items.items()}
    assert read == {
        "num_generations": (8, 4), "top_p": (UNKNOWN, 4), "beta": (0.0, 4), "use_vllm": (True, 5),
    }  # fmt: skip
    assert made.environ["CUDA_VISIBLE_DEVICES"].data == "0,1"
    assert python_file.read("GRPOConfig(**kwargs)", "train.py")[0].open
