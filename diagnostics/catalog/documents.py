"""Build the JSON documents of `explain` and `catalog` from catalog entries; terminal and Markdown use them, too.

`issue_document` and `check_document` return the document of one entry, `catalog_document` that of all.
"""

from collections.abc import Iterable
from typing import Any

import msgspec

from diagnostics.catalog import model
from diagnostics.catalog.schema import SCHEMA
from diagnostics.fixes import Fix

LISTING = "grpo-doctor.catalogue.v1"
# Kind of a check's code; a known issue's kind is crash, hang or silent.
CHECK = "check"


def issue_document(issue: model.Issue, fix: Fix) -> dict[str, Any]:
    """Return the document of a known issue.

    Its key `offered` has the names of the mitigations that may help, best first; `does_not_help` has the others.
    """
    return {
        "schema": SCHEMA,
        **msgspec.to_builtins(issue),
        "family": model.FAMILIES[issue.code[:3]],
        "causes": [],
        "offered": [offer.mitigation for offer in fix.offers],
        "does_not_help": [offer.mitigation for offer in fix.does_not_help],
    }


def check_document(entry: model.CheckCode) -> dict[str, Any]:
    """Return the document of a check code: the keys of a known issue, empty if a check code has no such value.

    The keys `hang` and `not_run` are missing. `causes` has the likely causes with the option to change by framework.
    """
    lists = ("components", "frameworks", "affected", "config", "mitigations", "references", "triggers")
    values = msgspec.to_builtins(entry)
    return {
        "schema": SCHEMA,
        "cause": values.pop("about"),
        **values,
        "kind": CHECK,
        "status": CHECK,
        "family": model.FAMILIES[entry.code[:3]],
        "since": "",
        "detail": "",
        "signature": None,
        **{key: [] for key in (*lists, "offered", "does_not_help")},
    }


def catalog_document(issues: Iterable[model.Issue], checks: Iterable[model.CheckCode]) -> dict[str, Any]:
    """Return the document with all codes: known issues, and separately the check codes."""
    keys = ("code", "kind", "status", "title")
    return {
        "schema": LISTING,
        "issues": [{key: getattr(item, key) for key in keys} for item in issues],
        "checks": [{"code": item.code, "title": item.title} for item in checks],
    }
