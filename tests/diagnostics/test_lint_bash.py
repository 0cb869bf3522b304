"""The shell reader against bash itself: where it says that it knows a word, bash makes the same one."""

import random
import shutil
import subprocess

import pytest

from diagnostics.lint.sources import shell, shell_words

NAMES = ["A", "B", "C", "LONG_NAME"]
TEXTS = [
    "4",
    "0",
    "x",
    "a b",
    "it's",
    "k=v",
    "",
    "--flag",
    "/p/q.sh",
    "1e-6",
    "[1,2]",
    "a#b",
    "é",
    "~",
    "a\tb",
    "\\d",
]


def quoted(text, rng):
    """A text as a script may write it."""
    how = rng.randrange(4)
    if how == 0:
        return (
            '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("$", "\\$").replace("`", "\\`") + '"'
        )
    if how == 1 and "'" not in text:
        return f"'{text}'"
    return (
        "".join(
            char if char.isalnum() or char in "-_./=," or ord(char) > 127 else f"\\{char}" for char in text
        )
        or "''"
    )


def word(rng, depth=0):
    """A word: text, variables with and without defaults, arithmetic, pieces of these put together."""
    name = rng.choice(NAMES)
    numbers = [str(rng.randint(1, 9)) for _ in range(3)]
    kinds = [
        lambda: quoted(rng.choice(TEXTS), rng),
        lambda: rng.choice(("${%s}", "$%s", '"$%s"', '"${%s}"', 'x"${%s}"y', "pre${%s}")) % name,
        lambda: f"$(({numbers[0]} {rng.choice('+-*')} {numbers[1]} {rng.choice('+-*/%')} {numbers[2]}))",
        lambda: f'"${{ARR[@]}}{rng.choice(("", "z"))}"',
    ]
    if depth < 3:
        mark = rng.choice((":-", "-", ":+", "+"))
        plain = rng.choice(("8", "$B", "a b", "${C:-7}", ""))
        kinds.append(lambda: f"${{{name}{mark}{word(rng, depth + 1)}}}")
        kinds.append(lambda: f'"${{{name}{mark}{plain}}}"')
        kinds.append(lambda: word(rng, depth + 1) + quoted(rng.choice(TEXTS), rng))
    return rng.choice(kinds)()


def script(rng):
    """Assignments, arrays, branches and a command to look at."""
    lines = []
    for _ in range(rng.randint(1, 6)):
        name = rng.choice(NAMES)
        lines.append(
            rng.choice(
                (
                    f"{name}={quoted(rng.choice(TEXTS), rng)}",
                    f'{name}="${{{rng.choice(NAMES)}:-{rng.choice("48x")}}}"',
                    f"export {name}={rng.randint(0, 64)}",
                    f"ARR=({word(rng)} {word(rng)})",
                    f"ARR+=({quoted(rng.choice(TEXTS), rng)})  # more",
                    f"if [ 1 = {rng.randint(1, 2)} ]; then {name}=5; else {name}=6; fi",
                    f"case {rng.choice('ab')} in a) {name}=7;; *) {name}=8;; esac",
                    f"for {name} in 1 2; do {rng.choice(NAMES)}=3; done",
                    f"{name}+=z",
                    "# swift \\",
                    "cat > /dev/null <<'END'\nswift here $A\nEND",
                    f": ${{{name}:=9}}",
                )
            )
        )
    words = (" " + rng.choice(("", "\\\n  "))).join(word(rng) for _ in range(rng.randint(1, 5)))
    return "\n".join([*lines, f"swift {words}", ""])


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not here")
def test_known_words_are_those_of_bash():
    """300 scripts: the same words, or a hole where the reader says that it does not know."""
    rng = random.Random(11)
    scripts = [script(rng) for _ in range(300)]
    head = 'swift() { for w in "$@"; do printf "%s\\037" "$w"; done; }\n'
    asked = head + "".join(f"(\n{text})\nprintf '\\036'\n" for text in scripts)
    done = subprocess.run(
        ["bash", "--norc", "--noprofile"], input=asked, capture_output=True, text=True, timeout=500, check=False,
        env={"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "HOME": "/nowhere"}, encoding="utf-8",
    )  # fmt: skip
    answers = done.stdout.split("\036")[:-1]
    assert len(answers) == len(scripts), done.stderr
    known = 0
    for text, answer in zip(scripts, answers, strict=True):
        theirs = answer.split("\037")[:-1]
        [command] = [c for c in shell.commands(text, "run.sh") if c.words[0].clean == "swift"]
        ours = [w.clean for w in command.words[1:]]
        if any(shell_words.HOLE in w for w in ours):
            # An unknown word can be several, or none, and then what follows goes to the word before it.
            ours = ours[: max(0, next(i for i, w in enumerate(ours) if shell_words.HOLE in w) - 1)]
            theirs = theirs[: len(ours)]
        known += len(ours)
        assert ours == theirs, text
    assert known > 200
