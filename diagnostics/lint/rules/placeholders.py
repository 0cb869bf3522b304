"""Rule about placeholders (CFG120): template text such as `<your model>` that is still in place of a value.

Three kinds cause a warning in place of an error: a text that is only probably a placeholder, one in an option that
names the run, and `???` in a YAML file that is checked without its command.
"""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

from diagnostics.findings import Severity
from diagnostics.lint.rules.registry import Problem, rule
from diagnostics.lint.run_plan import RunPlan
from diagnostics.lint.values import Value

# Regular expressions by kind; see the comments in the file.
_PATTERNS = {
    kind: re.compile("|".join(f"(?:{text})" for text in texts), re.IGNORECASE)
    for kind, texts in tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")).items()
}
# A longer text is no placeholder; the patterns take quadratic time.
_MAX_TEXT = 500
_ERROR = "A placeholder is still in place of a value: {}."


@rule("CFG120", check="options", role="any")
def placeholders_are_filled_in(plan: RunPlan) -> Iterator[Problem]:
    """No option or environment variable still has a placeholder of a template as its value."""
    settings = plan.settings
    values = [*settings.options.values(), *settings.launcher.values(), *settings.env.values()]
    # If only a config is checked, the command may replace OmegaConf's `???`.
    alone = settings.place.file.endswith((".yaml", ".yml"))
    by_message: dict[str, list[Value]] = {}
    for value in values:
        is_certain = _matches("certain", value)
        if is_certain and alone and value.data == "???":
            by_message.setdefault("The command has to set {}.", []).append(value)
        elif is_certain and not _PATTERNS["labels"].search(value.key):
            by_message.setdefault(_ERROR, []).append(value)
        elif is_certain or _matches("probable", value):
            by_message.setdefault("A placeholder is probably still in place of a value: {}.", []).append(
                value
            )
    for message, placeholders in by_message.items():
        keys = ", ".join(dict.fromkeys(value.key for value in placeholders))
        severity = Severity.ERROR if message == _ERROR else Severity.WARNING
        yield Problem(message.format(keys), placeholders, f"Set {keys} to your own value.", severity)


def _matches(kind: str, value: Value) -> bool:
    words = value.data if isinstance(value.data, list) else [value.data]
    return any(
        isinstance(word, str) and len(word) <= _MAX_TEXT and _PATTERNS[kind].fullmatch(word.strip())
        for word in words
    )
