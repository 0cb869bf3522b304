"""Check the metadata and files of packages, the interpreter they are installed for, and their declared requirements.

The requirements include a trainer's range of vLLM.
"""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from diagnostics.collect.python_environment import Environment, Package
from diagnostics.collect.search_path import INSTALLERS
from diagnostics.doctor import requirements
from diagnostics.doctor.checks.known_issues import require_framework
from diagnostics.doctor.checks.registry import CheckInput, check, evidence_of, finding
from diagnostics.doctor.installers import REINSTALL, free_places, install, move_commands, uninstall
from diagnostics.findings import Evidence, Finding, NotChecked, Severity
from diagnostics.fixes import Fix, Run, python_command
from diagnostics.frameworks import DISPLAY_NAMES, TRAINER_LIBRARIES, configuring_trainers
from diagnostics.versions import in_range

MAX_LISTED = 6
# A trainer library starts without these of its requirements; without any other one no run starts.
_NOT_IMPORTED = {*requirements.OPTIONAL, "typer", "typer-slim", "hf-xet", "requests", "multiprocess"}
# transformers compares the releases of these packages with its requirements at import, and raises an error.
_COMPARED_AT_IMPORT = {
    "filelock", "huggingface-hub", "numpy", "packaging", "pyyaml", "regex", "safetensors", "tokenizers", "tqdm",
}  # fmt: skip


@check("package metadata")
def broken_metadata(case: CheckInput) -> Iterator[Finding | NotChecked]:
    """Report broken metadata and duplicate packages (ENV901), incomplete packages (ENV923), and unreadable metadata."""
    environment = case.environment
    if environment.broken:
        # A folder that an installer set aside under a tilde does no harm.
        set_aside = all("/~" in place for place in environment.broken)
        [folder] = free_places("set-aside{}")
        moves = [Run(("mkdir", folder))]
        moves += map(Run, move_commands(environment.broken, folder))
        advice = "Move these folders away" + ("." if set_aside else " and install their packages again.")
        severity = Severity.WARNING if set_aside else Severity.ERROR
        evidence = [Evidence("no valid package name or version", place) for place in environment.broken]
        detail = "These metadata folders have no valid package name or version."
        yield finding("ENV901", severity, evidence, Fix.of(advice, *moves), detail)
    for package in environment.packages.values():
        if package.damaged:
            yield incomplete_package(environment, package)
    for name, places in environment.duplicates:
        # Each removal takes away one of the copies.
        removals = [uninstall(environment, name)] * len(places)
        again = install(environment, f"{name}=={environment.version(name)}")
        fix = Fix.of(f"Uninstall every copy of {name}, then install it once.", *removals, again)
        evidence = [Evidence(name, place) for place in places]
        detail = f"{name} is installed more than once; Python finds the first."
        yield finding("ENV901", Severity.WARNING, evidence, fix, detail)
    for place, reason in environment.unread:
        if (place, reason) not in environment.search.unread:
            problem = f"its metadata could not be read: {reason}"
            yield NotChecked("an installed package", problem, "make it readable", place)


def incomplete_package(environment: Environment, package: Package) -> Finding:
    """Return the finding ENV923 for a package with missing or truncated files."""
    rest = len(package.damaged) - MAX_LISTED
    more = f" {rest} or more other files are missing or truncated." if rest > 0 else ""
    again = install(environment, f"{package.name}=={package.version}", options=REINSTALL)
    advice = f"Check that the disk has space, and reinstall {package.name}. If that fails, clear the installer's cache."
    fix = Fix.of(advice, Run(("df", "-h", environment.prefix)), again)
    evidence = [Evidence(text, f"{package.place}/RECORD") for text in package.damaged[:MAX_LISTED]]
    detail = f"{package} is incomplete.{more}"
    return finding("ENV923", Severity.ERROR, evidence, fix, detail)


@check("package metadata")
def interpreter_problems(case: CheckInput) -> Iterator[Finding]:
    """Report an interpreter that is a broken link, missing, or of another Python release than the packages (ENV924).

    If only the base Python (in pyvenv.cfg) is missing, it is a warning.
    """
    environment = case.environment
    if not environment.dangling and not environment.misfits:
        return
    # If only the base Python is missing, an interpreter with a built-in library path may start without it.
    may_start = not environment.dangling and all(
        place.endswith("pyvenv.cfg") for place, _ in environment.misfits
    )
    required = _python_of_packages(environment)
    dangling = [Evidence(f"a link to {to}, which is not there", link) for link, to in environment.dangling]
    evidence = [*dangling, *(Evidence(text, place) for place, text in environment.misfits)]
    # A broken link must be removed before a new one can be made. venv would write through links to other places.
    repair = [Run(("rm", *(item.place for item in dangling)))] if dangling else []
    options = ("--upgrade", "--without-pip", environment.prefix)
    repair.append(Run(python_command(required, required, "-m", "venv", *options)))
    if any(Path(environment.prefix, name).is_symlink() for name in ("bin", "pyvenv.cfg")):
        repair = []
    advice = f"Install {required} again, or create a new environment and install the packages there."
    severity, certainty = Severity.ERROR, "established"
    detail = "The interpreter below cannot start, or does not find the installed packages."
    if may_start:
        severity, certainty = Severity.WARNING, "supported"
        detail = "The Python that created the environment is missing; a copied interpreter may still start."
    fix = Fix.of(advice, *repair)
    yield finding("ENV924", severity, evidence, fix, detail, certainty=certainty)


def _python_of_packages(environment: Environment) -> str:
    """Return the Python release that the packages were installed for, by their folder; "python3" if unknown."""
    packages = (package for package in environment.packages.values() if package.name not in INSTALLERS)
    folders = Counter(Path(package.place).parent.parent.name for package in packages)
    names = (name for name, _ in folders.most_common() if re.fullmatch(r"python3\.\d+", name))
    return next(names, "python3")


@check("declared requirements")
def declared_requirements(case: CheckInput) -> Iterator[Finding]:
    """Report unmet requirements (CMP904), and a vLLM that a trainer excludes (CMP903).

    The packages are those in `CHECKED` and what these need (`requirements.checked_packages`).
    """
    environment = case.environment
    if not environment.needed:
        require_framework(environment)
    for package in requirements.checked_packages(environment):
        yield from _engine_range(environment, package)
        for requirement in requirements.unmet_requirements(environment, package):
            yield _unmet_requirement(environment, package, requirement)


def _unmet_requirement(environment: Environment, package: Package, requirement: Requirement) -> Finding:
    """Return the finding CMP904 for a requirement; its title has package, requirement and installed release."""
    name = canonicalize_name(requirement.name)
    version = environment.version(name)
    required = f"{requirement.name}{requirement.specifier}"
    state = f"found {version}" if version else "not installed"
    line = f"{package} needs {required}, {state}"
    raises = package.name == "transformers" and name in _COMPARED_AT_IMPORT and version is not None
    again = install(environment, f"{package.name}=={package.version}")
    fix = Fix.of(f"Install {package.name} with its requirements.", again)
    if requirement.url:
        fix = Fix.of(f"Install {name} from the address that the metadata of {package.name} names.")
    elif version:
        advice = f"Install {required}, or another release of {package.name}."
        fix = Fix.of(advice, install(environment, required))
    fails = raises or (version is None and _is_core(package, name))
    evidence = [Evidence(line, f"{package.place}/METADATA")]
    detail = "transformers compares these versions at import and raises." if raises else ""
    severity = Severity.ERROR if fails else Severity.WARNING
    return replace(finding("CMP904", severity, evidence, fix, detail, known_by="declared"), title=line)


def _is_core(package: Package, name: str) -> bool:
    """Return whether a run cannot start without a requirement (`name`) of a package."""
    if package.name in TRAINER_LIBRARIES and package.name != "huggingface-hub":
        return name not in _NOT_IMPORTED
    return name in {"torch", "transformers", "ray"}


def _engine_range(environment: Environment, trainer: Package) -> Iterator[Finding]:
    """Yield the finding CMP903 if the installed vLLM is in none of the ranges that a trainer declares.

    If the ranges are only those of an extra, the severity is info, and a trainer that another trainer wraps is not
    reported: TRL's range does not apply to a run of ms-swift.
    """
    vllm, ranges = environment.vllm, requirements.vllm_requirements(trainer)
    if vllm is None or not ranges or any(in_range(vllm.version, item.specifier) for item in ranges):
        return
    required = any(requirements.applies(environment, item) for item in ranges)
    if not required and trainer.name not in configuring_trainers(environment.packages):
        return
    listed = " or ".join(f"vllm{item.specifier}" for item in ranges)
    where = "declares" if required else "declares, in an extra,"
    # The compatibility table covers TRL only.
    unless = ", unless the compatibility table shows that this pair works" if trainer.name == "trl" else ""
    evidence = [Evidence(f"Requires-Dist: {entry}", f"{trainer.place}/METADATA") for entry in ranges]
    evidence.append(evidence_of(vllm))
    command = install(environment, f"{vllm.name}{ranges[0].specifier}")
    fix = Fix.of(f"Install a vLLM in that range{unless}.", command)
    detail = f"{DISPLAY_NAMES[trainer.name]} {trainer.version} {where} {listed}; found {vllm.version}."
    severity = Severity.WARNING if required else Severity.INFO
    yield finding("CMP903", severity, evidence, fix, detail, known_by="declared")
