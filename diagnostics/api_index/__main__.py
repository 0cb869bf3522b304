"""Build the API index, and list what new releases removed: `python -m diagnostics.api_index build [PACKAGE...]`.

`build` fetches new releases (none with `--offline`) and prints what they removed that other packages still use. It
prints nothing about a package that was not in the index before. If a package could not be built, the exit code is 3.
`changes --since DAY [--until DAY] [PACKAGE...]` prints the same for releases uploaded after the first day and until the
second, compared with the newest releases that other packages had on the second day. It reads only the index.
"""

import sys
from collections.abc import Callable, Iterable, Iterator
from datetime import date, datetime
from itertools import pairwise

import click

from diagnostics.api_index import query, store
from diagnostics.api_index.build import NOT_BUILT, build
from diagnostics.api_index.packages import PACKAGES
from diagnostics.api_index.query import Release
from diagnostics.cli import run_command
from diagnostics.findings import FINE, INCOMPLETE


def changes(provider: str, is_new: Callable[[Release], bool], until: date) -> Iterator[str]:
    """Yield one line per name that a new release removed and that the newest release of an indexed package still uses.

    Args:
        provider: Package whose new releases are compared with the releases before them.
        is_new: Whether a release of the provider is new.
        until: Later releases are ignored.
    """
    releases = releases_until(provider, until)
    for version, before in pairwise(releases):
        if not is_new(Release(provider, version)):
            continue
        for user in store.indexed_packages():
            newest = next((Release(user, item) for item in releases_until(user, until)), None)
            pairs = [
                newest and query.compare_names(newest, Release(provider, item)) for item in (before, version)
            ]
            if pairs[0] is None or pairs[1] is None:
                continue
            old, new = ({item.use.text: item for item in pair.missing} for pair in pairs if pair)
            for name in sorted(new.keys() - old.keys()):
                yield f"{provider} {version} removed {name}, which {newest} takes ({new[name].location})"


def releases_until(package: str, until: date) -> list[str]:
    """Return the indexed releases of a package that were uploaded until that day, the highest version first."""
    return [
        item for item in query.find_releases(package, "") if query.upload_day(Release(package, item)) <= until
    ]


@click.command(help=(__doc__ or "").partition(":")[0] + ".")
@click.argument("action", type=click.Choice(["build", "changes"]))
@click.argument("names", metavar="[PACKAGE]...", nargs=-1, type=click.Choice(list(PACKAGES)))
@click.option("--offline", is_flag=True, help="Fetch nothing; write the files from the cache.")
@click.option(
    "--since", type=click.DateTime(["%Y-%m-%d"]), help="`changes`: releases uploaded after this day."
)
@click.option(
    "--until", type=click.DateTime(["%Y-%m-%d"]), help="`changes`: releases uploaded until this day."
)
def command(
    action: str, names: tuple[str, ...], offline: bool, since: datetime | None, until: datetime | None
) -> int:
    """Run `build` or `changes`, and return the exit code: 3 if a package could not be built."""
    if (action == "changes") != bool(since):
        raise click.UsageError("`changes` needs --since DAY, and `build` takes none")
    names = names or tuple(PACKAGES)
    if since:
        last = until.date() if until else date.max
        print_changes(names, lambda item: query.upload_day(item) > since.date(), last)
        return FINE
    indexed = [Release(name, item) for name in names for item in query.find_releases(name, "")]
    code = FINE
    for line in build(names, offline=offline):
        print(line, file=sys.stderr, flush=True)
        code = INCOMPLETE if NOT_BUILT in line else code
    store.clear_cache()
    print_changes(dict.fromkeys(item.package for item in indexed), lambda item: item not in indexed)
    return code


def print_changes(names: Iterable[str], is_new: Callable[[Release], bool], until: date = date.max) -> None:
    """Print the names that new releases of some packages removed and that other packages still use."""
    for name in names:
        for line in changes(name, is_new, until):
            print(line)


if __name__ == "__main__":
    sys.exit(run_command(command, None, "python -m diagnostics.api_index"))
