"""`doctor` examines the environment that `--python` or `--prefix` names, and suggests others nearby.

Its JSON report shows the environment's path without the user's home folder.
"""

from diagnostics.doctor import target_env


def test_python_option_must_name_a_python(run_command):
    code, out, err = run_command("doctor", "--python", "/bin/ls")
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert "--python /bin/ls: not the name of a Python" in err


def test_python_and_prefix_select_the_same_environment(environment, run_command):
    """`--python` and `--prefix` give the same findings, although the interpreter only fails."""
    environment.add("vllm", "0.7.3")
    by_python = run_command("doctor", "--python", environment.prefix / "bin" / "python", "--format", "json")
    by_prefix = run_command("doctor", "--prefix", environment.prefix, "--format", "json")
    assert by_python.document["findings"] == by_prefix.document["findings"] != []


def test_json_replaces_the_home_folder(environment, run_command, monkeypatch):
    environment.add("vllm", "0.7.3")
    monkeypatch.setenv("HOME", str(environment.prefix.parent))
    out = run_command("doctor", "--prefix", environment.prefix, "--format", "json").out
    assert str(environment.prefix.parent) not in out
    assert "~/env" in out


def test_nearby_environments_with_a_trainer_or_engine_are_suggested(environment, tmp_path, monkeypatch):
    """The activated environment and those in the working directory are suggested, if they have a trainer or engine."""
    environment.add("trl", "1.16.0")
    (tmp_path / "venv" / "lib" / "python3.11" / "site-packages").mkdir(parents=True)
    nearby = tmp_path / ".venv"
    (nearby / "lib" / "python3.11" / "site-packages" / "vllm-0.10.2.dist-info").mkdir(parents=True)
    # A command cannot name a path with a control character.
    (tmp_path / "a\tb" / "lib" / "python3.11" / "site-packages" / "vllm-0.10.2.dist-info").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert target_env.nearby_environments(str(nearby), {"VIRTUAL_ENV": str(tmp_path / "a\tb")}) == [
        str(environment.prefix)
    ]
    active = {"VIRTUAL_ENV": str(environment.prefix)}
    suggested = target_env.nearby_environments(str(tmp_path / "own"), active)
    assert suggested == [str(environment.prefix), str(nearby)]
    # The examined environment is not suggested, and a nearby one is found by its usual name.
    assert target_env.nearby_environments(str(nearby), {}) == [str(tmp_path / "env")]
