"""Elastic ranges in changes and switches of their layout: what stays mapped, and what is unmapped."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import memtopo
from memtopo.common.errors import MemtopoError
from memtopo.drivers.target import Target
from memtopo.kinds.elastic import ELASTIC_CONTENTS
from tests.api.test_apply import failing
from tests.helpers.elastic import M, offsets, spec
from tests.helpers.examples import examples
from tests.helpers.reports import require_taken_down


@pytest.mark.parametrize("zero", [False, True])
def test_a_change_of_the_layout_keeps_what_is_mapped(machine: Target, zero: bool) -> None:
    with memtopo.applied(spec(zero=zero), machine) as layout:
        kv = layout.range("kv")
        kv.map(3 * M, "page", 4)
        np.from_dlpack(kv.view(3 * M, 4 * M))[:] = 6
        after = spec(zero=zero)
        after["ranges"]["more"] = {"size": "4MiB"}
        after["chunks"]["more"] = {"location": "gpu1", "size": "4MiB"}
        after["map"] = {"more": ["more"]}
        after["access"]["more"] = {"gpu1": "rw"}
        assert not layout.change(after).different
        assert offsets(kv) == [3, 4, 5, 6]
        assert np.from_dlpack(kv.view(3 * M, 4 * M))[::M].tolist() == [6] * 4
        assert not layout.change(spec(zero=zero)).different
        kv.unmap(3 * M, 4 * M)
    require_taken_down(layout)


def test_a_change_of_the_limit_keeps_what_is_mapped() -> None:
    """Also one that fails afterwards."""
    with memtopo.applied(spec(most=8), failing(0)) as layout:
        driver: Any = layout._session._opened
        kv, pages = layout.range("kv"), layout.chunks("page")
        kv.map(0, "page", 8)
        after = spec(most=10, buffers={"b": {"location": "gpu0", "size": "2MiB"}})
        driver.at = driver.calls + 4
        with pytest.raises(memtopo.NotChanged):
            layout.change(after)
        driver.at = 0
        assert (pages.limit, len(kv.mappings)) == (8, 8)
        assert not layout.change(after).different
        assert (pages.limit, len(kv.map(8 * M, "page", 2))) == (10, 2)


def test_a_limit_below_what_is_mapped_is_refused_with_the_numbers(machine: Target) -> None:
    """Unless the change unmaps it."""
    with memtopo.applied(spec(most=8), machine) as layout:
        kv, pages = layout.range("kv"), layout.chunks("page")
        kv.map(0, "page", 6)
        pages.create(2)
        with pytest.raises(memtopo.NotChanged, match=r"chunks 'page': 6 are mapped, and max is 3; the layout is as"):
            layout.change(spec(most=3))
        assert (pages.limit, pages.created, pages.free, layout.generation) == (8, 8, 2, 1)
        assert not layout.change(spec(most=3, access={"gpu0": "r"})).different
        assert (pages.limit, pages.created, kv.mappings) == (3, 2, ())


def test_a_limit_below_what_exists_releases_what_is_not_mapped(machine: Target) -> None:
    with memtopo.applied(spec(most=8, least=1), machine) as layout:
        kv, pages = layout.range("kv"), layout.chunks("page")
        kv.map(0, "page", 6)
        kv.unmap(0, 3 * M)
        pages.create(2)
        assert not layout.change(spec(most=4, least=1)).different
        assert (pages.limit, pages.created, pages.free, offsets(kv)) == (4, 4, 1, [3, 4, 5])
        kv.map(0, "page")
        assert not layout.check().different
    require_taken_down(layout)


def test_a_failing_release_below_a_new_limit_leaves_the_layout_as_it_was() -> None:
    with memtopo.applied(spec(most=8), failing(0)) as layout:
        driver: Any = layout._session._opened
        pages = layout.chunks("page")
        pages.create(4)
        driver.only, driver.at = {"mem_release"}, driver.calls + 1
        with pytest.raises(memtopo.NotChanged):
            layout.change(spec(most=3))
        driver.at = 0
        assert (pages.limit, pages.created, pages.free) == (8, 6, 6)
        assert not layout.check().different


@pytest.mark.parametrize("zero", [False, True])
def test_a_change_of_the_chunks_empties_the_ranges_that_have_them(machine: Target, zero: bool) -> None:
    with memtopo.applied(spec(zero=zero, least=1), machine) as layout:
        kv, pages = layout.range("kv"), layout.chunks("page")
        kv.map(0, "page", 5)
        assert not layout.change(spec(zero=zero, least=3)).different
        assert (kv.mappings, pages.created, pages.free) == ((), 3, 3)
        assert kv.map(0, "page", 4) == ("page.0", "page.1", "page.2", "page.3")
        assert not layout.check().different
    require_taken_down(layout)


def test_an_elastic_range_that_a_change_removes_is_given_back(machine: Target) -> None:
    with memtopo.applied(spec(), machine) as layout:
        kv = layout.range("kv")
        kv.map(0, "page", 5)
        after = spec()
        del after["ranges"]["kv"]["elastic"]
        after["chunks"]["page"]["count"] = "2"
        after["map"] = {"kv": ["page"]}
        assert not layout.change(after).different
        assert layout.range("kv", size=4 << 20).size == 4 << 20
        with pytest.raises(memtopo.Unsuitable, match="no longer elastic, because the layout was changed"):
            kv.map(8 * M, "page")
        assert not layout.change(spec()).different
        assert kv.map(8 * M, "page") == ("page.0",)


@pytest.mark.parametrize("zero", [False, True])
def test_a_state_drops_what_is_mapped_and_its_chunks(machine: Target, zero: bool) -> None:
    with memtopo.applied(spec(zero=zero, states={"asleep": {"drop": ["kv"]}}), machine) as layout:
        kv, pages = layout.range("kv"), layout.chunks("page")
        address = kv.address
        view = np.from_dlpack(kv.view(0, M)) if zero else None
        kv.map(0, "page", 5)
        asleep = layout.switch("asleep")
        assert not asleep.different
        assert [each for each in layout._session.layout.chunks if each.startswith("page")] == []
        for call in (lambda: kv.map(0, "page"), lambda: pages.created, lambda: layout.range("kv")):
            with pytest.raises(memtopo.Unsuitable, match=r"no memory in state 'asleep'.*switch\('awake'\)"):
                call()
        assert repr(kv) == "<range 'kv': no memory in state 'asleep'>"
        assert not layout.switch("awake").different
        assert (kv.mappings, kv.address, pages.created, pages.free) == ((), address, 2, 2)
        kv.map(0, "page")
        assert not layout.check().different
        del view


def test_a_pool_that_another_range_has_is_kept_by_a_state(machine: Target) -> None:
    found = spec(least=1, states={"half": {"drop": ["kv"]}})
    found["ranges"]["other"] = {"size": "32MiB", "elastic": "true"}
    found["access"]["other"] = {"gpu0": "rw"}
    with memtopo.applied(found, machine) as layout:
        layout.range("kv").map(0, "page", 3)
        layout.range("other").map(0, "page", 2)
        assert not layout.switch("half").different
        assert layout.chunks("page").created == 2 + 1
        assert [each.chunk for each in layout.range("other").mappings] == ["page.3", "page.4"]
        layout.switch("awake")
        assert layout.range("kv").mappings == ()
        assert len(layout.range("other").mappings) == 2


@pytest.mark.parametrize("zero", [False, True])
def test_a_failed_switch_leaves_an_elastic_range_as_it_was_or_empty(zero: bool) -> None:
    """As its memory is dropped, it may be gone by then; whichever call fails, the range is in order afterwards."""
    with memtopo.applied(spec(zero=zero, states={"asleep": {"drop": ["kv"]}}), failing(0)) as layout:
        driver: Any = layout._session._opened
        kv, failed = layout.range("kv"), 0
        for point in range(1, 12):
            with contextlib.suppress(memtopo.Unsuitable):
                kv.map(0, "page", 3)
            driver.at = driver.calls + point
            with contextlib.suppress(MemtopoError):  # the check after the switch may fail, too
                layout.switch("asleep")
            driver.at = 0
            failed += layout.state == "awake"
            layout.switch("awake")
            assert [each.offset for each in kv.mappings] in ([], [0, M, 2 * M])
            assert not layout.check().different
        assert failed >= 6
    require_taken_down(layout)


@st.composite
def family(draw: st.DrawFn) -> dict[str, Any]:
    """Specs of one layout whose range may be elastic, with fixed chunks, a zero page, and access by part."""
    elastic, zero, fixed = draw(st.booleans()), draw(st.booleans()), draw(st.integers(0, 2))
    access: Any = draw(st.sampled_from([{"gpu0": "rw"}, {"gpu0": "rw", "gpu1": "r"}]))
    if draw(st.booleans()):
        access = [{"size": "16MiB", "grant": access}]
    found = spec(zero=zero, access=access, least=draw(st.integers(0, 2)), most=draw(st.integers(2, 9)))
    if fixed:
        found["chunks"]["head"] = {"location": "gpu1", "size": "2MiB", "count": str(fixed)}
        found["map"] = {"kv": [{"chunk": "head", "offset": f"{draw(st.integers(0, 4)) * 2}MiB"}]}
    if not elastic:
        del found["ranges"]["kv"]["elastic"]
        found["chunks"]["page"]["count"] = "2"
        found["map"] = {"kv": ["page", *([{"chunk": "head", "offset": "24MiB"}] if fixed else [])]}
    if draw(st.booleans()):
        found["states"] = {"asleep": {"drop": ["kv"]}}
    return found


@given(family(), family(), st.lists(st.integers(0, 15), max_size=6), st.booleans())
@settings(max_examples=examples(60), deadline=None)
def test_a_change_between_any_two_specs_leaves_what_the_new_one_declares(
    before: dict[str, Any], after: dict[str, Any], pages: list[int], asleep: bool
) -> None:
    """With pages mapped where there is room, and after a state, both ways; nothing is left at the end."""
    with memtopo.applied(before, failing(0)) as layout:
        for found in (after, before):
            if layout._session.layout.of(ELASTIC_CONTENTS):
                kv = layout.range("kv")
                for page in pages:
                    with contextlib.suppress(memtopo.Unsuitable):
                        kv.map(page * M, "page")
            if asleep and "asleep" in layout._session.states:
                assert not layout.switch("asleep").different
                assert not layout.switch("awake").different
            try:
                assert not layout.change(found).different
            except memtopo.NotChanged:  # a smaller max than what is mapped
                for each in (kv := layout.range("kv")).mappings:
                    kv.unmap(each.offset, each.size)
                assert not layout.change(found).different
            assert not layout.check().different
    require_taken_down(layout)
