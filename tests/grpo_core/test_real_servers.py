"""The client of vLLM's server samples from a real `vllm serve` and `trl vllm-serve`, and updates their weights.

It passes the conformance suite, and a run trains with it. It detects refused requests and weights of another client.
The servers run in the environment of the matrix cell CELL.
"""

import json
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path

import pytest

from grpo_core.config import RolloutConfig
from grpo_core.rollout.engine import EngineError
from grpo_core.rollout.remote_engines import engine_for
from grpo_core.rollout.vllm_server_engine import VllmServerEngine
from grpo_core.tasks.model import load_model
from grpo_core.types import Request
from tests.cells import cell_python
from tests.grpo_core.conformance.cases import make_model
from tests.grpo_core.conftest import run_training
from tests.processes import free_port, run_python
from tests.servers import (
    PARAMS,
    REQUESTS,
    ROOT,
    measure_engine,
    serving,
    trl_command,
    vllm_command,
    write_vllm_metadata,
)

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

SUITE = Path(__file__).parent / "conformance" / "suite.py"
CELL = "vllm-0.31.0+trl-1.16.0"
TOLERANCE = 1e-4  # of a log-prob in float32: seen are 1e-6 to 1e-5


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Start a real `vllm serve` of vLLM 0.31.0; yield its port and the model that it was started with."""
    folder, port = tmp_path_factory.mktemp("vllm-serve"), free_port()
    make_model(folder / "model")
    command = vllm_command(cell_python(CELL), folder / "model", port)
    with serving(command, folder / "log"):
        yield port, folder / "model"


@pytest.fixture
def engine(server, tmp_path):
    """Yield a client, after the server's weights were reset to those it was started on."""
    port, model_dir = server
    built = VllmServerEngine("127.0.0.1", port, timeout_s=500, folder=tmp_path / "weights")
    with closing(built):
        built.update_weights(load_model(model_dir).named_parameters(), 0)
        yield built


def test_logprobs_match_the_trainer_after_updates(engine, server):
    """Log-probs are those of the weights sent last, though prompts were cached; each update moves them far."""
    observed = measure_engine(engine, server[1])
    assert (observed["completions"], observed["different"], observed["repeatable"]) == (12, 12, True)
    assert observed["difference"] < TOLERANCE
    assert [update["version"] for update in observed["updates"]] == [[0], [1], [2], [3], [4]]
    for update in observed["updates"]:
        assert update["difference"] < TOLERANCE < update["moved"] / 100, update


def test_server_refusal_names_the_request(engine, monkeypatch):
    """A client that cannot read the model's files does not know its vocabulary size, so vLLM checks the ids.

    The error names the request that vLLM refused.
    """
    monkeypatch.setattr(engine, "_shapes", {})
    with pytest.raises(EngineError, match=r"/v1/completions: status 4.*\(request invalid\)"):
        engine.generate([Request("invalid", (0, 99), 0)], PARAMS)
    assert len(engine.generate(REQUESTS, PARAMS)) == len(REQUESTS)


def test_foreign_weights_are_detected(engine, server):
    """A server whose mark another client has replaced counts as one that lost the weights."""
    connection = HTTPConnection("127.0.0.1", server[0], timeout=500)
    body = json.dumps({"new_version": "somebody's"})
    connection.request("POST", "/update_weight_version", body, {"Content-Type": "application/json"})
    assert connection.getresponse().status == 200
    connection.close()
    with pytest.raises(EngineError, match=r'the server lost the weights it was sent.*it holds "somebody'):
        engine.generate(REQUESTS, PARAMS)


def test_vllm_serve_passes_the_conformance_suite(server):
    """The suite runs in a separate process, and no test fails."""
    engine = f"--engine=vllm-serve:http://127.0.0.1:{server[0]}"
    options = ("-q", "-x", "-p", "tests.grpo_core.conformance.plugin", engine, f"--model-dir={server[1]}")
    done = run_python("-m", "pytest", *options, SUITE, timeout=800, cwd=ROOT)
    assert done.returncode == 0, done.stdout[-3000:]


def test_training_run_with_vllm_serve(short_run, server):
    """Each sync is proven, and no folder of weights remains."""
    settings = {"model.path": server[1], "rollout.server": "vllm", "rollout.port": server[0]}
    document, _ = run_training(short_run("server", **settings))
    assert (document["steps"], document["syncs_proven"], document["syncs"]) == (4, 4, 4)
    assert document["max_logprob_difference"] < TOLERANCE
    assert not (Path(document["metrics"]).parent / "weights").exists()


def test_trl_vllm_serve_takes_weights_by_files(tmp_path):
    """`trl vllm-serve` of 1.16.0 runs `vllm serve`; its NCCL sync is in test_trl_server_gpu.py."""
    make_model(tmp_path / "model")
    port = free_port()
    options = ("--enforce_eager=true", "--no-enable-chunked-prefill")
    command = trl_command(cell_python(CELL), tmp_path / "model", port, *options)
    path = (ROOT, write_vllm_metadata(tmp_path / "metadata", "0.31.0+cpu"))
    with serving(command, tmp_path / "log", path=path):
        options = RolloutConfig(server="vllm", timeout_s=500)
        with closing(engine_for(options, "127.0.0.1", port, tmp_path / "weights")) as engine:
            observed = measure_engine(engine, tmp_path / "model")
    assert observed["repeatable"]
    assert len(observed["updates"]) == 5
    for update in observed["updates"]:
        assert update["difference"] < TOLERANCE < update["moved"] / 100, update
