"""The API index is built from wheels and sdists; a damaged archive is skipped, a broken listing is a user error.

Most tests use a fake package index. `python -m diagnostics.api_index` builds the index and lists removed names; it
reports a problem in one line.
"""

import httpx
import pytest

from diagnostics import UserError
from diagnostics.api_index import __main__ as api_index_command
from diagnostics.api_index import build, store
from diagnostics.cli import run_command
from tests.api_index.conftest import ENGINE, PACKAGES, RELEASES, FakeIndex


def fetch_vllm(index, folder):
    """Fetch vLLM's releases from a fake index into a cache in a folder; return the printed lines and the cache."""
    cache = build.Cache("vllm", folder)
    with index.client() as client:
        return list(build.fetch(client, PACKAGES["vllm"], cache)), cache


def one_release(files, requires=(), *, sdists=False):
    """Return a fake index with one release of vLLM."""
    return FakeIndex({"vllm": {"0.2": (files, requires)}}, sdists=sdists)


def test_second_build_fetches_only_the_index_page(tmp_path):
    """Each release adds only its new files to the cache, and a second build requests only the index page."""
    index = FakeIndex(RELEASES)
    new = [line.rpartition(": ")[2] for line in fetch_vllm(index, tmp_path)[0]]
    assert new == ["5 files, 5 of them new", "5 files, 1 of them new", "5 files, 1 of them new"]
    index.requests.clear()
    assert fetch_vllm(index, tmp_path)[0] == []
    assert index.requests == ["vllm"]


def test_wheel_that_is_too_large_to_download_whole_is_read(tmp_path, monkeypatch):
    """Three releases are read, although the largest wheel is above the limit for a whole download."""
    index = FakeIndex(RELEASES)
    monkeypatch.setattr(build.archives, "_SMALL", max(map(len, index.archives.values())) - 1)
    lines, cache = fetch_vllm(index, tmp_path)
    assert len(lines) == 3
    assert cache.releases().keys() == {"0.1", "0.2", "0.3"}


def test_an_sdist_is_read_like_a_wheel(tmp_path):
    """The files and requirements of a package without wheels, like DeepSpeed, are read from its sdist."""
    index = one_release(ENGINE, ["torch==2.1", "[audio]", "x"], sdists=True)
    (line,), cache = fetch_vllm(index, tmp_path)
    record = cache.releases()["0.2"]
    assert line == "vllm 0.2: 5 files, 5 of them new"
    assert record["requires"] == ["torch==2.1", 'x; extra == "audio"']
    assert "class LLM" in cache.source(record["files"]["vllm/llm.py"])


def test_wheel_with_another_hash_than_in_the_index_is_not_read(tmp_path, monkeypatch):
    """A small wheel is fetched as a whole, and its hash is compared with the index's."""
    index = one_release({"vllm/a.py": "a = 1\n"})
    entry = index.entry
    monkeypatch.setattr(index, "entry", lambda name: entry(name) | {"hashes": {"sha256": "0" * 64}})
    (line,), cache = fetch_vllm(index, tmp_path)
    assert "hash" in line
    assert cache.releases() == {}


@pytest.mark.parametrize("sdists", [False, True])
def test_file_that_is_too_large_is_named(tmp_path, monkeypatch, sdists):
    """The release's other file is read."""
    monkeypatch.setattr(build.archives, "_LARGEST_MEMBER", 1000)
    files = {"vllm/a.py": "x = 1\n", "vllm/big.py": "y = 1\n" * 1000}
    (line,), _ = fetch_vllm(one_release(files, sdists=sdists), tmp_path)
    assert line == "vllm 0.2: 1 files, 1 of them new; too large to read: vllm/big.py"


@pytest.mark.parametrize("name", ["vllm-1.tar.gz", "vllm-1-py3-none-any.whl"])
def test_damaged_archive_is_not_read(tmp_path, name):
    """One line has the reason, and the cache has no release."""
    index = FakeIndex({})
    index.archives[name] = b"no archive"
    (line,), cache = fetch_vllm(index, tmp_path)
    assert "not read: " in line
    assert cache.releases() == {}


def list_releases(page):
    """Return vLLM's releases according to an index page with these bytes."""
    client = httpx.Client(transport=httpx.MockTransport(lambda _: httpx.Response(200, content=page)))
    return build.archives.list_releases(client, "vllm", environ={})


@pytest.mark.parametrize(
    "page",
    [b"[1]", b"{", b'{"files": [1]}', b'{"files": [{"filename": 1}]}', b'{"files": [{"filename": "x", "url": []}]}',
     b'{"files": [{"filename": "vllm-1.tar.gz", "url": "u", "size": "x"}]}'],
)  # fmt: skip
def test_broken_listing_is_a_user_error(page):
    with pytest.raises(UserError, match="the index cannot be read for vllm"):
        list_releases(page)


def test_hash_that_is_a_path_is_dropped():
    """A cache keeps a wheel in a folder that has the name of the wheel's hash."""
    entry = b'{"filename": "vllm-1.tar.gz", "url": "u", "hashes": {"sha256": "../../evil"}}'
    (release,) = list_releases(b'{"files": [%s]}' % entry)
    assert release.sha256 == ""


def test_unreadable_package_does_not_end_the_build(tmp_path, monkeypatch):
    """The next package is built; for the unreadable one no file is written, and a line has the reason."""
    for name, value in {"CACHE": tmp_path / "cache", "PACKAGES": PACKAGES}.items():
        monkeypatch.setattr(build, name, value)
    monkeypatch.setattr(store, "FOLDER", tmp_path)
    monkeypatch.setattr(build.archives, "connect", FakeIndex(RELEASES).client)
    listed = build.archives._listed_files

    def answer(client, package, environ):
        if package == "vllm":
            raise UserError("the index cannot be read for vllm: ReadTimeout")
        return listed(client, package, environ)

    monkeypatch.setattr(build.archives, "_listed_files", answer)
    lines = list(build.build(["vllm", "trl"]))
    assert lines[0] == "vllm: not built: UserError: the index cannot be read for vllm: ReadTimeout"
    assert lines[-1].startswith("trl.zip: ")
    assert not (tmp_path / "vllm.zip").exists()


def run(*arguments):
    """Run `python -m diagnostics.api_index` in this process; return its exit code."""
    return run_command(api_index_command.command, list(arguments), "api_index")


def test_changes_lists_what_the_releases_of_a_period_removed(capsys):
    """`changes` lists removed names that other packages' releases of that time use, by the shipped index."""
    assert run("changes", "vllm", "--since", "2025-09-20", "--until", "2025-10-06") == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert all(line.startswith("vllm 0.11.0 removed vllm.") for line in lines)
    assert "which trl 0.23.1 takes (trl/scripts/vllm_serve.py:539)" in lines[1]


def test_command_escapes_what_a_package_contains(monkeypatch, capsys):
    """Control characters and CI commands of a package are shown, not executed."""
    lines = ["vllm removed \x1b]0;x\x07", "::error::x"]
    monkeypatch.setattr(api_index_command, "changes", lambda *_: iter(lines))
    assert run("changes", "vllm", "--since", "2025-01-01") == 0
    assert capsys.readouterr().out == "vllm removed \\u001b]0;x\\u0007\n\\u003a:error::x\n"


@pytest.mark.parametrize(
    "arguments", [["changes"], ["build", "nothere"], ["build", "vllm", "--since", "2025-01-01"]]
)
def test_wrong_usage_exits_with_2_and_an_error(arguments, capsys):
    assert run(*arguments) == 2
    assert "Error: " in capsys.readouterr().err


def test_unreadable_index_is_one_line(monkeypatch, tmp_path, capsys):
    """A package index that refuses the connection gives one line on stderr without the password, and exit code 3."""
    monkeypatch.setattr(build, "CACHE", tmp_path)
    monkeypatch.setenv("PIP_INDEX_URL", "http://user:secret@127.0.0.1:9/simple")
    assert run("build", "peft") == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("peft: not built: UserError: the index cannot be read for peft: ConnectError")
    assert "secret" not in line
