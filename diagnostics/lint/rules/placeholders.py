"""Placeholders that somebody left in a template."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from diagnostics.lint.rules.base import found
from diagnostics.lint.rules.registered import rule
from diagnostics.output.findings import Severity

if TYPE_CHECKING:
    from diagnostics.lint.run_plan import RunPlan
    from diagnostics.lint.values import Value
    from diagnostics.lint.versions import Versions
    from diagnostics.output.findings import Finding

# Nothing else is written so. `<think>` and `<|im_end|>` are tokens.
_UNFILLED = re.compile(
    r"(?i)to[_-]be[_-](?:filled|set|defined|replaced|added)(?:[_-]in)?|(?:please[_-])?change[_-]?(?:me|this)"
    r"|replace[_-]?(?:me|this|with[_-]\w{1,40})|(?:please[_-])?fill_?(?:me_?)?in|set[_-]?me|insert[_-]\w{1,40}[_-]here"
    r"|fixme|todo|tbd|placeholder|\?\?\?|[<{\[]{1,2}your[ _-][^<>|{}\[\]]{1,60}[>}\]]{1,2}"
    r"|<(?:insert|fill|path|model|dataset|data|number|num|host|ip|port|dir|output|reward|api|wandb|checkpoint|node|gpu)"
    r"s?[ _-][^<>|]{1,60}>"
    r"|<(?:path|model|dataset|host|ip|port|number|num_gpus|n|node|address|entity|key|token)>"
    r"|\{(?:(?:wandb|hf|api|swanlab|access)[ _-]?)?(?:token|key|path|dir)\}"
)
# A name that somebody may have: what is called so might be there.
_NAMED = re.compile(
    r"(?i)(?:.*[/=:])?your[-_/][\w.-]+(?:[/:].*)?|(?:.*/)?path[/_-]to(?:[/_-].*)?|(?:.*/)?x{3,}(?:/.*)?"
)
# A run is merely called by these.
_LABEL = re.compile(
    r"(?i)(?:project|experiment|exp|run|group|tracker)[._-]?(?:project)?[._-]?name|wandb|swanlab|mlflow|tags|notes"
)


@rule("CFG120", check="options")
def unfilled(plan: RunPlan, versions: Versions) -> list[Finding]:
    """CFG120: a placeholder in place of a value."""
    del versions
    settings = plan.settings
    read = [*settings.items.values(), *settings.launch.values(), *settings.environ.values()]
    left = [value for value in read if _is(_UNFILLED, value)]
    named = [value for value in read if _is(_NAMED, value)]
    # OmegaConf's word for what the command is to give; here is a config alone.
    alone = settings.place.file.endswith((".yaml", ".yml"))
    due = [value for value in left if alone and value.data == "???"]
    sure = [value for value in left if value not in due and not _LABEL.search(value.key)]
    rest = [value for value in (*left, *named) if value not in [*sure, *due]]
    out: list[Finding] = []
    for values, severity, detail, where in (
        (sure, Severity.ERROR, "Nobody filled in {}.", "."),
        (due, Severity.WARNING, "The command has to give {}.", ", there or in this file."),
        (rest, Severity.WARNING, "Nobody filled in {}.", "."),
    ):
        told = ", ".join(dict.fromkeys(value.key for value in values))
        if values:
            remedy = f"Give {told} a value of yours{where}"
            out += found(plan, "CFG120", severity, detail.format(told), values, remedy=remedy)
    return out


def _is(pattern: re.Pattern[str], value: Value) -> bool:
    words = value.data if isinstance(value.data, list) else [value.data]
    return any(isinstance(word, str) and pattern.fullmatch(word.strip()) for word in words)
