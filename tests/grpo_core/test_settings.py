"""Settings are read from files, the command line and dialects; invalid ones are refused by name."""

import pytest

from grpo_core.config import Config, ConfigError
from grpo_core.settings import describe_settings, load
from tests.processes import run_python


def test_command_line_overrides_the_file(tmp_path):
    """`--key value` and `--key=value` work; an integer is accepted for a float; the default is the shipped task."""
    assert load(None, []) == Config()
    path = tmp_path / "a.toml"
    path.write_text('[train]\nsteps = 7\nlearning_rate = 1\n[rollout]\nmode = "async"\n')
    config = load(path, ["--train.steps", "9", "--sampling.temperature=0.5"])
    assert (config.train.steps, config.train.learning_rate, config.rollout.mode) == (9, 1.0, "async")
    assert config.sampling.temperature == 0.5


@pytest.mark.parametrize("name", ["colocate", "async", "server"])
def test_example_configurations_are_valid(name, request):
    """Each example configures the mode it is named after."""
    assert load(request.config.rootpath / "examples" / f"{name}.toml", []).rollout.mode == name


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "[rollout]\nmax_stalenes = 1",
            "rollout.max_stalenes: unknown key; did you mean rollout.max_staleness?",
        ),
        ("[sampling]\nmode = 1", "sampling.mode: unknown key; did you mean rollout.mode?"),
        ("[nonsense]\nx = 1", "nonsense.x: unknown key; sections are [task], [data]"),
        ("steps = 3", "steps = 3 stands outside of a section; sections are [task]"),
        ('[train]\nsteps = "many"', "train.steps = 'many': expected an integer"),
        ("[train]\nsteps = true", "train.steps = True: expected an integer"),
        ("[train]\nsteps = [1]", "train.steps = [1]: expected an integer"),
        ("[train]\nsteps = 0", "train.steps = 0: expected at least 1"),
        ("[train]\nlearning_rate = 0.0", "train.learning_rate = 0.0: expected more than 0"),
        ("[train]\nlearning_rate = nan", "train.learning_rate = nan: expected a finite number"),
        ('[rollout]\nmode = "both"', "rollout.mode = 'both': expected one of 'colocate', 'async', 'server'"),
        ("[train]\nbeta1 = 1.0", "train.beta1 = 1.0: expected less than 1"),
        ("[train]\nfinal_rate = 2", "train.final_rate = 2: expected at most 1"),
        ('[model]\nfloat32_parts = ["head", "x"]', "expected one of 'head', 'norms'"),
        ('[model]\nfloat32_parts = "head"', "expected a list of strings"),
        ("[rollout", "not TOML"),
        (None, "No such file or directory; expected a TOML file"),
    ],
)
def test_invalid_file_is_refused_with_file_key_and_expectation(tmp_path, text, says):
    path = tmp_path / "bad.toml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(path, [])
    assert str(caught.value).startswith(f"{path}: ")
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


STALE = "rollout.max_staleness = 1 (default), train.iterations = 2 (command line)"
OUR_SERVER = (
    "rollout.server = 'vllm' (command line), rollout.port = 0 (default): port 0 starts a server of our own"
)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("--train.steps", "--train.steps: a value is missing"),
        ("steps 3", "'steps': expected --section.key VALUE"),
        ("--train.steps=x", "command line: train.steps = 'x': expected an integer"),
        ("--task.letters aa", "task.letters = 'aa' (command line): expected two or more different letters"),
        (
            "--output.name ../mine",
            "output.name = '../mine' (command line): a run's folder lies in output.dir",
        ),
        ("--output.name /tmp/mine", "give a name without .. and no path from the root"),
        ("--model.hidden_size 48", "model.hidden_size = 48 (command line): expected a multiple of 32"),
        ("--model.dtype=float16", "expected one of 'float32', 'bfloat16'"),
        ("--task.min_length 9", "task.max_length = 3 (default): min_length must not be greater"),
        ("--sampling.top_p=0.9 --sampling.min_p=0.1", "these two in different orders"),
        ("--sampling.max_tokens 3", "raise sampling.max_tokens"),
        ("--model.max_length 5", "need 10 tokens; raise model.max_length"),
        ("--train.mini_batches=999", "fewer completions in a step than mini-batches"),
        ("--loss.correction_floor=3", "correction_cap = 2.0 (default): the lower bound"),
        ("--rollout.mode=async --train.mini_batches=2", "set max_staleness to at least that"),
        ("--rollout.mode async --train.iterations 2", STALE),
        ("--rollout.dtype=bfloat16 --rollout.mode=server --rollout.port=80", "has its own dtype"),
        ("--rollout.mode server --rollout.server vllm", OUR_SERVER),
        ("--rollout.mode server --rollout.host gpu7", "give the port of the server that runs there"),
    ],
)
def test_invalid_command_line_is_refused(arguments, says):
    """Contradictions name both keys, their values and their sources."""
    with pytest.raises(ConfigError) as caught:
        load(None, arguments.split())
    assert says in str(caught.value)


@pytest.mark.parametrize(("correction", "consequence"), [("truncate", "weighs"), ("none", "does not weigh")])
def test_truncated_sampling_gives_a_warning(correction, consequence):
    """One warning names the settings and the consequence."""
    notes = []
    options = ["--sampling.top_p=0.9", "--sampling.top_k=5", f"--loss.correction={correction}"]
    assert load(None, options, notes.append).sampling.truncation == {"top_p": 0.9, "top_k": 5}
    (note,) = notes
    assert note.startswith("sampling.top_p = 0.9, sampling.top_k = 5: the engine's log-probs are of the")
    assert note.endswith(f"{consequence} them")


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (
            "--loss.surrogate=sapo --loss.clip_low=0.1",
            "loss.clip_low = 0.1: loss.surrogate = 'clip' or 'cispo'",
        ),
        ("--loss.surrogate=cispo --loss.dual_clip=3", "loss.dual_clip = 3.0: loss.surrogate = 'clip'"),
        ("--loss.kl_estimator=k1", "loss.kl_estimator = 'k1': loss.kl_coefficient"),
        ("--rollout.max_staleness=0", "rollout.max_staleness = 0: rollout.mode = 'async'"),
        ("--model.path=elsewhere --model.layers=2", "model.layers = 2: model.path = ''"),
        ("--loss.surrogate=cispo --loss.clip_low=0.1", ""),
        ("--loss.kl_coefficient=0.1 --loss.kl_estimator=k1", ""),
        ("--loss.dialect=ms-swift-4.6.0/sapo", ""),  # values of a dialect are not explicit settings
    ],
)
def test_settings_without_effect_give_a_warning(settings, expected):
    """The warning names the option that they need."""
    warnings = []
    load(None, settings.split(), warnings.append)
    setting, _, needed = expected.partition(": ")
    assert warnings == ([f"command line: {setting} has no effect: it needs {needed}"] if expected else [])


def test_every_key_is_documented():
    """The help has a default and a sentence for each key."""
    lines = describe_settings().splitlines()[1:]
    keys, texts = lines[0::2], lines[1::2]
    assert len(keys) == len(texts) >= 40
    assert all(key.startswith("  --") for key in keys)
    assert all(len(text.strip()) > 12 for text in texts)


def test_dialect_sets_defaults_only(tmp_path):
    """A key that is set explicitly keeps its value; an unknown dialect is refused with similar names."""
    path = tmp_path / "a.toml"
    path.write_text('[loss]\ndialect = "verl-0.9.1/grpo"\nclip_high = 0.28\n')
    loss = load(path, []).loss
    assert (loss.dual_clip, loss.advantage_epsilon, loss.clip_high) == (3.0, 1e-6, 0.28)
    assert load(None, ["--loss.dialect", "trl-1.16.0/dr_grpo"]).loss.kl_importance is True
    with pytest.raises(
        ConfigError, match=r"command line: loss.dialect: no dialect 'verl'; the nearest: verl-0"
    ):
        load(None, ["--loss.dialect=verl"])


def test_settings_load_without_torch():
    """A wrong key is reported before any heavy import."""
    program = "import sys, grpo_core.__main__, grpo_core.settings; print('torch' in sys.modules)"
    done = run_python("-c", program, check=True)
    assert done.stdout == "False\n"
