"""Tests that run inside of a simulation, in a process of their own: the library stays in a process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.command_line import environment
from tests.helpers.specs import ROOT

INSIDE = sorted((Path(__file__).parent / "inside").glob("*.py"))


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run pytest, with no other plugins than ours and its own; processes that it spawns do not import it."""
    program = "import pytest, sys; sys.exit(pytest.main(sys.argv[1:]))"
    command = [sys.executable, "-c", program, "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *arguments]
    return subprocess.run(command, env=environment(), cwd=ROOT, capture_output=True, text=True, check=False)


def test_inside_of_a_simulation() -> None:
    done = run(*map(str, INSIDE))
    assert done.returncode == 0, done.stdout + done.stderr


LEAKING = """
import os
import pytest
from cuda.bindings import driver
from tests.helpers.client_calls import SIZE, mapped, properties, use

def test_that_forgets(simulated_gpus):
    use()
    driver.cuMemCreate(SIZE, properties(), 0)

def test_after_it(simulated_gpus):
    use()
    assert not simulated_gpus.leaks

def test_that_raises(simulated_gpus):
    use()
    mapped()
    driver.cuMemRelease(7)
    raise RuntimeError

def test_that_expects_a_refusal(simulated_gpus):
    use()
    driver.cuMemRelease(8)

@pytest.mark.xfail(strict=True)
def test_that_is_expected_to_raise(simulated_gpus):
    use()
    mapped()
    raise RuntimeError

def test_that_is_skipped_in_the_middle(simulated_gpus):
    use()
    mapped()
    pytest.skip()

@pytest.fixture
def broken(simulated_gpus):
    use()
    mapped()
    raise RuntimeError

def test_whose_fixture_raises(broken):
    pass

@pytest.mark.simulated_gpus("h900")
def test_on_an_unknown_machine(simulated_gpus):
    pass

@pytest.mark.simulated_gpus(leak="allow")
def test_with_a_misspelt_marker(simulated_gpus):
    pass
"""


def test_a_test_that_leaves_memory_fails_with_the_line(tmp_path: Path) -> None:
    (tmp_path / "test_leaking.py").write_text(LEAKING)
    found = run(str(tmp_path / "test_leaking.py")).stdout
    assert "the test has not freed:\n  0x3e000000 from cuMemCreate at " in found
    assert f"{tmp_path}/test_leaking.py:9" in found
    assert "ERROR" in found
    assert "machine 'h900' is not known" in found
    assert "the marker is simulated_gpus(machine='h200x2', leaks='fail')" in found
    assert found.count("ERROR at teardown") == 1  # what a test leaves that has failed is a consequence
    assert found.count("refused calls of simulated_gpus") == 1  # of the test that failed, not of those that passed
    assert "cuMemRelease(handle=0x7): CUDA_ERROR_INVALID_VALUE (" in found
    assert "1 failed, 3 passed, 1 skipped, 1 xfailed, 4 errors" in found, found


PARTS = """
from tests.helpers.client_calls import mapped, use

def test_of_parts(simulated_gpus, subtests):
    use()
    with subtests.test("one"):
        mapped()
        raise RuntimeError
    with subtests.test("two"):
        pass
"""


@pytest.mark.skipif(pytest.version_tuple < (9,), reason="pytest has subtests from version 9 on")
def test_what_a_test_leaves_that_has_failed_in_part_is_a_consequence(tmp_path: Path) -> None:
    (tmp_path / "test_parts.py").write_text(PARTS)
    found = run(str(tmp_path / "test_parts.py")).stdout
    assert "SUBFAILED" in found
    assert "ERROR at teardown" not in found, found


MANY = """
import os
import pytest
from cuda.bindings import driver
from tests.helpers.client_calls import mapped, unmap, use

def open_files():
    return len(os.listdir("/proc/self/fd"))

@pytest.fixture(scope="session")
def before():
    return []

@pytest.mark.parametrize("number", range(200))
def test_many(simulated_gpus, before, number):
    use()
    unmap(*mapped())
    host = driver.cuMemHostAlloc(4096, 0)[1]
    if number % 2:
        driver.cuMemFreeHost(host)
    before.append((open_files(), len(os.listdir("/proc/self/task")), len(open("/proc/self/maps").readlines())))

def test_nothing_is_left(before):
    files, threads, areas = map(list, zip(*before))
    assert files[-1] == files[10]
    assert threads[-1] <= threads[10] + 1
    assert areas[-1] <= areas[10] + 5
    assert not [name for name in os.listdir("/dev/shm") if "memtopo" in name]
"""


def test_nothing_is_left_after_two_hundred_tests(tmp_path: Path) -> None:
    (tmp_path / "test_many.py").write_text(
        MANY.replace("def test_many(", '@pytest.mark.simulated_gpus(leaks="allow")\ndef test_many(')
    )
    done = run(str(tmp_path / "test_many.py"))
    assert "201 passed" in done.stdout, done.stdout
