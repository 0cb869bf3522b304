"""Build the API index, and list what new releases changed: `python -m diagnostics.api_index build [PACKAGE...]`.

`build` fetches new releases and prints what they removed that other packages still use. `changes --since DAY
--until DAY` prints the same for the releases that were uploaded after one day and until another, compared with the
other packages' releases of that time. It reads only the index.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from datetime import date
from itertools import pairwise

from diagnostics.api_index import query, store
from diagnostics.api_index.build import build
from diagnostics.api_index.packages import PACKAGES
from diagnostics.api_index.query import Release


def changes(provider: str, is_new: Callable[[Release], bool], until: date = date.max) -> Iterator[str]:
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
            pairs = [newest and query.check(newest, Release(provider, item)) for item in (before, version)]
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


def main() -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m diagnostics.api_index", description=(__doc__ or "").partition(":")[0]
    )
    parser.add_argument("command", choices=["build", "changes"])
    parser.add_argument("package", nargs="*", help="only these packages")
    parser.add_argument(
        "--offline", action="store_true", help="fetch nothing; write the files from the cache"
    )
    parser.add_argument(
        "--since", type=date.fromisoformat, help="`changes`: releases uploaded after this day"
    )
    parser.add_argument(
        "--until", type=date.fromisoformat, help="`changes`: releases uploaded until this day"
    )
    options = parser.parse_intermixed_args()
    if unknown := set(options.package) - PACKAGES.keys():
        parser.error(f"{', '.join(sorted(unknown))}: expected one of {', '.join(PACKAGES)}")
    names, since, until = options.package or list(PACKAGES), options.since, options.until or date.max
    if (options.command == "changes") != bool(since):
        parser.error("`changes` needs --since DAY, and `build` takes none")
    if since:
        for name in names:
            for line in changes(name, lambda item: query.upload_day(item) > since, until):
                print(line)
        return 0
    indexed = [Release(name, item) for name in names for item in query.find_releases(name, "")]
    for line in build(names, offline=options.offline):
        print(line, file=sys.stderr, flush=True)
    store.clear_cache()
    for name in dict.fromkeys(item.package for item in indexed):
        for line in changes(name, lambda item: item not in indexed):
            print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
