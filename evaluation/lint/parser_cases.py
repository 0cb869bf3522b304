"""Make random command lines with one mistake or none, and record whether a framework's own parser accepts them.

    PYTHONPATH=SOURCES python evaluation/lint/parser_cases.py trl VERSION --others FILE... --count 200 > CASES.json

The program itself needs only the standard library. SOURCES are the folder of the unpacked release, and folders of what
its parser imports. Nothing of the framework is replaced; of OpenRLHF only the statements that build its parser are
executed, because its modules import engines. `--others` are results of this program for other releases and frameworks,
whose options serve as mistakes.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import importlib
import importlib.util
import io
import itertools
import json
import logging
import random
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

Option = dict[str, Any]
Judge = Callable[[list[str]], str]


class ParsedError(Exception):
    """Raised when OpenRLHF's program has parsed its options."""


def trl_parser() -> argparse.ArgumentParser:
    """Return the parser of `trl grpo`."""
    return importlib.import_module("trl.scripts.grpo").make_parser()


def swift_parser() -> argparse.ArgumentParser:
    """Return the parser of `swift rlhf`."""
    from transformers import HfArgumentParser

    return HfArgumentParser([import_first("swift.llm.argument", "swift.arguments").RLHFArguments])


def vllm_parser() -> argparse.ArgumentParser:
    """Return the parser of `vllm serve`."""
    parser = import_first("vllm.utils.argparse_utils", "vllm.utils").FlexibleArgumentParser()
    folders = ("common", "launchers", "openai")
    return import_first(*(f"vllm.entrypoints.{folder}.cli_args" for folder in folders)).make_arg_parser(
        parser
    )


def import_first(*names: str) -> Any:
    """Import the first of some modules that this release has."""
    for name in names:
        try:
            spec = importlib.util.find_spec(name)
        except ModuleNotFoundError as error:
            if not name.startswith(error.name or "?"):
                raise
            continue
        if spec:
            return importlib.import_module(name)
    raise ImportError(names[-1])


def openrlhf_parser() -> argparse.ArgumentParser:
    """Return the parser that the main part of OpenRLHF's `train_ppo_ray` builds."""
    parsers = []

    class Recorder(argparse.ArgumentParser):
        def parse_args(self, *_: Any, **__: Any) -> Any:  # ty: ignore
            parsers.append(self)
            raise ParsedError

    folder = next(Path(entry) for entry in sys.path if (Path(entry) / "openrlhf").is_dir())
    tree = ast.parse((folder / "openrlhf/cli/train_ppo_ray.py").read_text())
    main = next(item for item in tree.body if isinstance(item, ast.If))
    stand_in = type("argparse", (), {**vars(argparse), "ArgumentParser": Recorder})
    imports = [
        item for item in tree.body if isinstance(item, (ast.Import, ast.ImportFrom)) and is_standard(item)
    ]
    names: dict[str, Any] = {}
    exec(compile(ast.Module(imports, []), "imports", "exec"), names)
    with contextlib.suppress(ParsedError):
        exec(compile(ast.Module(main.body, []), "main", "exec"), {**names, "argparse": stand_in})
    return parsers[0]


def is_standard(statement: ast.Import | ast.ImportFrom) -> bool:
    """Return whether a statement imports from the standard library."""
    module = statement.names[0].name if isinstance(statement, ast.Import) else statement.module or ""
    return module.partition(".")[0] in sys.stdlib_module_names


def judge_with(parser: argparse.ArgumentParser) -> Judge:
    """Return a function that returns the message with which the parser refuses a command line, or ''."""

    def judge(words: list[str]) -> str:
        printed = io.StringIO()
        try:
            with contextlib.redirect_stderr(printed), contextlib.redirect_stdout(io.StringIO()):
                _, extra = parser.parse_known_args(list(words))
        except SystemExit:
            return printed.getvalue().strip().rpartition("error: ")[2] or "exit"
        except Exception as error:  # noqa: BLE001 - any failure is a refusal
            return f"{type(error).__name__}: {error}"
        return f"unrecognized arguments: {extra}" if extra else ""

    return judge


def options_of(parser: argparse.ArgumentParser) -> list[Option]:
    """Return name, kind, choices and alias of each option with a value that can be generated."""
    options = []
    for action in parser._actions:
        names = [name for name in action.option_strings if name.startswith("--")]
        if not names or isinstance(action, argparse._HelpAction) or action.dest == "config":
            continue
        type_name = getattr(action.type, "__name__", "str" if action.type is None else "other")
        kind = "flag" if action.nargs == 0 else type_name
        if kind == "string_to_bool" or (kind == "other" and action.nargs == "?"):
            kind = "bool"
        options.append({"name": names[0], "names": names, "kind": kind, "nargs": action.nargs,
                        "choices": [str(item) for item in action.choices or []],
                        "required": action.required})  # fmt: skip
    return options


def verl_options() -> tuple[list[Option], Judge]:
    """Return the keys of verl's PPO config, and a function that applies overrides as Hydra does."""
    from hydra import compose, initialize_config_dir
    from hydra._internal.config_loader_impl import ConfigLoaderImpl
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from omegaconf import OmegaConf

    folder = next(Path(entry) for entry in sys.path if (Path(entry) / "verl").is_dir())
    with initialize_config_dir(str(folder / "verl/trainer/config"), version_base=None):
        composed = compose("ppo_trainer")
        parser = OverridesParser.create()

    def judge(words: list[str]) -> str:
        try:
            # Composing the defaults again for each case would take a second.
            ConfigLoaderImpl._apply_overrides_to_config(
                parser.parse_overrides(words), copy.deepcopy(composed)
            )
        except Exception as error:  # noqa: BLE001 - any failure is a refusal
            return f"{type(error).__name__}: {error}"
        return ""

    options = []

    def collect(prefix: str, node: dict[str, Any]) -> None:
        for key, value in node.items():
            name = f"{prefix}{key}"
            if isinstance(value, dict):
                collect(name + ".", value)
            elif isinstance(value, (bool, int, float, str)) and name.replace(".", "").isidentifier():
                text = isinstance(value, str) and value.startswith("${")
                kind = "other" if text else type(value).__name__
                options.append({"name": name, "names": [name], "kind": kind, "nargs": None, "choices": []})

    collect("", OmegaConf.to_container(composed, resolve=False))
    return options, judge


VALUES = {
    "int": ["1", "8", "64"],
    "float": ["0.5", "1", "1e-6"],
    "bool": ["true", "False"],
    "str": ["abc", "x/y"],
}
WRONG = {"int": ["abc", "1.5", "1e3"], "float": ["high", "1,5"], "bool": ["maybe", "2"]}


class Generator:
    """Generate command lines from a framework's options."""

    def __init__(self, options: list[Option], others: list[str], random_: random.Random, hydra: bool) -> None:
        self.random, self.hydra, self.others = random_, hydra, others
        self.usable = [item for item in options if item["choices"] or item["kind"] in {*VALUES, "flag"}]

    def words(self, option: Option, value: str | None = None) -> list[str]:
        """Return the words of an option with a correct value, or with the given one."""
        if self.hydra:
            return [f"{option['name']}={value or self.random.choice(VALUES[option['kind']])}"]
        name = self.random.choice(option["names"])
        if option["kind"] == "flag" and value is None:
            return [name]
        if value is None:
            value = self.random.choice(option["choices"] or VALUES[option["kind"]])
        joined = self.random.random() < 0.15 and option["nargs"] != "+"
        return [f"{name}={value}"] if joined else [name, value]

    def mistake(self, kind: str) -> list[str]:
        """Return the words of an option with a mistake of a kind; the parser decides whether it refuses it."""
        option = self.random.choice(self.usable)
        if kind == "misspelt":
            option = self.random.choice([item for item in self.usable if len(item["name"]) > 7])
            name = option["name"]
            at = self.random.randrange(4 if not self.hydra else 0, len(name) - 1)
            swapped = name[:at] + name[at + 1] + name[at] + name[at + 2 :]
            name = self.random.choice([name[:at] + name[at + 1 :], swapped, name[:at] + name[at] + name[at:]])
            changed = {**option, "name": name, "names": [name]}
            return self.words(changed)
        if kind == "foreign":
            name = self.random.choice(self.others)
            return [f"{name}=1"] if self.hydra else [name, "1"]
        if kind == "choice":
            option = self.random.choice([item for item in self.usable if item["choices"]] or [option])
            right = self.random.choice(option["choices"] or ["x"])
            return self.words(option, self.random.choice([right + "x", right[:-1], right.swapcase() + "_"]))
        if kind == "type":
            option = self.random.choice(
                [item for item in self.usable if item["kind"] in WRONG and not item["choices"]]
            )
            return self.words(option, self.random.choice(WRONG[option["kind"]]))
        option = self.random.choice([item for item in self.usable if item["kind"] in {"int", "float", "str"}])
        return [option["name"]]

    def case(self) -> tuple[str, list[str]]:
        """Return a kind of mistake, or none, and a command line with it."""
        kinds = ["none", "none", "misspelt", "foreign", "foreign", "type"]
        kind = self.random.choice(kinds if self.hydra else [*kinds, "choice", "value missing"])
        required = [item for item in self.usable if item.get("required")]
        optional = [item for item in self.usable if item not in required]
        chosen = [*required, *self.random.sample(optional, self.random.randrange(1, 5))]
        parts = [self.words(option) for option in chosen]
        if kind == "none":
            return kind, list(itertools.chain(*parts))
        wrong = self.mistake(kind)
        name = wrong[0].partition("=")[0]
        parts = [part for part in parts if part[0].partition("=")[0] != name]
        parts.insert(len(parts) if kind == "value missing" else self.random.randrange(len(parts) + 1), wrong)
        return kind, list(itertools.chain(*parts))


FRAMEWORKS = {"trl": trl_parser, "ms-swift": swift_parser, "openrlhf": openrlhf_parser, "vllm": vllm_parser}


def main() -> None:
    """Print the options and the cases as JSON."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("framework", choices=[*FRAMEWORKS, "verl"])
    arguments.add_argument("version")
    arguments.add_argument("--others", nargs="*", default=[], type=Path)
    arguments.add_argument("--count", type=int, default=200)
    namespace = arguments.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    real = sys.stdout
    with contextlib.redirect_stdout(sys.stderr):
        if namespace.framework == "verl":
            options, judge = verl_options()
        else:
            parser = FRAMEWORKS[namespace.framework]()
            options, judge = options_of(parser), judge_with(parser)
        names = {name for option in options for name in option["names"]}
        listed = [json.loads(path.read_text())["options"] for path in namespace.others]
        other_options = sorted(
            {name for group in listed for option in group for name in option["names"]} - names
        )
        # Options of verl have dots, and only verl takes them without dashes.
        other_options = [
            name for name in other_options if name.startswith("-") == (namespace.framework != "verl")
        ]
        generator = Generator(
            options,
            other_options or ["--no_such_option"],
            random.Random(namespace.version),
            namespace.framework == "verl",
        )
        cases = []
        for _ in range(namespace.count):
            kind, words = generator.case()
            cases.append({"mistake": kind, "words": words, "refused": judge(words)[:300]})
    real.write(
        json.dumps(
            {
                "framework": namespace.framework,
                "version": namespace.version,
                "options": options,
                "cases": cases,
            },
            indent=0,
        )
    )


if __name__ == "__main__":
    main()
