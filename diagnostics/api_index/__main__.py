"""Build the API index, and list what new releases changed: `python -m diagnostics.api_index build [PACKAGE...]`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from itertools import pairwise

from diagnostics.api_index import query, store
from diagnostics.api_index.build import build
from diagnostics.api_index.packages import PACKAGES
from diagnostics.api_index.query import Release


def changes(provider: str, known: set[str]) -> Iterator[str]:
    """Yield one line per name that a new release removed and that the newest release of an indexed package still uses.

    Args:
        provider: Package whose new releases are compared with the releases before them.
        known: Releases that are not new.
    """
    releases = query.find_releases(provider, "")
    for version, before in pairwise(releases):
        if version in known:
            continue
        for user in store.indexed_packages():
            newest = Release(user, query.find_releases(user, "")[0])
            pairs = [query.check(newest, Release(provider, item)) for item in (before, version)]
            if pairs[0] is None or pairs[1] is None:
                continue
            old, new = ({item.use.text: item for item in pair.missing} for pair in pairs if pair)
            for name in sorted(new.keys() - old.keys()):
                yield f"{provider} {version} removed {name}, which {newest} takes ({new[name].location})"


def main() -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m diagnostics.api_index", description=(__doc__ or "").partition(":")[0]
    )
    parser.add_argument("command", choices=["build"])
    parser.add_argument("package", nargs="*", help="only these packages")
    parser.add_argument(
        "--offline", action="store_true", help="fetch nothing; write the files from the cache"
    )
    options = parser.parse_intermixed_args()
    if unknown := set(options.package) - PACKAGES.keys():
        parser.error(f"{', '.join(sorted(unknown))}: expected one of {', '.join(PACKAGES)}")
    names = options.package or list(PACKAGES)
    known = {name: set(query.find_releases(name, "")) for name in names}
    for line in build(names, offline=options.offline):
        print(line, file=sys.stderr, flush=True)
    store.clear_cache()
    for name in names:
        for line in changes(name, known[name]) if known[name] else ():
            print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
