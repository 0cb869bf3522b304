"""TRL's own client and trainer, as published, against our server: they run in a cell's Python, it in ours."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from grpo_core.rollout.child.frames import end_child, start_child
from tests.cells import run_in_cell

pytestmark = pytest.mark.vllm

PROGRAMS = Path(__file__).parent / "cell_programs"
NEWEST = "vllm-0.31.0+trl-1.16.0"
TOLERANCE = 1e-4  # of a log-prob in float32


@pytest.fixture(scope="module")
def server(model_dir):
    """Without a token, which not every release of TRL's client can send: on loopback."""
    process = start_child(
        ["grpo_core", "serve", "--exit-with-stdin", "--allow-unauthenticated", f"--model.path={model_dir}"],
        threads=1,
    )
    where = json.loads(process.stdout.readline())
    yield SimpleNamespace(url=f"http://{where['host']}:{where['port']}")
    end_child(process, grace_s=500)
    process.stdout.close()


def seen_in(cell, program, *arguments) -> dict:
    """What the program printed."""
    done = run_in_cell(cell, str(PROGRAMS / program), *map(str, arguments), timeout_s=500)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout)


def older_trl(release: str, folder: Path) -> Path:
    """A folder with that TRL and nothing else, from the peers' environments; or a skip that says how to get them."""
    peers = Path(os.environ.get("GRPO_DOCTOR_PEERS", "")).parent.parent.parent
    name = {"0.17.0": "peers-trl-0.17.0", "0.29.1": "peers"}[release]
    found = list((peers / name).glob("lib/python3*/site-packages/trl*"))
    if not os.environ.get("GRPO_DOCTOR_PEERS") or not any(release in path.name for path in found):
        pytest.skip(f"no TRL {release} beside GRPO_DOCTOR_PEERS; nox -s peers builds it")
    for path in found:
        (folder / path.name).symlink_to(path)
    return folder


def test_the_client_of_trl_1_16(server, model_dir):
    """Samples by ids and by text with the model's log-probs; is refused what isn't here; sends no weights."""
    seen = seen_in(NEWEST, "trl_client.py", server.url, model_dir)
    answer = seen["generate"]["returned"]
    assert answer["prompt_ids"] == [[0, 1, 10], [2, 10]]
    assert [len(row) for row in answer["completion_ids"]] == [len(row) for row in answer["logprobs"]]
    assert seen["logprob_difference"] < TOLERANCE
    assert len(seen["generate text"]["returned"]["completion_ids"]) == 1
    assert "top_p = 0.9: this server doesn't have that option" in seen["generate with top_p"]["raised"]
    assert "structured_outputs = {'regex': 'a+'}" in seen["generate with a regex"]["raised"]
    assert seen["get_world_size"] == {"returned": 1}
    assert seen["get_server_info"]["returned"]["weight_transfer_config"] is None
    assert "has no weight-transfer engine" in seen["init_communicator"]["raised"]
    assert "upload them by POST /weights" in seen["update_named_param"]["raised"]
    assert seen["reset_prefix_cache"] == {"returned": None}


@pytest.mark.parametrize(("cell", "release"), [("vllm-0.8.5.post1+trl-0.17.0", "0.17.0"), (NEWEST, "0.29.1")])
def test_the_clients_of_older_trl(server, model_dir, tmp_path, cell, release):
    """The same of the protocol with slashes."""
    seen = seen_in(cell, "trl_client.py", server.url, model_dir, older_trl(release, tmp_path))
    assert "returned" in seen["generate"], seen["generate"]
    if release == "0.29.1":
        assert seen["logprob_difference"] < TOLERANCE
    assert "top_p = 0.9: this server doesn't have that option" in seen["generate with top_p"]["raised"]
    assert "_regex = 'a+'" in seen["generate with a regex"]["raised"]
    assert "raised" in seen["init_communicator"]
    assert "upload them by POST /weights" in seen["update_named_param"]["raised"]
    assert seen["reset_prefix_cache"] == {"returned": None}
    if (
        release == "0.17.0"
    ):  # that of 0.29.1 looks for a communicator that it has only after init_communicator
        assert seen["close_communicator"] == {"returned": None}


@pytest.mark.slow
def test_the_trainer_of_trl_1_16(server, model_dir):
    """Server mode ends where TRL wants NCCL; by `rollout_func` it learns on our server, every sync proven."""
    seen = seen_in(NEWEST, "trl_server_trainer.py", server.url, model_dir, 12)
    assert "has no weight-transfer engine" in seen["server_mode"]["raised"]
    assert "vllm_client.py, init_communicator" in seen["server_mode"]["where"]
    done = seen["rollout_func"]
    assert (done["steps"], done["syncs_proven"], done["policy_version"]) == (12, 12, 11)
    assert sum(done["rewards"][-4:]) > sum(done["rewards"][:4])
