"""Define the broken and healthy environments on which doctor is measured.

Each case of CASES has a name, a base of BASES, a function that changes a copy of the base, and a label. The label is a
tuple of codes: doctor must report at least one of them. Without a label the environment is healthy. The functions get
the folder of the environment as `prefix`. The files of the copy are hard links to those of the base: functions remove
or replace files, and never write into one. A function may return environment variables for the run, and as `cwd` its
working folder.
"""

from __future__ import annotations

import shutil
import subprocess
from functools import partial

SMALL = "from transformers import AutoConfig, AutoTokenizer; AutoConfig.for_model('qwen2')"
DATA = "import datasets; datasets.Dataset.from_list([{'prompt': 'a'}])"
TRL = "from trl import GRPOConfig, GRPOTrainer"
# For each base: requirements, options of the installer, and a program that imports what a run imports first.
BASES = {
    "small": (("transformers==4.57.6", "pip"), (), SMALL),
    "data": (("datasets==4.4.1",), (), DATA),
    "trl": (("trl==1.16.0", "torch==2.13.0+cpu", "peft"), (), TRL),
}


def site_packages(prefix):
    """Return the site-packages folder of an environment."""
    (folder,) = prefix.glob("lib/python3.*/site-packages")
    return folder


def metadata_folder(prefix, name):
    """Return the .dist-info folder of a package."""
    return next(site_packages(prefix).glob(f"{name}-*.dist-info"))


def leave_unchanged(_prefix):
    """Change nothing."""


def remove_files(*patterns, prefix):
    """Remove the files and folders that match the patterns, as after a full disk or a half uninstall."""
    for pattern in patterns:
        removed = list(site_packages(prefix).glob(pattern))
        assert removed, pattern
        for path in removed:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def truncate_file(pattern, prefix):
    """Cut the first file that matches the pattern to half its size, as after a full disk."""
    path = next(site_packages(prefix).glob(pattern))
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(data[: len(data) // 2])


def replace_file(path, text):
    """Write a new file in place of a hard link."""
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def uninstall(*names, prefix):
    """Uninstall packages with uv."""
    subprocess.run(
        ["uv", "pip", "uninstall", "-q", "--python", prefix / "bin" / "python", *names], check=True
    )


def install_release(*requirements, prefix):
    """Install releases with uv and --no-deps, although other packages may need other releases."""
    subprocess.run(
        ["uv", "pip", "install", "-q", "--no-deps", "--python", prefix / "bin" / "python", *requirements],
        check=True,
    )


def set_pythonpath(files, prefix):
    """Create empty files in a folder that PYTHONPATH names."""
    folder = prefix.parent / "cwd" / "named"
    for name in files:
        replace_file(folder / name, "")
    return {"PYTHONPATH": str(folder)}


def fill_working_folder(files, prefix):
    """Create empty files and folders (names that end with /) in the working folder of the run."""
    folder = prefix.parent / "cwd" / "work"
    folder.mkdir(parents=True)
    for name in files:
        if name.endswith("/"):
            (folder / name).mkdir(parents=True)
        else:
            replace_file(folder / name, "")
    return {"cwd": str(folder)}


def inherit_system_packages(prefix):
    """Enable include-system-site-packages in pyvenv.cfg."""
    text = (prefix / "pyvenv.cfg").read_text()
    replace_file(
        prefix / "pyvenv.cfg",
        text.replace("include-system-site-packages = false", "include-system-site-packages = true"),
    )


def add_user_site(files, prefix, *, enabled=True):
    """Create empty files in the user's site-packages, which the environment uses only if `enabled`."""
    if enabled:
        inherit_system_packages(prefix)
    base = prefix.parent / "home" / ".local"
    folder = base / "lib" / site_packages(prefix).parent.name / "site-packages"
    folder.mkdir(parents=True)
    for name in files:
        replace_file(folder / name, "")


def break_interpreter_links(prefix):
    """Let the interpreter's links point to a file that does not exist."""
    for path in (prefix / "bin").glob("python*"):
        path.unlink()
        path.symlink_to("/no/such/python3.11")


def remove_interpreter(prefix):
    """Remove the interpreter."""
    for path in (prefix / "bin").glob("python*"):
        path.unlink()


def rename_library_folder(prefix):
    """Rename lib/python3.X to python3.9, as if the packages were installed for another Python."""
    folder = site_packages(prefix).parent
    folder.rename(folder.with_name("python3.9"))


def break_home(prefix):
    """Let pyvenv.cfg name a home folder that does not exist, and copy the interpreter."""
    lines = (prefix / "pyvenv.cfg").read_text().splitlines()
    replace_file(
        prefix / "pyvenv.cfg",
        "\n".join("home = /no/such/bin" if line.startswith("home") else line for line in lines),
    )
    # Replace the links to the interpreter by copies, as `python -m venv --copies` does.
    for path in (prefix / "bin").glob("python*"):
        target = path.resolve()
        path.unlink()
        shutil.copy2(target, path)


def install_editable(name, prefix, *, moved, finder):
    """Turn a package into an editable install from a folder next to the environment.

    Args:
        name: The package.
        prefix: The environment.
        moved: Move the source folder afterwards, so that the package is not found.
        finder: Install by an import hook with a mapping, not by a path file.
    """
    source = prefix.parent / "cwd" / "source"
    source.mkdir(parents=True)
    shutil.move(site_packages(prefix) / name, source / name)
    place = metadata_folder(prefix, name)
    if finder:
        replace_file(
            site_packages(prefix) / f"__editable__.{name}.pth",
            f"import __editable___{name}_finder as f; f.install()\n",
        )
        replace_file(
            site_packages(prefix) / f"__editable___{name}_finder.py",
            "import sys\nfrom importlib.util import spec_from_file_location\n"
            f"MAPPING: dict = {{{name!r}: {str(source / name)!r}}}\n"
            "class Finder:\n    @classmethod\n    def find_spec(cls, name, path=None, target=None):\n"
            "        import os\n        place = MAPPING.get(name)\n"
            "        if place and os.path.exists(place):\n"
            "            return spec_from_file_location(name, place + '/__init__.py', "
            "submodule_search_locations=[place])\n"
            "def install():\n    sys.meta_path.append(Finder)\n",
        )
    else:
        replace_file(site_packages(prefix) / f"__editable__.{name}.pth", f"{source}\n")
    replace_file(place / "RECORD", f"__editable__.{name}.pth,,1\n")
    replace_file(place / "direct_url.json", '{"url": "file:///source", "dir_info": {"editable": true}}')
    if moved:
        source.rename(source.with_name("elsewhere"))


def replace_metadata_by_folder(name, prefix):
    """Create a folder in place of the METADATA file."""
    place = metadata_folder(prefix, name) / "METADATA"
    place.unlink()
    place.mkdir()


def empty_metadata(name, prefix):
    """Empty the METADATA file."""
    replace_file(metadata_folder(prefix, name) / "METADATA", "")


def duplicate_metadata(name, version, prefix):
    """Copy the metadata of a package under a second version."""
    shutil.copytree(metadata_folder(prefix, name), site_packages(prefix) / f"{name}-{version}.dist-info")
    text = (metadata_folder(prefix, name) / "METADATA").read_text()
    replace_file(site_packages(prefix) / f"{name}-{version}.dist-info" / "METADATA", text)


def add_pip_leftover(prefix):
    """Create a metadata folder whose name begins with ~, as left by an interrupted pip."""
    (site_packages(prefix) / "~okenizers-0.1.0.dist-info").mkdir()


def add_path_file(line, prefix):
    """Write a path file (.pth) with one line."""
    replace_file(site_packages(prefix) / "mine.pth", f"{line}\n")


def add_project_path_file(prefix):
    """Write a path file that names a project folder with a module."""
    folder = prefix.parent / "cwd" / "project"
    replace_file(folder / "rewards.py", "")
    add_path_file(folder, prefix)


def remove_tests_and_bytecode(prefix):
    """Remove all folders `tests` and `__pycache__`."""
    for path in [*site_packages(prefix).rglob("tests"), *site_packages(prefix).rglob("__pycache__")]:
        shutil.rmtree(path, ignore_errors=True)


def remove_record(name, prefix):
    """Remove the RECORD file of a package."""
    (metadata_folder(prefix, name) / "RECORD").unlink()


def rename_to_other_abi(pattern, prefix):
    """Rename a compiled module for CPython 3.11 to the name for CPython 3.10."""
    path = next(site_packages(prefix).glob(pattern))
    path.rename(path.with_name(path.name.replace("cpython-311", "cpython-310")))


def _removal_case(name, *patterns, base="small"):
    return (name, base, lambda prefix: remove_files(*patterns, prefix=prefix), ("ENV923",))


def _uninstall_case(name, base="small"):
    return (
        f"{name} uninstalled",
        base,
        lambda prefix: uninstall(name, prefix=prefix),
        ("CMP904", "ENV012"),
    )


def _install_case(requirement, base="small", codes=("CMP904",)):
    return (
        f"{requirement} installed without dependencies",
        base,
        lambda prefix: install_release(requirement, prefix=prefix),
        codes,
    )


CASES = [
    # Missing files.
    _removal_case("transformers' beginning deleted", "transformers/__init__.py"),
    _removal_case("a module of transformers deleted", "transformers/utils/import_utils.py"),
    _removal_case("a module of the hub deleted", "huggingface_hub/file_download.py"),
    _removal_case("tokenizers' library deleted", "tokenizers/*.so"),
    _removal_case("numpy's library deleted", "numpy/_core/_multiarray_umath*.so"),
    _removal_case("regex's library deleted", "regex/_regex*.so"),
    _removal_case("yaml's beginning deleted", "yaml/__init__.py"),
    _removal_case("tokenizers' folder deleted", "tokenizers"),
    _removal_case("safetensors' folder deleted", "safetensors"),
    _removal_case("pyarrow's library deleted", "pyarrow/lib*.so", base="data"),
    _removal_case("pandas' beginning deleted", "pandas/__init__.py", base="data"),
    _removal_case("a module of datasets deleted", "datasets/arrow_dataset.py", base="data"),
    ("tokenizers' library cut off", "small", partial(truncate_file, "tokenizers/*.so"), ("ENV923",)),
    ("numpy for another Python", "small",
     partial(rename_to_other_abi, "numpy/_core/_multiarray_umath*.so"), ("ENV923",)),
    # Packages that were uninstalled, or whose metadata is damaged.
    *map(_uninstall_case, (
        "tokenizers", "huggingface-hub", "numpy", "regex", "packaging", "safetensors", "pyyaml", "filelock", "tqdm",
        "requests", "typing-extensions", "fsspec", "urllib3", "idna",
    )),
    *(_uninstall_case(name, "data")
      for name in ("pyarrow", "pandas", "dill", "xxhash", "multiprocess", "python-dateutil")),
    ("tokenizers without metadata", "small", lambda p: remove_files("tokenizers-*.dist-info", prefix=p), ("CMP904",)),
    ("tokenizers with empty metadata", "small", partial(empty_metadata, "tokenizers"), ("ENV901", "CMP904")),
    ("a folder in place of METADATA", "small", partial(replace_metadata_by_folder, "tokenizers"), ("CMP904", "ENV901")),
    # Releases that are incompatible.
    _install_case("tokenizers==0.19.1"), _install_case("huggingface-hub==1.0.1"), _install_case("tqdm==4.26.0"),
    _install_case("huggingface-hub==0.23.0"),
    # The interpreter.
    ("the interpreter is a link to nothing", "small", break_interpreter_links, ("ENV924",)),
    ("no interpreter", "small", remove_interpreter, ("ENV924",)),
    ("packages for another release of Python", "small", rename_library_folder, ("ENV924",)),
    ("the interpreter's home is gone", "small", break_home, ("ENV924",)),
    # Files that hide an installed package, and editable installs.
    ("transformers.py in PYTHONPATH", "small", partial(set_pythonpath, ["transformers.py"]), ("ENV925",)),
    ("tokenizers/ in PYTHONPATH", "small", partial(set_pythonpath, ["tokenizers/__init__.py"]), ("ENV925",)),
    ("random.py in PYTHONPATH", "small", partial(set_pythonpath, ["random.py"]), ("ENV925",)),
    ("tokenizers.py in the working folder", "small", partial(fill_working_folder, ["tokenizers.py"]), ("ENV925",)),
    ("a hub in the working folder", "small",
     partial(fill_working_folder, ["huggingface_hub/__init__.py"]), ("ENV925",)),
    ("logging.py in the working folder", "small", partial(fill_working_folder, ["logging.py"]), ("ENV925",)),
    ("an editable install moved", "small",
     partial(install_editable, "tokenizers", moved=True, finder=False), ("ENV926",)),
    ("a mapped one moved", "small", partial(install_editable, "safetensors", moved=True, finder=True), ("ENV926",)),
    # With PyTorch and TRL.
    _removal_case("trl's trainer deleted", "trl/trainer/grpo_trainer.py", base="trl"),
    _removal_case("torch's library deleted", "torch/lib/libtorch_cpu.so", base="trl"),
    _uninstall_case("accelerate", "trl"), _uninstall_case("torch", "trl"),
    _install_case("trl==0.17.0", "trl", ("CMP003",)),
    # Healthy environments.
    ("as installed", "small", leave_unchanged),
    ("as installed, with datasets", "data", leave_unchanged),
    ("as installed, with TRL", "trl", leave_unchanged),
    ("without pip", "small", lambda prefix: uninstall("pip", prefix=prefix)),
    ("tests and bytecode stripped", "small", remove_tests_and_bytecode),
    ("tests and bytecode stripped, with datasets", "data", remove_tests_and_bytecode),
    ("an empty folder in PYTHONPATH", "small", partial(set_pythonpath, ["notes.txt"])),
    ("a project in PYTHONPATH", "small", partial(set_pythonpath, ["rewards.py", "utils/__init__.py"])),
    ("folders of data in the working folder", "small",
     partial(fill_working_folder, ["data/", "datasets/", "transformers/"])),
    ("a project in the working folder", "small",
     partial(fill_working_folder, ["train.py", "rewards/__init__.py", "tests/x.py"])),
    ("test.py in the working folder", "small", partial(fill_working_folder, ["test.py"])),
    ("with the system's packages", "small", inherit_system_packages),
    # Healthy, because the packages of a virtual environment come before those of the user.
    ("tokenizers.py of the user's own", "small", partial(add_user_site, ["tokenizers.py"])),
    ("the user's own packages, enabled", "small", partial(add_user_site, ["mine.py"])),
    ("the user's own packages, disabled", "small", partial(add_user_site, ["tokenizers.py"], enabled=False)),
    ("a path file that names nothing", "small", partial(add_path_file, "/no/such/folder")),
    ("a path file of a project", "small", add_project_path_file),
    ("an editable install", "small", partial(install_editable, "tokenizers", moved=False, finder=False)),
    ("a mapped editable install", "small", partial(install_editable, "safetensors", moved=False, finder=True)),
    ("what an interrupted update left", "small", add_pip_leftover),
    ("a package without its list of files", "small", partial(remove_record, "tqdm")),
    ("pip's metadata twice", "small", partial(duplicate_metadata, "pip", "1.0")),
    ("a newer tqdm", "small", lambda prefix: install_release("tqdm==4.67.1", prefix=prefix)),
]  # fmt: skip
