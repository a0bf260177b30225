"""Batches and launches of the CUDA driver, as a library in libcuda's place gets them from the bindings.

Each number of a call is another one, so that none can stand for another.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.command_line import environment
from tests.helpers.program_calls import make_library

CHILD = """
import json, os, sys
from pathlib import Path
from memtopo.driver.kernels import Area
from memtopo.driver.types import Access, DriverError, Grant, Properties, gpu
from memtopo.drivers.cuda import driver as module
from memtopo.drivers.cuda.driver import CudaDriver

log, driver = Path(os.environ["CUDA_CALLS"]), CudaDriver()
driver.module_load_data()

def unbatched():
    module._BATCHED = False
    return driver.copy_each([(11, 21, 31), (12, 22, 32)], 7)

def error_of(call, *arguments):
    try:
        call(*arguments)
    except DriverError as error:
        return f"{error.call}: {error.name}"

found = []
for expression in json.load(sys.stdin):
    log.write_text("")
    result = repr(eval(expression))
    found.append((result, [json.loads(line) for line in log.read_text().splitlines()]))
json.dump(found, sys.stdout)
"""

Calls = list[tuple[str, dict[str, Any]]]


def table(*words: int, size: int) -> tuple[str, dict[str, Any]]:
    """The copy of a table of areas to the GPU, with its first words; the address is of the global `areas`."""
    return "cuMemcpyHtoDAsync", {"to": ord("a"), "words": list(words), "size": size, "stream": 0}


def launch(
    kernel: str, *parameters: int, blocks: int = 1, areas: int = 1, threads: int = 256
) -> tuple[str, dict[str, Any]]:
    shape = {"kernel": kernel, "blocks": blocks, "areas": areas, "threads": threads, "rest": [1, 1, 1, 0, 0]}
    return "cuLaunchKernel", {**shape, "parameters": list(parameters), "stream": 0}


READ = "cuMemcpyDtoH", {"from": ord("f"), "size": 32}
NO_MISMATCH = "cuMemcpyHtoD", {"to": ord("f"), "words": [0, 2**64 - 1, 2**64 - 1, 0]}
PROPERTIES = {"handles": [], "rdma": False, "compressible": False}

CASES: dict[str, tuple[str, Calls]] = {
    "driver.each('mem_create', [(4, Properties(gpu(5))), (4, Properties(gpu(6)))])": (
        "([1, 2], None)",
        [
            ("cuMemCreate", {"size": 4, "properties": {"location": location, **PROPERTIES}, "flags": 0})
            for location in ("gpu5", "gpu6")
        ],
    ),
    "driver.each('mem_map', [(11, 21, 31), (12, 22, 32)])": (
        "([None, None], None)",
        [
            ("cuMemMap", {"address": 11, "size": 21, "offset": 0, "handle": 31, "flags": 0}),
            ("cuMemMap", {"address": 12, "size": 22, "offset": 0, "handle": 32, "flags": 0}),
        ],
    ),
    "driver.each('mem_release', [(31,), (32,)])": (
        "([None, None], None)",
        [("cuMemRelease", {"handle": 31}), ("cuMemRelease", {"handle": 32})],
    ),
    "[each.location.id for each in driver.each('mem_get_allocation_properties_from_handle', [(3,), (4,)])[0]]": (
        "[3, 4]",
        [("cuMemGetAllocationPropertiesFromHandle", {"handle": handle}) for handle in (3, 4)],
    ),
    "driver.each('mem_get_access', [(11, gpu(3)), (12, gpu(4))])": (
        "([3, 3], None)",
        [
            ("cuMemGetAccess", {"location": "gpu3", "address": 11}),
            ("cuMemGetAccess", {"location": "gpu4", "address": 12}),
        ],
    ),
    "driver.mem_set_access(11, 21, (Grant(gpu(5), Access.RW), Grant(gpu(2), Access.R)))": (
        "None",
        [
            (
                "cuMemSetAccess",
                {
                    "address": 11,
                    "size": 21,
                    "grants": [{"location": "gpu5", "access": "rw"}, {"location": "gpu2", "access": "r"}],
                },
            )
        ],
    ),
    "driver.copy_each([(11, 21, 31), (12, 22, 32)], 7)": (
        "None",
        [
            (
                "cuMemcpyBatchAsync",
                {"to": [11, 12], "from": [21, 22], "sizes": [31, 32], "order": 1, "first": [0], "stream": 7},
            )
        ],
    ),
    "unbatched()": (
        "None",
        [
            ("cuMemcpyAsync", {"to": 11, "from": 21, "size": 31, "stream": 7}),
            ("cuMemcpyAsync", {"to": 12, "from": 22, "size": 32, "stream": 7}),
        ],
    ),
    "driver.fill([Area(index << 20, 16 << 10, 5, 8) for index in range(1, 131)])": (
        "None",
        [
            table(1 << 20, 16 << 10, 5, 8, size=128 * 32),
            launch("fill", areas=128),
            table(129 << 20, 16 << 10, 5, 8, size=2 * 32),
            launch("fill", areas=2),
        ],
    ),
    "driver.verify([Area(index << 20, 16 << 10, 5, 8) for index in range(1, 401)])": (
        "Verified(mismatches=0, area=0, offset=0, expected=0, actual=0)",
        [
            NO_MISMATCH,
            table(1 << 20, 16 << 10, 5, 8, size=128 * 32),
            launch("verify", 0, areas=128),
            table(129 << 20, 16 << 10, 5, 8, size=192 * 32),
            launch("verify", 128, areas=192),
            table(321 << 20, 16 << 10, 5, 8, size=80 * 32),
            launch("verify", 320, areas=80),
            READ,
        ],
    ),
    "driver.fingerprint([(index << 20, 16 << 10) for index in range(1, 131)])": (
        repr((0,) * 130),
        [
            ("cuMemsetD8Async", {"address": ord("s"), "value": 0, "count": 130 * 8, "stream": 0}),
            table(1 << 20, 16 << 10, 2 << 20, 16 << 10, size=128 * 16),
            launch("fingerprint", 0, areas=128),
            table(129 << 20, 16 << 10, 130 << 20, 16 << 10, size=2 * 16),
            launch("fingerprint", 128, areas=2),
            ("cuMemcpyDtoH", {"from": ord("s"), "size": 130 * 8}),
        ],
    ),
    "driver.store(64, 1 << 40)": ("None", [launch("store", 64, 1 << 40, threads=1)]),
    "driver.load(64)": ("0", [launch("load", 64, threads=1), READ]),
}
"""Expressions of a child, with their results and the calls that the library gets."""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the library."""
    folder: Path = tmp_path_factory.mktemp("library")
    make_library(folder)
    return folder


def evaluated(library: Path, *expressions: str, **variables: str) -> dict[str, tuple[str, Calls]]:
    """Result and calls of each expression, in a child with more variables of the environment."""
    paths = {"LD_LIBRARY_PATH": str(library), "CUDA_CALLS": str(library / "log")}
    command = [sys.executable, "-c", CHILD]
    done = subprocess.run(
        command,
        input=json.dumps(expressions),
        env=environment() | paths | variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    return {
        expression: (result, [(call["call"], call["arguments"]) for call in calls])
        for expression, (result, calls) in zip(expressions, found, strict=True)
    }


@pytest.fixture(scope="module")
def made(library: Path) -> dict[str, tuple[str, Calls]]:
    """Result and calls of each expression."""
    return evaluated(library, *CASES)


@pytest.mark.parametrize("expression", CASES, ids=lambda text: text.partition("(")[0].removeprefix("driver."))
def test_the_library_gets_each_argument_in_its_place(made: dict[str, tuple[str, Calls]], expression: str) -> None:
    assert made[expression] == CASES[expression]


UNLOADED = "cuModuleUnload", {"module": 2}


def test_copies_are_made_one_by_one_by_a_driver_without_batches(library: Path) -> None:
    batch = "driver.copy_each([(11, 21, 31), (12, 22, 32)], 7)"
    assert evaluated(library, batch, CUDA_LACKS="cuMemcpyBatchAsync")[batch] == CASES["unbatched()"]


def test_a_module_that_lacks_a_kernel_is_unloaded(library: Path) -> None:
    lacking, load = "os.environ.update(CUDA_LACKS='verify')", "error_of(driver.module_load_data)"
    found = evaluated(library, lacking, load)
    assert found[load] == ("'cuModuleGetFunction: CUDA_ERROR_INVALID_VALUE'", [UNLOADED])


def test_no_kernel_of_an_unloaded_module_is_launched(library: Path) -> None:
    unload, load = "driver.module_unload(2)", "error_of(driver.load, 64)"
    found = evaluated(library, unload, load)
    assert found == {unload: ("None", [UNLOADED]), load: ("'cuLaunchKernel: CUDA_ERROR_INVALID_HANDLE'", [])}
