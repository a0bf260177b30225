from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from memtopo.driver.types import Access, AllocationType, Grant, HandleType, Location, LocationKind, Properties
from tests.differential.notation import (
    Place,
    grants_of,
    grants_text,
    place_of,
    properties_of,
    properties_text,
    size_of,
    size_text,
)

LOCATIONS = st.one_of(
    st.builds(Location, st.just(LocationKind.GPU), st.integers(-1, 9), st.just("")),
    st.builds(Location, st.just(LocationKind.HOST_NUMA), st.integers(0, 9), st.just("")),
    st.sampled_from([Location(LocationKind.HOST), Location(LocationKind.HOST_NUMA_CURRENT)]),
)
SIZES = st.one_of(st.integers(0, 1 << 48), st.integers(0, 1 << 20).map(lambda count: count << 20))
HANDLES = st.sampled_from([HandleType(bits) for bits in (0, 1, 2, 8, 9)])


@given(SIZES)
def test_a_size_is_read_as_it_was_written(size: int) -> None:
    assert size_of(size_text(size)) == size


@given(st.sampled_from(["r0", "a12", "null"]), SIZES)
def test_an_address_is_read_as_it_was_written(symbol: str, offset: int) -> None:
    assert place_of(str(Place(symbol, offset))) == Place(symbol, offset)


@given(st.builds(Properties, LOCATIONS, HANDLES, st.booleans(), st.booleans(), st.just(AllocationType.PINNED)))
def test_properties_are_read_as_they_were_written(properties: Properties) -> None:
    assert properties_of(properties_text(properties)) == properties


@given(st.lists(st.builds(Grant, LOCATIONS, st.sampled_from([Access(bits) for bits in range(4)]))).map(tuple))
def test_grants_are_read_as_they_were_written(grants: tuple[Grant, ...]) -> None:
    assert grants_of(grants_text(grants)) == grants
