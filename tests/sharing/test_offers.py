"""Offers of a live layout: what they have of its entries, and which handles it refuses."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from memtopo.common.errors import MemtopoError
from memtopo.common.units import NamedPart
from memtopo.drivers import target
from memtopo.drivers.sim import SimDriver
from memtopo.kinds.layout import Layout
from memtopo.plans.report import Checks
from memtopo.sharing.offers import LayoutExports, Lending, LentRange, Offer
from tests.helpers.machines import invented
from tests.helpers.specs import clean_geometry

MIB2, KIB4 = 2 << 20, 4 << 10
MACHINE = invented(2)
SPEC = """
ranges:
  kv: {size: 8MiB, elastic: {chunks: [page]}}
  other: {size: 4MiB, elastic: {chunks: [spare]}}
  fixed: {size: 2MiB}
chunks:
  page: {location: gpu0, size: 2MiB, count: {min: 3, max: 8}, handles: fd}
  spare: {location: gpu0, size: 2MiB, count: {min: 0, max: 4}, handles: fd}
  mixed: {location: [gpu0, host:0], size: 2MiB, count: 4, handles: fd}
  control: {location: gpu0, size: 2MiB, rdma: true, parts: {flags: 4KiB, rest: rest}}
map: {fixed: [control]}
access: {kv: {gpu0: rw}, other: {gpu0: rw}, fixed: {gpu0: rw}}
exports:
  pages: {chunk: page, via: fd, quota: 2}
  spares: {chunk: spare, via: fd}
  mixed: {chunk: "mixed.1:4", via: fd, commit: required}
  one: {chunk: "mixed.0", via: fd}
  flags: {chunk: control, part: flags, via: dmabuf}
  control: {chunk: control, via: dmabuf}
"""


@pytest.fixture
def exports() -> Iterator[LayoutExports]:
    """Exports of the spec, of which nothing is built."""
    driver = SimDriver(MACHINE)
    driver.init()
    yield LayoutExports(clean_geometry(SPEC, MACHINE), Layout(), driver, lambda: Checks((), (), 0))
    driver.close()


def test_an_offer_has_the_objects_of_its_export_alone(exports: LayoutExports) -> None:
    gpu, parts = target.uuids(MACHINE)[0], (NamedPart("flags", 0, KIB4), NamedPart("rest", KIB4, MIB2 - KIB4))
    found = {each.name: each for each in exports.offers()}
    of = {name: (each.location, each.gpu, each.count, each.first, each.commit) for name, each in found.items()}
    assert of["mixed"] == ("host:0, gpu0", None, 3, 1, "empty"), "no UUID names a location of the host"
    assert of["one"] == ("gpu0", gpu, 1, 0, None)
    assert [(found[name].declared, found[name].size) for name in ("flags", "control")] == [(KIB4, KIB4), (MIB2, MIB2)]
    assert (found["flags"].parts, found["control"].parts) == ((), parts)
    assert found["pages"].lends == Lending(2, 3, (LentRange("kv", 4 * MIB2),)), "a range of other chunks is no place"
    assert found["spares"].lends == Lending(None, 0, (LentRange("other", 2 * MIB2),))


def test_a_handle_is_of_an_object_of_the_export_which_exists_now(exports: LayoutExports) -> None:
    for index in (-1, 3):
        with pytest.raises(MemtopoError, match=f"'mixed' has 3 handles, and none of number {index}"):
            exports.handle("mixed", index)
    with pytest.raises(MemtopoError, match="export 'mixed' has no memory in the current state of the layout"):
        exports.handle("mixed", 2)


@pytest.mark.parametrize("part", [NamedPart("a", -1, 1), NamedPart("a", 0, 0), NamedPart("a", 1, KIB4)])
def test_a_part_of_an_offer_has_bytes_within_its_size(part: NamedPart) -> None:
    assert Offer("x", "chunk", "fd", 1, KIB4, "gpu0", parts=(NamedPart("a", 1, KIB4 - 1),)).parts
    with pytest.raises(ValueError, match="one of its 'parts' is not within its size"):
        Offer("x", "chunk", "fd", 1, KIB4, "gpu0", parts=(part,))
