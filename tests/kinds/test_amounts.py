"""Sizes and counts of chunks and ranges that follow: `fill`, and shares of memory in percent."""

from __future__ import annotations

from math import lcm

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from memtopo import planner
from memtopo.geometry.groups import ChunkGroup, RangeGroup
from memtopo.machine import CONTEXT_BYTES, Machine
from memtopo.machine.queries import changed
from tests.helpers.machines import invented
from tests.helpers.specs import clean_geometry, codes, diagnose, geometry_of, plan_of, validate_text
from tests.kinds.test_mappings import mapped, without_paths

MACHINE = invented(2)
GRANULE = 2 << 20
ROOM = MACHINE.devices[0].memory_bytes - CONTEXT_BYTES


def chunk(text: str, name: str = "page", machine: Machine = MACHINE) -> ChunkGroup:
    return geometry_of(text, machine).of(ChunkGroup)[name]


PLACES = [
    "page",
    "head, page",
    "head, page, tail",
    "page, {chunk: tail, offset: 12MiB}",
    "{chunk: page, offset: 6MiB}, tail",
    "{chunk: page, each: fill}",
    "{chunk: head, each: 1}, {chunk: page, each: fill, order: round-robin}",
    "{chunk: page, each: 3}, {chunk: tail, each: fill}",
    "{chunk: page, each: all}, {chunk: tail, each: 1}",
    "{chunk: head, each: 2}, {chunk: page, each: fill, stride: 6MiB}",
]


@given(st.sampled_from(PLACES), st.integers(1, 3), st.integers(4, 12))
def test_a_count_that_fills_is_the_largest_one_that_fits(entries: str, members: int, size: int) -> None:
    members = members if "each" in entries else 1
    text = (
        f"ranges: {{kv: {{size: {4 * size}MiB, count: {members}}}}}\n"
        "chunks: {page: {location: [gpu0, gpu1], size: 2MiB, count: COUNT}, head: {location: gpu0, size: 2MiB},"
        " tail: {location: gpu0, size: 4MiB}, rest: {location: gpu0, size: 2MiB}}\n"
        f"map: {{kv: [{entries}], all: [head, tail, rest]}}\naccess: {{kv: {{gpu0: rw}}, all: {{gpu0: r}}}}\n"
    ).replace("ranges: {", "ranges: {all: {size: fill}, ")
    found = geometry_of(text.replace("COUNT", "fill"), MACHINE)
    count = found.of(ChunkGroup)["page"].count
    written = clean_geometry(text.replace("COUNT", str(count)), MACHINE)
    assert mapped(found) == mapped(written)
    assert without_paths(planner.plan(found, MACHINE).steps) == without_paths(planner.plan(written, MACHINE).steps)
    assert codes(text.replace("COUNT", str(count + 1)), MACHINE)


@given(
    st.lists(st.sampled_from(["head", "page", "page.0:3", "{chunk: tail, offset: 32MiB}"]), min_size=1, max_size=4),
    st.integers(1, 3),
)
def test_a_size_that_fits_is_the_smallest_one(entries: list[str], members: int) -> None:
    if members > 1:
        entries = [each if each[0] == "{" else f"{{chunk: {each}, each: all}}" for each in entries]
        entries = [each.replace("offset", "each: 2, offset") for each in entries]
    text = (
        f"ranges: {{kv: {{size: SIZE, count: {members}}}}}\n"
        "chunks: {page: {location: gpu0, size: 4MiB, count: 5}, head: {location: gpu0, size: 2MiB},"
        f" tail: {{location: gpu0, size: 2MiB}}}}\nmap: {{kv: [{', '.join(entries)}]}}\naccess: {{kv: {{gpu0: rw}}}}\n"
    )
    found = validate_text(text.replace("SIZE", "fill"), MACHINE)
    if found.geometry is None:
        assert {each.code for each in found.diagnostics} <= {"MT304", "MT501"}  # an entry behind the one with an offset
        return
    size = found.geometry.of(RangeGroup)["kv"].size
    assert mapped(found.geometry) == mapped(geometry_of(text.replace("SIZE", f"{size}B"), MACHINE))
    smaller = f"{size - GRANULE}B" if size > GRANULE else "1B"
    assert {"MT305", "MT302"} & set(codes(text.replace("SIZE", smaller), MACHINE))


def test_ranges_that_are_filled_one_after_another_have_equal_parts() -> None:
    text = (
        "ranges: {kv: {size: fill, count: 4}}\nchunks: {page: {location: gpu0, size: 2MiB, count: 12}}\n"
        "map: {kv: [page]}\naccess: {kv: {gpu0: rw}}\n"
    )
    assert clean_geometry(text, MACHINE).of(RangeGroup)["kv"].size == 3 * GRANULE
    assert codes(text.replace("12", "13"), MACHINE) == ["MT314"]


def test_imported_chunks_fill_a_range_as_well() -> None:
    text = (
        "ranges: {kv: {size: fill}}\nimports: {w: {from: server/w, location: gpu0, size: 2MiB, count: 3}}\n"
        "map: {kv: [w]}\naccess: {kv: {gpu0: r}}\n"
    )
    assert clean_geometry(text, MACHINE).of(RangeGroup)["kv"].size == 3 * GRANULE


def shared(more: str = "", *, size: str = "SHARE", count: str = "") -> str:
    count = f", count: {count}" if count else ""
    return (
        "ranges: {kv: {size: fill}, w: {size: fill}}\n"
        f"chunks: {{page: {{location: gpu0, size: {size}{count}}}, w: {{location: gpu0, size: 1GiB}}{more}}}\n"
        "map: {kv: [page], w: [w]}\naccess: {kv: {gpu0: rw}, w: {gpu0: rw}}\n"
    )


def test_the_whole_share_is_all_that_fits() -> None:
    size = chunk(shared(size="100%")).size
    assert size == (ROOM - (1 << 30)) // GRANULE * GRANULE
    assert clean_geometry(shared(size=f"{size}B"))
    assert codes(shared(size=f"{size + GRANULE}B")) == ["MT402"]


def test_memory_that_gives_way_to_chunks_leaves_shares_as_they_are() -> None:
    managed = "managed: {m: {size: 500GiB, prefer: gpu0, oversubscribe: true}}\n"
    assert chunk(shared(size="90%") + managed).size == chunk(shared(size="90%")).size


@given(st.integers(1, 100_000))
def test_a_share_is_rounded_down_to_granules_and_to_whole_chunks(thousandths: int) -> None:
    written = f"{thousandths // 1000}.{thousandths % 1000:03}%"
    wanted = (ROOM - (1 << 30)) * thousandths // 100_000
    if wanted < 3 * GRANULE:
        return
    assert chunk(shared(size=written)).size == wanted // GRANULE * GRANULE
    assert chunk(shared(size="6MiB", count=written)).count == wanted // (3 * GRANULE)


def test_a_count_in_percent_stays_below_the_share_of_every_location() -> None:
    text = shared(", other: {location: gpu1, size: 8GiB}", size="2MiB", count="50%").replace(
        "page: {location: gpu0", "page: {location: [gpu0, gpu1, gpu1]"
    )
    found = chunk(text)
    room = ROOM - (8 << 30)
    taken = {at: number * GRANULE for at, number in found.shares().items()}
    assert max(taken.values()) <= room // 2 < max(taken.values()) + GRANULE * 2


@pytest.mark.parametrize("parts", [1, 7, 64])
def test_a_count_in_percent_has_equal_parts_for_ranges_without_a_size(parts: int) -> None:
    text = shared(size="2MiB", count="90%")
    whole = chunk(text).count
    equal = text.replace("kv: {size: fill}", f"kv: {{size: fill, count: {parts}}}")
    found = clean_geometry(equal)
    assert found.of(ChunkGroup)["page"].count == whole - whole % parts
    assert found.of(RangeGroup)["kv"].size == whole // parts * GRANULE
    slices = equal.replace("map: {kv: [page]", f"map: {{kv.0:{parts}: [page]")
    assert mapped(geometry_of(slices)) == mapped(found)
    both = equal.replace("w: {size: fill}", "w: {size: fill}, v: {size: fill, count: 3}")
    both = both.replace("[page]", "[page], v: [page]").replace("access: {", "access: {v: {gpu0: rw}, ")
    assert clean_geometry(both).of(ChunkGroup)["page"].count == whole - whole % lcm(parts, 3)


def test_a_share_is_of_the_free_memory_of_a_live_gpu() -> None:
    free = 8 << 30
    devices = [device.model_copy(update={"free_bytes": free}) for device in MACHINE.devices]
    found = chunk(shared(size="50%"), machine=changed(MACHINE, devices=devices))
    assert found.size == (free - CONTEXT_BYTES - (1 << 30)) // 2


def test_a_share_of_the_host_is_of_its_recorded_memory() -> None:
    text = shared().replace("page: {location: gpu0", "page: {location: host").replace("SHARE", "25%")
    host = 64 << 30
    found = chunk(text, machine=changed(MACHINE, host_bytes=host))
    assert found.size == host // 4 // found.granule * found.granule
    locked = chunk(text, machine=changed(MACHINE, host_bytes=host, pinned_bytes=host // 2))  # the most of it
    assert locked.size == host // 8 // found.granule * found.granule
    (wrong,) = diagnose(text, changed(MACHINE, host_bytes=None))
    assert (wrong.code, wrong.help) == ("MT407", "write a size, or record the machine again")


def test_a_share_of_the_host_leaves_out_memory_that_exceeds_gpus_and_prefers_the_host() -> None:
    """It begins there, and a GPU has room for what it takes of it (fact 79)."""
    text = shared().replace("page: {location: gpu0", "page: {location: host").replace("SHARE", "25%")
    managed = "managed: {m: {size: 16GiB, prefer: host, oversubscribe: true}}\n"
    found = chunk(text + managed, machine=changed(MACHINE, host_bytes=64 << 30))
    assert found.size == (48 << 30) // 4 // found.granule * found.granule


def test_a_share_of_the_host_is_of_what_its_nodes_leave() -> None:
    text = shared(", near: {location: host:0, size: 16GiB}").replace("page: {location: gpu0", "page: {location: host")
    found = chunk(text.replace("SHARE", "25%"), machine=changed(MACHINE, host_bytes=64 << 30))
    assert found.size == (48 << 30) // 4 // found.granule * found.granule


def test_a_share_of_more_chunks_than_a_spec_may_declare_is_refused() -> None:
    small = invented(1, granule=4096)
    assert codes(shared(size="4KiB", count="1%").replace("w: {size: fill}", "w: {size: 1GiB}"), small) == []
    (found,) = diagnose(shared(size="4KiB", count="90%"), small)
    assert (found.code, found.help) == ("MT109", "make the chunks larger")


PROCESSES = """
processes:
  worker:
    count: 2
    devices: {mine: [gpu0, gpu1]}
    ranges: {kv: {size: fill}}
    chunks: {kv: {location: mine, size: 60%, handles: fd}}
    exports: {kv: {chunk: kv, via: fd}}
    map: {kv: [kv]}
    access: {kv: {mine: rw}}
  reader:
    ranges: {kv: {size: fill}, own: {size: fill}}
    chunks: {own: {location: gpu1, size: 4GiB}, most: {location: gpu1, size: 40%}}
    imports: {kv: {from: worker.kv}}
    map: {kv: [kv], own: [own, most]}
    access: {kv: {gpu1: r}, own: {gpu1: rw}}
"""


def test_all_instances_of_a_counted_process_take_the_smallest_of_their_shares() -> None:
    found = clean_geometry(PROCESSES).processes
    room = MACHINE.devices[1].memory_bytes - 2 * CONTEXT_BYTES - (4 << 30)
    sizes = {label: found[label].of(ChunkGroup)["kv"].size for label in found}
    assert set(sizes.values()) == {room * 60 // 100 // GRANULE * GRANULE}
    assert found["reader"].of(ChunkGroup)["most"].size == room * 40 // 100 // GRANULE * GRANULE


def test_all_instances_of_a_counted_process_have_as_many_chunks_as_the_one_with_the_least_room() -> None:
    found = clean_geometry(PROCESSES.replace("size: 60%", "size: 2MiB, count: 60%")).processes
    room = MACHINE.devices[1].memory_bytes - 2 * CONTEXT_BYTES - (4 << 30)
    counts = [found[f"worker.{number}"].of(ChunkGroup)["kv"].count for number in range(2)]
    assert counts == [room * 60 // 100 // GRANULE] * 2


FILLING = """
ranges: {kv: {size: 16MiB}, other: {size: 8MiB}, open: {size: fill}}
chunks: {page: {location: gpu0, size: 2MiB, count: fill}, w: {location: gpu0, size: 16MiB}}
imports: {i: {from: server/i, location: gpu0, size: 2MiB}}
map: MAP
access: {kv: {gpu0: rw}, other: {gpu0: rw}, open: {gpu0: rw}}
"""


def test_a_chunk_beside_an_import_fills_what_offsets_leave() -> None:
    entries = "{kv: [i, {chunk: page, offset: 4MiB}, {chunk: i, offset: 12MiB}], open: [w]}"
    assert chunk(FILLING.replace("MAP", entries)).count == 4


def test_a_chunk_fills_both_its_range_and_one_that_fits_it() -> None:
    found = geometry_of(FILLING.replace("MAP", "{kv: [page], open: [page]}"))
    assert (found.of(ChunkGroup)["page"].count, found.of(RangeGroup)["open"].size) == (8, 16 << 20)


def test_a_plan_says_what_was_taken() -> None:
    notes = plan_of(shared(size="50%"), MACHINE).notes
    size = chunk(shared(size="50%")).size >> 20
    assert any(f"chunk page: {size}MiB" in note and "50% of the" in note for note in notes), notes
    assert f"range kv: {size}MiB, the size of the chunks mapped into it" in notes


@pytest.mark.parametrize(("size", "count"), [("50%", "5"), ("6GiB", "50%")])
def test_what_a_share_takes_is_that_of_the_chunks_at_its_location(size: str, count: str) -> None:
    page = chunk(shared(size=size, count=count).replace("page: {location: gpu0", "page: {location: [gpu1, gpu0]"))
    assert page.share
    own = [page.location_of(index) for index in range(page.count)].count(page.share.location)
    assert page.share.taken == own * page.size < page.count * page.size


def test_chunks_that_fill_a_range_are_those_of_a_written_count() -> None:
    text = shared(size="2MiB", count="fill").replace("kv: {size: fill}", "kv: {size: 8MiB}")
    found = chunk(text)
    assert (found.count, found.share, found.filled) == (4, None, "kv")
    assert replace(found, filled="") == replace(chunk(text.replace("count: fill", "count: 4")), filled="")


def elastic(count: str, more: str = "") -> str:
    return (
        "ranges: {kv: {size: 64GiB, elastic: {chunks: page}}, w: {size: fill}}\n"
        f"chunks: {{page: {{location: gpu0, size: 6MiB, count: {count}}}, w: {{location: gpu0, size: 1GiB}}{more}}}\n"
        "map: {w: [w]}\naccess: {kv: {gpu0: rw}, w: {gpu0: rw}}\n"
    )


@pytest.mark.parametrize("share", ["0.5%", "33.333%", "100%"])
def test_elastic_chunks_take_the_share_that_as_many_others_would(share: str) -> None:
    plain = chunk(shared(size="6MiB", count=share))
    most = plain.count
    found = chunk(elastic(f"{{max: {share}}}"))
    assert (found.count, found.limit, found.share) == (0, most, plain.share)
    created = chunk(elastic(f"{{min: {share}, max: {share}}}"))
    assert (created.count, created.limit) == (most, most)
    assert chunk(elastic(f"{{min: 0.5%, max: {share}}}")).count == chunk(elastic("{max: 0.5%}")).limit


def test_a_share_beside_elastic_chunks_is_of_what_they_leave_at_most() -> None:
    more = ", rest: {location: gpu0, size: 10%}"
    found = geometry_of(elastic("{min: 4, max: 1000}", more), MACHINE).of(ChunkGroup)["rest"]
    assert found.share
    assert found.share.room == ROOM - (1 << 30) - 1000 * 3 * GRANULE
    both = elastic("{max: 90.001%}", more)
    assert codes(both) == ["MT407", "MT407"]


def test_a_largest_number_that_fills_is_that_of_all_elastic_ranges_that_may_have_the_chunks() -> None:
    ranges = "kv: {size: 64MiB, count: 3, elastic: {chunks: [page, big]}}, heap: {size: 20MiB, elastic: true}"
    text = (
        f"ranges: {{{ranges}}}\nchunks: {{page: {{location: gpu0, size: 6MiB, count: {{min: 2, max: fill}}}},"
        " big: {location: gpu0, size: 8MiB, count: {max: 2}}}\naccess: {kv: {gpu0: rw}, heap: {gpu0: rw}}\n"
    )
    found = chunk(text)
    assert (found.count, found.limit, found.filled) == (2, 3 * 10 + 3, "kv and heap")
    assert chunk(text.replace("elastic: true", "elastic: {chunks: big}")).limit == 3 * 10
    assert chunk(text.replace("min: 2", "min: 33")).count == 33
    assert any("33 of 6MiB, as many as kv and heap have room for" in note for note in plan_of(text, MACHINE).notes)
