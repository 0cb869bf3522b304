"""The API index: what each release of the supported packages defines and requires, read from wheels, never run.

`extract` reads one source file, `archives` reads wheels and sdists, `build` writes one file per package to
`diagnostics/data/api/`, `store` reads them. `surface` answers which names, members and arguments a release has, `uses`
which names a package takes from another, `compare` puts both together, `members` finds the class that an error names,
and `options` lists what a command accepts.
"""
