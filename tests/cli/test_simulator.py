"""`memtopo simulator`: the machine of a program, its status, and what it leaves."""

from __future__ import annotations

import sys

import pytest

from tests.helpers.command_line import run_memtopo

PROGRAM = """
import ctypes, os, sys
cuda, count, at = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(), ctypes.c_uint64()
cuda.cuInit(0)
cuda.cuDeviceGetCount(ctypes.byref(count))
cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context := ctypes.c_void_p()), 0)
cuda.cuCtxSetCurrent(context)
cuda.cuMemAlloc_v2(ctypes.byref(at), 4096)
print(count.value, cuda.cuMemFree_v2(7), flush=True)
if sys.argv[1:] == ["kill"]:
    os.kill(os.getpid(), 15)
sys.exit(7)
"""


@pytest.mark.parametrize(("machine", "gpus"), [((), 2), (("-m", "h100x1"), 1)])
def test_a_program_has_the_gpus_of_the_machine_and_its_status_is_kept(machine: tuple[str, ...], gpus: int) -> None:
    """Refused calls are reported, and memory that it did not free."""
    found = run_memtopo("simulator", *machine, "--", sys.executable, "-c", PROGRAM)
    assert (found.status, found.out) == (7, f"{gpus} 1\n")
    assert "cuMemFree(address=0x7): CUDA_ERROR_INVALID_VALUE" in found.err
    assert "ended without freeing 0x" in found.err


def test_a_signal_that_ends_the_program_is_the_status() -> None:
    assert run_memtopo("simulator", "--", sys.executable, "-c", PROGRAM, "kill").status == 128 + 15


@pytest.mark.parametrize(("given", "seen"), [({}, "None\n"), ({"PYDANTIC_DISABLE_PLUGINS": "1"}, "1\n")])
def test_a_program_does_not_get_the_variable_that_memtopo_sets_for_itself(given: dict[str, str], seen: str) -> None:
    code = "import os; print(os.environ.get('PYDANTIC_DISABLE_PLUGINS'))"
    assert run_memtopo("simulator", "--", sys.executable, "-c", code, **given).out == seen


ENDS = """
import ctypes, sys
cuda, at = ctypes.CDLL("libcuda.so.1"), ctypes.c_uint64()
cuda.cuInit(0)
cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context := ctypes.c_void_p()), 0)
cuda.cuCtxSetCurrent(context)
if "left" in sys.argv:
    cuda.cuMemAlloc_v2(ctypes.byref(at), 4096)
if "refused" in sys.argv:
    cuda.cuMemFree_v2(7)
sys.exit(3 if "failed" in sys.argv else 0)
"""


@pytest.mark.parametrize(
    ("words", "status"),
    [("", 0), ("left", 81), ("refused", 82), ("left refused", 83), ("left refused failed", 3)],
)
def test_a_strict_status_is_that_of_what_was_left_and_refused_by_a_program_that_succeeds(
    words: str, status: int
) -> None:
    program = (sys.executable, "-c", ENDS, *words.split())
    assert run_memtopo("simulator", "--strict", "--", *program).status == status
    assert run_memtopo("simulator", "--", *program).status == (3 if "failed" in words else 0)


def test_a_program_is_missing() -> None:
    found = run_memtopo("simulator")
    assert (found.status, "no program was given" in found.err) == (2, True)
