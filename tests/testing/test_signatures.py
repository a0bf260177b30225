"""The two tables of C functions, of calls that are listed and of calls that programs make, have the same parameters."""

from __future__ import annotations

import pytest

from memtopo.driver.functions import FUNCTIONS as LISTED
from memtopo.testing.abi import Function
from memtopo.testing.program import FUNCTIONS

IN_STRUCTURES = {
    "cuExternalMemoryGetMappedBuffer", "cuImportExternalMemory", "cuImportExternalSemaphore", "cuMulticastCreate",
}  # fmt: skip
"""Functions that take a structure whose fields are parameters of the protocol's method."""
CONSTANTS = {"type"}
"""Parameters that are constants where memtopo makes the call."""
LONGER = {"cuCtxSynchronize_v2", "cuMemPrefetchAsync_v2"}
"""Functions with a parameter more, the context or flags."""
SHARED = {
    name: each
    for name, each in FUNCTIONS.items()
    if each.method in LISTED and each.name not in IN_STRUCTURES and name not in LONGER
}


@pytest.mark.parametrize("function", SHARED.values(), ids=SHARED)
def test_a_function_has_its_parameters_in_the_order_of_listings(function: Function) -> None:
    own = [name for name, *_ in function.reads if name not in CONSTANTS]
    listed = [name for name in LISTED[function.method].arguments if name.isidentifier() and name.islower()]
    assert own == listed


def test_most_functions_of_listings_are_compared() -> None:
    assert len(SHARED) > 50
