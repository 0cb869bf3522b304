"""Give the parser of this environment's trainer a GRPO configuration, and one with an option that does not exist.

    python -m repro.cell_programs.trainer_config verl|ms-swift|openrlhf [--json]

`observe` returns the report. The parsers are the trainers' own, unmodified: verl's Hydra configuration and its
`validate_config`, ms-swift's `RLHFArguments`, and the main block of OpenRLHF's `train_ppo_ray` with a stub in place of
`train`. The outcome is `ok` if the parser accepts the first configuration and refuses the second.
"""

import ast
import contextlib
import importlib
import importlib.util
import json
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from grpo_core.config import ModelConfig, TaskConfig
from grpo_core.tasks import model
from repro import render, upstream
from repro.cell_programs import run_program

SCHEMA = "grpo-doctor.config.v1"
# The arguments of a GRPO configuration by trainer; for OpenRLHF, by its option since 0.10, the option before, and the
# value. Cells may run Python 3.10, which has no `tomllib`.
CONFIGURATIONS = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))


def parse_verl(words: Sequence[str]) -> None:
    """Compose verl's shipped configuration `ppo_trainer` with its overrides and `words`, and validate the result."""
    from hydra import compose, initialize_config_dir  # type: ignore[import-not-found]

    (package,) = importlib.util.find_spec("verl").submodule_search_locations  # type: ignore[union-attr, misc]
    with initialize_config_dir(str(Path(package, "trainer", "config")), version_base=None):
        config = compose("ppo_trainer", overrides=[*CONFIGURATIONS["verl"], *words])
    roles = {"use_reference_policy": True, "use_critic": False}
    spec = importlib.util.find_spec("verl.utils.config")
    module = importlib.import_module("verl.utils.config") if spec else None
    if validate := getattr(module, "validate_config", None):
        validate(config, **roles)
        return
    trainer = importlib.import_module("verl.trainer.ppo.ray_trainer").RayPPOTrainer
    unstarted = trainer.__new__(trainer)
    vars(unstarted).update(config=config, **roles)
    unstarted._validate_config()  # noqa: SLF001 - the only check of early releases


def parse_swift(words: Sequence[str]) -> None:
    """Parse the arguments for ms-swift and `words` into its `RLHFArguments`, for a tiny model in a folder."""
    from transformers import HfArgumentParser

    newer = importlib.util.find_spec("swift.arguments")
    arguments = importlib.import_module("swift.arguments" if newer else "swift.llm.argument").RLHFArguments
    with tempfile.TemporaryDirectory() as folder:
        model.make_tiny(Path(folder, "model"), ModelConfig(), TaskConfig().letters, seed=0)
        data = Path(folder, "prompts.jsonl")
        data.write_text('{"messages": [{"role": "user", "content": "1"}]}\n', encoding="utf-8")
        places = (f"--model={folder}/model", f"--dataset={data}", f"--output_dir={folder}/output")
        HfArgumentParser([arguments]).parse_args_into_dataclasses(
            [*CONFIGURATIONS["ms-swift"], *places, *words]
        )


def parse_openrlhf(words: Sequence[str]) -> None:
    """Run the main block of `train_ppo_ray` on its arguments and `words`, without the imports of its packages.

    Raises:
        RuntimeError: The main block ended without a call of `train`.
    """
    (package,) = importlib.util.find_spec("openrlhf").submodule_search_locations  # type: ignore[union-attr, misc]
    program = Path(package, "cli", "train_ppo_ray.py")
    text = program.read_text(encoding="utf-8")
    tree = ast.parse(text)
    names_and_values = CONFIGURATIONS["openrlhf"].items()
    options = [f"{new if new in text else old}={value}" for new, (old, value) in names_and_values]
    # The `__init__` of OpenRLHF's packages imports flash-attn, which its parser does not need.
    utils = sys.modules["openrlhf.utils"] = ModuleType("openrlhf.utils")
    utils.__path__ = [str(Path(package, "utils"))]
    received: list[Any] = []
    names: dict[str, Any] = {"train": received.append, "__name__": "__main__"}
    for statement in [item for item in tree.body if isinstance(item, (ast.Import, ast.ImportFrom))]:
        module = statement.names[0].name if isinstance(statement, ast.Import) else statement.module or ""
        if module.partition(".")[0] in sys.stdlib_module_names:
            exec(compile(ast.Module([statement], []), str(program), "exec"), names)  # noqa: S102 - OpenRLHF's own code
    main = [item for item in tree.body if isinstance(item, ast.If)][-1]
    sys.argv = ["train_ppo_ray", *options, *words]
    exec(compile(ast.Module([main], []), str(program), "exec"), names)  # noqa: S102 - OpenRLHF's own code
    if not received:
        raise RuntimeError("the main block of train_ppo_ray ended without a call of train")


# Trainer -> name of its parser, function that calls the parser, and an option that does not exist.
PARSERS: dict[str, tuple[str, Callable[[Sequence[str]], None], str]] = {
    "verl": ("Hydra and validate_config", parse_verl, "actor_rollout_ref.rollout.generations=4"),
    "ms-swift": ("RLHFArguments", parse_swift, "--generations=4"),
    "openrlhf": ("train_ppo_ray", parse_openrlhf, "--generations=4"),
}


def observe(trainer: str) -> dict[str, Any]:
    """Parse both configurations; return the report, whose `outcome` is `ok`, or `failed` with the reason in `error`."""
    name, parse, wrong = PARSERS[trainer]
    document: dict[str, Any] = {"schema": SCHEMA, "parser": name, "accepted": 0, "refused": 0}
    error = explain_refusal(parse, ())
    if error is None:
        document["accepted"] = 1
        refusal = explain_refusal(parse, (wrong,))
        document |= {"refused": int(refusal is not None), "refusal": refusal}
        error = f"{wrong} was accepted" if refusal is None else None
    outcome = "failed" if error else "ok"
    return {**document, "outcome": outcome, "error": error, "versions": upstream.versions()}


def explain_refusal(parse: Callable[[Sequence[str]], None], words: Sequence[str]) -> str | None:
    """Return the reason why a parser refuses a configuration; None if it accepts it."""
    try:
        with contextlib.redirect_stdout(sys.stderr):
            parse(words)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - any failure is a refusal
        render.print_to_stderr(traceback.format_exc())
        return " ".join(f"{type(error).__name__}: {error}".split())[:300]
    return None


def main() -> None:
    """Print the report and exit with code 1 if a configuration was not handled as expected, else 0."""
    run_program("Give this environment's trainer two configurations.", observe, trainer=PARSERS)


if __name__ == "__main__":
    main()
