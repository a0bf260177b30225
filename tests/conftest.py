"""Options, marks and profiles that hold for all tests."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys
from collections.abc import Generator, Mapping
from heapq import heapreplace
from math import ceil
from pathlib import Path
from zlib import crc32

import pytest
from hypothesis import HealthCheck, settings

# A job in the background ignores SIGINT, and so would all processes that tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# As all processes that nohup starts ignore SIGHUP; this one goes on when its terminal hangs up.
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda *_: None)

settings.register_profile("full", deadline=None, max_examples=100, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("default", settings.get_profile("full"), max_examples=30)
settings.register_profile("ci", settings.get_profile("default"), derandomize=True, print_blob=True)
settings.register_profile("thorough", settings.get_profile("full"), max_examples=5000)


LONG_FILES = (
    "test_on_ray.py",
    "test_join.py",
    "test_replay.py",
    "test_traces.py",
    "test_join_held.py",
    "test_with.py",
    "test_scaling.py",
    "test_library.py",
    "test_narrow.py",
    "test_capture.py",
    "test_heaps.py",
    "test_launchers.py",
    "test_pages.py",
    "test_site.py",
    "test_release.py",
    "test_action.py",
    "test_two_nodes.py",
    "test_docs.py",
    "test_specs.py",
    "test_crashes.py",
    "test_streams.py",
    "test_programs.py",
    "test_interrupts.py",
)
"""Files whose few tests take long or wait: they run first, so that none of them runs alone at the end."""

LONG = 5.0
"""Seconds of an exhaustive test whose file runs first as well."""

SECONDS_A_DAY = 60.0
"""Processor time of the exhaustive tests of a day, about: half a minute on two cores."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--gpu", action="store_true", help="run the tests that need a real GPU too; fail where there is none"
    )
    parser.addoption(
        "--hosts",
        action="store_true",
        help="run tests/hosts too, which downloads releases of vLLM and others",
    )
    parser.addoption(
        "--exhaustive-day",
        type=int,
        metavar="DAY",
        help="run some of the exhaustive tests too, others for each number, such as a count of days",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Load a profile of random examples; `make test-full` has three times as many as `make test`."""
    if config.getoption("--exhaustive-day") is not None and config.getoption("-m") == "not exhaustive":
        config.option.markexpr = ""
    full = config.getoption("-m").startswith("exhaustive")
    chosen = "full" if full else "ci" if "CI" in os.environ else "default"
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", chosen))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    hosts = collection_path == Path(__file__).parent / "hosts"
    return True if hosts and not config.getoption("--hosts") else None


def pytest_sessionstart(session: pytest.Session) -> None:
    if session.config.getoption("--gpu") and not _gpus():
        pytest.exit("--gpu was given, and this machine has no GPU", returncode=3)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int | None:
    """Two workers for each core: part of the time of a test it waits for processes that it has started."""
    return None if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ else 2 * len(os.sched_getaffinity(0))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect tests without the garbage collector, which leaves out their half million objects from then on."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    costs = {item.nodeid: mark.kwargs.get("seconds", 1.0) for item in items for mark in item.iter_markers("exhaustive")}
    if (day := config.getoption("--exhaustive-day")) is not None:
        left_out = costs.keys() - exhaustive_tests(costs, day)
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid in left_out])
        items[:] = [item for item in items if item.nodeid not in left_out]
    long = {item.path for item in items if item.path.name in LONG_FILES or costs.get(item.nodeid, 0.0) > LONG}
    items.sort(key=lambda item: item.path not in long)
    if config.getoption("--gpu"):
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs --gpu"))


def exhaustive_tests(costs: Mapping[str, float], day: int) -> set[str]:
    """Return the tests of a day, from the seconds of each: every test is one of one day, and then again in turn.

    They are dealt to the days, those that take longest first, each to the day that has least to do.
    """
    number = ceil(sum(costs.values()) / SECONDS_A_DAY)
    days, dealt = [(0.0, each) for each in range(number)], {}
    for name in sorted(costs, key=lambda name: (-costs[name], crc32(name.encode()))):
        seconds, dealt[name] = days[0]
        heapreplace(days, (seconds + costs[name], dealt[name]))
    return {name for name, of_day in dealt.items() if of_day == day % number}


@pytest.fixture(autouse=True, scope="session")
def _fork_server(request: pytest.FixtureRequest) -> None:
    """The server of processes is there before any test counts descriptors; on a GPU each is a new interpreter."""
    if "memtopo.common.processes" in sys.modules and not request.config.getoption("--gpu"):
        from tests.helpers import python_process

        python_process.install(python_process.ForkServer())


@pytest.fixture(autouse=True, scope="module")
def _no_garbage() -> None:
    """Simulators that earlier files have left as garbage close no descriptors while a test counts its own."""
    gc.collect()


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's runtime directory: an empty one."""
    found = tmp_path / "run"
    found.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(found))
    return found


def _gpus() -> int:
    """Number of GPUs of the driver, read by ctypes so that no package is needed."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int(0)
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
        return 0
    return count.value
