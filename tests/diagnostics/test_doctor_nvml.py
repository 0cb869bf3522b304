"""The program that asks NVML, with a library of the same name and calls in the driver's place."""

import shutil
import subprocess

import pytest

from diagnostics.collect import gpus

# Signatures as in NVIDIA's nvml.h; one device that has something to say, and one that has fallen off the bus.
SOURCE = r"""
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
typedef void *device;
typedef struct { unsigned long long total, free, used; } memory;
int nvmlInit_v2(void) { INIT }
int nvmlSystemGetDriverVersion(char *text, unsigned length) { strncpy(text, "570.86.15", length); return 0; }
int nvmlSystemGetCudaDriverVersion_v2(int *version) { *version = 12080; return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, device *found) { *found = (device)7; return index ? 15 : 0; }
int nvmlDeviceGetName(device d, char *text, unsigned length) {
  strncpy(text, d == (device)7 ? "H200" : "?", length); return 0; }
int nvmlDeviceGetUUID(device d, char *text, unsigned length) { strncpy(text, "GPU-1", length); return 0; }
int nvmlDeviceGetMemoryInfo(device d, memory *m) {
  m->total = 141000000000ULL; m->free = 1; m->used = 5000000000ULL; return 0; }
int nvmlDeviceGetCudaComputeCapability(device d, int *major, int *minor) { *major = 9; *minor = 0; return 0; }
int nvmlDeviceGetComputeMode(device d, unsigned *mode) { *mode = 3; return 0; }
int nvmlDeviceGetMigMode(device d, unsigned *now, unsigned *pending) { *now = 1; *pending = 0; return 0; }
int nvmlDeviceGetRetiredPagesPendingStatus(device d, unsigned *pending) { return 3; }
int nvmlDeviceGetTotalEccErrors(device d, int kind, int counter, unsigned long long *count) {
  *count = kind == 1 && counter == 0 ? 2 : 999; return 0; }
int nvmlDeviceGetRemappedRows(device d, unsigned *a, unsigned *b, unsigned *pending, unsigned *failed) {
  *a = *b = *failed = 0; *pending = 1; return 0; }
"""


@pytest.fixture
def driver(tmp_path, monkeypatch):
    """Builds the library with a given beginning, where the child finds it."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")

    def build(init):
        source = tmp_path / "nvml.c"
        source.write_text(SOURCE.replace("INIT", init))
        library = tmp_path / "libnvidia-ml.so.1"
        subprocess.run([compiler, "-shared", "-fPIC", "-w", "-o", library, source], check=True, timeout=500)
        monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))

    return build


def test_what_a_driver_tells(driver):
    """Each value in its place and unit; a device that does not answer does not hide the other."""
    driver("return 0;")
    seen = gpus.collect(limit_s=500)
    assert (seen.state, seen.driver, seen.cuda) == ("ok", "570.86.15", "12.8")
    first, second = seen.devices
    assert first == gpus.Gpu(
        0,
        "H200",
        "GPU-1",
        141.0,
        5.0,
        "9.0",
        "exclusive_process",
        mig=True,
        ecc_uncorrected=2,
        rows_pending=True,
    )
    assert (second.index, second.problem) == (
        1,
        "nvmlDeviceGetHandleByIndex_v2: the GPU has fallen off the bus",
    )


@pytest.mark.parametrize(("code", "problem"), [(3, ""), (4, ""), (999, "unknown error")])
def test_memory_that_is_not_told_is_no_damage(driver, monkeypatch, code, problem):
    """As of a GPU that shares the machine's; an error is one."""
    monkeypatch.setitem(globals(), "SOURCE", SOURCE.replace("m->total =", f"return {code}; m->total ="))
    driver("return 0;")
    first = gpus.collect(limit_s=500).devices[0]
    assert (first.memory_gb, first.capability) == (None, "9.0")
    assert problem in first.problem
    assert bool(problem) == bool(first.problem)


@pytest.mark.parametrize(
    ("init", "state", "problem"),
    [
        ("return 18;", "failed", "of different releases"),
        ("abort();", "failed", "ended with -6"),
        ("for (;;) pause();", "timeout", "did not answer"),
    ],
)
def test_a_driver_in_trouble(driver, init, state, problem):
    """An error, a crash, a hang: a fact each."""
    driver(init)
    seen = gpus.collect(limit_s=3 if state == "timeout" else 500)
    assert seen.state == state
    assert problem in seen.problem
