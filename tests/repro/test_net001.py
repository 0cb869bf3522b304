"""NET001 applies to the affected releases, and reproduces with a real application if one is installed.

NET001: a server with Prometheus' FastAPI middleware answers every request with status 500.
"""

import os
from pathlib import Path

import pytest

from repro.issues import net001 as repro
from tests.cells import read_attempts, run_with


@pytest.mark.parametrize(
    ("fastapi", "middleware", "reason"),
    [
        ("0.137.0", "8.0.0", None),
        ("0.165.0", "7.1.0", None),
        ("0.136.3", "7.1.0", "copies a router's routes"),
        ("0.165.0", "8.0.1", "passes over routes"),
        ("1.0.0", "8.1.0", "passes over routes"),
    ],
)
def test_affected_releases(monkeypatch, fastapi, middleware, reason):
    """NET001 applies to FastAPI from 0.137 on with a middleware up to 8.0.0."""
    versions = {"fastapi": fastapi, "prometheus-fastapi-instrumentator": middleware}
    monkeypatch.setattr(repro.metadata, "version", versions.__getitem__)
    result = repro.inapplicable()
    assert result is None if reason is None else reason in result


@pytest.mark.slow
@pytest.mark.heavy
def test_real_application_answers_500_with_the_middleware():
    """The failure is reproduced; removing the middleware or adding routes to the application helps.

    GRPO_DOCTOR_FASTAPI is the Python of an environment made from repro/fastapi.txt.
    """
    python = Path(os.environ.get("GRPO_DOCTOR_FASTAPI", ""))
    if not python.is_file():
        pytest.skip("no GRPO_DOCTOR_FASTAPI: the Python of an environment made from repro/fastapi.txt")
    attempts = read_attempts(run_with(python, "-m", "repro", "run", "NET001", "--json"), "NET001")
    result = {name: attempt for (_, name), attempt in attempts.items()}
    assert (result[None]["outcome"], result[None]["function"]) == ("reproduced", repro.FUNCTION)
    assert result["excluded_handlers"]["outcome"] == "not_mitigated"
    for name in ("no_middleware", "routes_on_app"):
        assert (result[name]["outcome"], result[name]["finished"]) == ("mitigated", len(repro.PATHS))
