"""Idioms of launch scripts: each is run by bash, and what lint says it knows is what bash makes of it."""

import subprocess

import pytest

from diagnostics.lint.sources import shell, shell_words
from diagnostics.lint.sources.tree import UnreadableError

IDIOMS = {
    "the script's folder": (
        'D="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"\nprintf "<%s>" "$D/x" "$(dirname "$0")"'
    ),
    "a quiet one": ('D=$(cd -- "$(dirname -- "$0")" > /dev/null 2>&1 && pwd -P)\nprintf \'<%s>\' $D'),
    "a positional default": ('N=${1:-8} M="${2:-a b}"\nprintf \'<%s>\' $N "$M" ${3-x}'),
    "an array's length and items": ("G=(0 1 5)\nprintf '<%s>' ${#G[@]} ${G[0]} \"${G[2]}\" $((2 * 3))"),
    "an array joined": ('G=(0 1 5)\nprintf \'<%s>\' "$(IFS=,; echo "${G[*]}")"'),
    "devices counted by lines": ("V=0,1,4\nprintf '<%s>' $(echo $V | tr ',' '\\n' | wc -l)"),
    "devices counted by fields": ("V=0,1\nprintf '<%s>' `echo \"$V\" | awk -F',' '{print NF}'`"),
    "a loop over words": (
        "for n in 4 8; do for m in a \"b c\"; do printf '<%s>' $n \"$m\"; done; done\nprintf '<%s>' $n"
    ),
    "a function and its arguments": (
        'f() {\n  local n=$1; shift\n  printf \'<%s>\' "$n" "$@" ${2:-z}\n}\nf 4 a b\nf 8\n'
    ),
    "a function in a loop": (
        "function g {\n  for x in 1 2; do printf '<%s>' $1 $x; done\n}\nfor y in u v; do g $y; done"
    ),
    "arguments set": ('set -- a "b c"\nprintf \'<%s>\' "$@" $2\nshift\nprintf \'<%s>\' "$1"'),
    "a loop over no arguments": (
        "N=8\n"
        "while [[ $# -gt 0 ]]; do case $1 in --n) N=$2; shift 2 ;; *) X=1; shift ;; esac; done\n"
        "printf '<%s>' $N"
    ),
    "a test of arguments": (
        'N=8\nif [ $# -gt 0 ]; then N=$1; fi\nfor a in "$@"; do N=$a; done\nprintf "<%s>" $N'
    ),
    "a script in a here-document": (
        "export K=2\nN=4\nbash <<EOF\nM=3\nprintf '<%s>' $N \\$M \\$K\nEOF\nprintf '<%s>' end"
    ),
    "one that nothing is put into": ("export N=4\nbash -s <<'EOF'\nprintf '<%s>' $N a\nEOF"),
}


@pytest.mark.parametrize("name", IDIOMS)
def test_what_is_known_of_an_idiom_is_what_bash_makes(name, tmp_path):
    script = tmp_path / "runs" / "run.sh"
    script.parent.mkdir()
    script.write_text(IDIOMS[name] + "\n")
    made = subprocess.run(
        ["bash", str(script)], capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL
    )
    said = [
        word.clean
        for command in shell.commands(script.read_text(), str(script))
        if command.words[0].clean == "printf"
        for word in command.words[2:]
    ]

    assert "".join(f"<{word}>" for word in said) == made.stdout


def test_what_only_arguments_change_is_a_default():
    text = 'N=8\nwhile [ $# -gt 0 ]; do N=$2; shift 2; done\nif true; then M=1; fi\ntrain --n $N --m $M "${@:1}"\n'
    command = next(each for each in shell.commands(text, "run.sh") if each.words[0].clean == "train")

    assert command.words[2].value("run.sh").outside
    assert command.words[2].clean == "8"
    assert not command.words[4].value("run.sh").known
    assert command.words[5].text == shell_words.GIVEN


def test_a_function_that_nobody_calls_is_read_with_arguments_that_nobody_knows():
    found = shell.commands("f() { train --n $1 --m 2; }\ntrap f EXIT\n", "run.sh")
    words = [[word.clean.replace(shell_words.HOLE, "?") for word in each.words] for each in found]

    assert ["train", "--n", "?", "--m", "2"] in words


def test_a_function_that_calls_itself_and_loops_in_loops_end():
    loops = "".join(f"for v{n} in 1 2 3 4 5 6 7 8; do " for n in range(30)) + "train; " + "done; " * 30
    assert len(shell.commands("f() { f; f; train; }\nf\n" + loops, "run.sh")) < 5000


@pytest.mark.parametrize(
    "text",
    [
        "a() {\n" * 5000,
        "for a in 1 2 3 4 5 6 7 8; do\n" * 1000 + "x\n" + "done\n" * 1000,
        "".join(f'f{n}() {{ f{n + 1} "$@" "$@"; }}\n' for n in range(40)) + "f0 a b c\n",
    ],
    ids=["functions", "loops", "calls"],
)
def test_what_is_nested_without_end_is_read_or_refused(text):
    """Blocks within blocks are not gone over once for each, nor deeper than a stack is."""
    try:
        found = shell.commands(text, "run.sh")
    except UnreadableError:
        return
    assert len(found) <= 6000
