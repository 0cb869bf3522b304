"""Define `Word` and `Scope`: a shell word with marks for unknown text and defaults, and the variables at one point.

In a word the mark HOLE stands for text that is not known, and SOFT for a default that may be replaced.
`Scope.merge_branch` keeps the values that are still known after a branch that may or may not run. `slurm_variables`
returns the numbers of nodes and GPUs that Slurm sets as variables before the script starts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from itertools import islice, pairwise

from diagnostics.lint.values import UNKNOWN, Place, Value

# Marks inside a word, which no script can contain. HOLE stands for unknown text, SOFT marks a default.
HOLE, SOFT = "\0", "\1"
# The arguments of the script itself ("$@"): unknown, and empty unless the user passes some.
SCRIPT_ARGUMENTS = "\6" + HOLE

_SBATCH = re.compile(r"#SBATCH\s+(.*)")
_SBATCH_OPTION = re.compile(r"--?([A-Za-z][\w-]*)(?:[= ]\s*|(?=\d))([^\s#]+)")
_SBATCH_NAMES = {"N": "nodes", "G": "gpus"}
# A type may precede the number of devices: gpu:a100:4.
_SBATCH_NUMBER = re.compile(r"(?:gpu:)?(?:[A-Za-z_][\w.-]*:)?(\d{1,4})(?:\(.*\))?$")
_MAX_SBATCH_LINES = 200


@dataclass(frozen=True)
class Word:
    """A word of a command after expansion, with marks, and its line in the file."""

    text: str
    line: int

    @property
    def clean(self) -> str:
        """The text without the marks SOFT."""
        return self.text.replace(SOFT, "")

    @property
    def is_unknown(self) -> bool:
        """Whether nothing about the word is known, not even that it is a single word."""
        return self.text in {HOLE, SCRIPT_ARGUMENTS}

    def to_value(self, file: str, text: str | None = None) -> Value:
        """Return the word as a Value; its data is `text`, a part of the word, if given."""
        text = self.text if text is None else text
        data = UNKNOWN if HOLE in text else text.replace(SOFT, "")
        return Value(data, Place(file, self.line), soft=SOFT in text, outside=SOFT in text)


@dataclass
class Scope:
    """The variables of a script at one point.

    Attributes:
        variables: Texts with marks.
        arrays: Lists of words; `@` are the arguments of the current function, or those of `set --`.
        exported: Exported variables, as commands see them.
        assigned: Assigned and not exported variables that programs read from the environment, except in branches.
        is_shared: Whether a command refers to the dict `exported`, so that a change needs a copy.
    """

    variables: dict[str, str] = field(default_factory=dict)
    arrays: dict[str, list[Word]] = field(default_factory=dict)
    exported: dict[str, Value] = field(default_factory=dict)
    assigned: dict[str, Value] = field(default_factory=dict)
    is_shared: bool = False

    @property
    def size(self) -> int:
        """Number of variables, arrays and exported variables."""
        return len(self.variables) + len(self.arrays) + len(self.exported)

    def text_of(self, name: str) -> str | None:
        """Return the text of a variable or of an argument such as `$1`; None if it is not set in the script.

        A missing argument is "" if the script sets arguments, and HOLE if an unknown one precedes it.
        """
        words = self.arrays.get("@")
        if words is None or not name.isdecimal() or name == "0":
            return self.variables.get(name)
        words = words[: int(name)]
        if any(word.is_unknown for word in words):
            return HOLE
        return words[-1].text if len(words) == int(name) else ""

    def copy(self) -> Scope:
        """Return a copy for a branch."""
        return Scope(dict(self.variables), dict(self.arrays), dict(self.exported), dict(self.assigned))

    def export(self, name: str, value: Value | None) -> None:
        """Set an exported variable, or remove it if the value is None; earlier commands keep the old values."""
        if self.is_shared:
            self.exported, self.is_shared = dict(self.exported), False
        if value is None:
            self.exported.pop(name, None)
        else:
            self.exported[name] = value

    def merge_branch(self, branch: Scope) -> None:
        """Merge the changes of a branch that may or may not run: changed values are unknown afterwards.

        Of added options, the names are kept.
        """
        self.variables |= dict.fromkeys(self.variables.keys() - branch.variables.keys(), HOLE)
        for name in self.exported.keys() - branch.exported.keys():
            self.export(name, replace(self.exported[name], data=UNKNOWN))
        for name, text in branch.variables.items():
            if self.variables.get(name) != text:
                texts = [word.text for word in _possible_options([Word(part, 0) for part in text.split()])]
                only_options = self.variables.get(name) == "" and all(part.startswith("--") for part in texts)
                self.variables[name] = " ".join(texts) if only_options else HOLE
        for name, words in branch.arrays.items():
            items = self.arrays.get(name, [])
            if words != items:
                added = words[len(items) :] if words[: len(items)] == items else words
                self.arrays[name] = [*items, *_possible_options(added)]
        for name, value in branch.exported.items():
            if self.exported.get(name) != value:
                self.export(name, replace(value, data=UNKNOWN))


def mark_default(text: str) -> str:
    """Mark a text as a default that the environment of a run may replace."""
    return text if SOFT in text else SOFT + text


def _possible_options(words: list[Word]) -> list[Word]:
    """Return words that a branch may add: `--name` and its values become `--name=` with an unknown value."""
    options: list[Word] = []
    for before, word in pairwise((Word("", 0), *words)):
        after_option = bool(options) and options[-1].text.startswith("--")
        key, equals, _value = word.text.partition("=")
        is_option = key.startswith("--") and HOLE not in key
        if is_option or not after_option or (word.is_unknown and not before.text.startswith("--")):
            options.append(Word(f"{key}={HOLE}" if is_option or equals else HOLE, word.line))
    return options


def slurm_variables(text: str, first_line: int = 1) -> list[tuple[str, int, int]]:
    r"""Return (variable, number, line) for the numbers of nodes and GPUs that a script's `#SBATCH` lines request.

    The command line of sbatch can request other numbers, so the values are defaults.

    >>> slurm_variables("#SBATCH --nodes=2\n#SBATCH --gres=gpu:a100:4\nrun")
    [('SLURM_NNODES', 2, 1), ('SLURM_JOB_NUM_NODES', 2, 1), ('SLURM_GPUS_ON_NODE', 4, 2)]
    """
    options: dict[str, tuple[int, int]] = {}
    for number, line in enumerate(islice(text.splitlines(), _MAX_SBATCH_LINES), first_line):
        stripped = line.strip()
        if stripped and not stripped.startswith("#"):
            break  # Slurm reads no further than the first command.
        match = _SBATCH.match(stripped)
        for name, value in _SBATCH_OPTION.findall(match[1]) if match else ():
            if parsed := _SBATCH_NUMBER.match(value):
                options[_SBATCH_NAMES.get(name, name)] = int(parsed[1]), number
    if not options:
        return []
    nodes = options.get("nodes", (1, next(iter(options.values()))[1]))
    devices = options.get("gpus-per-node") or options.get("gres")
    if devices is None and nodes[0] == 1:
        devices = options.get("gpus")
    variables = [("SLURM_NNODES", *nodes), ("SLURM_JOB_NUM_NODES", *nodes)]
    return variables + ([("SLURM_GPUS_ON_NODE", *devices)] if devices is not None else [])
