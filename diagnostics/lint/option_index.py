"""Look up options of a framework's releases, in the API index or in the project's own copy; compare a run's options.

- Options of a release: `is_indexed_release`, `option_names`, `exact_options`, `release_span`, `lacks_option`; in
  a run's release, `missing_option` describes one that is missing, and `experimental_options` returns those of verl's
  programs.
- Options of a run: `options_to_check`, `added_options`, `refused_options`, `doubtful_options`, `unindexed_part`, and
  `releases_with_all`, which returns the releases that have all of them.
- Names: `accepts` and `complete_option` match as argparse does; `suggest` and `find_successors` find similar options,
  `equivalent_option` finds one of the same meaning, and `foreign_framework` the framework of another's option.

`expand_abbreviations` and `presume_misspelt` change the settings of a run. For a framework whose repository was read,
`known_release` returns the release whose options are certain.
"""

import difflib
import re
from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping
from functools import cache, lru_cache

from packaging.version import Version

from diagnostics.api_index import query, store
from diagnostics.api_index.options import command_options, is_declared
from diagnostics.frameworks import DISPLAY_NAMES, FRAMEWORKS, parser_of, uses_overrides
from diagnostics.lint.command_lines import LAUNCHERS
from diagnostics.lint.dialects import DIALECTS
from diagnostics.lint.run_plan import RunPlan
from diagnostics.lint.values import TYPED_FILES, Settings, Value
from diagnostics.versions import in_range

# Similarity from which a name counts as misspelt, for `difflib`.
_SIMILARITY = 0.84
# The same where the name may also be that of a script's own option.
_MISSPELT = 0.9
# Characters in a Hydra option that chooses a file for a part of the config.
_GROUP_MARKS = set("@/")
_LAUNCHER_OPTION = re.compile(LAUNCHERS["passed_options"])


@cache
def _spans(package: str, document: str = "options") -> Mapping[str, tuple[Version, Version]]:
    """Return the first and the last release that have each option, of a document `options` or `serve`."""
    index, spans = store.load_options(package), {}
    releases = [*map(Version, index.releases)]
    for name, packed in index.document(document).items():
        texts = " ".join(packed) if isinstance(packed, dict) else "0-"
        numbers = store.expand_spans(texts, len(releases))
        spans[name] = releases[numbers[0]], releases[numbers[-1]]
    return spans


def is_indexed(framework: str) -> bool:
    """Return whether the index has the options of a framework."""
    return bool(store.load_options(framework).document("options"))


def is_repository(framework: str) -> bool:
    """Return whether the index has the options of all commits of a framework's repository; names of others are wrong.

    >>> is_repository("areal"), is_repository("trl")
    (True, False)
    """
    return bool(store.load_options(framework).packed(store.OPTIONS_MODULE))


def known_release(plan: RunPlan) -> Version | None:
    """Return the release whose options a run may have; None if it is unknown.

    For a framework whose repository is indexed, the release of a project's own copy does not count, because the copy
    may be of a later commit, and neither does one that is not indexed.
    """
    name = plan.option_package
    release = plan.versions.known.get(name)
    if not is_repository(name):
        return release
    is_other = plan.own_copy or re.match(DIALECTS[name].unindexed_targets, plan.settings.target)
    return None if is_other or not is_indexed_release(name, release) else release


@cache
def option_names(framework: str, role: str = "train") -> frozenset[str]:
    """Return the options that any release of the framework, or of a package whose options it takes, has.

    For the role `serve`, they are those of the framework's server, if the index has these.
    """
    if role == "serve" and (served := _spans(framework, "serve")):
        return frozenset(served)
    packages = (framework, *FRAMEWORKS[framework].option_packages) if is_indexed(framework) else ()
    unindexed = DIALECTS[framework].unindexed_options if framework == "vllm" else ()
    seen = store.load_options(framework).document("seen")
    return frozenset(name for package in packages for name in _spans(package)).union(unindexed, seen)


def exact_options(package: str, role: str, release: str) -> frozenset[str]:
    """Return the options of an indexed release, without options of other packages; empty if it is not indexed."""
    index = store.load_options(package)
    number = index.number(release)
    document = (role == "serve" and index.document("serve")) or index.document("options")
    return frozenset() if number is None else frozenset(store.UnpackedValues(document, number))


def options_to_check(settings: Settings) -> list[Value]:
    """Return the options that the framework's parser checks: no config files, prefixed keys or launchers' options."""
    # OpenRLHF's commands take no options of accelerate's launcher.
    has_launcher = parser_of(settings.framework) != "argparse"
    return [
        value
        for key, value in settings.options.items()
        if value.key == key
        and not settings.prefixes.get(key)  # a presumed option has the misspelt key
        and not key.startswith(("@", "-", "deepspeed.", "hydra", "megatron"))
        and not _GROUP_MARKS & set(key)
        and not {key, f"{settings.framework}:{key}"}.intersection(LAUNCHERS["parser_options"])
        and not (has_launcher and _LAUNCHER_OPTION.match(key))
    ]


def added_options(settings: Settings) -> list[Value]:
    """Return the known values that a command adds at dotted keys by Hydra's `+`, without lists, tables and groups."""
    return [
        value.with_key(key)
        for key, value in settings.options.items()
        if settings.prefixes.get(key) == "+"
        and "." in key
        and not _GROUP_MARKS & set(key)
        and value.known
        and not isinstance(value.data, list | dict)
        and not str(value.data).startswith(("[", "{"))
    ]


def unindexed_part(settings: Settings, names: Collection[str]) -> tuple[str, list[Value]]:
    """Return a description of the part of the config whose options are not indexed, and the run's options in this part.

    Such a part is the config of a `model_engine` of verl, or the sections for roles in ms-swift's YAML.
    """
    if FRAMEWORKS[settings.framework].sections:
        return "its sections for roles", [value for value in options_to_check(settings) if "." in value.key]
    engine = settings.options.get("model_engine")
    part = f".{engine.data}." if engine is not None and engine.known else ""
    if not part or any(part in name for name in names):
        return "", []
    values = [value for value in options_to_check(settings) if part in value.key]
    return f"the config of model_engine={part.strip('.')}", values


def accepts(name: str, names: Collection[str], *, nested: bool = False, abbreviated: bool = True) -> bool:
    """Return whether a parser with these options accepts an option.

    `no_` before an option counts as accepted, as in argparse, and `disable_` for `enable_`, as in vLLM.

    >>> accepts("no_use_vllm", {"use_vllm"}), accepts("vllm_mod", {"vllm_mode"}), accepts("vlm_mode", {"vllm_mode"})
    (True, True, False)

    Args:
        name: The option.
        names: The parser's options.
        nested: Whether an option that is a table may contain any key.
        abbreviated: Whether the parser accepts an unambiguous prefix of an option, as argparse does.
    """
    if not {name, name.removeprefix("no_"), re.sub("^disable_", "enable_", name)}.isdisjoint(names):
        return True
    if in_open_table(name, names):
        return True
    if nested:
        tables = [name[:at] for at, char in enumerate(name) if char == "." and name[:at] in names]
        # A table of the config itself has a fixed set of keys.
        if tables and not any(option.startswith(f"{tables[-1]}.") for option in names):
            return True
    return abbreviated and complete_option(name, names) is not None


def in_open_table(name: str, names: Collection[str]) -> bool:
    """Return whether a dotted option is in a table that takes any key, which `names` has as `table.*`."""
    return any(char == "." and f"{name[:at]}.*" in names for at, char in enumerate(name))


@cache
def open_tables(package: str, release: str) -> frozenset[str]:
    """Return the tables of a release that take any key, as `table.*`; only an index of a repository knows them."""
    names = exact_options(package, "train", release) if is_repository(package) else ()
    return frozenset(name for name in names if name.endswith(".*"))


def refused_options(settings: Settings, names: Collection[str], *, nested: bool = False) -> list[Value]:
    """Return the options of a run that a parser with these options does not accept; see `accepts`."""
    parser = parser_of(settings.framework)
    has_tables = parser != "hydra" or is_repository(settings.framework)
    completes = parser not in {"hydra", "omegaconf", "pydantic"}
    # Python completes no keyword, and TRL no key of a config file.
    as_written = TYPED_FILES if settings.framework in {"trl", "unsloth"} else ".py"

    def is_accepted(value: Value) -> bool:
        abbreviated = completes and not value.place.file.endswith(as_written)
        return accepts(value.key, names, nested=nested and has_tables, abbreviated=abbreviated)

    return [value for value in options_to_check(settings) if not is_accepted(value)]


def doubtful_options(plan: RunPlan) -> dict[str, tuple[Value, str, str]]:
    """Return the options that a run of TRL or verl sets and its release lacks or no release has.

    The result has the value, what is wrong and the option to use, or "", by name. Options that the framework's own
    parser or Python refuses are not among them. Neither are those that the script declares, unless verl's main program
    reads them. A run with its own copy of the framework has none.
    """
    name, settings, found = plan.framework, plan.settings, {}
    reads_config = name == "verl" and settings.target in {"", "verl.trainer.main_ppo"}
    if plan.own_copy or name not in {"trl", "verl"}:
        return {}
    names, release = option_names(name, plan.role), plan.versions.known.get(name)
    unknown = {value.key for value in refused_options(settings, names, nested=True)}
    roots = {option.partition(".")[0] for option in exact_options(name, plan.role, str(release or "0"))}
    for value in options_to_check(settings):
        declared = value.key in settings.script_options
        refused = settings.framework_parser and not is_skipped(plan, value)
        if refused or value.place.file.endswith(".py") or (declared and not reads_config):
            continue
        if release is not None and lacks_option(name, value.key, release):
            span = release_span(name, value.key)
            # Keys of users and of experimental programs may come to verl later, in a section that it has before.
            if name == "trl" or value.key.partition(".")[0] not in roots or (span and span[1] < release):
                clause, new_name = missing_option(name, plan.role, value.key, release)
                found[value.key] = value, f"{name} {release} has no option {clause}", new_name
        elif declared or value.key not in unknown:
            continue
        elif other := foreign_framework(name, plan.role, value.key):
            owner = [*DIALECTS[name].classes, name][0]
            clause = f"{value.key} is an option of {other}, not of {owner}"
            found[value.key] = value, clause, equivalent_option(plan, value.key, release)
        elif similar := _similar_option(value.key, names, hydra=name == "verl"):
            lacks_similar = release is not None and lacks_option(name, similar, release)
            if _is_moved(value.key, similar) and (not reads_config or lacks_similar):
                continue  # a key of the user's own config
            clause = f"{value.key} is no option of {DISPLAY_NAMES[name]}; {similar} is"
            found[value.key] = value, clause, similar
    return found


def foreign_framework(framework: str, role: str, name: str) -> str:
    """Return the display name of the framework that has an option; empty if unknown, or if it is a common word.

    >>> foreign_framework("trl", "train", "ppo_mini_batch_size"), foreign_framework("trl", "train", "seeds")
    ('verl', '')
    """
    section, dot, last = name.rpartition(".")
    others = (other for other in ("verl", "easyr1") if other != framework and name in option_names(other))
    in_section = not dot or any(option.startswith(f"{section}.") for option in option_names(framework, role))
    if role != "train" or bool(dot) != uses_overrides(framework):
        return ""
    of_last = _foreign_names(framework).get(last, "") if in_section else ""
    return next((DISPLAY_NAMES[other] for other in others), of_last)


@cache
def _foreign_names(framework: str) -> Mapping[str, str]:
    """Return the last parts of the options that other trainers have and a framework has not, with their trainer."""
    own = {option.rpartition(".")[2] for option in (*option_names(framework), *DIALECTS[framework].names)}
    return {
        last: DISPLAY_NAMES[name]
        for name in sorted(DIALECTS, key=lambda name: -FRAMEWORKS[name].order)
        for option in (*DIALECTS[name].names, *DIALECTS[name].loss_options)
        if FRAMEWORKS[name].is_trainer and name != "own" and (last := option.rpartition(".")[2]) not in own
        # A flat name may also be that of a user's own option.
        if last.count("_") > (not uses_overrides(framework) and option not in DIALECTS[name].loss_options)
    }


def _similar_option(name: str, names: frozenset[str], *, hydra: bool) -> str:
    """Return the option that a misspelt one most likely means; empty if it is none or a script's own option."""
    similar = suggest(name, names)
    if hydra:
        return (
            similar
            if similar.rpartition(".")[0] == name.rpartition(".")[0] or _is_moved(name, similar)
            else ""
        )
    # Scripts have options such as `hub_model_revision` and `push_to_hf`; a misspelt name is closer to one of TRL.
    is_close = difflib.SequenceMatcher(None, name, similar).ratio() > _MISSPELT or name == f"{similar}s"
    own = similar.startswith("dataset") or similar.count("_") != name.count("_") or not is_close
    return "" if own and name.replace("_", "") != similar.replace("_", "") else similar


def _is_moved(name: str, other: str) -> bool:
    """Return whether two dotted options differ only in that one is in a table of the other one's table."""
    (head, _, last), (other_head, _, other_last) = name.rpartition("."), other.rpartition(".")
    return last == other_last and (
        head.rpartition(".")[0] == other_head or other_head.rpartition(".")[0] == head
    )


def is_skipped(plan: RunPlan, value: Value) -> bool:
    """Return whether the parser skips a value with an unknown key: TRL before 0.19 does so in a config file."""
    in_file = value.place.file.endswith((".yaml", ".yml"))
    return plan.framework == "trl" and in_file and plan.versions.within("trl", "<0.19") is True


def missing_option(package: str, role: str, name: str, release: Version) -> tuple[str, str]:
    """Return a clause about an option that a release lacks, and the one option that may replace it, else ""."""
    first, last = release_span(package, name, role) or (release, release)
    nearest = str(last if last < release else first)
    old, new = exact_options(package, role, nearest), exact_options(package, role, str(release))
    found, exact = find_successors(name, old, new), query.Release(package, str(release))
    # The index of verl has the options of several configs; that of its main program has fewer.
    successors = [key for key in found if key != name and (package != "verl" or is_declared(exact, key))]
    span = f"last in {last}" if last < release else f"first in {first}"
    return f"{name} ({span})", successors[0] if len(successors) == 1 else ""


def equivalent_option(plan: RunPlan, name: str, release: Version | None) -> str:
    """Return the framework's option with the meaning that `name` has in others, unless it is set; empty if none."""
    framework = plan.framework
    meanings = {dialect.names.get(name) for dialect in DIALECTS.values()} - {None}
    names_model = any(name in dialect.model_options for dialect in DIALECTS.values())
    equivalents = [option for option, meaning in DIALECTS[framework].names.items() if {meaning} == meanings]
    equivalents += DIALECTS[framework].model_options if names_model else ()
    return next(
        (
            option
            for option in equivalents
            if option in option_names(framework, plan.role)
            and not (release and lacks_option(framework, option, release, plan.role))
            and option not in plan.options
        ),
        "",
    )


def may_be_added(plan: RunPlan, name: str, similar: str) -> bool:
    """Return whether a fork, a script or a file may have added an option that no commit of the repository has.

    A fork adds options anywhere, and a file keys of its own beside the tables of the config, to which its values refer.
    A misspelt option, with the similar one that it most likely means, and that of another framework are none of these.
    """
    package = plan.option_package
    effect, in_table = DIALECTS[package].unknown_options, name.partition(".")[0] in option_names(package)
    if not is_repository(package) or (effect != "passed" and foreign_framework(package, plan.role, name)):
        return False
    if plan.option(*DIALECTS[package].extending_options):
        return True
    if similar:
        if effect == "passed" and "." in name and not in_table:
            return True
        is_close = difflib.SequenceMatcher(None, name, similar).ratio() > _MISSPELT
        return not is_close and (effect == "passed" or (effect == "skipped" and not in_table))
    return known_release(plan) is None or effect in {"passed", "extended"} or not in_table


def experimental_options(plan: RunPlan) -> frozenset[str]:
    """Return the keys that the configs of an experimental program of verl add to verl's own; empty for others."""
    release, module = plan.releases.get("verl"), plan.settings.target.rpartition(".")[0]
    if plan.framework != "verl" or not module.startswith("verl.experimental.") or release is None:
        return frozenset()
    api, folder = query.api_of(query.Release("verl", release)), f"{module.replace('.', '/')}/config/"
    files = (name for name in api.source.modules() if name.startswith(folder))
    return frozenset(key for name in files for key in api.facts(name))


def complete_option(name: str, names: Collection[str]) -> str | None:
    """Return the only option with this prefix, as argparse completes it; None if there is none or several."""
    ordered = _sorted_names(frozenset(names))
    at = bisect_left(ordered, name)
    matches = [option for option in ordered[at : at + 2] if option.startswith(name)]
    return matches[0] if len(matches) == 1 else None


@cache
def _sorted_names(names: frozenset[str]) -> list[str]:
    return sorted(names)


def presume_misspelt(settings: Settings) -> None:
    """Set the option that a misspelt one most likely means, so that one mistake causes one finding."""
    package = DIALECTS[settings.framework].extends or settings.framework
    is_refused = DIALECTS[package].unknown_options in {"refused", "extended"}
    if not settings.framework_parser or not is_indexed(package) or settings.role == "other" or not is_refused:
        return
    names = option_names(package, settings.role)
    for value in refused_options(settings, names, nested=True):
        similar = suggest(value.key, names) if value.key not in settings.script_options else ""
        if similar:
            settings.options.setdefault(similar, value)


def expand_abbreviations(settings: Settings, release: Version | None) -> None:
    """Replace abbreviated options in the settings by their full names, if argparse reads the options of the run."""
    framework = settings.framework
    completes = parser_of(framework) in {"argparse", "dataclasses"} and settings.framework_parser
    if not completes or DIALECTS[framework].unknown_options == "passed":
        return
    names = option_names(framework, settings.role)
    if release:
        names = frozenset(name for name in names if not lacks_option(framework, name, release, settings.role))
    if settings.role == "other":
        names = command_options(query.Release(framework, str(release or ""), settings.command))
    for key, value in list(settings.options.items()):
        written = value.place.file.endswith((".yaml", ".yml", ".json", ".py"))
        if key in names or written or key.removeprefix("no_") in names or key in LAUNCHERS["parser_options"]:
            continue
        full = complete_option(key, names)
        if full is not None and full not in settings.options and len(key) > 1:
            del settings.options[key]
            settings.set(full, value)


def is_indexed_release(package: str, release: Version | None) -> bool:
    """Return whether a release is in the index."""
    return (
        is_indexed(package) and release is not None and str(release) in store.load_options(package).releases
    )


def release_span(package: str, name: str, role: str = "train") -> tuple[Version, Version] | None:
    """Return the first and the last release that have an option; None if no release has it.

    For the role `serve` it is an option of the framework's server, if the index has these.
    """
    served = _spans(package, "serve") if role == "serve" else {}
    return (served or _spans(package)).get(name)


def _is_companion_option(package: str, name: str) -> bool:
    """Return whether the framework takes an option from another package, such as transformers."""
    return any(release_span(companion, name) for companion in FRAMEWORKS[package].option_packages)


def releases_with_all(
    package: str, wanted: Iterable[str], role: str = "train"
) -> tuple[list[str], tuple[Version, ...]]:
    """Return the options of `wanted` that some release lacks, and the releases that have all of them.

    Releases before FIRST_FOR_GRPO don't count, nor options that no release has or that come from another package, such
    as transformers. Both are empty if each release has all options, or the package is not indexed.
    """
    indexed = map(Version, store.load_options(package).releases)
    releases = [release for release in indexed if release >= query.FIRST_FOR_GRPO.get(package, release)]
    spans = {name: span for name in wanted if (span := release_span(package, name, role))}
    partial = {
        name: (first, last)
        for name, (first, last) in spans.items()
        if (first > releases[0] or last < releases[-1]) and not _is_companion_option(package, name)
    }
    if not partial:
        return [], ()
    first, last = max(span[0] for span in partial.values()), min(span[1] for span in partial.values())
    return list(partial), tuple(release for release in releases if first <= release <= last)


def surely_within(plan: RunPlan, package: str, specifier: str) -> bool:
    """Return whether a release is in a range; if it is unknown, whether all releases with the run's options are."""
    known = plan.versions.within(package, specifier)
    if (
        known is not None
        or package != plan.option_package
        or plan.own_copy
        or not plan.settings.framework_parser
    ):
        return bool(known)
    options = [value.key for value in options_to_check(plan.settings)]
    _partial, releases = releases_with_all(package, options, plan.role)
    return bool(releases) and all(in_range(release, specifier) for release in releases)


def lacks_option(package: str, name: str, release: Version, role: str = "train") -> bool:
    """Return whether an indexed release lacks an option that other releases have."""
    span = release_span(package, name, role)
    if span is None or not is_indexed_release(package, release):
        return False
    if "." in name and in_open_table(name, open_tables(package, str(release))):
        return False
    # vLLM accepts `disable_x` where it has `enable_x`.
    opposite = release_span(package, re.sub("^disable_", "enable_", name)) if package == "vllm" else None
    has_option = any(first <= release <= last for first, last in {span, opposite or span})
    if has_option or _is_companion_option(package, name):
        return False
    # An empty table of Hydra's config takes any key.
    names = exact_options(package, role, str(release)) if "." in name else frozenset()
    return not accepts(name, names, nested=parser_of(package) == "hydra", abbreviated=False)


@lru_cache(4096)
def suggest(name: str, names: frozenset[str]) -> str:
    """Return the most similar option to a misspelt name; empty if none is similar.

    >>> suggest("num_generation", frozenset({"num_generations", "seed"})), suggest("seeds", frozenset({"beta"}))
    ('num_generations', '')
    """
    head, dot, last = name.rpartition(".")
    # A dotted name is nearly always wrong only in its last part.
    siblings = [option for option in names if option.rpartition(".")[0] == head]
    last_parts = [option.rpartition(".")[2] for option in siblings]
    if match := difflib.get_close_matches(last, last_parts, 1, _SIMILARITY):
        return head + dot + match[0]
    if siblings and dot:
        # A key that is indented one level too far, or not far enough.
        moved = [option for option in names if _is_moved(name, option)]
        return moved[0] if len(moved) == 1 else ""
    match = difflib.get_close_matches(name, names, 1, _SIMILARITY) if not siblings else []
    return match[0] if match else ""


def find_successors(name: str, old: frozenset[str], new: frozenset[str]) -> list[str]:
    """Return at most three options of the new release that may replace an option that it does not have.

    >>> find_successors("ray.num_cpus", frozenset({"ray.num_cpus"}), frozenset({"ray_kwargs.ray.num_cpus", "seed"}))
    ['ray_kwargs.ray.num_cpus']
    """
    added = sorted(new - old)
    head, last = name.partition(".")[0], name.rpartition(".")[2]
    moved = [option for option in added if option.endswith(f".{name}") or option.replace(".", "_") == name]
    if head != last and not moved:
        moved = [option for option in added if option.startswith(f"{head}.") and option.endswith(f".{last}")]
    close = suggest(name, new - old) or suggest(name, new)
    if close and not moved and close.rpartition(".")[0] == name.rpartition(".")[0]:
        moved = [close]
    return moved[:3]
