"""Look up releases and their APIs in the index, and decide which releases of two packages work together.

Requirements, names and published runs decide. `compatibility` collects the evidence on a pair of releases, and
`rank_releases` sorts the pairs. `compare_names` compares the names that a release's code uses with those of another
release. `releases_with` lists the releases that satisfy a use. Other functions look up releases, their requirements,
uses and APIs.
"""

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import date, timedelta
from functools import cache, cached_property, lru_cache
from itertools import islice

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from diagnostics import UserError, compat_table
from diagnostics.api_index import store
from diagnostics.api_index.compare import Comparison, Lookup, MissingUse, compare
from diagnostics.api_index.packages import PACKAGES
from diagnostics.api_index.release_api import Definition, IndexedFacts, ReleaseApi
from diagnostics.api_index.rules import broken_rules, is_grpo_file, is_needed_by_grpo
from diagnostics.api_index.uses import Use
from diagnostics.frameworks import FRAMEWORKS
from diagnostics.versions import CLASHES, Clash, in_range, parse_version, satisfiable

# Packages whose classes a package extends, or whose functions it imports for others.
_COMPANIONS = {
    "trl": ("transformers",), "peft": ("transformers",), "ms-swift": ("transformers", "trl"),
    "unsloth": ("unsloth-zoo",),
}  # fmt: skip
# Files for other hardware than NVIDIA GPUs.
_OTHER_HARDWARE = re.compile(r"(?<![a-z])(?:npu|ascend|hccl|musa|xpu|rocm|neuron|hpu)(?![a-z])")
# Files that are imported for one model or one experimental trainer only.
_OF_ONE_MODEL = re.compile(
    r"/models/\w+/|/model/models?/|^sglang/srt/models/|^vllm/model_executor/models/|^trl/experimental/"
)
# File, module and releases of uses that a check of the release protects, in a way that the index does not follow:
# a function of TRL, and imports of a file from inside of functions of PEFT.
_PROTECTED = (
    ("trl/models/modeling_base.py", "transformers.deepspeed", "<=4.33.0"),
    ("peft/utils/transformers_weight_conversion.py", "transformers", ">=5.0.0.dev0"),
)
# Trainer, its releases, and a name of vLLM that they define before they import TRL.
_DEFINED_BY_TRAINERS = (("ms-swift", ">=3.11.0", "vllm.sampling_params.GuidedDecodingParams"),)
FIRST_FOR_GRPO = {"vllm": Version("0.6"), "transformers": Version("4.46"), "trl": Version("0.14")}
"""The first releases with GRPO, or that GRPO trainers use; earlier ones are in the index for tracebacks."""
# Requirements of vLLM's CUDA build, which a plugin for other hardware replaces.
_CUDA_REQUIREMENTS = {"torch", "torchaudio", "torchvision"}
# A trainer's release was tested with engines of its time, not with engines that appeared later.
_LATER_DAYS = 30
_RANKS = {"ran": 0, "part": 1, "": 2, "fails": 3}


@dataclass(frozen=True)
class Release:
    """A release in the index; `command` is one of `IndexedPackage.commands`, if its options are meant."""

    package: str
    version: str
    command: str = ""

    def __str__(self) -> str:
        return f"{self.package} {self.version}"


@dataclass(frozen=True)
class Compatibility:
    """The evidence on whether two releases work together; `user` imports names from `provider`.

    Attributes:
        declared: The version ranges that the user declares for the provider, with the extra that declares each.
        allowed: Whether the declared ranges allow the pair; None if none is declared, or only another extra's.
        run: The published result of the pair: `ran`, `part`, `fails` or ''.
        run_failures: Codes of issues that the failed layers of that run report.
        wrappers: The trainers that wrap the user, TRL. They generate with code of their own, so that only the names
            count that TRL's files import and the trainers do not define.
    """

    user: Release
    provider: Release
    declared: tuple[str, ...]
    allowed: bool | None
    run: str = ""
    run_failures: tuple[str, ...] = ()
    wrappers: tuple[Release, ...] = ()

    @cached_property
    def conflicts(self) -> tuple[str, ...]:
        """Requirements of user and provider on a third package that no version number satisfies."""
        return tuple(conflicts(self.user, self.provider))

    @property
    def known_failure(self) -> Clash | None:
        """The entry of `CLASHES` about these two releases."""
        releases = {item.package: item.version for item in (self.user, self.provider)}
        return next((clash for clash in CLASHES if clash.covers(releases)), None)

    @cached_property
    def names(self) -> Comparison | None:
        """The user's uses compared with the provider's names; None if `compare_names` returns None."""
        found = compare_names(self.user, self.provider)
        if found is None or not self.wrappers:
            return found
        defined = [
            name
            for trainer in self.wrappers
            for package, versions, name in _DEFINED_BY_TRAINERS
            if trainer.package == package and in_range(trainer.version, versions)
        ]
        missing = [item for item in missing_at_import(found) if item.use.text not in defined]
        return replace(found, missing=missing)

    @property
    def excluded(self) -> bool:
        """Whether ranges, requirements, a run or a known failure contradict the pair, whatever names it lacks."""
        return self.allowed is False or self.run == "fails" or bool(self.known_failure or self.conflicts)

    @property
    def at_import(self) -> list[MissingUse]:
        """Missing names that fail when the file that uses them is imported, except in files for one model only."""
        return missing_at_import(self.names) if self.names else []

    @property
    def when_called(self) -> list[MissingUse]:
        """Missing names that fail only when a function is called, or when one particular model is used."""
        at_import = self.at_import
        return [item for item in self.names.missing if item not in at_import] if self.names else []

    @property
    def limits_grpo(self) -> bool:
        """Whether a layer of the pair's run failed, or a file that a GRPO run uses calls a missing name."""
        return bool(self.run_failures) or any(map(self.concerns_grpo, self.when_called))

    def concerns_grpo(self, item: MissingUse) -> bool:
        """Return whether a missing name is used in a file that GRPO runs use; True for packages other than TRL."""
        return self.user.package != "trl" or is_grpo_file(item.use.file)

    @property
    def missing_in_grpo(self) -> list[MissingUse]:
        """For TRL and vLLM: the missing names that a GRPO run uses with any options, names used at import first."""
        of_vllm = (self.user.package, self.provider.package) == ("trl", "vllm")
        items = (*self.at_import, *self.when_called) if of_vllm else ()
        return [item for item in items if is_needed_by_grpo(item.use)]

    @property
    def is_later(self) -> bool:
        """Whether no upper bound is declared, and the provider was uploaded over 30 days after the user."""
        bounded = any(operator in text for text in self.declared for operator in ("<", "==", "~="))
        return not bounded and upload_day(self.provider) > upload_day(self.user) + timedelta(days=_LATER_DAYS)

    @property
    def contradicted(self) -> bool:
        """Whether ranges, requirements, names or a run contradict the pair; `Ranking.best` skips it.

        A name contradicts the pair if it fails at import, or if a GRPO run needs it.
        """
        return self.excluded or bool(self.at_import or self.missing_in_grpo)

    @property
    def fits(self) -> bool | None:
        """Whether nothing contradicts the pair; None if there is no run, no declared range and no compared name."""
        checked = self.contradicted or self.run or self.declared or self.names is not None
        return not self.contradicted if checked else None

    @property
    def rank(self) -> tuple[object, ...]:
        """The sort key; the smallest is best.

        In order: not contradicted, a published run, a declared range, few names missing at import, not much later, few
        names missing when called, newest. The names of an excluded pair are not compared.
        """
        declared = {True: 0, None: 1, False: 2}[self.allowed]
        age = -release_number(self.provider), -release_number(self.user)
        at_import, called = (0, 0) if self.excluded else (len(self.at_import), len(self.when_called))
        return self.contradicted, _RANKS[self.run], declared, at_import, self.is_later, called, age


def missing_at_import(comparison: Comparison) -> list[MissingUse]:
    """Return the missing names that fail at import, except in files that only one model needs."""
    return [
        item for item in comparison.missing if not item.use.late and not _OF_ONE_MODEL.search(item.use.file)
    ]


def release_number(release: Release) -> int:
    """Return the position of a release in the index, oldest first; -1 if it is not in the index."""
    number = store.load(release.package).number(release.version)
    return -1 if number is None else number


def upload_day(release: Release) -> date:
    """Return the day on which a release was uploaded; the earliest date if it is not in the index."""
    releases, number = store.load(release.package).about["releases"], release_number(release)
    return date.fromisoformat(releases[number]["day"]) if number >= 0 else date.min


def find_releases(package: str, version: str) -> list[str]:
    """Return the indexed releases that a version prefix names, newest first: `4.6` is every 4.6.x; '' is all.

    An exact release matches only itself: 0.8.5 is not 0.8.5.post1. A local suffix such as +cu129 is ignored.
    """
    releases = store.load(package).releases[::-1]
    public = version.partition("+")[0].removeprefix("v")
    exact = [item for item in releases if item == public]
    return exact or [item for item in releases if not public or item.startswith(f"{public}.")]


def parse_release(text: str, packages: Iterable[str]) -> Release:
    """Parse `trl==0.17` as the newest indexed 0.17.x, or as exactly that release.

    Raises:
        UserError: The text names none of these packages, or no indexed release.
    """
    name, _, version = (part.strip() for part in text.partition("=="))
    parsed = parse_version(version)
    if name not in packages or parsed is None:
        raise UserError(f"{text}: expected PACKAGE==VERSION, with one of {', '.join(packages)}")
    matching, releases = find_releases(name, version), find_releases(name, "")
    if not matching:
        newer = [item for item in releases if Version(item) > parsed][-2:]
        nearest = ", ".join([*newer, *[item for item in releases if Version(item) < parsed][:2]])
        raise UserError(f"{text}: not in the API index; the nearest releases are {nearest}")
    return Release(name, matching[0])


@cache
def api_of(release: Release, *companions: Release) -> ReleaseApi:
    """Return the API of a release, with companions for its base classes; it has no names if it is not indexed."""
    number = release_number(release)
    index = store.load(release.package if number >= 0 else "")
    apis = {module_of(item.package): api_of(item) for item in companions}
    return ReleaseApi(IndexedFacts(index, max(number, 0)), module_of(release.package), apis)


def module_of(package: str) -> str:
    """Return the import name of a distribution."""
    return PACKAGES[package].modules[0] if package in PACKAGES else package.replace("-", "_")


def package_of(module: str) -> str:
    """Return the indexed package that a top-level module belongs to; '' if there is none."""
    return next((item for item in store.indexed_packages() if module_of(item) == module), "")


@cache
def uses_of(user: Release, provider: str) -> list[Use] | None:
    """Return a release's uses of another package's names; None if the index has no record of them."""
    files, number = store.load(user.package).document(f"uses-{provider}"), release_number(user)
    if not files or number < 0:
        return None
    return [
        Use.from_key(key, file, line)
        for file, packed in files.items()
        for key, line in store.UnpackedValues(packed, number).items()
    ]


def compare_names(user: Release, provider: Release, *, with_server: bool = False) -> Comparison | None:
    """Compare a release's uses of another package (the provider) with the names of a release of the provider.

    Files for other hardware and uses that the provider's release does not reach (_PROTECTED) are not compared. A name
    that no indexed release defines is left out: it comes from a fork, or from code that no run reaches. Behaviour that
    TRL relies on, and that a vLLM was found not to have, counts as missing.

    Args:
        user: The release that uses names.
        provider: The release that has names.
        with_server: Whether routes and launch options of vLLM's server are compared, too.

    Returns:
        None if the provider's release or the user's uses of it are not indexed, or if only some kinds of the user's
        uses are recorded and none of them is missing.
    """
    api, uses = api_of(provider), uses_of(user, provider.package)
    if release_number(provider) < 0 or uses is None:
        return None
    compared = [
        use
        for use in uses
        if (with_server or use.kind not in {"route", "launch"})
        and not _OTHER_HARDWARE.search(f"{use.file} {use.module}")
        and not any(
            use.file == file and use.module.startswith(module) and not in_range(provider.version, releases)
            for file, module, releases in _PROTECTED
        )
    ]
    versions = {module_of(provider.package): Version(provider.version)}
    # TRL's own server, up to 1.10.
    own = api_of(user).facts("trl.scripts.vllm_serve") if with_server else ()
    own_routes = frozenset(name.removeprefix("route:") for name in own if name.startswith("route:"))
    comparison = compare(compared, api, versions, own_routes)
    comparison.missing = [
        item
        for item in comparison.missing
        if _exists(
            provider.package, replace(item.use, file="", line=0, late=False, choice=None, conditions=())
        )
    ]
    if (user.package, provider.package) == ("trl", "vllm"):
        comparison.missing += broken_rules(user.version, provider.version)
    if not comparison.missing and user.package in PACKAGES and PACKAGES[user.package].used_kinds:
        return None  # most of the user's uses were not recorded
    return comparison


@cache
def _exists(package: str, use: Use) -> bool:
    """Return whether any indexed release of a package satisfies a use, as far as its source shows."""
    apis = (api_of(Release(package, version)) for version in find_releases(package, ""))
    is_found = use.kind in {"route", "launch"}
    return any((is_found or api.find(use.module, use.name)) and not Lookup(api).problem(use) for api in apis)


@lru_cache(1024)
def releases_with(package: str, use: Use) -> tuple[list[str], list[str], list[str]]:
    """Return the releases that satisfy a use, those that do not, and those whose source does not decide it.

    All are sorted, oldest first. For a member or argument, a release without the function, class or method is in no
    list.
    """
    results: tuple[list[str], list[str], list[str]] = [], [], []
    for version in reversed(find_releases(package, "")):
        api = api_with_companions(Release(package, version))
        definition, lookup = api.find(use.module, use.name), Lookup(api)
        if use.path and (definition is None or not _defines_method(api, definition, use)):
            continue
        problem = lookup.problem(use)
        is_dynamic = definition is not None and definition.kind == "dynamic"
        # Without a name that a module imports from a compiled module, the module itself could not be imported.
        entry = api.facts(use.module).get(use.name, "")
        is_dynamic &= bool(use.path) or not entry.startswith("import ")
        # The `apply` of autograd's Function takes no keyword argument.
        is_apply = use.kind == "argument" and definition is not None and definition.entry.endswith(".apply")
        results[2 if lookup.unfollowed or is_dynamic else bool(problem) or is_apply].append(version)
    return results


def api_with_companions(release: Release) -> ReleaseApi:
    """Return the API of a release, together with that of the companions of its time."""
    return api_of(release, *contemporaries_of(release))


def contemporaries_of(release: Release) -> tuple[Release, ...]:
    """Return the newest companions of a release's time; see `companions_of`."""
    return companions_of(release, until=upload_day(release) + timedelta(days=_LATER_DAYS))


@cache
def companions_of(release: Release, place: int = 0, until: date = date.max) -> tuple[Release, ...]:
    """Return a release of each package whose classes this release's classes extend.

    Args:
        release: The release; only releases that its requirements allow are returned.
        place: -1 for the oldest fitting release, else the newest.
        until: The day until which the returned release was uploaded.
    """
    companions: list[Release] = []
    for name in _COMPANIONS.get(release.package, ()):
        candidates = [Release(name, version) for version in find_releases(name, "")]
        fitting = (
            item
            for item in (candidates if place >= 0 else reversed(candidates))
            if upload_day(item) <= until and is_in_ranges(release, item)
        )
        companions += islice(fitting, 1)
    return tuple(companions)


def _defines_method(api: ReleaseApi, definition: Definition, use: Use) -> bool:
    """Return whether a release defines the method that a use calls; true for any other use."""
    if use.kind == "attribute" or len(use.path) < 2:
        return True
    return not definition.is_class or use.path[0] in api.members(definition).names


@cache
def requirements_of(release: Release) -> dict[str, list[tuple[SpecifierSet, str]]]:
    """Return the required ranges by package, each with the extra that requires it (empty for none)."""
    package, number = store.load(release.package), release_number(release)
    ranges: dict[str, list[tuple[SpecifierSet, str]]] = {}
    for line in package.metadata("requires", number) if number >= 0 else ():
        if (requirement := _parse_requirement(line)) is not None:
            name, specifier, extra = requirement
            ranges.setdefault(name, []).append((specifier, extra))
    return ranges


def python_range(release: Release) -> str:
    """Return the range of Python releases that a release requires; '' if it is unknown."""
    number = release_number(release)
    return next(iter(store.load(release.package).metadata("python", number)), "") if number >= 0 else ""


@cache
def _parse_requirement(line: str) -> tuple[str, SpecifierSet, str] | None:
    """Return the name, range and extra of a requirement; None if it is unreadable or not for this Python on Linux."""
    try:
        requirement = Requirement(line)
        extra = str(requirement.marker or "").partition("extra ==")[2].strip(" \"'").partition('"')[0]
        if requirement.marker and not requirement.marker.evaluate({"extra": extra, "sys_platform": "linux"}):
            return None
    except (ValueError, RecursionError):  # of packaging: invalid text, or a marker that cannot be evaluated
        return None
    return canonicalize_name(requirement.name), requirement.specifier, extra


def declared_ranges(user: Release, provider: str) -> list[tuple[SpecifierSet, str]]:
    """Return the ranges of a package that a release declares, without an extra first; for a plugin, its own number."""
    if is_built_for(user.package, provider):
        return [(SpecifierSet(f"=={Version(user.version).base_version}"), "")]
    ranges = requirements_of(user).get(provider, [])
    return sorted((item for item in ranges if str(item[0])), key=lambda item: item[1])


def plain_ranges(user: Release, provider: str) -> list[SpecifierSet]:
    """Return the ranges of a package that a release requires without an extra."""
    return [specifier for specifier, extra in declared_ranges(user, provider) if not extra]


def is_in_ranges(user: Release, provider: Release) -> bool:
    """Return whether a release is in the ranges that another one requires without an extra."""
    return all(in_range(provider.version, one) for one in plain_ranges(user, provider.package))


def is_built_for(user: str, provider: str) -> bool:
    """Return whether `user` is a plugin whose releases are for the provider's release of the same number."""
    return user in PACKAGES and PACKAGES[user].same_release_as == provider


def conflicts(first: Release, second: Release) -> Iterator[str]:
    """Yield a sentence for each third package of which no version number satisfies the requirements of both releases.

    Requirements of extras do not count; between a plugin and its package, nor do those of the CUDA build.
    """
    mine, theirs = requirements_of(first), requirements_of(second)
    without_cuda = is_built_for(first.package, second.package) or is_built_for(second.package, first.package)
    for name in sorted((mine.keys() & theirs.keys()) - (_CUDA_REQUIREMENTS if without_cuda else set())):
        ours = [specifier for specifier, extra in mine[name] if not extra]
        theirs_base = [specifier for specifier, extra in theirs[name] if not extra]
        if not ours or not theirs_base:
            continue
        if not satisfiable(map(str, (*ours, *theirs_base))):
            texts = [" or ".join(map(str, items)) for items in (ours, theirs_base)]
            yield f"{first} requires {name}{texts[0]}, {second} requires {name}{texts[1]}"


def compatibility(user: Release, provider: Release, trainers: Collection[Release] = ()) -> Compatibility:
    """Collect the evidence on two releases; `user` imports names from `provider`.

    If installed `trainers` wrap the user, its own runs and the ranges of its extras say nothing about the pair.
    """
    wrappers = tuple(it for it in trainers if user.package in FRAMEWORKS[it.package].wraps)
    ranges = [item for item in declared_ranges(user, provider.package) if not (wrappers and item[1])]
    binding = (
        [item for item in ranges if not item[1]]
        or [item for item in ranges if item[1] in {provider.package, module_of(provider.package)}]
        or ranges
    )
    accepting = [item for item in ranges if item[0].contains(provider.version, prereleases=True)]
    allowed = bool(set(binding) & set(accepting)) if binding else None
    if allowed is False and accepting and binding[0][1]:
        # Another extra accepts it, as OpenRLHF's `vllm-latest`: installable, and not what the package pins.
        allowed, binding = None, [*binding, *accepting]
    same_number = " (by its number)" if is_built_for(user.package, provider.package) else ""
    declared = tuple(f"{item}" + (f" (extra {extra})" if extra else same_number) for item, extra in binding)
    run, failures = ("", ()) if wrappers else published_run(user, provider)
    return Compatibility(user, provider, declared, allowed, run, failures, wrappers)


def published_run(user: Release, provider: Release) -> tuple[str, tuple[str, ...]]:
    """Return the published outcome of two releases and, for TRL with vLLM, the codes of issues in failed layers."""
    vllm = provider.version if provider.package == "vllm" else ""
    cell = _published_cells().get((user.package, user.version, vllm))
    if cell is None:
        return "", ()
    failed = cell.failed_layers() if cell.trl else []
    return cell.outcome, tuple(dict.fromkeys(code for layer in failed for code in layer.codes))


def transformers_of_run(trl: str, vllm: str) -> str:
    """Return the release of transformers with which a pair of TRL and vLLM ran; empty if it did not run."""
    cell = _published_cells().get(("trl", trl, vllm))
    return cell.ran_with("transformers") if cell and cell.outcome == "ran" else ""


@cache
def _published_cells() -> dict[tuple[str, str, str], compat_table.Cell]:
    """Return the published cells by trainer, its release, and that of vLLM."""
    table = compat_table.load()
    cells = (*table.cells, *table.trainer_cells)
    return {(cell.trainer, cell.trl or cell.version, cell.vllm): cell for cell in cells}


@dataclass
class Ranking:
    """Pairs of two packages' releases with their evidence, best first; contradicted pairs are last."""

    user: str
    provider: str
    pairs: list[Compatibility] = field(default_factory=list)

    @property
    def best(self) -> Compatibility | None:
        """The best pair; None if every pair is contradicted or could not be checked."""
        return next((pair for pair in self.pairs if pair.fits), None)


def rank_releases(users: list[Release], providers: list[Release]) -> Ranking:
    """Return all pairs of two packages' releases with their evidence, best first."""
    pairs = [compatibility(user, provider) for user in users for provider in providers]
    return Ranking(users[0].package, providers[0].package, sorted(pairs, key=lambda pair: pair.rank))
