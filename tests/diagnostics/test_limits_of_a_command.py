"""The memory of a command is limited, but not that of programs that it starts."""

import resource
import subprocess
import sys

import pytest

from diagnostics import memory_limit, process
from diagnostics.collect.processors_and_memory import Memory
from diagnostics.memory_limit import limit_memory


@pytest.mark.parametrize(("group_gb", "used_gb"), [(None, None), (0.5, 0.2)])
def test_memory_is_limited_for_the_command_alone(monkeypatch, group_gb, used_gb):
    """With 0.3 GB of free memory, 0.1 GB can be allocated and 4 GB cannot, whatever other tests free meanwhile."""
    available = 0.3 if group_gb is None else 100.0
    monkeypatch.setattr(memory_limit, "collect_memory", lambda: Memory(100.0, available, group_gb, used_gb))
    before = resource.getrlimit(resource.RLIMIT_DATA)
    with limit_memory():
        bytearray(100_000_000)
        with pytest.raises(MemoryError):
            bytearray(4_000_000_000)
    assert resource.getrlimit(resource.RLIMIT_DATA) == before


def test_programs_are_started_with_the_limits_of_the_shell():
    """A soft limit of the user's stays."""
    before = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, own := (1 << 45, before[1]))
    try:
        with limit_memory():
            assert resource.getrlimit(resource.RLIMIT_DATA) < own
            # What a program forks at once has them, too.
            done = [process.run(["sh", "-c", "(ulimit -Sd)"], timeout_s=60) for _ in range(20)]
            assert resource.getrlimit(resource.RLIMIT_DATA) < own
        assert {item.output.strip() for item in done} == {str(own[0] >> 10)}
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


FILLS_MEMORY = """
import resource, click
from diagnostics import cli
@click.command()
def work():
    resource.setrlimit(resource.RLIMIT_DATA, (60_000_000, resource.RLIM_INFINITY))
    texts = []
    while True:
        texts.append("x" * len(texts))
@click.command()
def fail():
    raise OSError(12, "Cannot allocate memory")
raise SystemExit([cli.run_command(command, [], "x") for command in (work, fail)] != [3, 3])
"""


def test_out_of_memory_is_incomplete_with_one_sentence():
    """No memory is left for the patterns of masking while the error is handled."""
    result = subprocess.run([sys.executable, "-c", FILLS_MEMORY], capture_output=True, text=True, check=False)
    assert (
        result.stderr.splitlines()
        == ["grpo-doctor: not checked: three quarters of the memory that was available are not enough"] * 2
    )
    assert (result.returncode, result.stdout) == (0, "")
