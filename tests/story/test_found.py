"""Stories that once broke a promise, as short as they get"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.story.layouts import Export, HeapTerms, Pool, Shape
from tests.story.programs import Event
from tests.story.story import apart, tell


def _w(count: int, asleep: str = "drop") -> tuple[str, Export]:
    """Export that a writer commits."""
    return "w", Export(count, 0, committed=True, asleep=asleep)


def _page(count: int, gpu: int, half: str = "keep") -> tuple[str, Export]:
    return "page", Export(count, gpu, half=half)


def _next(gpu: int) -> tuple[str, Export]:
    """Export that a change adds."""
    return "next", Export(1, gpu, committed=True, asleep="keep")


_W = ("w", Export(1, 0, committed=True, asleep="offload"))
_LARGE_W = ("w", Export(2, 0, committed=True, asleep="offload"))
_DROPPED_W = ("w", Export(2, 0, committed=True))
_SMALL = Shape((_W, ("page", Export(1, 0))))
_DROPPED = Shape((_DROPPED_W, ("page", Export(3, 0))))
_WITHOUT = Shape((_W,))
_START = Event("h", "start", (_SMALL,), 16)
_PAGE_OF_GPU1 = ("page", Export(1, 1))
_ONE_DROPPED_W = ("w", Export(1, 0, committed=True))
_THREE = Shape((_DROPPED_W, ("page", Export(1, 0)), ("next", Export(1, 0, committed=True, asleep="keep"))))
_ANOTHER_GPU = Shape((_W, ("page", Export(3, 3, half="drop"))))
_PAGE = ("page", Export(1, 0))
_LENT = Shape((_W, _PAGE), pool=Pool(1, 8, 4))
_MOVED_LATER = Shape((_W, ("page", Export(1, 4))), pool=Pool(1, 1, 4, 1, ()))

_HEAPS = Shape((_W, _PAGE), split=True, joined=True, heap=HeapTerms(5))
_LENT_BY_MEMBER = Shape((_W, _PAGE), split=True, pool=Pool(0, 3, 4, drops=()), joined=True)

FOUND: dict[str, tuple[int, Sequence[Event]]] = {
    "a refused change keeps no context": (
        1,
        (_START, Event("o1", "borrow", ("page",), 16), Event("o2", "change", (_WITHOUT, 0.0, False), 16)),
    ),
    "a change that importers did not let happen keeps no context": (
        1,
        (_START, Event("o1", "borrow", ("page",), 16), Event("o2", "change", (_WITHOUT, 0.5, False), 16)),
    ),
    "a check that fails keeps no context": (
        1,
        (_START, Event("h", "fail", (6, "CUDA_ERROR_UNKNOWN", False), 0), Event("o1", "check", (), 16)),
    ),
    "a GPU without room for a context is an error of the driver": (
        1,
        (_START, Event("h", "hog", (0, 1), 0), Event("o1", "change", (_WITHOUT, 0.0, False), 16)),
    ),
    "a switch that cannot have all of its contexts keeps none": (
        17,
        (
            Event("h", "start", (_ANOTHER_GPU,), 16),
            Event("h", "hog", (3, 1), 0),
            Event("o2", "switch", ("asleep", 0.5, True), 16),
        ),
    ),
    "no query of the driver makes of a switch that was made a refused one": (
        1,
        (
            _START,
            Event("h", "fail", (20, "CUDA_ERROR_UNKNOWN", False), 0),
            Event("o1", "switch", ("asleep", 0.5, False), 60),
        ),
    ),
    "an importer that lets go after the change was refused is told that its memory is there": (
        2,
        (
            _START,
            Event("e1", "attach", ("reader", ("page",), 0.5, False), 60),
            Event("o1", "switch", ("asleep", 0.5, False), 60),
            *[Event("e1", "look", (), 30)] * 3,
        ),
    ),
    "memory is not created anew under a writer since the one before ended while there was none": (
        1,
        (
            Event("h", "start", (_DROPPED,), 16),
            Event("o1", "switch", ("asleep", 0.0, False), 30),
            Event("e4", "attach", ("writer", (), 0.5, False), 60),
            Event("e4", "leave", (), 30),
            Event("e1", "attach", ("writer", (), 0.5, False), 60),
            Event("o1", "switch", ("awake", 0.0, False), 30),
            Event("e1", "poll", (2.0,), 60),
            Event("e2", "attach", ("writer", (), 0.5, False), 60),
            Event("e1", "poll", (2.0,), 60),
        ),
    ),
    "what was committed stays, since the writer before ended while there was no memory": (
        1,
        (
            Event("h", "start", (_DROPPED,), 16),
            Event("o1", "switch", ("asleep", 0.0, False), 30),
            Event("e4", "attach", ("writer", (), 0.5, False), 60),
            Event("e4", "leave", (), 30),
            Event("e1", "attach", ("writer", (), 0.5, False), 60),
            Event("o1", "switch", ("awake", 0.0, False), 30),
            Event("e1", "poll", (2.0,), 60),
            Event("e1", "commit", (), 60),
            Event("e2", "attach", ("writer", (), 0.5, False), 60),
            Event("e3", "attach", ("reader", (), 0.5, False), 60),
            Event("e1", "poll", (2.0,), 60),
        ),
    ),
    "no writer gets what another one has left half written and a state has kept": (
        1,
        (
            _START,
            Event("e4", "attach", ("writer", ("w",), 0.5, False), 60),
            Event("e4", "write", (False,), 60),
            Event("o1", "switch", ("asleep", 5.0, False), 10),
            Event("e4", "poll", (2.0,), 60),
            Event("e4", "kill", (), 30),
            Event("e1", "attach", ("writer", ("w",), 0.5, False), 60),
            Event("o1", "switch", ("awake", 0.0, False), 30),
            Event("e1", "poll", (2.0,), 60),
            Event("e1", "attach", ("writer", ("w",), 0.5, False), 60),
            Event("e1", "look", (), 60),
        ),
    ),
    "what was never written is not committed": (
        250,
        (
            Event("h", "start", (_DROPPED,), 16),
            Event("o1", "switch", ("asleep", 0.0, False), 30),
            Event("e4", "attach", ("writer", (), 5.0, False), 60),
            Event("o1", "switch", ("awake", 0.5, False), 30),
            Event("e4", "fail", (10, "CUDA_ERROR_OUT_OF_MEMORY", False), 0),
            Event("e4", "poll", (2.0,), 40),
            Event("e4", "commit", (), 16),
        ),
    ),
    "a change that is rolled back since a query failed is not called refused": (
        501,
        (
            Event("h", "start", (_THREE,), 1),
            Event("h", "reload", (replace(_THREE, block=True),), 16),
            Event("h", "fail", (29, "CUDA_ERROR_UNKNOWN", False), 1),
            Event("o1", "change", (_THREE, 5.0, False), 1),
            Event("o2", "status", (), 16),
        ),
    ),
    "an importer that attaches again is told when an export comes back that had gone meanwhile": (
        1119,
        (
            Event("h", "start", (Shape((_DROPPED_W, _PAGE_OF_GPU1), block=True),), 0),
            Event("e2", "attach", ("reader", (), 2.0, False, 3), 16),
            Event("e1", "attach", ("reader", ("page",), 0.0, True, 0), 4),
            Event("e4", "poll", (0.5,), 8),
            Event("o2", "release", (True, 2.0), 16),
            Event("h", "start", (Shape((_ONE_DROPPED_W,)),), 16),
            Event("e1", "poll", (0.5,), 1),
            Event("h", "reload", (Shape((_ONE_DROPPED_W, _PAGE_OF_GPU1)),), 1),
            Event("o1", "change", (Shape((_DROPPED_W,)), 0.5, True), 1),
            Event("e1", "poll", (2.0,), 16),
            Event("h", "reload", (Shape((_DROPPED_W, _PAGE_OF_GPU1)),), 1),
        ),
    ),
    "another largest number of lent chunks is followed, also with another least one": (
        4,
        (
            Event("e2", "attach", ("reader", ("pool",), 0.5, True, 0), 1),
            Event("h", "start", (_LENT,), 1),
            Event("e2", "grow", (4,), 16),
            Event("h", "reload", (replace(_LENT, pool=Pool(2, 3, 2)),), 1),
        ),
    ),
    "chunks with large numbers are lent after the largest number of chunks was lowered": (
        2023,
        (
            Event("h", "start", (replace(_LENT, pool=Pool(0, 4, 8, drops=())),), 8),
            Event("o2", "take_lent", (3,), 8),
            Event("o2", "restore", (), 8),
            Event("h", "reload", (replace(_LENT, pool=Pool(0, 1, 8, drops=())),), 8),
        ),
    ),
    "an importer that missed a change and gains chunks has none of the memory before": (
        5160,
        (
            Event("h", "start", (Shape((_W, ("page", Export(2, 0, half="drop")))),), 2),
            Event("e1", "attach", ("reader", ("page",), 5.0, False, 3), 1),
            Event("e1", "attach", ("reader", (), 0.0, False, 0), 2),
            Event("o2", "restore", (), 16),
            Event("h", "reload", (Shape((_W, ("page", Export(3, 0, half="drop")))),), 2),
            Event("o1", "switch", ("asleep", 0.5, True), 0),
        ),
    ),
    "what was created to be lent and cannot be released is lent later": (
        1,
        (
            Event("h", "start", (replace(_LENT, pool=Pool(0, 4, 8, drops=())),), 16),
            Event("e1", "attach", ("reader", ("pool",), 0.5, False, 0), 30),
            Event("h", "fail", (3, "CUDA_ERROR_OUT_OF_MEMORY", True), 0),
            Event("e1", "grow", (3,), 30),
        ),
    ),
    "a process that missed a switch and is lent chunks keeps none of the ones before": (
        20174,
        (
            Event("h", "start", (replace(_LENT, pool=Pool(2, 5, 4)),), 8),
            Event("o1", "take_lent", (3,), 1),
            Event("e2", "attach", ("reader", ("pool",), 0.0, True, 0), 1),
            Event("e2", "grow", (2,), 16),
            Event("o2", "switch", ("asleep", 0.0, True), 8),
            Event("o1", "switch", ("half", 2.0, True), 8),
            Event("e2", "grow", (1,), 8),
            Event("e2", "grow", (1,), 8),
            Event("e2", "shrink", (3, True), 8),
        ),
    ),
    "a smaller largest number of chunks counts the least ones that are free": (
        7014,
        (
            Event("h", "start", (replace(_LENT, pool=Pool(2, 8, 8)),), 16),
            Event("e3", "attach", ("reader", ("pool",), 0.0, False, 0), 30),
            Event("e3", "grow", (1,), 16),
            Event("o2", "take_lent", (3,), 16),
            Event("e3", "leave", (), 16),
            Event("o2", "change", (replace(_LENT, pool=Pool(2, 3, 8)), 0.0, False), 16),
        ),
    ),
    "an attachment begins again if the layout was switched meanwhile": (
        40012,
        (
            Event("h", "start", (_MOVED_LATER,), 0),
            Event("h", "reload", (Shape((_W,), pool=Pool(0, 8, 4, 4, ())),), 8),
            Event("o2", "borrow", ("w",), 0),
            Event("e1", "attach", ("writer", ("w",), 0.0, False), 4),
            Event("o1", "switch", ("asleep", 5.0, False), 1),
        ),
    ),
    "an attachment that left something does not begin again": (
        1,
        (
            Event("h", "start", (Shape((_LARGE_W, _PAGE)),), 16),
            Event("o1", "borrow", ("page",), 40),
            Event("h", "reload", (Shape((_W, _PAGE_OF_GPU1)),), 20),
            Event("e3", "fail", (1, "CUDA_ERROR_UNKNOWN", False), 0),  # starts the process
            Event("e3", "attach", ("writer", ("w",), 2.0, False, 0), 0),
            Event("e3", "fail", (20, "CUDA_ERROR_UNKNOWN", True), 60),
        ),
    ),
    "no writer writes memory that a reader has, though the change was forced": (
        1168,
        (
            Event("h", "start", (Shape((_LARGE_W, _PAGE)),), 16),
            Event("e1", "attach", ("writer", ("w",), 0.5, False, 0), 64),
            Event("e1", "commit", (), 16),
            Event("o1", "change", (Shape((_W, _PAGE)), 0.0, True, True), 16),
            Event("e2", "attach", ("writer", (), 5.0, False, 0), 16),
            Event("e2", "commit", (), 16),
        ),
    ),
    "an importer that has lost its connection need not wait for the commit of an export that it never had": (
        106518,
        (
            Event("e2", "attach", ("writer", ("w",), 0.5, False, 0), 1),
            Event(
                "h",
                "start",
                (
                    Shape((_w(1, "offload"), _page(1, 0, "drop")), pool=Pool(0, 3, 4, drops=())),
                    False,
                ),
                1,
            ),
            Event("o2", "check", (), 8),
            Event("e3", "attach", ("writer", (), 2.0, False, 0), 1),
            Event("e3", "attach", ("reader", (), 0.0, True, 0), 1),
            Event("o1", "check", (), 1),
            Event("e2", "commit", (), 2),
            Event("e3", "adopt", ("k1",), 2),
            Event("e3", "seal", ("k3", 3), 2),
            Event("e3", "stamp", (), 16),
            Event("o1", "switch", ("asleep", 2.0, False, False), 1),
            Event("o1", "check", (), 16),
            Event("e3", "cut", (), 16),
            Event("o2", "switch", ("awake", 2.0, False, False), 16),
            Event(
                "o2",
                "change",
                (
                    Shape(
                        (
                            _w(1, "offload"),
                            _page(1, 0, "drop"),
                            _next(0),
                        )
                    ),
                    2.0,
                    False,
                    False,
                ),
                1,
            ),
        ),
    ),
    "a change that keeps a part of what a writer left has it created anew for the next one": (
        101978,
        (
            Event(
                "h",
                "start",
                (
                    Shape((_w(1, "offload"), _page(1, 1)), pool=Pool(2, 3, 2)),
                    False,
                ),
                0,
            ),
            Event("e1", "attach", ("writer", ("w",), 5.0, False, 0), 0),
            Event("e1", "write", (False,), 1),
            Event("e1", "write", (True,), 8),
            Event("e3", "hog", (1, 0), 16),
            Event("e1", "leave", (), 4),
            Event("e4", "hog", (1, -1), 1),
            Event(
                "h",
                "reload",
                (
                    Shape(
                        (
                            _w(2, "offload"),
                            _page(1, 1),
                            _next(0),
                        ),
                        pool=Pool(2, 3, 2, drops=()),
                    ),
                ),
                1,
            ),
            Event("e2", "attach", ("writer", (), 0.0, False, 0), 1),
        ),
    ),
    "bytes that a writer left in a state that keeps them are not those of the next one": (
        116247,
        (
            Event(
                "h",
                "start",
                (
                    Shape((_w(2, "offload"), _page(2, 2, "drop")), pool=Pool(0, 3, 4)),
                    False,
                ),
                0,
            ),
            Event("e3", "leave", (), 8),
            Event(
                "o1",
                "change",
                (
                    Shape(
                        (
                            _w(2, "offload"),
                            _page(2, 2, "drop"),
                            _next(5),
                        ),
                        pool=Pool(0, 3, 4),
                    ),
                    5.0,
                    False,
                    False,
                ),
                8,
            ),
            Event("o1", "restore", (), 8),
            Event("e3", "attach", ("writer", (), 2.0, False, 3), 16),
            Event("e3", "write", (False,), 16),
            Event("o2", "switch", ("asleep", 0.5, True, False), 0),
            Event("e1", "adopt", ("k1",), 16),
            Event("e3", "leave", (), 0),
            Event("e4", "attach", ("writer", ("w",), 5.0, False, 0), 1),
        ),
    ),
    "no chunk that stays in a pool is lent beneath a process that has it, though the change was forced": (
        102840,
        (
            Event(
                "h",
                "start",
                (
                    Shape((_w(2), _page(1, 0)), block=True, pool=Pool(1, 8, 2)),
                    False,
                ),
                4,
            ),
            Event("e3", "attach", ("writer", (), 5.0, False, 0), 16),
            Event("o2", "borrow", ("page",), 1),
            Event("o2", "check", (), 1),
            Event("e3", "grow", (2,), 4),
            Event("o2", "borrow", ("w",), 1),
            Event("e3", "stamp", (), 8),
            Event(
                "o1",
                "change",
                (
                    Shape((_w(2), _page(3, 0)), block=True, pool=Pool(2, 8, 4)),
                    2.0,
                    True,
                    False,
                ),
                1,
            ),
        ),
    ),
    "chunks are lent as before after a switch that was rolled back": (
        107992,
        (
            Event(
                "h",
                "start",
                (
                    Shape((_w(1, "offload"), _page(1, 1)), block=True, pool=Pool(0, 3, 4, 3)),
                    True,
                ),
                8,
            ),
            Event("o2", "restore", (), 16),
            Event("o2", "restore", (), 2),
            Event("e2", "attach", ("writer", (), 0.0, False, 3), 4),
            Event("e1", "attach", ("writer", (), 0.0, False, 0), 16),
            Event("e2", "look", (), 2),
            Event("e2", "grow", (1,), 8),
            Event("o2", "switch", ("asleep", 0.5, True, True), 1),
            Event("h", "fail", (19, "CUDA_ERROR_OPERATING_SYSTEM", False), 8),
            Event("e2", "stamp", (), 8),
        ),
    ),
    "a process that attaches while a pool is changed may have what the pool has then": (
        102195,
        (
            Event(
                "h",
                "start",
                (
                    Shape(
                        (
                            _w(1),
                            _page(1, 0, "drop"),
                            _next(0),
                        ),
                        pool=Pool(0, 3, 2, drops=()),
                    ),
                    False,
                ),
                8,
            ),
            Event("e4", "grow", (1,), 0),
            Event("e4", "fail", (19, "CUDA_ERROR_OUT_OF_MEMORY", False), 1),
            Event("e4", "attach", ("writer", (), 5.0, True, 3), 1),
            Event("e2", "poll", (0.0,), 16),
            Event("e1", "attach", ("reader", (), 0.0, False, 0), 16),
            Event("e4", "attach", ("reader", ("pool",), 2.0, True, 0), 1),
            Event(
                "o1",
                "change",
                (
                    Shape(
                        (
                            _w(2),
                            _page(1, 0, "drop"),
                            _next(0),
                        ),
                        block=True,
                    ),
                    5.0,
                    False,
                    False,
                ),
                1,
            ),
            Event("e4", "write", (True,), 16),
            Event("h", "reload", (Shape((_w(2), _page(2, 0, "drop")), block=True, pool=Pool(0, 8, 4)),), 1),
        ),
    ),
    "an importer that could not follow a notice follows it later": (
        103695,
        (
            Event(
                "h",
                "start",
                (
                    Shape((_w(1), _page(3, 2, "drop")), pool=Pool(2, 5, 2, drops=("asleep", "half"))),
                    False,
                ),
                8,
            ),
            Event("e3", "attach", ("writer", ("w",), 0.0, True, 0), 0),
            Event("e2", "poll", (0.0,), 16),
            Event("e3", "fail", (8, "CUDA_ERROR_OPERATING_SYSTEM", False), 1),
            Event("e3", "poll", (0.0,), 1),
            Event("e3", "poll", (0.0,), 1),
            Event("e3", "commit", (), 1),
            Event("o1", "switch", ("asleep", 0.0, True, False), 1),
            Event("e3", "look", (), 1),
            Event("e3", "poll", (0.5,), 16),
        ),
    ),
    "an importer that could not attach again does later": (
        104875,
        (
            Event(
                "h",
                "start",
                (
                    Shape((_w(1), _page(3, 0, "drop")), pool=Pool(0, 8, 2, drops=())),
                    False,
                ),
                0,
            ),
            Event("e4", "leave", (), 8),
            Event("e4", "attach", ("reader", ("page",), 0.0, True, 0), 0),
            Event("e3", "stamp", (), 16),
            Event("e4", "fail", (4, "CUDA_ERROR_UNKNOWN", False), 1),
            Event("o1", "release", (True, 2.0), 4),
            Event(
                "h",
                "start",
                (
                    Shape((_w(1), _page(3, 0, "drop")), pool=Pool(1, 5, 4, drops=("asleep", "half"))),
                    False,
                ),
                1,
            ),
            Event("e4", "poll", (5.0,), 1),
            Event("e4", "poll", (0.5,), 8),
        ),
    ),
    "a writer that could not import from the next holder commits nothing there": (
        114229,
        (
            Event(
                "h",
                "start",
                (
                    Shape((_w(2), _page(3, 1, "drop")), pool=Pool(0, 5, 2, 1)),
                    False,
                ),
                2,
            ),
            Event("e2", "attach", ("writer", (), 0.5, True, 0), 128),
            Event("e2", "poll", (5.0,), 0),
            Event("e2", "commit", (), 1),
            Event("e2", "fail", (12, "CUDA_ERROR_OPERATING_SYSTEM", False), 8),
            Event("o2", "restore", (), 8),
            Event("e2", "poll", (5.0,), 2),
            Event("h", "stop", (), 1),
            Event("o2", "borrow", ("w",), 4),
            Event(
                "h",
                "start",
                (
                    Shape((_w(2), _page(3, 1, "drop")), pool=Pool(0, 5, 2, 1)),
                    False,
                ),
                0,
            ),
            Event("e2", "commit", (), 16),
            Event("e2", "poll", (0.0,), 8),
        ),
    ),
    "chunks that were released before a change was rolled back are not lent any more": (
        205592,
        (
            Event("h", "start", (Shape((_w(2, "offload"),), pool=Pool(1, 8, 4)), False), 16),
            Event("h", "reload", (Shape((_w(2, "offload"), _page(2, 0)), pool=Pool(1, 8, 4)),), 8),
            Event("e2", "attach", ("writer", ("w",), 5.0, False, 0), 16),
            Event("e2", "commit", (), 1),
            Event("e3", "attach", ("reader", (), 0.0, False, 3), 4),
            Event("e2", "poll", (0.0,), 16),
            Event("e3", "grow", (2,), 4),
            Event("e3", "seal", ("k3", 3), 2),
            Event("o1", "take_lent", (1,), 0),
            Event(
                "o1",
                "change",
                (
                    Shape((_w(2, "offload"), _page(2, 0))),
                    5.0,
                    True,
                    False,
                ),
                4,
            ),
            Event("e1", "poll", (2.0,), 4),
            Event("e1", "shrink", (1, True), 4),
            Event(
                "o1",
                "change",
                (
                    Shape((_w(2, "offload"),), pool=Pool(1, 8, 4)),
                    0.0,
                    False,
                    False,
                ),
                8,
            ),
            Event("e4", "seal", ("k2", 3), 16),
            Event("h", "fail", (4, "CUDA_ERROR_UNKNOWN", False), 4),
            Event("e3", "leave", (), 4),
            Event("e4", "poll", (5.0,), 8),
            Event("e4", "trim", (), 8),
            Event("o2", "restore", (), 8),
            Event("o2", "borrow", ("w",), 16),
            Event("e1", "grow", (1,), 8),
        ),
    ),
    "a switch that changes nothing does not report what an earlier check has found": (
        500664,
        (
            Event("e2", "attach", ("reader", (), 5.0, False, 0), 4),
            Event("e1", "attach", ("writer", (), 0.5, False, 3), 1),
            Event(
                "h",
                "start",
                (
                    Shape((_w(1, "offload"), _page(3, 0)), split=True, joined=True),
                    False,
                ),
                2,
            ),
            Event("e4", "attach", ("reader", (), 5.0, False, 0), 16),
            Event("e2", "attach", ("writer", (), 5.0, False, 0), 128),
            Event("e3", "attach", ("writer", ("b.w",), 5.0, False, 0), 1),
            Event("e3", "attach", ("writer", (), 0.5, False, 0), 4),
            Event("e2", "attach", ("reader", (), 0.0, False, 0), 8),
            Event("o1", "switch", ("half", 2.0, False, False), 2),
            Event("h", "reload", (Shape((_w(2, "offload"), _page(3, 0)), split=True, joined=True),), 8),
            Event("o1", "switch", ("awake", 0.5, False, True), 16),
            Event("e3", "attach", ("writer", ("b.w",), 0.0, True, 0), 4),
            Event("e2", "attach", ("reader", ("a.page",), 0.0, True, 3), 8),
            Event("o2", "mistake", ("request",), 16),
            Event("o2", "restore", (), 8),
            Event("e3", "attach", ("reader", (), 5.0, False, 0), 4),
            Event("e1", "attach", ("reader", (), 5.0, True, 0), 16),
            Event("o1", "switch", ("asleep", 2.0, False, False), 16),
            Event("o2", "borrow", ("a.page",), 0),
            Event("e1", "attach", ("reader", ("a.page",), 0.0, True, 3), 16),
            Event("e2", "attach", ("reader", ("b.w",), 0.0, True, 0), 1),
            Event("e1", "attach", ("writer", (), 2.0, False, 0), 16),
            Event("h", "fail", (37, "CUDA_ERROR_UNKNOWN", False), 16),
            Event("o2", "switch", ("half", 0.5, False, False), 4),
            Event("e4", "attach", ("reader", ("b.w",), 5.0, True, 0), 8),
            Event("e3", "write", (False,), 1),
        ),
    ),
    "an importer follows notices that come after one that it could not follow": (
        506443,
        (
            Event(
                "h",
                "start",
                (
                    Shape(
                        (
                            _w(1),
                            _page(2, 0),
                            _next(0),
                        ),
                        cell=True,
                        pool=Pool(0, 5, 4, drops=()),
                    ),
                    True,
                ),
                1,
            ),
            Event("e2", "poll", (0.5,), 8),
            Event("o1", "restore", (), 8),
            Event("e2", "poll", (0.0,), 16),
            Event(
                "o2",
                "change",
                (
                    Shape(
                        (
                            _w(1),
                            _page(3, 0),
                            _next(0),
                        ),
                        cell=True,
                        pool=Pool(0, 5, 4, drops=()),
                    ),
                    0.0,
                    False,
                    False,
                ),
                16,
            ),
            Event("e3", "attach", ("reader", (), 0.0, True, 3), 16),
            Event("o1", "borrow", ("w",), 1),
            Event("e1", "attach", ("writer", (), 5.0, True, 3), 2),
            Event("e1", "commit", (), 16),
            Event("e3", "look", (), 1),
            Event("e1", "poll", (5.0,), 4),
            Event(
                "o2",
                "change",
                (
                    Shape(
                        (
                            _w(1),
                            _page(2, 0),
                            _next(0),
                        ),
                        cell=True,
                        pool=Pool(0, 5, 4, drops=()),
                    ),
                    5.0,
                    True,
                    False,
                ),
                1,
            ),
            Event("e1", "grow", (1,), 16),
            Event("e4", "attach", ("writer", ("w",), 5.0, False, 0), 0),
            Event("e1", "poll", (0.5,), 1),
            Event("o2", "borrow", ("w",), 8),
            Event("e1", "look", (), 4),
            Event("e2", "grow", (2,), 1),
            Event(
                "o2",
                "change",
                (
                    Shape(
                        (
                            _w(1),
                            _page(3, 0),
                            _next(0),
                        ),
                        cell=True,
                        pool=Pool(0, 5, 4, drops=()),
                    ),
                    0.5,
                    True,
                    True,
                ),
                1,
            ),
            Event("o1", "take_lent", (1,), 4),
            Event("e2", "grow", (1,), 16),
            Event("e4", "look", (), 8),
            Event(
                "o1",
                "change",
                (
                    Shape(
                        (
                            _w(1),
                            _page(1, 0),
                            _next(0),
                        ),
                        cell=True,
                        pool=Pool(0, 5, 4, drops=()),
                    ),
                    2.0,
                    True,
                    False,
                ),
                2,
            ),
            Event("e3", "trim", (), 16),
            Event("e1", "poll", (0.5,), 4),
            Event("o2", "switch", ("half", 5.0, False, False), 16),
            Event("e3", "grow", (1,), 4),
            Event(
                "o2",
                "change",
                (
                    Shape(
                        (
                            _w(1),
                            _page(2, 0),
                            _next(0),
                        ),
                        cell=True,
                        pool=Pool(0, 5, 4, drops=()),
                    ),
                    0.5,
                    False,
                    False,
                ),
                1,
            ),
            Event("e4", "attach", ("reader", (), 0.0, False, 0), 1),
        ),
    ),
    "a writer that could not import from the next holder writes nothing that it has committed": (
        1019430,
        (
            Event("h", "start", (Shape((_w(2, "offload"), _page(3, 0)), pool=Pool(1, 3, 2)), False), 8),
            Event("e4", "attach", ("writer", ("w",), 5.0, True, 0), 1),
            Event("e2", "attach", ("reader", ("w",), 5.0, True, 0), 1),
            Event("e1", "look", (), 8),
            Event("e4", "commit", (), 16),
            Event("o1", "release", (False, 2.0), 0),
            Event("o1", "restore", (), 16),
            Event(
                "h",
                "start",
                (
                    Shape((_w(2, "offload"), _page(3, 0), _next(0)), cell=True, pool=Pool(1, 3, 2)),
                    False,
                ),
                1,
            ),
            Event("e4", "fail", (6, "CUDA_ERROR_OPERATING_SYSTEM", False), 8),
            Event("e4", "poll", (0.0,), 1),
            Event("e4", "poll", (0.5,), 1),
            Event("e2", "write", (True,), 2),
            Event("e4", "write", (False,), 4),
        ),
    ),
    "an importer that could not follow a change has the generation that it had": (
        1005047,
        (
            Event("h", "start", (Shape((_w(1), _page(1, 0, "drop")), tick=True), False), 1),
            Event("e1", "attach", ("writer", (), 0.0, True, 0), 1),
            Event("e1", "commit", (), 1),
            Event("e1", "poll", (0.5,), 16),
            Event("e4", "attach", ("reader", ("w",), 0.0, False, 0), 16),
            Event("e4", "fail", (3, "CUDA_ERROR_OUT_OF_MEMORY", False), 1),
            Event("o2", "switch", ("asleep", 0.0, True, True), 8),
            Event("o1", "switch", ("awake", 5.0, False, False), 1),
            Event("e3", "attach", ("writer", (), 0.5, False, 0), 1),
            Event("e1", "attach", ("reader", (), 2.0, False, 0), 16),
            Event("e3", "commit", (), 2),
            Event("e4", "poll", (0.0,), 2),
            Event("e4", "look", (), 1),
            Event("e4", "write", (True,), 8),
        ),
    ),
    "memory is written beneath a reader that has lost its connection, which is its lease": (
        1020461,
        (
            Event("e4", "attach", ("writer", ("w",), 2.0, False, 0), 0),
            Event("h", "start", (Shape((_w(2), _page(2, 1)), pool=Pool(2, 3, 4, drops=("asleep", "half"))), False), 4),
            Event("e4", "commit", (), 4),
            Event("e2", "adopt", ("k1",), 16),
            Event("e4", "cut", (), 1),
            Event(
                "o1",
                "change",
                (
                    Shape((_w(1), _page(1, 0)), pool=Pool(2, 3, 4, drops=("asleep", "half"))),
                    5.0,
                    True,
                    False,
                ),
                1,
            ),
            Event("e1", "attach", ("writer", ("w",), 0.0, False, 0), 0),
            Event("e1", "commit", (), 1),
        ),
    ),
    "a late process may read what it was lent before its connection was lost": (
        1,
        (
            Event("h", "start", (replace(_LENT, pool=Pool(0, 4, 4, drops=())),), 64),
            Event("e1", "attach", ("reader", ("pool",), 5.0, False), 64),
            Event("e2", "attach", ("reader", ("pool",), 5.0, False), 64),
            Event("e1", "grow", (1,), 2),
            Event("e1", "late", (12.0,), 0),
            Event("e1", "cut", (), 4),
            Event("e2", "grow", (1,), 8),
        ),
    ),
    "what a process of a user was too busy to take back is lent again": (
        1,
        (
            Event("h", "start", (_LENT_BY_MEMBER,), 400),
            Event("e1", "attach", ("reader", ("b.pool",), 5.0, False), 200),
            Event("e1", "grow", (3,), 200),
            Event("b", "compute", (40.0,), 40),
            Event("e1", "shrink", (2, True), 100),
            Event("e1", "look", (), 400),
        ),
    ),
    "a writer does not write the memory that a reader keeps since a forced switch which was rolled back": (
        1,
        (
            Event("h", "start", (_DROPPED,), 64),
            Event("e1", "attach", ("writer", ("w",), 0.0, False), 60),
            Event("e1", "commit", (), 60),
            Event("e2", "attach", ("reader", ("w",), 1.0, False), 80),
            Event("e1", "leave", (), 20),
            Event("h", "fail", (6, "CUDA_ERROR_UNKNOWN", False), 0),
            Event("o1", "switch", ("asleep", 0.0, True), 60),
            Event("e1", "attach", ("writer", ("w",), 1.0, False), 60),
            Event("e1", "write", (False,), 60),
        ),
    ),
    "programs do not go on without memory after the end of another process in the middle of a switch": (
        1,
        (
            Event("h", "start", (_HEAPS,), 250),
            Event("b", "allocate", (1,), 60),
            Event("o1", "switch", ("asleep", 0.0, False), 0),
            Event("a", "doom", (30,), 30),
            Event("b", "doze", (None,), 30),
        ),
    ),
}


@pytest.mark.parametrize("rule", FOUND)
def test_a_story_that_once_broke_a_promise_keeps_it(rule: str) -> None:
    seed, events = FOUND[rule]
    told = apart(lambda: tell(seed, events))
    assert not told.failure, "\n".join((*told.trace, told.failure))
