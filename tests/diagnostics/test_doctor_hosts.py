"""`doctor --hosts` and `--ray` collect facts on several nodes and report the nodes that differ.

Nodes are made of changed facts of this machine, or simulated by a shell script in place of ssh, which sets limits and
variables per host. Two heavy tests use a real sshd on loopback and a real Ray cluster with several raylets. Further
tests check host lists, the collector program, Ctrl-C, and that a shared report hides host names.
"""

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from diagnostics import catalog
from diagnostics.__main__ import main
from diagnostics.collect import facts as collection
from diagnostics.collect import remote
from diagnostics.collect.gpus import Gpu, Gpus
from diagnostics.collect.python_environment import Package
from diagnostics.compat_table import Compat
from diagnostics.doctor.multi_node_report import report_on_nodes
from diagnostics.doctor.node_differences import differences
from diagnostics.doctor.node_query import Node, read_answer
from diagnostics.findings import Severity
from diagnostics.fixes import commands_of, fix_text
from diagnostics.hang.command import SNAPSHOT_MODULE
from diagnostics.output import text_filters
from diagnostics.output.redact import forget_secrets, remember_host
from tests.case_files import each_case, read_cases
from tests.diagnostics.fake_environments import EnvironmentBuilder
from tests.processes import free_port, run_text

CASES = read_cases(__file__, "invalid_hosts.yaml")

ISSUES = catalog.load()
NAMES = "abcdefgh"


@pytest.fixture(scope="module")
def facts():
    """Collect the facts of this machine, which the tests change."""
    return collection.collect(None, {})


def node(facts, position, *, packages=None, variables=None, problem="", **fields):
    """Return a node with only these packages and variables, or a node that did not answer because of `problem`."""
    name = f"gpu-{NAMES[position]}"
    remember_host(name)
    label = f"rank {position} ({name})"
    if problem:
        return Node(label, problem=problem, **fields)
    installed = {name: Package(name, version, "/p", "pip", ()) for name, version in (packages or {}).items()}
    nothing = {"extensions": (), "duplicates": (), "broken": ()}
    environment = replace(facts.environment, packages=installed, variables=variables or {}, **nothing)
    machine = replace(facts.machine, host=name, **fields.pop("machine", {}))
    return Node(label, replace(facts, environment=environment, machine=machine), **fields)


@pytest.fixture(autouse=True)
def forget_hosts():
    """Forget the names of the nodes after each test."""
    yield
    forget_secrets()


def shared(members):
    """Return doctor's report on these nodes as the text of a shared document."""
    return json.dumps(text_filters.redact_for_sharing(report_of(members)).to_json())


def report_of(members):
    """Return doctor's report on these nodes."""
    return report_on_nodes(members, ISSUES, Compat(problem="no table"))


def gpus(count=1, **fields):
    """Return the arguments of `node` for a machine with this many GPUs and changed fields of their driver."""
    known = Gpus("ok", driver="570.86.15", cuda="12.8", devices=tuple(Gpu(i, "H100") for i in range(count)))
    return {"machine": {"gpus": replace(known, **fields)}}


VERSIONS = {"vllm": "0.9.2", "trl": "0.20.0"}


@pytest.mark.parametrize(
    ("nodes", "code", "detail"),
    [
        ([{"packages": {"nvidia-nccl-cu12": version}} for version in ("2.26.2", "2.26.2", "2.26.2", "2.21.5")],
         "NET952", "nvidia-nccl-cu12 2.26.2 on 3 of 4 nodes; nvidia-nccl-cu12 2.21.5 on rank 3 (gpu-d)."),
        ([{"packages": {"vllm": version}} for version in ("0.8.5", "0.9.2") * 2],
         "CMP951", "vllm 0.8.5 on 2 of 4 nodes; vllm 0.9.2 on rank 1 (gpu-b), rank 3 (gpu-d) (no majority)."),
        # A node without packages is one difference.
        ([{}, {"packages": VERSIONS}, {"packages": VERSIONS}],
         "CMP951", "trl 0.20.0, vllm 0.9.2 on 2 of 3 nodes; no trl, no vllm on rank 0 (gpu-a)."),
        ([gpus(2), gpus(2), gpus(3)], "ENV952", "GPUs 2 x H100 on 2 of 3 nodes; GPUs 3 x H100 on rank 2 (gpu-c)."),
        # Variables that must differ, such as RANK, are ignored.
        ([{"variables": {"RANK": "0", "NCCL_IB_HCA": "mlx5"}}, {"variables": {"RANK": "1", "NCCL_IB_HCA": "mlx5"}},
          {"variables": {"RANK": "2"}}],
         "ENV953", "NCCL_IB_HCA mlx5 on 2 of 3 nodes; NCCL_IB_HCA unset on rank 2 (gpu-c)."),
        ([{"models": ("org/a",)}, {"models": ("org/a",)}, {}],
         "ENV955", "model org/a in the cache on 2 of 3 nodes; no model org/a on rank 2 (gpu-c)."),
        # A driver that did not answer is no difference.
        ([gpus(0), gpus(0), gpus(0, state="timeout", driver="", cuda="")], "", ""),
        ([gpus(0, state="timeout", driver="", cuda=""), gpus(0), gpus(0, driver="550")], "ENV951",
         "NVIDIA driver 570.86.15 on rank 1 (gpu-b); NVIDIA driver 550 on rank 2 (gpu-c) (no majority); unknown on 1."),
    ],
)  # fmt: skip
def test_difference_names_the_nodes_that_differ_from_the_majority(facts, nodes, code, detail):
    """A difference has its code and its groups of nodes, also without a majority.

    Variables that must differ, such as RANK, and a driver that did not answer are no difference.
    """
    fleet = [node(facts, position, **fields) for position, fields in enumerate(nodes)]
    assert {item.code: item.detail for item in differences(fleet)} == ({code: detail} if code else {})


@pytest.mark.parametrize(
    ("output", "end", "problem"),
    [
        ("", "no answer within 30 s", "no answer within 30 s"),
        ("Welcome\n", "", "did not run the collector"),
        (f'{remote.MARK} {{"error": "\\u001b[31mred\\nline"}}', "", "[31mred line"),
        (f"{remote.MARK} {{", "", "unreadable answer"),
        (f"{remote.MARK} []", "", "unreadable answer"),
        (f'{remote.MARK} {{"facts": {{}}, "models": []}}', "", "unreadable answer"),
        (f'{remote.MARK} {{"facts": 3, "nccl": [], "models": []}}', "", "unreadable answer"),
    ],
)
def test_node_without_facts_has_a_problem_in_one_line_and_is_not_checked(output, end, problem):
    report = report_of([Node("rank 0 (a)", **read_answer(remote.read_output(output, end)))])
    (finding,) = [item for item in report.findings if item.code == "NET951"]
    assert problem in finding.evidence[0].text
    assert finding.evidence[0].text.isprintable()
    assert report.exit_code(Severity.ERROR) == 3
    assert report.checks[0].printed_outcome == "unread"


def test_unreachable_node_makes_the_report_incomplete(facts):
    """A node without an answer has a crashed check with its name, and nodes are compared only if two answered."""
    fleet = [node(facts, 0), node(facts, 1), node(facts, 2, problem="no answer within 5 s")]
    report = report_of(fleet)
    (check,) = [item for item in report.checks if "gpu-c" in item.check]
    assert check.outcome == "crashed"
    assert report.exit_code(Severity.ERROR) == 3
    assert report.subject["prefix"] == "2 of 3 nodes"
    with_one_answer = report_of(fleet[1:])
    (compared,) = [item for item in with_one_answer.checks if item.check == "differences between nodes"]
    assert compared.outcome == "skipped"


def test_findings_of_single_nodes_name_the_nodes(facts):
    fleet = [node(facts, i, packages={"vllm": "0.7.3" if i else "0.11.0"}) for i in range(3)]
    report = report_of(fleet)
    (item,) = [item for item in report.findings if item.code == "SCH001"]
    assert item.detail.startswith("rank 1 (gpu-b), rank 2 (gpu-c): ")


def test_no_command_is_printed_for_a_node(facts):
    """Its answer is untrusted, and a pasted command would run on the user's machine."""
    member = node(facts, 0)
    files, misfits = ("/etc/ssl/private/keys.info",), (("/etc/ssl/private/keys.info", "missing"),)
    twice = (("pytest", ("a", "b")),)
    environment = replace(member.facts.environment, broken=files, misfits=misfits, duplicates=twice)
    report = report_of([replace(member, facts=replace(member.facts, environment=environment))])
    fixes = [
        item.remedy
        for item in report.findings
        if "keys.info" in str(item.evidence) or "pytest" in item.detail
    ]
    assert ["on the node itself" in fix_text(fix) for fix in fixes] == [True, True, True]
    assert [command for fix in fixes for command in commands_of(fix.actions)] == []


@pytest.mark.parametrize("unread_nodes", [(0,), (0, 1, 2)])
def test_unchecked_input_of_a_node_makes_the_report_incomplete(facts, unread_nodes):
    """An unreadable folder on some nodes is one entry, which hides host names in a shared report."""
    broken = replace(facts.environment, unread=(("/x/gpu-a", "Permission denied"),))
    fleet = [node(replace(facts, environment=broken) if i in unread_nodes else facts, i) for i in range(3)]
    report = report_of(fleet)
    (alone,) = [item for item in report.checks if item.check == "each node by itself"]
    assert alone.outcome != "ok"
    (message,) = [item for item in alone.not_judged if "Permission denied" in item.why]
    names = "rank 0 (gpu-a): " if len(unread_nodes) == 1 else "All 3 nodes that answered: "
    assert message.what.startswith(names)
    assert message.place == "rank 0 (gpu-a): /x/gpu-a"
    assert report.exit_code(Severity.BLOCKER) == 3
    text = shared(fleet)
    assert "Permission denied" in text
    assert "gpu-" not in text


def test_shared_report_has_no_host_name(facts):
    """Labels, problems, values of variables and commands contain no host name or address, but ranks."""
    fleet = [
        node(facts, 0, packages={"torch": "2.8.0"}, variables={"MASTER_ADDR": "gpu-a"}),
        node(facts, 1, packages={"torch": "2.8.0"}, variables={"MASTER_ADDR": "10.3.2.1"}),
        node(facts, 2, packages={"torch": "2.7.0"}, variables={"MASTER_ADDR": "gpu-a"}),
        node(facts, 3, problem="ssh could not get in: connect to host gpu-d port 22: Connection refused"),
    ]
    text = shared(fleet)
    assert "gpu-" not in text
    assert "10.3.2.1" not in text
    assert "2.7.0 on rank 2" in text


@each_case(CASES["lists"])
def test_invalid_host_list_or_command_is_refused(tmp_path, text, template, message, capsys):
    """The exit code is 2, and the error names the option `--host-command` or the file."""
    path = tmp_path / "hosts"
    path.write_text(text)
    assert main(["doctor", "--hosts", str(path), "--host-command", template]) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert message in error
    assert "--host-command" in error or str(path) in error


@pytest.mark.parametrize("option", ["--fix-plan", "--facts-json", "--tier probe"])
def test_options_for_one_environment_are_refused(run_command, option):
    """Options that --hosts would ignore end the command with exit code 2."""
    code, _, error = run_command("doctor", "--hosts", "hostfile", *option.split())
    assert code == 2
    assert f"{option}: one environment at a time" in error


def test_host_list_has_the_syntax_of_launchers(tmp_path):
    """A host list may have users, slots, comments, and IPv6 addresses."""
    path = tmp_path / "hosts"
    path.write_text("# nodes\nada@n1 slots=8  # first\n\nn2 slots=4 max_slots=8\n::1\n")
    assert remote.read_hosts(path) == [
        remote.Host("ada@n1", 8), remote.Host("n2", 4), remote.Host("::1"),
    ]  # fmt: skip


@each_case(CASES["commands"])
def test_host_command_is_ssh_in_batch_mode_or_the_template(template, expected):
    assert shlex.join(remote.host_command(remote.Host("ada@n1"), template, "python3", 5)) == expected


def python_3_10():
    """Return a Python 3.10, or skip the test."""
    installed = (str(path) for path in Path.home().glob(".pyenv/versions/3.10*/bin/python"))
    python = next(installed, shutil.which("python3.10"))
    if not python or not run_text([python, "-V"]).stdout.startswith("Python 3.10"):
        pytest.skip("no Python 3.10 here")
    return python


@pytest.mark.parametrize("find_python", [lambda: sys.executable, python_3_10], ids=["this", "3.10"])
@pytest.mark.parametrize(
    ("module", "function", "options", "key"),
    [
        ("diagnostics.collect.facts", "collect_node", {}, "facts"),
        (SNAPSHOT_MODULE, "snapshot_as_json", {"pattern": "no such process", "seconds": 0.1}, "notes"),
    ],
)
def test_program_needs_only_python_and_leaves_no_file(find_python, module, function, options, key, tmp_path):
    """A node needs no site-packages or project files, and its home and working folder stay empty."""
    text = remote.program_text(module, function, options, 60)
    command, environ = [find_python(), "-I", "-S", "-"], {"TMPDIR": str(tmp_path), "HOME": str(tmp_path)}
    done = run_text(command, input=text, check=True, cwd=tmp_path, env=environ)
    answer = remote.read_output(done.stdout, "")
    assert key in answer.document
    assert key != "facts" or read_answer(answer)["facts"].environment.python
    assert list(tmp_path.iterdir()) == []


def test_system_nccl_is_found_by_its_file_name(tmp_path, monkeypatch):
    """The version of NCCL is read from the name of the symbolic link's target."""
    (tmp_path / "libnccl.so.2.21.5").write_bytes(b"")
    (tmp_path / "libnccl.so.2").symlink_to("libnccl.so.2.21.5")
    monkeypatch.setenv("LD_LIBRARY_PATH", f"/nowhere:{tmp_path}")
    assert collection.system_nccl()[0] == "2.21.5"


SCRIPT = """#!/bin/sh
host=$1; shift
case $host in
same1|same2) exec "$@" ;;
differs) ulimit -n 700; export NCCL_IB_DISABLE=1; echo 'Welcome'; sed 's#/env"#/other"#' | "$@" ;;
gone) sed 's#/env"#/none"#' | "$@" ;;
nopython) exec /nowhere/python3 - ;;
ancient) exec sh -c 'cat >/dev/null; echo "{mark} {{\\"error\\": \\"Python 3.6 there is too old\\"}}"' ;;
hangs) exec sleep 1000 ;;
esac
"""


@pytest.fixture
def script(tmp_path):
    """Return the path of the script that simulates ssh."""
    path = tmp_path / "go"
    path.write_text(SCRIPT.format(mark=remote.MARK))
    path.chmod(0o755)
    return path


def test_simulated_hosts_get_their_own_verdicts(tmp_path, script, run_command):
    """Of six simulated hosts two agree and one differs; the others have no Python, an old one, or no environment."""
    env = EnvironmentBuilder(tmp_path / "env").add("vllm", "0.11.0")
    EnvironmentBuilder(tmp_path / "other").add("vllm", "0.10.2")
    path = tmp_path / "hosts"
    hosts = {"same1": 2, "same2": 2, "differs": 1, "nopython": 1, "ancient": 1, "gone": 1}
    path.write_text("".join(f"{name} slots={slots}\n" for name, slots in hosts.items()))
    words = ["doctor", "--hosts", path, "--host-command", f"{script} {{host}}", "--node-limit", "60"]
    words += ["--host-python", sys.executable, "--prefix", env.prefix]
    result = run_command(*words, "--format", "json")
    assert result.code == 1
    report = result.document
    details = "\n".join(item["detail"] for item in report["findings"])
    assert "vllm 0.11.0 on 2 of the 3 nodes that answered; vllm 0.10.2 on rank 4" in details
    assert "limit of nofile 700 on" in details
    assert "NCCL_IB_DISABLE" in details
    problems = {item["node"]: item["problem"] for item in report["subject"]["nodes"]}
    assert problems["ranks 0-1 (<host>)"] == ""
    assert "/nowhere/python3" in problems["rank 5 (<host>)"]
    assert "too old" in problems["rank 6 (<host>)"]
    assert "no such folder" in problems["rank 7 (<host>)"]


def test_hanging_host_times_out(tmp_path, script, run_command):
    (tmp_path / "hosts").write_text("hangs\n")
    words = ["doctor", "--hosts", tmp_path / "hosts", "--host-command", f"{script} {{host}}"]
    code, out, _ = run_command(*words, "--node-limit", "1")
    assert (code, "no answer within 1 s" in out) == (3, True)


def test_interrupt_leaves_no_process_running(tmp_path):
    """After Ctrl-C while the hosts hang, no process of theirs runs, and the exit code is 130."""
    script = tmp_path / "go"
    (tmp_path / "hosts").write_text("a\nb\n")
    os.mkfifo(tmp_path / "ready")
    # Each host reports that it runs, so that the test does not wait by the clock.
    message = f"echo $$ > {tmp_path}/$1.pid\necho up > {tmp_path}/ready"
    script.write_text(f"#!/bin/sh\n{message}\nexec sleep 1000\n")
    script.chmod(0o755)
    words = ["doctor", "--hosts", str(tmp_path / "hosts"), "--host-command", f"{script} {{host}}"]
    # The pipe stays open while both hosts write: a pipe without open ends loses its content.
    with (tmp_path / "ready").open("r+b", buffering=0) as text:
        command, pipe = [sys.executable, "-m", "diagnostics", *words], subprocess.PIPE
        running = subprocess.Popen(command, stderr=pipe, stdout=pipe, text=True)
        ready = b""
        while ready.count(b"up\n") < 2:
            ready += text.read(100)
    running.send_signal(signal.SIGINT)
    _, errors = running.communicate(timeout=500)
    assert running.returncode == 130
    assert "Traceback" not in errors
    for name in "ab":
        pid = int((tmp_path / f"{name}.pid").read_text())
        assert not Path(f"/proc/{pid}").exists()


@pytest.fixture
def server(tmp_path):
    """Start an sshd on loopback with temporary keys; yield its port and the ssh command template for it."""
    folders = f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin"
    program = os.environ.get("GRPO_DOCTOR_SSHD") or shutil.which("sshd", path=folders)
    if not program or not shutil.which("ssh"):
        pytest.skip("no sshd here; GRPO_DOCTOR_SSHD names one")
    for name in ("host", "user"):
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / name)], check=True
        )
    (tmp_path / "authorized").write_text((tmp_path / "user.pub").read_text())
    port = free_port()
    settings = {
        "ListenAddress": f"127.0.0.1:{port}", "HostKey": tmp_path / "host", "PidFile": "none", "UsePAM": "no",
        "AuthorizedKeysFile": tmp_path / "authorized", "PasswordAuthentication": "no", "StrictModes": "no",
        "PermitUserEnvironment": "no", "AcceptEnv": "NCCL_*", "PermitRootLogin": "prohibit-password",
    }  # fmt: skip
    (tmp_path / "sshd_config").write_text("".join(f"{key} {value}\n" for key, value in settings.items()))
    running = subprocess.Popen(
        [program, "-D", "-e", "-f", str(tmp_path / "sshd_config")], stderr=subprocess.PIPE, text=True
    )
    assert running.stderr
    # sshd prints a line when it listens.
    text = []
    while not text or "listening" not in text[-1]:
        text.append(running.stderr.readline())
        if not text[-1]:
            running.wait()
            running.stderr.close()
            pytest.fail(f"sshd did not start: {' '.join(text)}")
    (tmp_path / "known").write_text(f"[127.0.0.1]:{port} {(tmp_path / 'host.pub').read_text()}")
    known = f"-o UserKnownHostsFile={tmp_path / 'known'}"
    yield port, f"ssh -T -F none -i {tmp_path / 'user'} {known} -o BatchMode=yes -p {port} {{host}}"
    running.terminate()
    running.wait(timeout=500)
    running.stderr.close()


@pytest.mark.heavy
def test_real_ssh_hosts_get_their_own_verdicts(tmp_path, server, capsys):
    """Four SSH hosts get their verdicts: two names of an environment, a refused address and a silent listener."""
    port, ssh = server
    env = EnvironmentBuilder(tmp_path / "env").add("vllm", "0.11.0")
    user = subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()
    hosts = (f"{user}@127.0.0.1", "127.0.0.1", "127.0.0.2", "127.0.0.3")
    (tmp_path / "hosts").write_text("".join(f"{host} slots=8\n" for host in hosts))
    words = ["doctor", "--hosts", str(tmp_path / "hosts"), "--host-command", ssh, "--node-limit", "15"]
    words += ["--host-python", sys.executable, "--prefix", str(env.prefix), "--format", "json"]
    with socket.create_server(("127.0.0.3", port)):
        assert main(words) == 3
    report = json.loads(capsys.readouterr().out)
    assert report["subject"]["packages"] == {"vllm": "0.11.0"}
    problems = [item["problem"] for item in report["subject"]["nodes"]]
    assert problems[:2] == ["", ""]
    assert "Connection refused" in problems[2]
    assert problems[3] == "no answer within 15 s"


ADDRESS = re.compile(r"[\d.]+:\d+$")
CLUSTER = """
import os, sys
from ray.cluster_utils import Cluster
cluster = Cluster()
for value in ("eth0", "eth0", "eth1", "gone"):
    os.environ["NCCL_SOCKET_IFNAME"] = value
    node = cluster.add_node(num_cpus=1, include_dashboard=False)
del os.environ["NCCL_SOCKET_IFNAME"]
cluster.wait_for_nodes()
cluster.remove_node(node, allow_graceful=False)
print(cluster.address, flush=True)
sys.stdin.read()
cluster.shutdown()
"""


@pytest.mark.ray
@pytest.mark.heavy
def test_real_ray_cluster_with_a_differing_and_a_dead_node(tmp_path, capsys):
    """In a cluster of four raylets, the differing variables of one and the death of another are reported."""
    python = os.environ.get("GRPO_DOCTOR_RAY") or pytest.skip("GRPO_DOCTOR_RAY names no Python that has Ray")
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    quiet = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0"}
    command = [python, "-c", CLUSTER]
    cluster = subprocess.Popen(command, **streams, text=True, env=quiet, start_new_session=True)
    try:
        address = next(line.strip() for line in cluster.stdout if ADDRESS.match(line))
        prefix = str(Path(python).parent.parent)
        words = ["doctor", "--ray", address, "--prefix", prefix, "--node-limit", "120"]
        code = main([*words, "--format", "json"])
        report = json.loads(capsys.readouterr().out)
    finally:
        cluster.stdin.close()
        cluster.stdout.close()
        cluster.wait(timeout=500)
    outcomes = sorted(item["outcome"] for item in report["subject"]["nodes"])
    # Right after the kill Ray may still consider the node alive; then its task fails.
    assert outcomes in (["answered"] * 3 + ["dead"], ["answered"] * 3 + ["unknown"])
    (variables,) = [item for item in report["findings"] if item["code"] == "ENV953"]
    assert "NCCL_SOCKET_IFNAME eth0 on 2 of the 3 nodes that answered" in variables["detail"]
    assert "NCCL_SOCKET_IFNAME eth1 on" in variables["detail"]
    assert {"RAY951", "NET951"} & {item["code"] for item in report["findings"]}
    # The report includes each node's own checks: this machine may lack the interfaces that the variables name.
    errors = {item["code"] for item in report["findings"] if item["severity"] in {"error", "blocker"}}
    assert errors <= {"NET902"}
    assert code == (1 if errors else 3)


@pytest.mark.parametrize("address", ["127.0.0.1:{}", "local"])
def test_missing_ray_cluster_is_refused_in_one_line(capsys, address):
    """Nothing listens at the address; with `local`, Ray would start a cluster."""
    assert main(["doctor", "--ray", address.format(free_port())]) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith(f"grpo-doctor: --ray {address.partition('{')[0]}")


def test_environment_without_ray_is_refused(environment, capsys):
    python = environment.prefix / "bin" / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    python.chmod(0o755)
    assert main(["doctor", "--ray", "auto", "--prefix", str(environment.prefix)]) == 2
    assert "No module named 'ray'" in capsys.readouterr().err


def test_cluster_without_nodes_is_not_healthy(environment, capsys):
    (environment.prefix / "nodes").write_text(f'{remote.MARK} {{"nodes": []}}\n')
    python = environment.prefix / "bin" / "python"
    python.write_text(f"#!/bin/sh\ncat '{environment.prefix}/nodes'\n")
    python.chmod(0o755)
    assert main(["doctor", "--ray", "auto", "--prefix", str(environment.prefix)]) == 3
    assert "the nodes: the cluster lists none" in "".join(capsys.readouterr())


def test_json_is_valid_against_the_report_schema(facts):
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads((Path(__file__).parents[2] / "docs" / "report-v1.schema.json").read_text())
    fleet = [node(facts, 0), node(facts, 1, packages={"vllm": "0.9.2"}), node(facts, 2, problem="refused")]
    jsonschema.validate(json.loads(shared(fleet)), schema)
