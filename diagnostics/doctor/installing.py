"""Installing and removing packages in the environment at hand, as actions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnostics.report.remedies import Install, Uninstall

if TYPE_CHECKING:
    from diagnostics.facts.environment import Environment


def install(environment: Environment, *requirements: str, options: tuple[str, ...] = ()) -> Install:
    """What installs something here, by the installer in use."""
    return Install(requirements, environment.installer("install"), options)


def uninstall(environment: Environment, *names: str) -> Uninstall:
    """What removes packages here."""
    return Uninstall(names, environment.installer("uninstall"))
