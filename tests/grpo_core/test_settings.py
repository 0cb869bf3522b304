"""Settings are read from files, the command line and dialects; the error for an invalid one names it.

Options without effect and truncated sampling give a warning, and every option has documentation.
"""

import pytest

from grpo_core.config import Config, ConfigError
from grpo_core.settings import describe_settings, fields, load
from tests.case_files import each_case, read_cases

CASES = read_cases(__file__, "invalid_settings.yaml")


def test_command_line_overrides_the_file(tmp_path):
    """`--key value` and `--key=value` work; an integer is accepted for a float; without options, it is `Config()`."""
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


@each_case(CASES["files"])
def test_invalid_file_is_refused_in_one_line(tmp_path, text, message):
    """The line begins with the path."""
    path = tmp_path / "bad.toml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(path, [])
    assert str(caught.value).startswith(f"{path}: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@each_case(CASES["command_lines"])
def test_invalid_command_line_is_refused(arguments, message):
    """The message says what is wrong, which value is expected, or what to set."""
    with pytest.raises(ConfigError) as caught:
        load(None, arguments.split())
    assert message in str(caught.value)


@pytest.mark.parametrize(("correction", "consequence"), [("truncate", "weighs"), ("none", "does not weigh")])
def test_truncated_sampling_gives_a_warning(correction, consequence):
    """A single warning names the truncated settings and the consequence."""
    notes = []
    options = ["--sampling.top_p=0.9", "--sampling.top_k=5", f"--loss.correction={correction}"]
    assert load(None, options, notes.append).sampling.truncation == {"top_p": 0.9, "top_k": 5}
    (note,) = notes
    assert note.startswith("sampling.top_p = 0.9, sampling.top_k = 5: the engine's log-probs are of the")
    assert note.endswith(f"{consequence} them")


@each_case(CASES["without_effect"])
def test_settings_without_effect_give_a_warning(settings, expected):
    """The warning names the option that they need; settings with an effect give none."""
    warnings = []
    load(None, settings.split(), warnings.append)
    setting, _, needed = expected.partition(": ")
    assert warnings == ([f"command line: {setting} has no effect: it needs {needed}"] if expected else [])


def test_every_key_is_documented():
    """The help has a line for each key, in order, and a text below it."""
    lines = describe_settings().splitlines()[1:]
    keys, texts = lines[0::2], lines[1::2]
    assert len(keys) == len(texts)
    assert [key.split()[0] for key in keys] == [f"--{key}" for key in fields()]
    assert all(len(text.strip()) > 12 for text in texts)


def test_dialect_sets_defaults_only(tmp_path):
    """A key that is set explicitly keeps its value; an unknown dialect is refused with similar names."""
    path = tmp_path / "a.toml"
    path.write_text('[loss]\ndialect = "verl-0.9.1/grpo"\nclip_high = 0.28\n')
    loss = load(path, []).loss
    assert (loss.dual_clip, loss.advantage_epsilon, loss.clip_high) == (3.0, 1e-6, 0.28)
    assert load(None, ["--loss.dialect", "trl-1.16.0/dr_grpo"]).loss.kl_importance is True
    nearest = r"command line: loss.dialect: no dialect 'verl'; the nearest: verl-0"
    with pytest.raises(ConfigError, match=nearest):
        load(None, ["--loss.dialect=verl"])
