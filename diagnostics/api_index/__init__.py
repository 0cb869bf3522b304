"""The API index: what each release of the supported packages defines and requires, read from wheels, never run.

To build it: `packages` lists the packages to read, `archives` reads their wheels and sdists, `source` parses a file
safely, `extract` lists the names that a file defines, `uses` the names that it takes from other packages, and `build`
writes one file per package to `diagnostics/data/api/`.

To look up: `store` reads these files, `release_api` finds names, members and parameters in one release, `options` the
options of its commands. `compare` checks the uses of one release against the names of another, `rules` adds behaviour
that names do not show, and `query` ranks pairs of releases.

For `lint`, `guards` extracts each failing check with its conditions, and `guard_lookup` finds those that a run passes.

`explain` explains an error about a missing name. For it, `error_forms` matches the message, `class_lookup` finds the
class, `name_releases` the releases with the name, and `callers` the packages
that use it. `fitting_releases` narrows the recommended releases to those that fit the other packages.
"""
