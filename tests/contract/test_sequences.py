"""Facts by the shortest sequences that show them, in the notation of the differential test.

Each was found by that test and minimised on a GPU; the answers are the hardware's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from typing import NamedTuple

import pytest

from memtopo.driver.ledger import Ledger
from tests.contract.memory import current
from tests.differential.calls import compiled
from tests.differential.resource_calls import needs_of
from tests.differential.resources import ResourceSession
from tests.differential.session import Session
from tests.differential.traces import parse


class Shown(NamedTuple):
    """A rule and the sequence that shows it."""

    rule: str
    sequence: str

    @property
    def gpus(self) -> int:
        """GPUs that the sequence names."""
        return 1 + ("gpu1" in self.sequence)


def sequences(text: str) -> Iterator[Shown]:
    """Rules, each followed by its sequence, whose lines are indented."""
    for part in re.split(r"\n(?=\S)", text.strip()):
        rule, _, sequence = part.partition("\n")
        yield Shown(rule, sequence)


SHOWN = tuple(
    sequences("""
fact 20: the host may be granted nothing on a gpu's memory
    r0 = reserve 2M -> ok
    c0 = create 2M gpu0 -> ok
    map r0 2M c0 -> ok
    set r0 2M host=0 -> ok
    set r0 2M gpu0=1,host:0=0 -> ok
    set r0 2M host:9=0 -> ok
    get r0 gpu0 -> 1
fact 62: a refused call keeps the grants before the refused one
    r0 = reserve 2M -> ok
    c0 = create 2M gpu0 -> ok
    map r0 2M c0 -> ok
    set r0 2M gpu0=3,host=3 -> NOT_SUPPORTED
    get r0 gpu0 -> 3
fact 62: grants after the refused one are not made
    r0 = reserve 2M -> ok
    c0 = create 2M gpu0 -> ok
    map r0 2M c0 -> ok
    set r0 2M host=3,gpu0=3 -> NOT_SUPPORTED
    get r0 gpu0 -> 0
fact 62: mappings before the refused one keep all grants
    r0 = reserve 6M -> ok
    c0 = create 2M host:0 -> ok
    c1 = create 2M gpu0 -> ok
    map r0 2M c0 -> ok
    map r0+2M 2M c1 -> ok
    map r0+4M 2M c1 -> ok
    set r0 6M gpu0=1,host=3 -> NOT_SUPPORTED
    get r0 gpu0 -> 1
    get r0 host:0 -> 3
    get r0+2M gpu0 -> 1
    get r0+4M gpu0 -> 0
fact 62: an invalid location or access is refused before anything is granted
    r0 = reserve 2M -> ok
    c0 = create 2M gpu0 -> ok
    map r0 2M c0 -> ok
    set r0 2M gpu0=3,gpu9=3 -> INVALID_VALUE
    set r0 2M gpu0=3,host=2 -> INVALID_VALUE
    set r0 2M gpu0=3,host:current=0 -> INVALID_VALUE
    set r0 2M host=3,gpu9=3 -> INVALID_VALUE
    get r0 gpu0 -> 0
fact 62: a refused unmap removes no mapping
    r0 = reserve 8M -> ok
    c0 = create 2M gpu0 -> ok
    c1 = create 4M gpu0 -> ok
    map r0 2M c0 -> ok
    map r0+2M 4M c1 -> ok
    unmap r0 4M -> INVALID_VALUE
    get r0 gpu0 -> 0
    unmap r0 8M -> ok
    get r0 gpu0 -> INVALID_VALUE
fact 63: between two mappings a hole ends the call, which succeeds
    r0 = reserve 8M -> ok
    c0 = create 2M gpu0 -> ok
    map r0 2M c0 -> ok
    map r0+4M 2M c0 -> ok
    set r0 6M gpu0=3 -> ok
    get r0 gpu0 -> 3
    get r0+4M gpu0 -> 0
    set r0 8M gpu0=3 -> INVALID_VALUE
    set r0+2M 4M gpu0=3 -> INVALID_VALUE
    get r0+4M gpu0 -> 0
fact 63: a refusal behind the hole is not met
    r0 = reserve 6M -> ok
    c0 = create 2M host:0 -> ok
    c1 = create 2M gpu0 -> ok
    map r0 2M c0 -> ok
    map r0+4M 2M c1 -> ok
    set r0 6M host=3 -> ok
    get r0 host:0 -> 3
fact 64: beside a stray mapping an rdma chunk is not mapped again
    r0 = reserve 8M -> ok
    c0 = create 2M gpu0/rdma -> ok
    map r0 2M c0 -> ok
    map r0+2M 2M c0 -> ok
    map r0+6M 2M c0 -> ok
    unmap r0 2M -> ok
    set r0+2M 2M gpu0=3 -> ok
    map r0+4M 2M c0 -> UNKNOWN
    set r0+6M 2M gpu0=3 -> UNKNOWN
    set r0+2M 2M gpu0=0 -> ok
    map r0+4M 2M c0 -> ok
    set r0+4M 2M gpu0=3 -> ok
    set r0+6M 2M gpu0=3 -> ok
fact 64: a mapping made after the first one has gone takes its place
    r0 = reserve 8M -> ok
    c0 = create 2M gpu0/rdma -> ok
    map r0 2M c0 -> ok
    map r0+2M 2M c0 -> ok
    unmap r0 2M -> ok
    map r0+4M 2M c0 -> ok
    set r0+2M 2M gpu0=3 -> ok
    map r0+6M 2M c0 -> ok
fact 64: no peer is granted access without the first mapping
    r0 = reserve 4M -> ok
    c0 = create 2M gpu0/rdma -> ok
    map r0 2M c0 -> ok
    map r0+2M 2M c0 -> ok
    set r0+2M 2M gpu1=1 -> ok
    unmap r0 2M -> ok
    set r0+2M 2M gpu1=1 -> ok
    get r0+2M gpu1 -> 1
    set r0+2M 2M gpu1=3 -> INVALID_VALUE
    get r0+2M gpu1 -> 0
fact 64: an imported rdma chunk has no such rule, and reads as not rdma
    r0 = reserve 6M -> ok
    c0 = create 2M gpu0/fd/rdma -> ok
    f0 = export c0 fd -> ok
    c1 = import f0 -> ok
    props c0 -> gpu0/fd/rdma
    props c1 -> gpu0
    map r0 2M c1 -> ok
    map r0+2M 2M c1 -> ok
    unmap r0 2M -> ok
    set r0+2M 2M gpu0=3 -> ok
    map r0+4M 2M c1 -> ok
fact 65: free memory is looked at before fabric handles, after what is invalid
    c0 = create 32T gpu0/fabric -> OUT_OF_MEMORY
    c1 = create 32T host:0/fd+fabric -> OUT_OF_MEMORY
    c2 = create 32T gpu0/win32 -> INVALID_VALUE
    c3 = create 32T gpu9/fabric -> INVALID_DEVICE
    c4 = create 2M host:0/fabric -> NOT_PERMITTED
fact 65: address 0 is invalid before anything else, another address after the location
    r0 = reserve 2M -> ok
    c0 = create 4M gpu0 -> ok
    get null gpu9 -> INVALID_VALUE
    get junk gpu9 -> INVALID_DEVICE
    get r0 gpu9 -> INVALID_DEVICE
    map null 2M c0 -> INVALID_VALUE
    map r0 2M c0 -> NOT_SUPPORTED
fact 66: host memory begins at 0
    push gpu0 -> ok
    r0 = reserve 4M -> ok
    c0 = create 4M host:0 -> ok
    map r0 4M c0 -> ok
    range r0 -> NOT_FOUND
    set r0 4M host=3 -> ok
    range r0 -> NOT_FOUND
    set r0 4M gpu0=1 -> ok
    range r0+2M -> ? 4M
fact 42: HOST reads the access of the host or of gpu0, whichever was changed last
    r0 = reserve 2M -> ok
    c0 = create 2M host:0 -> ok
    map r0 2M c0 -> ok
    set r0 2M host=3,gpu0=1 -> ok
    get r0 host -> 1
    set r0 2M host=3 -> ok
    get r0 host -> 1
    set r0 2M host=1,host=3 -> ok
    get r0 host -> 3
    get r0 host:0 -> 3
fact 42: of another gpu HOST reads nothing
    r0 = reserve 2M -> ok
    c0 = create 2M gpu0 -> ok
    map r0 2M c0 -> ok
    set r0 2M gpu1=3 -> ok
    get r0 host -> 0
    set r0 2M gpu0=1 -> ok
    get r0 host -> 1
fact 67: a fill does not run into host memory that was granted to the host last
    push gpu0 -> ok
    r0 = reserve 4M -> ok
    c0 = create 2M host:0 -> ok
    map r0 2M c0 -> ok
    map r0+2M 2M c0 -> ok
    set r0 2M gpu0=3 -> ok
    set r0+2M 2M gpu0=3 -> ok
    fill r0 5 4M -> ok
    set r0+2M 2M host=3 -> ok
    fill r0 5 4M -> INVALID_VALUE
    fill r0+2M 5 2M -> ok
    set r0 2M host=3 -> ok
    set r0+2M 2M gpu0=1 -> ok
    set r0+2M 2M gpu0=3 -> ok
    fill r0 5 4M -> ok
fact 67: from the context of another gpu than gpu0 a fill does
    push gpu1 -> ok
    r0 = reserve 4M -> ok
    c0 = create 2M host:0 -> ok
    map r0 2M c0 -> ok
    map r0+2M 2M c0 -> ok
    set r0 4M gpu1=3 -> ok
    set r0+2M 2M host=3,gpu0=3 -> ok
    set r0+2M 2M host=1 -> ok
    fill r0 5 4M -> ok
    pop -> gpu1
    push gpu0 -> ok
    set r0 2M gpu0=3 -> ok
    fill r0 5 4M -> INVALID_VALUE
fact 68: of another gpu's allocation copies work and fills do not
    push gpu0 -> ok
    a0 = alloc 2M -> ok
    push gpu1 -> ok
    write a0 01020304 -> ok
    read a0 4 -> 01020304
    fill a0 5 4 -> INVALID_VALUE
    fill a0 5 0 -> ok
    range a0 -> NOT_FOUND
    get a0 gpu1 -> 0
fact 47: work for a created stream needs no context
    push gpu0 -> ok
    a0 = alloc 512 -> ok
    a1 = alloc 512 -> ok
    s0 = stream 1 -> ok
    e0 = event 2 -> ok
    pop -> gpu0
    record e0 s0 -> ok
    record e0 0 -> INVALID_CONTEXT
    streamwait s0 e0 -> ok
    streamwait 0 e0 -> INVALID_CONTEXT
    copy a0 a1 4 s0 -> ok
    copy a0 a1 4 0 -> INVALID_CONTEXT
fact 70: managed allocations share the page at the end of one
    push gpu0 -> ok
    m0 = managed 5000 1 -> ok
    m1 = managed 100 2 -> ok
    prefetch m0 5000 gpu0 0 -> ok
    attribute m1 100 last -> 0
fact 70: a managed allocation goes where the least room is left
    push gpu0 -> ok
    m0 = managed 1M 1 -> ok
    m1 = managed 1048577 1 -> ok
    advise m1+1 1M prefer gpu0 -> ok
    m2 = managed 8K 1 -> ok
    attribute m2 1 prefer -> 0
fact 70: where as much is left, it goes into the older block
    push gpu0 -> ok
    m0 = managed 1048577 2 -> ok
    prefetch m0 1048577 gpu0 0 -> ok
    m1 = managed 1048577 2 -> ok
    m2 = managed 4K 1 -> ok
    attribute m2+1 4095 last -> 0
fact 70: freeing an allocation removes the advice of its first page, which another shares
    push gpu0 -> ok
    m0 = managed 1 2 -> ok
    advise m0 1 by gpu0 -> ok
    m1 = managed 100 2 -> ok
    freemem m1 -> ok
    attribute m0 1 by -> none
fact 70: a part that begins in an earlier page counts with its whole size in a query
    push gpu0 -> ok
    m0 = managed 5000 1 -> ok
    prefetch m0 5000 host:0 0 -> ok
    m1 = managed 4K 1 -> ok
    attribute m1 4K last -> -1
fact 70: a part that begins in the range's first page does not reach further
    push gpu0 -> ok
    m0 = managed 513 1 -> ok
    m1 = managed 8K 1 -> ok
    advise m0 513 prefer gpu0 -> ok
    attribute m1 8K prefer -> none
fact 70: a query misses as many bytes behind a part as the part has before the range
    push gpu0 -> ok
    m0 = managed 16K 1 -> ok
    advise m0+4K 8K prefer gpu0 -> ok
    attribute m0+8K 8K prefer -> 0
    attribute m0+4K 12K prefer -> none
    attribute m0+12K 4K prefer -> none
fact 70: a change that merges two parts misses as many bytes behind them as the first has
    push gpu0 -> ok
    m0 = managed 16K 1 -> ok
    advise m0+8K 4K prefer gpu0 -> ok
    advise m0 16K prefer host -> ok
    attribute m0 12K prefer -> -1
    attribute m0+12K 4K prefer -> none
fact 70: a change that merges two parts misses nothing where more follows than the first has
    push gpu0 -> ok
    m0 = managed 16K 1 -> ok
    prefetch m0+4K 4K gpu0 0 -> ok
    prefetch m0 16K host 0 -> ok
    attribute m0 16K last -> -1
fact 70: freeing an allocation leaves the advice of its last page
    push gpu0 -> ok
    m0 = managed 16K 1 -> ok
    m1 = managed 5000 1 -> ok
    m2 = managed 1 1 -> ok
    prefetch m1+4K 904 host 0 -> ok
    freemem m1 -> ok
    attribute m2 1 last -> -1
fact 71: advice with a node has no effect, and its range is not checked
    push gpu0 -> ok
    m0 = managed 4K 1 -> ok
    advise m0 0 prefer host:0 -> ok
    advise m0 8K mostly host:9 -> ok
    advise m0 4K mostly host:0 -> ok
    attribute m0 4K mostly -> 0
    advise m0 4K by host:0 -> INVALID_VALUE
    advise m0 4K prefer host:9 -> INVALID_VALUE
    advise m0 0 mostly gpu9 -> INVALID_VALUE
    advise m0 4K mostly gpu9 -> ok
fact 71: flags and sizes are checked before the context, and a gpu before the end of a range
    m0 = managed 4K 8 -> INVALID_VALUE
    m1 = managed 0 1 -> INVALID_VALUE
    m2 = managed 4K 1 -> INVALID_CONTEXT
    push gpu0 -> ok
    m3 = managed 4K 1 -> ok
    prefetch m3 4097 gpu9 0 -> INVALID_DEVICE
    prefetch m3 0 gpu9 0 -> INVALID_VALUE
""")
)


@pytest.mark.parametrize("shown", SHOWN, ids=lambda shown: shown.rule)
def test_a_sequence_is_answered_as_on_hardware(shown: Shown, driver: Ledger) -> None:
    """Facts 20, 42, 47 and 62 to 71."""
    if driver.device_get_count() < shown.gpus:
        pytest.skip("needs two GPUs")
    (trace,) = parse(shown.sequence.splitlines())
    with ExitStack() as stack:
        contexts = [stack.enter_context(current(driver, device)) for device in range(driver.device_get_count())]
        for _ in contexts:
            driver.ctx_pop_current()
        resources = needs_of(step.call for step in trace.steps).resources
        session = ResourceSession(driver, contexts) if resources else Session(driver, contexts)
        answered = [compiled(step.call)(session) for step in trace.steps]
        assert session.close()
        for context in contexts:
            driver.ctx_push_current(context)
    assert answered == [step.answer for step in trace.steps]
