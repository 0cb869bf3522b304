"""The container runs without root, from a base image with a digest; it and the matrix workflow install hashed packages.

Locked tools are pinned, suppressed security rules have a reason, and SECURITY.md names existing files.
"""

import re
from pathlib import Path

import pytest

from tests.processes import run_text

ROOT = Path(__file__).parents[1]
CONTAINER = (ROOT / "Containerfile").read_text()
LOCKS = ROOT / "locks" / "tools"


def instructions() -> list[tuple[str, str]]:
    """Return (word, rest) of each instruction of the container file, without comments and with lines joined."""
    text = re.sub(r"^#.*\n", "", CONTAINER, flags=re.MULTILINE).replace("\\\n", " ")
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in text.splitlines()) if word]


def test_container_runs_without_root():
    """The container sets one user other than root before the project's files are copied."""
    words = [word for word, _ in instructions()]
    assert words.count("USER") == 1
    (user,) = [rest for word, rest in instructions() if word == "USER"]
    assert user not in ("root", "0")
    copies = [number for number, entry in enumerate(instructions()) if entry[0] == "COPY"]
    project = next(number for number in copies if instructions()[number][1].endswith(". ."))
    assert words.index("USER") < project < words.index("CMD")


@pytest.mark.parametrize(
    ("base", "code"),
    [
        ("docker.io/nvidia/cuda@sha256:" + "0a" * 32, 0),
        ("docker.io/nvidia/cuda:12.8.1-devel-ubuntu24.04", 1),
        ("docker.io/nvidia/cuda@sha256:0a", 1),
        ("give-the-base-by-digest", 1),
    ],
)
def test_only_a_base_image_with_a_digest_is_accepted(base, code):
    """The first RUN instruction refuses an image without a digest, and there is no default image."""
    default, image, argument, (word, command) = instructions()[:4]
    assert default == ("ARG", "BASE=give-the-base-by-digest")
    assert (image, argument) == (("FROM", "${BASE}"), ("ARG", "BASE"))
    done = run_text(["sh", "-c", command], env={"BASE": base, "PATH": "/usr/bin:/bin"})
    assert (word, done.returncode, "by its digest" in done.stderr) == ("RUN", code, bool(code))


def test_pip_installs_require_hashes():
    """Every `pip install` of the matrix workflow and of the container has --require-hashes."""
    for text in (CONTAINER, (ROOT / ".github" / "workflows" / "matrix.yml").read_text()):
        installs = re.findall(r"pip\"? install .*", text)
        assert installs
        assert all("--require-hashes --requirement " in line for line in installs)


def test_locked_tools_are_pinned():
    """Every locked tool has an exact version; the packages that install nox also have hashes."""
    for name in ("nox.txt", "sessions.txt"):
        lines = (LOCKS / name).read_text().replace("\\\n", " ").splitlines()
        assert len(lines) > 10
        hashes = r"( +--hash=sha256:[0-9a-f]{64})+" if name == "nox.txt" else ""
        pinned = re.compile(rf"[a-z0-9.-]+==[0-9a-z.]+( ; [^#]+?)?{hashes}")
        assert [line for line in lines if not pinned.fullmatch(line)] == []


def test_suppressed_security_rules_have_a_reason():
    """Each suppressed rule is followed by its reason, as in `# noqa: S603 - reason`."""
    missing = []
    for folder in ("diagnostics", "grpo_core", "repro", "benchmarks"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
                if re.search(r"# noqa:[^#]*\bS\d{3}\b(?!.* - \w)", line):
                    missing.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()}")
    assert missing == []


def test_files_named_in_security_md_exist():
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    mentioned = set(re.findall(r"`((?:tests|diagnostics|grpo_core|repro)/[\w/]+(?:\.py)?)`", text))
    assert len(mentioned) > 15
    assert [name for name in sorted(mentioned) if not (ROOT / name).exists()] == []
