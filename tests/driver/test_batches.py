"""Driver calls for many chunks: how far a batch came, its error, and what the ledger counts then."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from cuda.bindings import driver as bindings

from memtopo.common.errors import Unavailable
from memtopo.driver.ledger import Ledger
from memtopo.driver.types import DriverError
from memtopo.driver.wrappers import call_each
from memtopo.drivers.cuda.driver import CudaDriver
from memtopo.drivers.sim import SimDriver
from tests.contract.memory import PLAIN
from tests.helpers.failing_driver import Failing
from tests.helpers.machines import invented

M = 2 << 20
SUCCESS = bindings.CUresult.CUDA_SUCCESS
REFUSED = bindings.CUresult.CUDA_ERROR_NOT_PERMITTED


def answers(*given: object) -> tuple[list[tuple[object, ...]], Callable[..., object]]:
    """A function of the bindings that returns or raises what is given, call by call, and the arguments of each call."""
    left, arguments = list(given), []

    def function(*each: object) -> object:
        arguments.append(each)
        answer = left.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    function.__name__ = "cuMemTest"
    return arguments, function


def test_mappings_end_at_the_first_error(monkeypatch: pytest.MonkeyPatch) -> None:
    made, function = answers((SUCCESS,), (SUCCESS,), (REFUSED,))
    monkeypatch.setattr(bindings, "cuMemMap", function)
    found, error = call_each(CudaDriver(), "mem_map", [(M, M, 7), (2 * M, M, 8), (3 * M, M, 9), (4 * M, M, 10)])
    assert (len(found), getattr(error, "name", None)) == (2, "CUDA_ERROR_NOT_PERMITTED")
    assert made == [(M, M, 0, 7, 0), (2 * M, M, 0, 8, 0), (3 * M, M, 0, 9, 0)]


def test_creations_before_an_unknown_status_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    _, function = answers((SUCCESS, 5), (SUCCESS, 6), KeyError(999))
    monkeypatch.setattr(bindings, "cuMemCreate", function)
    handles, error = call_each(CudaDriver(), "mem_create", [(M, PLAIN)] * 3)
    assert (handles, getattr(error, "name", None)) == ([5, 6], "CUDA_ERROR_UNKNOWN")


def test_releases_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    made, function = answers((SUCCESS,), (SUCCESS,))
    monkeypatch.setattr(bindings, "cuMemRelease", function)
    assert call_each(CudaDriver(), "mem_release", [(5,), (6,)]) == ([None, None], None)
    assert made == [(5,), (6,)]


def test_a_function_that_the_driver_does_not_have_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bindings, "cuMemMap", answers(RuntimeError("not found"))[1])
    made, error = call_each(CudaDriver(), "mem_map", [(M, M, 7)])
    assert (made, type(error)) == ([], Unavailable)


def test_the_ledger_counts_what_a_batch_did_before_its_error() -> None:
    """Create, map and release, of which the third call fails each time."""
    with SimDriver(invented()) as sim:
        failing = Failing(sim, only={"mem_create", "mem_map", "mem_release"})
        ledger = Ledger(failing)
        ledger.init()

        def failing_third() -> None:
            failing.at = failing.calls + 3

        failing_third()
        handles, error = call_each(ledger, "mem_create", [(M, PLAIN)] * 4)
        assert isinstance(error, DriverError)
        assert ledger.accounts["handles"] == dict.fromkeys(handles, 1)
        handles += call_each(ledger, "mem_create", [(M, PLAIN)] * 2)[0]
        base = ledger.mem_address_reserve(4 * M)
        failing_third()
        mappings = [(base + index * M, M, handle) for index, handle in enumerate(handles)]
        made, error = call_each(ledger, "mem_map", mappings)
        assert (len(made), error is None) == (2, False)
        assert ledger.accounts["mappings"] == {base: M, base + M: M}
        ledger.mem_unmap(base, 2 * M)
        failing_third()
        released, error = call_each(ledger, "mem_release", [*zip(handles)])
        assert (len(released), error is None) == (2, False)
        assert list(ledger.accounts["handles"]) == handles[2:]
        assert call_each(ledger, "mem_release", [*zip(handles[2:])]) == ([None] * 2, None)
        ledger.mem_address_free(base, 4 * M)
        assert ledger.empty


def test_a_release_of_one_of_several_references_leaves_the_others() -> None:
    with SimDriver(invented()) as sim:
        ledger = Ledger(sim)
        ledger.init()
        base, (handle,) = ledger.mem_address_reserve(M), call_each(ledger, "mem_create", [(M, PLAIN)])[0]
        call_each(ledger, "mem_map", [(base, M, handle)])
        assert ledger.mem_retain_allocation_handle(base) == handle
        call_each(ledger, "mem_release", [(handle,)])
        assert ledger.accounts["handles"] == {handle: 1}
