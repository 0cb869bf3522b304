"""The conformance suite detects each deliberately broken engine of `broken.py`."""

import pytest
import torch

pytest.register_assert_rewrite("tests.grpo_core.conformance.suite")

from grpo_core.rollout.engine import EngineError  # noqa: E402
from tests.grpo_core.conformance import suite  # noqa: E402
from tests.grpo_core.conformance.broken import BROKEN  # noqa: E402
from tests.grpo_core.conformance.cases import Case, Reference, make_model  # noqa: E402

FAILURES = (AssertionError, EngineError, pytest.fail.Exception)


@pytest.fixture(scope="module")
def model_dirs(tmp_path_factory):
    """Return model folders by kind of engine."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("models")
    return {kind: make_model(folder / kind, layers) for kind, layers in (("fake", 0), ("transformers", 2))}


EXPECTED = [(engine, test_name) for engine in BROKEN for test_name in engine.caught_by]


@pytest.mark.parametrize(("engine", "named"), EXPECTED, ids=lambda it: getattr(it, "__name__", it))
def test_suite_detects_broken_engine(model_dirs, engine, named):
    """The named test of the suite fails on the broken engine."""
    name, _, argument = named.partition(" ")
    arguments = [float(argument) if argument[:1].isdigit() else argument] if argument else []
    model_dir = model_dirs[engine.kind]
    case = Case(engine.kind, model_dir, Reference(model_dir), wrap=engine)
    try:
        with pytest.raises(FAILURES):
            getattr(suite, name)(case, *arguments)
    finally:
        case.close()
