"""Compare the API index with Python: import random modules of an environment, and look up random names in them.

    python -m evaluation.api_index.python_comparison ENV/bin/python transformers peft [--samples 300] [--seed 1]

About half of the names are from the installed release, and half are from other releases of the same module only. The
index answers present, absent or unknown; disagreements with Python are printed. Modules whose import fails for another
reason than a missing module are counted, but not compared. The exit code is 1 if there is a disagreement.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
from collections import Counter

from diagnostics.api_index import query, store
from diagnostics.api_index.query import Release
from diagnostics.api_index.release_api import IndexedFacts, parse_signature

# Runs in the environment: for each (module, name), prints what Python finds, and the parameters of a function.
PROGRAM = """
import importlib, inspect, json, sys
from importlib import metadata
answers = []
questions = json.load(sys.stdin)
for module, name in questions:
    owner, _, member = name.partition(".")
    try:
        imported = importlib.import_module(module)
    except BaseException as error:
        missing = isinstance(error, ModuleNotFoundError) and module.startswith(error.name or "-")
        answers.append(["no module" if missing else "error", str(error)[:80]])
        continue
    value = getattr(imported, owner, None) if hasattr(imported, owner) else inspect
    if value is inspect:
        answers.append(["absent", ""])
    elif member and not hasattr(value, member):
        answers.append(["absent", ""])
    else:
        value = getattr(value, member) if member else value
        try:
            parameters = [item.name for item in inspect.signature(value).parameters.values() if item.kind not in (2, 4)]
        except (TypeError, ValueError):
            parameters = None
        is_plain = inspect.isfunction(value) and not hasattr(value, "__wrapped__")
        answers.append(["present", parameters if is_plain else None])
print(json.dumps(answers))
"""
_MACHINERY = {
    "__getattr__",
    "__all__",
    "_import_structure",
    "_LazyModule",
    "define_import_structure",
    "_file",
}
VERSION = "import sys; from importlib import metadata; print(metadata.version(sys.argv[1]))"


def sample_questions(
    package: store.Package, number: int, count: int, random_: random.Random
) -> list[tuple[str, str]]:
    """Return `count` random (module, name) pairs of the installed release `number` and of other releases."""
    source = IndexedFacts(package, number)
    modules = sorted(source.modules())
    questions = []
    while len(questions) < count:
        module = random_.choice(modules)
        every = [
            name
            for name in package.packed(module)
            if name.replace(".", "").isidentifier() and name.count(".") < 2
        ]
        current = [name for name in source.facts(module) or {} if name in every]
        # Names of the module system itself, and what a lazy module replaces, are no API.
        every = [name for name in every if name not in _MACHINERY]
        current = [name for name in current if name not in _MACHINERY]
        removed = sorted(set(every) - set(current))
        names = removed if removed and random_.random() < 0.5 else current
        if names and module.rpartition(".")[2] != "__main__":
            questions.append((module, random_.choice(names)))
    return questions


def index_answer(release: Release, module: str, name: str) -> tuple[str, list[str] | None]:
    """Return the index's answer (present, absent or unknown) and, for a function, its sorted parameters."""
    api = query.api_of(release)
    assert api is not None
    owner, _, member = name.partition(".")
    definition = api.find(module, owner)
    if definition is None:
        return "absent", None
    facts = api.facts(definition.module)
    conditional = any(
        api.facts(place).get(defined, "").startswith("?")
        for place, defined in ((module, owner), (definition.module, definition.name))
    )
    if conditional or definition.kind in {"dynamic", "outside"}:
        return "unknown", None
    if not member:
        state, entry = "present", definition.entry
    elif not definition.is_class:
        return "unknown", None
    else:
        members, entry = api.members(definition), facts.get(f"{definition.name}.{member}", "")
        # Attributes of instances and fields without a default are not attributes of the class.
        if entry.startswith(("attr", "field")):
            return "unknown", None
        state = "present" if member in members.names else "absent" if members.complete else "unknown"
    signature = parse_signature(entry) if entry.startswith("def") else None
    return state, sorted(signature.names) if signature and not signature.takes_others else None


def main() -> int:
    """Compare the index with Python for each package; print the counts and the disagreements."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("python")
    parser.add_argument("package", nargs="+")
    parser.add_argument("--samples", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    wrong = 0
    for name in options.package:
        done = subprocess.run(
            [options.python, "-c", VERSION, name], capture_output=True, text=True, check=True
        )
        release, package = Release(name, done.stdout.strip()), store.load(name)
        number = package.number(release.version)
        if number is None:
            print(f"{release}: not in the index")
            continue
        questions = sample_questions(package, number, options.samples, random.Random(options.seed))
        done = subprocess.run(
            [options.python, "-W", "ignore", "-c", PROGRAM],
            input=json.dumps(questions),
            capture_output=True,
            text=True,
            check=True,
        )
        counts: Counter[str] = Counter()
        for (module, item), (answer, parameters) in zip(
            questions, json.loads(done.stdout.splitlines()[-1]), strict=True
        ):
            expected, names = index_answer(release, module, item)
            if answer == "error":
                counts["not importable here"] += 1
            elif expected == "unknown":
                counts["unknown to the index"] += 1
            elif (answer == "present") != (expected == "present"):
                counts["disagreements"] += 1
                print(f"{release} {module} {item}: index {expected}, Python {answer}")
            elif parameters is not None and names is not None and not set(parameters) <= set(names):
                counts["other parameters"] += 1
                print(f"{release} {module} {item}: index {names}, Python {parameters}")
            else:
                counts[f"same, {expected}"] += 1
        print(f"{release}: {dict(counts)}")
        wrong += counts["disagreements"] + counts["other parameters"]
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
