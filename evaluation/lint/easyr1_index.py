"""Write the index file of EasyR1, which has no releases on a package index, from a checkout with its tags.

    python -m evaluation.lint.easyr1_index CHECKOUT

It has the options of the tags and of the checked-out state: the fields of the config classes below `PPOConfig`, with
type, default, and the choices that other code compares with.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from diagnostics.api_index import store
from diagnostics.api_index.build import NOT_BUILT
from diagnostics.api_index.extract import Facts, extract

# Tag -> name of the release; HEAD is the state on the way to the next release.
RELEASES = {"v0.3.0": "0.3.0", "v0.3.1": "0.3.1", "v0.3.2": "0.3.2", "HEAD": "0.3.3.dev0"}
# verl/workers/fsdp_workers.py and verl/trainer/core_algos.py compare with these values, and raise for others.
CHOICES = {
    "worker.actor.optim.strategy": ["adamw", "adamw_bf16"],
    "worker.critic.optim.strategy": ["adamw", "adamw_bf16"],
    "algorithm.adv_estimator": ["gae", "grpo", "reinforce_plus_plus", "remax", "rloo"],
    "algorithm.kl_type": ["fixed", "adaptive"],
    "worker.actor.loss_avg_mode": ["token", "seq"],
    "worker.critic.loss_avg_mode": ["token", "seq"],
}
CONFIG = "easyr1/config.yaml"


def git(checkout: Path, *words: str) -> str:
    """Return what git prints."""
    return subprocess.run(
        ["git", "-C", str(checkout), *words], check=True, capture_output=True, text=True
    ).stdout


def config_classes(checkout: Path, tag: str) -> Facts:
    """Return the facts of all files with config classes."""
    files = git(checkout, "ls-tree", "-r", "--name-only", tag, "verl").split()
    facts: Facts = {}
    for file in files:
        if file.endswith("config.py"):
            facts |= extract(git(checkout, "show", f"{tag}:{file}"), "config")
    return facts


def options_of(facts: Facts, owner: str, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield the options of a config class, and of the classes of its fields, with their entries."""
    bases = facts.get(owner, "class").removeprefix("class").partition("@")[0].split(",")
    for base in map(str.strip, bases):
        if base in facts:
            yield from options_of(facts, base, prefix)
    for name, entry in facts.items():
        if not name.startswith(f"{owner}.") or not entry.startswith("field "):
            continue
        option = prefix + name.removeprefix(f"{owner}.")
        head, _, default = entry.partition(" | attr ")[0].removeprefix("field ").partition(" = ")
        kind = ast.unparse(ast.parse(head)).replace("Optional[", "").strip("]").partition(" | ")[0]
        if kind in facts:
            yield option, "field"
            yield from options_of(facts, kind, f"{option}.")
            continue
        known = f" {kind}" if kind in {"bool", "int", "float"} else ""
        listed = f" choices {CHOICES[option]}" if option in CHOICES else ""
        yield option, f"field{known}{listed}{f' = {default}' if default not in {'', 'factory'} else ''}"


def main() -> int:
    """Write the file and print its path."""
    checkout = Path(sys.argv[1])
    releases = [dict(options_of(config_classes(checkout, tag), "PPOConfig")) for tag in RELEASES]
    if not all(releases):
        print(NOT_BUILT)
        return 3
    every, count = range(len(releases)), len(releases)
    about = {
        "schema": store.SCHEMA,
        "package": "easyr1",
        "modules_read": ["easyr1"],
        "only_outlined": [],
        "left_out": [],
        "releases": [
            {"version": name, "day": git(checkout, "log", "-1", "--format=%as", tag).strip(), "read": tag}
            for tag, name in RELEASES.items()
        ],
        "python": {},
        "requires": {},
    }
    # The commands also take the name of a config file.
    facts = [options | {"config": "field"} for options in releases]
    modules = {CONFIG: ("0-", store.pack_values(facts, every, count))}
    options = store.pack_values([dict.fromkeys(item, "") for item in facts], every, count)
    path = store.FOLDER / "easyr1.zip"
    store.write_package(path, about, modules, options=options)
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
