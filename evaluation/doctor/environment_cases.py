"""Environments for measuring doctor: their base, the injected fault, and the label.

A label is a tuple of codes, one of which names what is broken; none says that the environment is sound. Files are hard
links of a base: they are removed or replaced, never written into.
"""

from __future__ import annotations

import shutil
import subprocess
from functools import partial

SMALL = "from transformers import AutoConfig, AutoTokenizer; AutoConfig.for_model('qwen2')"
DATA = "import datasets; datasets.Dataset.from_list([{'prompt': 'a'}])"
TRL = "from trl import GRPOConfig, GRPOTrainer"
# Requirements, options of the installer, and the first lines of a run.
BASES = {
    "small": (("transformers==4.57.6", "pip"), (), SMALL),
    "data": (("datasets==4.4.1",), (), DATA),
    "trl": (("trl==1.16.0", "torch==2.13.0+cpu", "peft"), (), TRL),
}


def site(prefix):
    (folder,) = prefix.glob("lib/python3.*/site-packages")
    return folder


def info(prefix, name):
    return next(site(prefix).glob(f"{name}-*.dist-info"))


def nothing(_prefix):
    pass


def without(*patterns, prefix):
    """Files or folders gone, as after a full disk or a half uninstall."""
    for pattern in patterns:
        removed = list(site(prefix).glob(pattern))
        assert removed, pattern
        for path in removed:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def cut_off(pattern, prefix):
    """Half of a file, as a full disk leaves it."""
    path = next(site(prefix).glob(pattern))
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(data[: len(data) // 2])


def replaced(path, text):
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def uninstalled(*names, prefix):
    subprocess.run(
        ["uv", "pip", "uninstall", "-q", "--python", prefix / "bin" / "python", *names], check=True
    )


def installed(*requirements, prefix):
    """Another release, without a look at who else needs which."""
    subprocess.run(
        ["uv", "pip", "install", "-q", "--no-deps", "--python", prefix / "bin" / "python", *requirements],
        check=True,
    )


def path_variable(files, prefix):
    folder = prefix.parent / "cwd" / "named"
    for name in files:
        replaced(folder / name, "")
    return {"PYTHONPATH": str(folder)}


def working(files, prefix):
    folder = prefix.parent / "cwd" / "work"
    folder.mkdir(parents=True)
    for name in files:
        if name.endswith("/"):
            (folder / name).mkdir(parents=True)
        else:
            replaced(folder / name, "")
    return {"cwd": str(folder)}


def inherits(prefix):
    text = (prefix / "pyvenv.cfg").read_text()
    replaced(
        prefix / "pyvenv.cfg",
        text.replace("include-system-site-packages = false", "include-system-site-packages = true"),
    )


def user_site(files, prefix, *, heard=True):
    if heard:
        inherits(prefix)
    base = prefix.parent / "home" / ".local"
    folder = base / "lib" / site(prefix).parent.name / "site-packages"
    folder.mkdir(parents=True)
    for name in files:
        replaced(folder / name, "")


def dangling(prefix):
    for path in (prefix / "bin").glob("python*"):
        path.unlink()
        path.symlink_to("/no/such/python3.11")


def no_interpreter(prefix):
    for path in (prefix / "bin").glob("python*"):
        path.unlink()


def other_release(prefix):
    folder = site(prefix).parent
    folder.rename(folder.with_name("python3.9"))


def homeless(prefix):
    lines = (prefix / "pyvenv.cfg").read_text().splitlines()
    replaced(
        prefix / "pyvenv.cfg",
        "\n".join("home = /no/such/bin" if line.startswith("home") else line for line in lines),
    )
    # A copy of the interpreter, as `python -m venv --copies` makes one.
    for path in (prefix / "bin").glob("python*"):
        target = path.resolve()
        path.unlink()
        shutil.copy2(target, path)


def editable(name, prefix, *, moved, finder):
    """Install a package as editable from a folder next to the environment, then move the folder."""
    source = prefix.parent / "cwd" / "source"
    source.mkdir(parents=True)
    shutil.move(site(prefix) / name, source / name)
    place = info(prefix, name)
    if finder:
        replaced(
            site(prefix) / f"__editable__.{name}.pth",
            f"import __editable___{name}_finder as f; f.install()\n",
        )
        replaced(
            site(prefix) / f"__editable___{name}_finder.py",
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
        replaced(site(prefix) / f"__editable__.{name}.pth", f"{source}\n")
    replaced(place / "RECORD", f"__editable__.{name}.pth,,1\n")
    replaced(place / "direct_url.json", '{"url": "file:///source", "dir_info": {"editable": true}}')
    if moved:
        source.rename(source.with_name("elsewhere"))


def folder_for_metadata(name, prefix):
    place = info(prefix, name) / "METADATA"
    place.unlink()
    place.mkdir()


def emptied_metadata(name, prefix):
    replaced(info(prefix, name) / "METADATA", "")


def twice(name, version, prefix):
    shutil.copytree(info(prefix, name), site(prefix) / f"{name}-{version}.dist-info")
    text = (info(prefix, name) / "METADATA").read_text()
    replaced(site(prefix) / f"{name}-{version}.dist-info" / "METADATA", text)


def left_over(prefix):
    (site(prefix) / "~okenizers-0.1.0.dist-info").mkdir()


def path_file(line, prefix):
    replaced(site(prefix) / "mine.pth", f"{line}\n")


def project_path(prefix):
    folder = prefix.parent / "cwd" / "project"
    replaced(folder / "rewards.py", "")
    path_file(folder, prefix)


def stripped(prefix):
    for path in [*site(prefix).rglob("tests"), *site(prefix).rglob("__pycache__")]:
        shutil.rmtree(path, ignore_errors=True)


def no_list(name, prefix):
    (info(prefix, name) / "RECORD").unlink()


def other_abi(pattern, prefix):
    path = next(site(prefix).glob(pattern))
    path.rename(path.with_name(path.name.replace("cpython-311", "cpython-310")))


def _remove_files(name, *patterns, base="small"):
    return (name, base, lambda prefix: without(*patterns, prefix=prefix), ("ENV923",))


def _uninstalled(name, base="small"):
    return (
        f"{name} uninstalled",
        base,
        lambda prefix: uninstalled(name, prefix=prefix),
        ("CMP904", "ENV012"),
    )


def _release(requirement, base="small", codes=("CMP904",)):
    return (f"{requirement} put in", base, lambda prefix: installed(requirement, prefix=prefix), codes)


CASES = [
    # Missing files.
    _remove_files("transformers' beginning deleted", "transformers/__init__.py"),
    _remove_files("a module of transformers deleted", "transformers/utils/import_utils.py"),
    _remove_files("a module of the hub deleted", "huggingface_hub/file_download.py"),
    _remove_files("tokenizers' library deleted", "tokenizers/*.so"),
    _remove_files("numpy's library deleted", "numpy/_core/_multiarray_umath*.so"),
    _remove_files("regex's library deleted", "regex/_regex*.so"),
    _remove_files("yaml's beginning deleted", "yaml/__init__.py"),
    _remove_files("tokenizers' folder deleted", "tokenizers"),
    _remove_files("safetensors' folder deleted", "safetensors"),
    _remove_files("pyarrow's library deleted", "pyarrow/lib*.so", base="data"),
    _remove_files("pandas' beginning deleted", "pandas/__init__.py", base="data"),
    _remove_files("a module of datasets deleted", "datasets/arrow_dataset.py", base="data"),
    ("tokenizers' library cut off", "small", partial(cut_off, "tokenizers/*.so"), ("ENV923",)),
    ("numpy for another Python", "small", partial(other_abi, "numpy/_core/_multiarray_umath*.so"), ("ENV923",)),
    # Packages that an installer removed, completely or partly.
    *map(_uninstalled, (
        "tokenizers", "huggingface-hub", "numpy", "regex", "packaging", "safetensors", "pyyaml", "filelock", "tqdm",
        "requests", "typing-extensions", "fsspec", "urllib3", "idna",
    )),
    *(_uninstalled(name, "data")
      for name in ("pyarrow", "pandas", "dill", "xxhash", "multiprocess", "python-dateutil")),
    ("tokenizers without metadata", "small", lambda p: without("tokenizers-*.dist-info", prefix=p), ("CMP904",)),
    ("tokenizers with empty metadata", "small", partial(emptied_metadata, "tokenizers"), ("ENV901", "CMP904")),
    ("a folder in place of METADATA", "small", partial(folder_for_metadata, "tokenizers"), ("CMP904", "ENV901")),
    # Releases that do not go together.
    _release("tokenizers==0.19.1"), _release("huggingface-hub==1.0.1"), _release("tqdm==4.26.0"),
    _release("huggingface-hub==0.23.0"),
    # The interpreter.
    ("the interpreter is a link to nothing", "small", dangling, ("ENV924",)),
    ("no interpreter", "small", no_interpreter, ("ENV924",)),
    ("packages for another release of Python", "small", other_release, ("ENV924",)),
    ("the interpreter's home is gone", "small", homeless, ("ENV924",)),
    # What is found first.
    ("transformers.py in PYTHONPATH", "small", partial(path_variable, ["transformers.py"]), ("ENV925",)),
    ("tokenizers/ in PYTHONPATH", "small", partial(path_variable, ["tokenizers/__init__.py"]), ("ENV925",)),
    ("random.py in PYTHONPATH", "small", partial(path_variable, ["random.py"]), ("ENV925",)),
    ("tokenizers.py in the working folder", "small", partial(working, ["tokenizers.py"]), ("ENV925",)),
    ("a hub in the working folder", "small", partial(working, ["huggingface_hub/__init__.py"]), ("ENV925",)),
    ("logging.py in the working folder", "small", partial(working, ["logging.py"]), ("ENV925",)),
    ("an editable install moved", "small", partial(editable, "tokenizers", moved=True, finder=False), ("ENV926",)),
    ("a mapped one moved", "small", partial(editable, "safetensors", moved=True, finder=True), ("ENV926",)),
    # With PyTorch and TRL.
    _remove_files("trl's trainer deleted", "trl/trainer/grpo_trainer.py", base="trl"),
    _remove_files("torch's library deleted", "torch/lib/libtorch_cpu.so", base="trl"),
    _uninstalled("accelerate", "trl"), _uninstalled("torch", "trl"),
    _release("trl==0.17.0", "trl", ("CMP003",)),
    # Sound ones.
    ("as installed", "small", nothing),
    ("as installed, with datasets", "data", nothing),
    ("as installed, with TRL", "trl", nothing),
    ("without pip", "small", lambda prefix: uninstalled("pip", prefix=prefix)),
    ("tests and bytecode stripped", "small", stripped),
    ("tests and bytecode stripped, with datasets", "data", stripped),
    ("an empty folder in PYTHONPATH", "small", partial(path_variable, ["notes.txt"])),
    ("a project in PYTHONPATH", "small", partial(path_variable, ["rewards.py", "utils/__init__.py"])),
    ("folders of data in the working folder", "small", partial(working, ["data/", "datasets/", "transformers/"])),
    ("a project in the working folder", "small", partial(working, ["train.py", "rewards/__init__.py", "tests/x.py"])),
    ("test.py in the working folder", "small", partial(working, ["test.py"])),
    ("with the system's packages", "small", inherits),
    # Labelled as broken at first: a venv's own packages come before the user's.
    ("tokenizers.py of the user's own", "small", partial(user_site, ["tokenizers.py"])),
    ("the user's own packages, heard", "small", partial(user_site, ["mine.py"])),
    ("the user's own packages, not heard", "small", partial(user_site, ["tokenizers.py"], heard=False)),
    ("a path file that names nothing", "small", partial(path_file, "/no/such/folder")),
    ("a path file of a project", "small", project_path),
    ("an editable install", "small", partial(editable, "tokenizers", moved=False, finder=False)),
    ("a mapped editable install", "small", partial(editable, "safetensors", moved=False, finder=True)),
    ("what an interrupted update left", "small", left_over),
    ("a package without its list of files", "small", partial(no_list, "tqdm")),
    ("pip's metadata twice", "small", partial(twice, "pip", "1.0")),
    ("a newer tqdm", "small", lambda prefix: installed("tqdm==4.67.1", prefix=prefix)),
]  # fmt: skip
