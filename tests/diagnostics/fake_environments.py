"""Build fake Python environments on disk and fake cells of the compatibility table, and load the catalog once."""

import functools
from pathlib import Path

from diagnostics import catalog
from diagnostics.compat_table import Cell, Layer


@functools.cache
def load_catalog():
    """Return the known issues of the shipped catalog, which are loaded once per process."""
    return catalog.load()


class EnvironmentBuilder:
    """A builder of an environment of Python 3.11: pyvenv.cfg, an interpreter that fails, and package metadata.

    Attributes:
        prefix: The folder of the environment.
        site: Its site-packages folder.
    """

    def __init__(self, prefix: Path) -> None:
        self.prefix = prefix
        self.site = prefix / "lib" / "python3.11" / "site-packages"
        self.site.mkdir(parents=True)
        (prefix / "pyvenv.cfg").write_text("home = /usr/bin\nversion = 3.11.7\n")
        (prefix / "bin").mkdir()
        # The name `python` has no release: pyvenv.cfg above sets it, for any Python that runs the tests.
        (prefix / "bin" / "python").write_text("#!/bin/sh\nexit 1\n")

    def add(self, name, version, *, requires=(), installer="pip", module=None, folder=None):
        """Add a distribution's METADATA and INSTALLER files, and its module if its source is given.

        The files are in `folder`; by default in NAME-VERSION.dist-info, with `_` for `-` in the name.

        Returns:
            The builder, so that calls can be chained.
        """
        info = self.site / (folder or f"{name.replace('-', '_')}-{version}.dist-info")
        info.mkdir()
        lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
        (info / "METADATA").write_text(
            "\n".join([*lines, *(f"Requires-Dist: {line}" for line in requires)]) + "\n"
        )
        (info / "INSTALLER").write_text(installer)
        if module is not None:
            (self.site / f"{name}.py").write_text(module)
        return self


def cell(vllm, trl, verdict="pass", torch="2.8.0", **layers):
    """Return a cell of the compatibility table, whose layers `resolve` and `contract` pass unless others are given.

    A layer is (verdict, evidence[, packages that it ran with]).
    """
    layers = {"resolve": ("pass", "static"), "contract": ("pass", "static"), **layers}
    names = ("verdict", "evidence", "ran_with")
    results = {
        name: Layer(codes=[], date=None, **dict(zip(names, layer, strict=False)))
        for name, layer in layers.items()
    }
    return Cell(f"vllm-{vllm}+trl-{trl}", vllm, verdict, results, trl, torch=torch)
