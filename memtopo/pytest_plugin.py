"""Plugin for pytest: the fixture `simulated_gpus`, and the marker that names its machine."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from memtopo.testing import Simulation

_MARKER = (
    "simulated_gpus(machine='h200x2', leaks='fail'): machine of the fixture simulated_gpus, and whether a test that "
    "does not free what it creates fails ('fail') or not ('allow')"
)
_FAILED = pytest.StashKey[bool]()
_SIMULATION = pytest.StashKey["Simulation"]()
_MOST_CALLS = 20
"""Refused calls that the report of a failed test has, the last ones."""


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker."""
    config.addinivalue_line("markers", _MARKER)


@pytest.fixture
def simulated_gpus(request: pytest.FixtureRequest) -> Iterator[Simulation]:
    """Simulated machine, whose GPUs are those of this process and its children; the test fails if objects are left.

    `@pytest.mark.simulated_gpus("h100x1")` names another machine than `h200x2`, by its name or the path of its record,
    and `leaks="allow"` lets a test leave objects. Raises as `memtopo.testing.simulated` does.
    """
    from memtopo.common.errors import MemtopoError  # noqa: PLC0415 a session without such tests does without
    from memtopo.testing import simulated  # noqa: PLC0415 likewise

    marked = {"machine": "h200x2", "leaks": "fail"}
    if marker := request.node.get_closest_marker("simulated_gpus"):
        marked |= dict(zip(("machine", "leaks", "more", "more"), marker.args, strict=False)) | marker.kwargs
    if len(marked) > 2 or marked["leaks"] not in {"fail", "allow"}:  # noqa: PLR2004 of no other name
        raise pytest.UsageError(f"the marker is {_MARKER}")
    try:
        simulation = simulated(marked["machine"])
        gpus = simulation.__enter__()
    except MemtopoError as error:
        pytest.fail(str(error), pytrace=False)
    request.node.stash[_SIMULATION] = gpus
    try:
        yield gpus
        left = [] if marked["leaks"] == "allow" or request.node.stash.get(_FAILED, False) else gpus.leaks
    finally:
        simulation.__exit__(None, None, None)
    if left:
        pytest.fail("the test has not freed:\n" + "\n".join(f"  {leak}" for leak in left), pytrace=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note that a test was not run to its end, as expected or not: what it leaves is a consequence.

    The report of a failed one gets a section with the refused calls.
    """
    before = call.when != "setup" and item.stash.get(_FAILED, False)
    item.stash[_FAILED] = before or call.excinfo is not None
    report = yield
    if report.failed and _SIMULATION in item.stash:
        refused = [
            each for each in item.stash[_SIMULATION].calls if each.error and each.error != "CUDA_ERROR_NOT_READY"
        ]
        shown = [f"process {each.pid}: {each}" if each.pid else str(each) for each in refused[-_MOST_CALLS:]]
        if len(refused) > len(shown):
            shown.insert(0, f"{len(refused) - len(shown):,} earlier ones are not shown")
        if shown:
            report.sections.append(("refused calls of simulated_gpus", "\n".join(shown)))
    return report
