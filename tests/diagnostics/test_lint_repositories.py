"""Options of frameworks whose repository is indexed: what lint says follows from what their parsers do."""

import pytest

from diagnostics.api_index import store
from diagnostics.lint import option_index
from tests.diagnostics.lint_reports import findings

AREAL = ("yaml", "areal", "gconfig: {n_samples: 8}\nrollout: {max_concurrent_rollouts: 8}\n")
ROLL = (
    "yaml",
    "roll",
    "pretrain: m\nactor_infer:\n  generating_args: {max_new_tokens: 8}\n  strategy_args: {strategy_name: vllm}\n",
)
PRIME = ("toml", "prime_rl", "[orchestrator]\nbatch_size = 64\n")
NEMO = ("yaml", "nemo_rl", "grpo: {num_prompts_per_step: 8, num_generations_per_prompt: 8}\n")
SKYRL = ("shell", "skyrl", "python -m skyrl.train.entrypoints.main_base trainer.train_batch_size=8 ")
SLIME = (
    "shell",
    "slime",
    "python3 train.py --num-rollout 8 --tensor-model-parallel-size 2 --sglang-mem-fraction-static 0.7 ",
)

# What is added to the run, its release, and the beginning of the finding; "" for none.
CASES = {
    # Refused: the nearest option, or the releases that have it.
    (AREAL, "actor: {lora_rnk: 8}"): {"1.0.4": "error areal 1.0.4 has no option actor.lora_rnk (did"},
    (AREAL, "actor: {lora_rnk: 7}"): {"": "error AReaL has no option actor.lora_rnk (did"},
    (AREAL, "async_training: true"): {
        "1.0.4": "error areal 1.0.4 has no option async_training (last in 0.4.0)."
    },
    (AREAL, "actor: {lora_rank: two}"): {
        "1.0.4": "error areal 1.0.4 takes a whole number for actor.lora_rank"
    },
    (PRIME, "batch_sise = 8"): {"0.8.0": "error prime-rl 0.8.0 has no option orchestrator.batch_sise (did"},
    (PRIME, "unheard_of = 8"): {
        "0.8.0": "error prime-rl 0.8.0 has no option orchestrator.unheard_of.",
        "": "",
    },
    (SKYRL, "trainer.epocs=2"): {"0.3.0": "error skyrl 0.3.0 has no option trainer.epocs (did"},
    (SKYRL, "generator.inference_engine.engine_init_kwargs.mine=2"): {"0.3.0": ""},
    # A script's class adds options to AReaL's config.
    (AREAL, "actor: {of_mine: {a: 1}}\nof_mine: 1"): {"1.0.4": ""},
    # Skipped. Values may refer to a key beside the tables.
    (ROLL, "adv_estimator: group_norm"): {
        "0.2.1": "error roll 0.2.1 refuses adv_estimator=group_norm: the choices"
    },
    (ROLL, "reference: {unheard_of: 1}"): {"0.2.1": "warning roll 0.2.1 has no option reference.unheard_of."},
    (ROLL, "of_mine: {a: 1}\nlora_rank: 8"): {"0.2.1": ""},
    # Passed to other code.
    (NEMO, "policy: {train_global_batch_sise: 8}"): {
        "0.5.0": "warning nemo-rl 0.5.0 has no option policy.train_global"
    },
    (NEMO, "policy: {of_mine: 8}"): {"0.5.0": ""},
    (SLIME, "--n-sample-per-prompt 8"): {
        "0.3.1": "warning slime 0.3.1 has no option n_sample_per_prompt (did"
    },
    (SLIME, "--moe-router-score-function sigmoid --of-mine 1"): {"0.3.1": ""},
}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[1])
def test_unknown_option_is_reported_as_its_parser_takes_it(case):
    (syntax, framework, run), added = case
    for release, expected in CASES[case].items():
        known = {framework: release} if release else {}
        reported = findings(run + added + "\n", syntax, **known)
        lines = [f"{item.severity.word} {item.detail}" for item in reported if item.code == "CFG113"]
        assert any(line.startswith(expected) for line in lines) if expected else lines == []


@pytest.mark.parametrize("name", ["areal", "easyr1", "nemo-rl", "prime-rl", "roll", "skyrl", "slime"])
def test_an_indexed_repository_has_options_with_defaults(name):
    """Each release has options, and some have a type and a default."""
    index = store.load_options(name)
    entries = index.packed(store.OPTIONS_MODULE)
    assert option_index.is_repository(name)
    assert all(len(option_index.exact_options(name, "train", release)) > 50 for release in index.releases)
    assert any("field int = " in str(entry) for entry in entries.values())
