"""Check that compiled packages fit the system, the Python release and each other.

The checks report missing shared libraries, an old glibc or libstdc++, packages that exclude this Python, libraries of
several CUDA releases or several NCCL packages, and distributions that write to the same folder. Compiled modules are
read of vLLM, flash-attn and xformers only; wheel tags and Python ranges of the packages in `CHECKED` only
(`collect/python_environment.py`). No library is loaded.
"""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

from diagnostics.collect.python_environment import Environment, normalise
from diagnostics.doctor.checks.driver_and_gpus import cuda_of
from diagnostics.doctor.checks.registry import CheckInput, NotApplicableError, check, evidence_of, finding
from diagnostics.doctor.installers import install, uninstall
from diagnostics.doctor.requirements import distribution_of, parse_requirement
from diagnostics.findings import Evidence, Finding, Severity
from diagnostics.fixes import Fix, Install, Uninstall
from diagnostics.versions import in_range, parse_specifier, parse_version

_MANYLINUX = re.compile(r"manylinux_(\d+)_(\d+)_")
_CUDA_PACKAGE = re.compile(r"nvidia-[a-z0-9-]+-cu(\d+)")
# Packages that may be installed for several CUDA releases at once, because their libraries have different names.
_SIDE_BY_SIDE = re.compile(r"nvidia-cutlass-dsl\b.*")
_NCCL = re.compile(r"nvidia-nccl(-cu\d+)?")
_TABLES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
_DRIVER_LIBRARIES = {"libcuda.so.1", "libnvidia-ml.so.1"}
_SYSTEM_LIBRARIES = ("libnuma", "libtbb", "libstdc++")
_FLASH_ATTN = {"flash_attn_2_cuda", "flash_attn_3"}
_MAX_LISTED = 8


@check("compiled modules")
def compiled_modules(case: CheckInput) -> Iterator[Finding]:
    """Report collected compiled modules that are unreadable or need missing libraries, except the driver's (ENV910)."""
    if not case.environment.extensions:
        raise NotApplicableError("no compiled module of vLLM or flash-attn is installed")
    bad = {
        module.path: missing
        for module in case.environment.extensions
        if (missing := sorted(set(module.missing) - _DRIVER_LIBRARIES)) or module.problem
    }
    if not bad:
        return
    built, source = cuda_of(case.environment)
    evidence = [
        Evidence(f"needs {', '.join(missing)}" if missing else "no readable ELF file", path)
        for path, missing in list(bad.items())[:_MAX_LISTED]
    ]
    evidence += [source] if source else []
    needs_cuda = any("cuda" in name for missing in bad.values() for name in missing)
    wrong_build = "The module was built for CUDA; the installed PyTorch was not."
    fix = _restore_modules(case.environment, bad, built)
    detail = wrong_build if built == "cpu" and needs_cuda else ""
    # A module can have its own search path; importing it decides (--tier probe).
    yield finding("ENV910", Severity.ERROR, evidence, fix, detail, certainty="supported")


def _restore_modules(environment: Environment, bad: dict[str, list[str]], built: str) -> Fix:
    """Return the fix for modules that cannot load.

    Args:
        environment: The environment.
        bad: Missing libraries by path of the module; none for an unreadable module.
        built: The CUDA that PyTorch was built for, "cpu" or "rocm"; empty if unknown.
    """
    advice, installs = [], []
    if any(name.startswith(_SYSTEM_LIBRARIES) for missing in bad.values() for name in missing):
        advice.append("Install libnuma, libtbb or libstdc++ with the system's packages.")
    broken = {
        module_name(path).partition(".")[0]
        for path, missing in bad.items()
        if not missing or not all(name.startswith(_SYSTEM_LIBRARIES) for name in missing)
    }
    if broken & _FLASH_ATTN and built in {"", "cpu"}:
        broken -= _FLASH_ATTN
        advice.append(
            "flash-attn needs a PyTorch with CUDA or ROCm: install that first, otherwise uninstall it."
        )
    for module, restore in _TABLES["restore"].items():
        if module in broken:
            advice.append(restore["advice"])
            options = tuple(restore["options"])
            name = distribution_of(module)
            package = environment.vllm if name == "vllm" else environment.packages.get(name)
            requirement = f"{package.name}=={package.version}" if package else name
            installs += [install(environment, requirement, options=options)] if options else []
    return Fix.of(" ".join(advice), *installs)


@check("system libraries")
def system_libraries(case: CheckInput) -> Iterator[Finding]:
    """Report a glibc or libstdc++ older than a wheel's tag or a compiled module requires (ENV911)."""
    environment, libraries = case.environment, case.machine.libraries
    available = {"GLIBC": libraries.libc.removeprefix("glibc "), "GLIBCXX": libraries.libstdcxx}
    evidence, kinds = [], set()
    for module in environment.extensions:
        for version in module.versions:
            kind, _, number = version.partition("_")
            if in_range(available.get(kind, ""), f"<{number}"):
                kinds.add(kind)
                evidence.append(Evidence(f"needs {version}; here is {kind}_{available[kind]}", module.path))
    for package in environment.packages.values():
        required = [(int(match[1]), int(match[2])) for match in map(_MANYLINUX.search, package.tags) if match]
        if required and in_range(available["GLIBC"], "<{}.{}".format(*min(required))):
            kinds.add("GLIBC")
            evidence.append(Evidence(f"tag {package.tags[0]}; here is {libraries.libc}", package.place))
    if not evidence:
        return
    detail, advice = "", "Use a newer system image, or releases whose wheels were built for this glibc."
    # Another libstdc++ can come first on the library path; glibc is always the system's.
    if "GLIBC" not in kinds:
        detail = "Only the system's libraries were read; a newer libstdc++ on LD_LIBRARY_PATH or of conda may suffice."
        advice = "Use a newer system image, or a conda environment with its own libstdc++ (libstdcxx-ng)."
    glibc, glibcxx = libraries.libc or "glibc unknown", libraries.libstdcxx or "(unknown)"
    evidence = [*evidence[:_MAX_LISTED], Evidence(f"{glibc}, libstdc++ up to GLIBCXX_{glibcxx}", "/usr/lib")]
    yield finding("ENV911", Severity.WARNING, evidence, Fix.of(advice), detail, certainty="supported")


def module_name(path: str) -> str:
    """Return the name of a compiled module; the package is part of it for vllm, xformers and flash_attn_3.

    >>> module_name("/env/lib/python3.11/site-packages/vllm/_C.abi3.so"), module_name("/env/flash_attn_2_cuda.so")
    ('vllm._C', 'flash_attn_2_cuda')
    """
    *_, folder, file = path.split("/")
    name = file.partition(".")[0]
    return f"{folder}.{name}" if folder in {"vllm", "xformers", "flash_attn_3"} else name


@check("mixed builds")
def excluded_python(case: CheckInput) -> Iterator[Finding]:
    """Report packages in `CHECKED` whose Requires-Python excludes this Python (ENV912)."""
    release = parse_version(case.environment.python_release)
    packages = case.environment.packages.values()
    fix = Fix.of("Create an environment with a Python that all packages support, or replace a package.")
    for package in packages:
        required = parse_specifier(package.requires_python)
        if required is not None and release is not None and not required.contains(release, prereleases=True):
            evidence = [Evidence(f"Requires-Python: {required}", f"{package.place}/METADATA")]
            detail = f"{package} needs Python {required}, found {release}."
            yield finding("ENV912", Severity.ERROR, evidence, fix, detail, known_by="declared")


@check("mixed builds")
def mixed_cuda(case: CheckInput) -> Iterator[Finding]:
    """Report installed libraries of several CUDA releases, or several packages of NCCL (ENV913)."""
    environment = case.environment
    releases: dict[str, list[str]] = {}
    for name in environment.packages:
        match = _CUDA_PACKAGE.fullmatch(name)
        if match and not _SIDE_BY_SIDE.fullmatch(name):
            releases.setdefault(match[1], []).append(name)
    nccl = [name for name in environment.packages if _NCCL.fullmatch(name)]
    if len(releases) < 2 and len(nccl) < 2:
        return
    advice = "Uninstall what PyTorch does not use, then install PyTorch again from its index."
    spare, detail = nccl, "NCCL is installed twice."
    if len(releases) > 1:
        built = cuda_of(environment)[0].partition(".")[0]
        newest = built if built in releases else max(releases)
        spare = [name for number in sorted(releases) if number != newest for name in releases[number]]
        detail = f"CUDA {' and '.join(sorted(releases))} are both installed."
        if built not in releases:
            advice = (
                "PyTorch was built for none of these: choose it first. The commands keep the newest CUDA."
            )
    commands: tuple[Uninstall | Install, ...] = ()
    lines = [line for package in environment.packages.values() for line in package.requires]
    # What installed packages require without an extra stays.
    required = map(parse_requirement, (line for line in lines if "extra" not in line))
    if removable := sorted(set(spare) - {normalise(item.name) for item in required if item}):
        torch = environment.version("torch")
        requirement = f"torch=={torch}" if torch else "torch"
        again = install(environment, requirement, options=("--force-reinstall",))
        commands = (uninstall(environment, *removable), again)
    names = nccl if len(nccl) > 1 else [item for many in releases.values() for item in many[:2]]
    evidence = [evidence_of(environment.packages[name]) for name in sorted(names)]
    yield finding("ENV913", Severity.WARNING, evidence, Fix.of(advice, *commands), detail)


@check("mixed builds")
def shared_folders(case: CheckInput) -> Iterator[Finding]:
    """Report installed distributions that binaries.toml lists as writing to the same folder (ENV914)."""
    environment = case.environment
    for module, names in _TABLES["same_folder"].items():
        packages = [item for name in names if (item := environment.packages.get(name)) and item.recorded]
        if len(packages) < 2:
            continue
        results = [package.name for package in packages]
        # Of flash-attn and flash-attn-4 both may be wanted, but flash-attn overwrites flash_attn/cute.
        advice = "Uninstall all of them, then install the one you want; flash-attn-4 after flash-attn."
        fix = Fix.of(advice, uninstall(environment, *results))
        severity = Severity.ERROR if module == "vllm" else Severity.WARNING
        detail = f"{' and '.join(results)} both write the folder {module}/."
        yield finding("ENV914", severity, map(evidence_of, packages), fix, detail)
