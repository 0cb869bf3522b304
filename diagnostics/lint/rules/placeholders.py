"""Rule about placeholders (CFG120): template text such as `<your model>` that is still in place of a value.

Three kinds cause a warning in place of an error: a text that is only probably a placeholder, one in an option that
names the run, and `???` in a YAML file that is checked without its command.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from diagnostics.findings import Severity
from diagnostics.lint.rules.registry import Problem, rule
from diagnostics.lint.run_plan import RunPlan
from diagnostics.lint.values import Value

# Texts that are placeholders. `<think>` and `<|im_end|>` are tokens, not placeholders.
_PLACEHOLDER = re.compile(
    r"(?i)to[_-]be[_-](?:filled|set|defined|replaced|added)(?:[_-]in)?|(?:please[_-])?change[_-]?(?:me|this)"
    r"|replace[_-]?(?:me|this|with[_-]\w{1,40})|(?:please[_-])?fill_?(?:me_?)?in|set[_-]?me|insert[_-]\w{1,40}[_-]here"
    r"|fixme|todo|tbd|placeholder|\?\?\?|[<{\[]{1,2}your[ _-][^<>|{}\[\]]{1,60}[>}\]]{1,2}"
    r"|<(?:insert|fill|path|model|dataset|data|number|num|host|ip|port|dir|output|reward|api|wandb|checkpoint|node|gpu)"
    r"s?[ _-][^<>|]{1,60}>"
    r"|<(?:path|model|dataset|host|ip|port|number|num_gpus|n|node|address|entity|key|token)>"
    r"|\{(?:(?:wandb|hf|api|swanlab|access)[ _-]?)?(?:token|key|path|dir)\}"
)
# Texts that are probably placeholders, although a file or an account could have such a name.
_PROBABLE = re.compile(
    r"(?i)(?:.*[/=:])?your[-_/][\w.-]+(?:[/:].*)?|(?:.*/)?path[/_-]to(?:[/_-].*)?|(?:.*/)?x{3,}(?:/.*)?"
)
# A longer text is no placeholder; the patterns take quadratic time.
_MAX_TEXT = 500
_ERROR = "A placeholder is still in place of a value: {}."
# Options that only give a run its name.
_LABEL_OPTION = re.compile(
    r"(?i)(?:project|experiment|exp|run|group|tracker)[._-]?(?:project)?[._-]?name|wandb|swanlab|mlflow|tags|notes"
)


@rule("CFG120", check="options")
def placeholders_are_filled_in(plan: RunPlan) -> Iterator[Problem]:
    """No option or environment variable still has a placeholder of a template as its value."""
    settings = plan.settings
    values = [*settings.options.values(), *settings.launcher.values(), *settings.env.values()]
    # If only a config is checked, the command may replace OmegaConf's `???`.
    alone = settings.place.file.endswith((".yaml", ".yml"))
    by_message: dict[str, list[Value]] = {}
    for value in values:
        is_certain = _matches(_PLACEHOLDER, value)
        if is_certain and alone and value.data == "???":
            by_message.setdefault("The command has to set {}.", []).append(value)
        elif is_certain and not _LABEL_OPTION.search(value.key):
            by_message.setdefault(_ERROR, []).append(value)
        elif is_certain or _matches(_PROBABLE, value):
            by_message.setdefault("A placeholder is probably still in place of a value: {}.", []).append(
                value
            )
    for message, placeholders in by_message.items():
        keys = ", ".join(dict.fromkeys(value.key for value in placeholders))
        severity = Severity.ERROR if message == _ERROR else Severity.WARNING
        yield Problem(message.format(keys), placeholders, f"Set {keys} to your own value.", severity)


def _matches(pattern: re.Pattern[str], value: Value) -> bool:
    words = value.data if isinstance(value.data, list) else [value.data]
    return any(
        isinstance(word, str) and len(word) <= _MAX_TEXT and pattern.fullmatch(word.strip()) for word in words
    )
