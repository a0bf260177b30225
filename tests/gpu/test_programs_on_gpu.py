"""Programs out of plans on real GPUs: they make the calls that the trace of a run has, and all of them succeed."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

import pytest

from memtopo.drivers.target import Target
from memtopo.language import read_file
from memtopo.plans.trace import read_traces
from memtopo.rules import validate
from tests.helpers.command_line import run_memtopo
from tests.helpers.program_calls import (
    EXPRESSIBLE,
    HEADERS,
    comparable,
    compile_program,
    driver_calls,
    make_library,
    run_programs,
)
from tests.output.test_programs import REAL_HEADER

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("library")
    make_library(folder)
    return folder


@pytest.fixture(scope="module")
def real_library() -> str:
    """Path of the driver's library."""
    ctypes.CDLL("libcuda.so.1")
    found = re.search(r"/\S*/libcuda\.so\S*", Path("/proc/self/maps").read_text())
    assert found
    return found[0]


@pytest.mark.parametrize("path", EXPRESSIBLE, ids=lambda path: path.stem)
def test_programs_make_the_calls_of_a_traced_run(
    path: Path, local: Target, library: Path, real_library: str, tmp_path: Path
) -> None:
    if validate(read_file(path), local.machine).geometry is None:
        pytest.skip("needs another machine")
    trace = tmp_path / "trace"
    applied = run_memtopo("apply", path, "--machine", "local", "--check", "none", "--trace", trace)
    assert applied.status == 0, applied.err
    traces = {each.head.process: comparable(list(driver_calls(each))) for each in read_traces([trace])}
    for language, suffix in (("c", ".c"), ("cuda-python", ".py")):
        output = tmp_path / f"only{suffix}" if "" in traces else tmp_path
        planned = run_memtopo("plan", path, "--machine", "local", "--as", language, "-o", output)
        assert planned.status == 0, planned.err
        files = {label: tmp_path / f"{label or 'only'}{suffix}" for label in traces}
        if language == "c":
            headers = REAL_HEADER if (REAL_HEADER / "cuda.h").exists() else HEADERS
            files = {label: compile_program(file, library, headers) for label, file in files.items()}
        made = run_programs(files, library, tmp_path, REAL_LIBCUDA=real_library)
        for label, expected in traces.items():
            assert comparable(made[label]) == expected, (language, label)
