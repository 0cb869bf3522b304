"""Engines that need no vLLM pass the conformance suite; `plugin.py` runs it on other engines."""

import pytest
import torch

pytest.register_assert_rewrite("tests.grpo_core.conformance.suite")

from tests.grpo_core.conformance.cases import make_case  # noqa: E402
from tests.grpo_core.conformance.plugin import engine_case  # noqa: E402, F401 - a fixture
from tests.grpo_core.conformance.suite import *  # noqa: E402, F403

ENGINES = ["fake", "transformers", "process", pytest.param("server", marks=pytest.mark.slow)]


@pytest.fixture(scope="module", params=ENGINES)
def running_case(request, tmp_path_factory):
    """Yield the `Case` of each engine in turn: the engine, its model folder and the expected weights."""
    torch.set_num_threads(1)
    case = make_case(request.param, tmp_path_factory.mktemp("models"))
    yield case
    case.close()
