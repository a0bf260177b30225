"""Changes that are refused: of a layout's name, and of its processes."""

from __future__ import annotations

import pytest

from memtopo.rules import diagnose_change
from tests.helpers.specs import document, validate_text

ONE = "ranges: {r: {size: 2MiB}}\nchunks: {c: {location: gpu0, size: 2MiB}}\nmap: {r: [c]}\naccess: {r: {gpu0: rw}}\n"


def several(**counts: int | None) -> str:
    """Spec of processes, each counted or not."""
    inner = " ".join(line.strip() + "," for line in ONE.splitlines())
    written = (f"  {name}: {{{f'count: {count}, ' if count else ''}{inner}}}" for name, count in counts.items())
    return "processes:\n" + "\n".join(written) + "\n"


NAMED = "memtopo: 1\nname: other\n"
OURS, KEPT = "the layout: server, reader.0, reader.1", "and a change keeps its processes"
TWO = several(server=None, reader=2)
NODES = TWO.replace("server: {", "server: {node: a, ").replace("count: 2,", "count: 2, nodes: [a, b],")
READY = "semaphores: {ready: {from: camera, via: timeline_fd, device: gpu0, wait: 1}}, "
WAITS = ONE + READY.removesuffix(", ") + "\n"
SAME = "processes:\n  pe: {count: 2, ranges: {heap: {size: 4MiBMORE, same_address: true}, r: {size: 2MiB}}}\n"
AGREED = SAME.replace("MORE", "")
ANEW = "the change would reserve range 'heap' again, which has the same address in all processes"
HEAP = """heaps: {h: {location: gpu0, size: 1GiB}, other: {location: gpu0, size: 1GiB, limit: 1GiB}}
access: {h: {gpu0: rw}}
"""
WITHOUT = "the change would rebuild heap 'h' and lose the allocations of programs"
MOVED = "of the layout is on node a, and on {} here: a change keeps it where it is"
ONLY = " of semaphore 'ready', and only 'memtopo apply' waits and signals"


@pytest.mark.parametrize(
    ("before", "after", "code", "line", "message"),
    [
        (ONE, WAITS, "MT808", 7, "the change would add a wait" + ONLY),
        (WAITS.replace("1", "2"), WAITS, "MT808", 7, "the change would add a wait" + ONLY),
        (WAITS, WAITS.replace("wait: 1", "wait: 1, signal: 2"), "MT808", 7, "the change would add a signal" + ONLY),
        (WAITS, WAITS.replace("camera", "other"), "MT808", 7, "the change would add a wait" + ONLY),
        (TWO, TWO.replace("count: 2, ", "count: 2, " + READY), "MT808", 5, "the change would add a wait" + ONLY),
        (AGREED, SAME.replace("4MiBMORE", "8MiB"), "MT810", 4, ANEW),
        (AGREED, SAME.replace("MORE", ", count: 2"), "MT810", 4, ANEW),
        (AGREED, SAME.replace("MORE", ", align: 1GiB"), "MT810", 4, ANEW),
        (AGREED, SAME.replace("MORE", ", address: 0x30000000000"), "MT810", 4, ANEW),
        (AGREED, AGREED.replace(", same_address: true", ""), "MT810", 4, ANEW),
        (AGREED, AGREED.replace("heap: {size: 4MiB, same_address: true}, ", ""), "MT810", 4, ANEW),
        (AGREED.replace(", same_address: true", ""), AGREED, "MT810", 4, ANEW),
        (HEAP, HEAP.replace("gpu0, size: 1GiB}", "gpu0, size: 2GiB}"), "MT813", 3, WITHOUT),
        (HEAP, HEAP.replace("h: {location: gpu0", "h: {handles: fd, location: gpu0"), "MT813", 3, WITHOUT),
        (HEAP, HEAP.replace("h: {location: gpu0", "h: {limit: other, location: gpu0"), "MT813", 3, WITHOUT),
        (HEAP, HEAP.replace("{h: {gpu0: rw}}", "{h: {gpu0: r}}"), "MT813", 3, WITHOUT),
        (ONE, NAMED + ONE, "MT806", 2, "the layout is named 'test', but a change must keep its name"),
        (ONE, TWO, "MT807", 3, "the layout is one of a single process, and a change keeps them"),
        (TWO, ONE, "MT807", 2, "the layout has the processes server, reader.0, reader.1, and a change keeps them"),
        (TWO, several(server=None, reader=3), "MT807", 5, "process 'reader.2' is not one of " + OURS),
        (TWO, several(server=None, reader=1), "MT807", 3, "the layout also has reader.1, " + KEPT),
        (TWO, several(server=None, writer=2), "MT807", 5, "process 'writer.0' is not one of " + OURS),
        (NODES, NODES.replace("a, b", "b, a"), "MT807", 5, "process 'reader.0' " + MOVED.format("node b")),
        (NODES, TWO, "MT807", 4, "process 'server' " + MOVED.format("no node")),
    ],
)  # fmt: skip
def test_a_change_keeps_name_and_processes(before: str, after: str, code: str, line: int, message: str) -> None:
    geometries = [validate_text(text).geometry for text in (before, after)]
    assert geometries[0]
    assert geometries[1]
    (found,) = diagnose_change(*filter(None, geometries))
    assert (found.code, found.message) == (code, message)
    span = document(after).span(found.path, found.at)
    assert span
    assert span.line == line


def test_a_change_keeps_ranges_at_a_common_address_beside_others() -> None:
    before, changed = (validate_text(text).geometry for text in (AGREED, AGREED.replace("2MiB", "6MiB")))
    assert before
    assert changed
    assert not [*diagnose_change(before, changed)]


def test_a_change_keeps_heaps_with_another_limit() -> None:
    after = HEAP.replace("1GiB}}", "1GiB}, more: {location: gpu1, size: 1GiB}}").replace("limit: 1GiB", "limit: 512MiB")
    before, changed = (validate_text(text).geometry for text in (HEAP, after))
    assert before
    assert changed
    assert not [*diagnose_change(before, changed)]


@pytest.mark.parametrize("after", [WAITS, WAITS.replace(", wait: 1", ""), ONE])
def test_a_change_keeps_waits_or_removes_them(after: str) -> None:
    before, changed = (validate_text(text).geometry for text in (WAITS, after))
    assert before
    assert changed
    assert not [*diagnose_change(before, changed)]


def test_a_change_may_name_the_processes_in_another_order() -> None:
    one, other = (f"{name}: {{ranges: {{r: {{size: 2MiB}}}}}}" for name in "ab")
    before, changed = (
        validate_text(f"processes: {{{', '.join(each)}}}").geometry for each in ((one, other), (other, one))
    )
    assert before
    assert changed
    assert not [*diagnose_change(before, changed)]
