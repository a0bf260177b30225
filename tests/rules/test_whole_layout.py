"""Limits of a process's address space, and warnings about chunks and ranges that are not used."""

from __future__ import annotations

import pytest

from memtopo.diagnostics.model import Diagnostic, Path
from tests.helpers.specs import codes, diagnose


def refused(text: str) -> list[Diagnostic]:
    return [each for each in diagnose(text) if each.code == "MT310"]


@pytest.mark.parametrize(
    ("entry", "named"),
    [
        ("chunks: {c: {location: gpu0, size: SIZE}}", "chunk 'c'"),
        ("managed: {c: {size: SIZE}}", "managed memory 'c'"),
        ("imports: {c: {from: l/w, location: gpu0, size: SIZE}}", "import 'c'"),
    ],
)
def test_an_object_ends_before_the_address_space_does(entry: str, named: str) -> None:
    assert refused(entry.replace("SIZE", "131071GiB")) == []
    path = entry.partition(":")[0], "c", "size"
    for size, shown in (("128TiB", "128 TiB"), ("200TiB", "200 TiB")):
        message = f"{named}: {shown} do not fit into 128 TiB of addresses"
        assert refused(entry.replace("SIZE", size)) == [Diagnostic("MT310", message, path, help="lower its size")]


@pytest.mark.parametrize(
    ("last", "shown"),
    [
        ("size: 1020MiB", None),
        ("size: 1GiB", "128 TiB"),
        ("size: 512MiB, count: 2", "128 TiB"),
        ("size: 1TiB", "129.0 TiB"),
    ],
)
def test_all_ranges_together_end_before_the_address_space_does(last: str, shown: str | None) -> None:
    """The first range that is too much is named, and none after it."""
    text = f"ranges: {{a: {{size: 127TiB}}, b: {{size: 1023GiB}}, c: {{{last}}}, d: {{size: 2MiB}}}}"
    message = f"range 'c': {shown} with the ranges before it do not fit into 128 TiB of addresses"
    expected = Diagnostic("MT310", message, ("ranges", "c", "size"), help="lower the size or the count of ranges")
    assert refused(text) == ([expected] if shown else [])


def test_an_import_of_a_sibling_is_the_siblings_fault_alone() -> None:
    text = """
processes:
  a: {chunks: {c: {location: gpu0, size: 128TiB, handles: fd}}, exports: {w: {chunk: c, via: fd}}}
  b: {imports: {w: {from: a.w}}}
"""
    assert [each.path for each in refused(text)] == [("processes", "a", "chunks", "c", "size")]


ENTRIES = "ranges: {a: {size: 4MiB}, b: {size: 6MiB, count: 3}}\nchunks: {p: {location: gpu0, size: 2MiB, count: 8}}\n"
GRANTED = "access: {a: {gpu0: rw}, b: {gpu0: r}}\n"


def warning(code: str, message: str, path: Path, help: str | None = None) -> Diagnostic:
    return Diagnostic(code, message, path, "key", help=help)


def partly(what: str, help: str = "map them as well, or reduce 'count'") -> Diagnostic:
    return warning("MT501", f"{what} are not mapped", ("chunks", "p"), help)


def empty(count: int) -> Diagnostic:
    help = "map chunks into them as well, or reduce 'count'"
    return warning("MT502", f"{count} of the 3 ranges 'b' have no mappings", ("ranges", "b"), help)


@pytest.mark.parametrize(
    ("mapped", "expected"),
    [
        ("a: 'p.0:2', b.0: 'p.2:5', b.1: 'p.5:8', b.2: p.0", []),
        ("a: 'p.0:2', b.0: 'p.1:4', b.1: p.0", [partly("4 of the 8 chunks 'p'"), empty(1)]),
        ("a: 'p.1:3', b.0: ['p.2:4', p.7]", [partly("4 of the 8 chunks 'p'"), empty(2)]),
        ("a: 'p.6:8', b.0: 'p.0:3', b.1: 'p.0:2', b.2: p.3", [partly("2 of the 8 chunks 'p'")]),
    ],
)
def test_a_chunk_in_several_mappings_counts_once(mapped: str, expected: list[Diagnostic]) -> None:
    assert [*diagnose(f"{ENTRIES}map: {{{mapped}}}\n{GRANTED}")] == expected


def test_an_exported_chunk_is_used() -> None:
    text = """
chunks: {p: {location: gpu0, size: 2MiB, count: 8, handles: fd}, q: {location: gpu0, size: 2MiB, handles: fd}}
ranges: {a: {size: 4MiB}}
map: {a: p.0}
access: {a: {gpu0: rw}}
exports: {x: {chunk: 'p.2:5', via: fd}}
"""
    assert [*diagnose(text)] == [
        partly("4 of the 8 chunks 'p'"),
        warning("MT501", "chunk 'q' is not mapped", ("chunks", "q")),
    ]


def test_an_import_is_named_as_one_and_its_count_is_the_exporters() -> None:
    text = "imports: {w: {from: l/w, location: gpu0, size: 2MiB, count: 4}}\n"
    path = "imports", "w"
    assert [*diagnose(text)] == [warning("MT501", "import 'w' is not mapped", path)]
    text += "ranges: {a: {size: 4MiB}}\nmap: {a: ['w.0:2']}\naccess: {a: {gpu0: r}}"
    assert [*diagnose(text)] == [warning("MT501", "2 of the 4 imported chunks 'w' are not mapped", path)]


@pytest.mark.parametrize(
    ("rest", "expected"),
    [
        ("map: {a: nope}\n", ["MT201"]),
        ("map: {a: p.9}\naccess: {b: {gpu0: rw}}\n", ["MT202"]),
        ("map: {a: 'p.0:2'}\naccess: {a: {gpu9: rw}}\n", ["MT401", "MT501", "MT502"]),
        ("exports: {x: {chunk: nope, via: fd}}\nmap: {a: 'p.0:2', b: p.0}\n" + GRANTED, ["MT201", "MT502"]),
    ],
)
def test_nothing_is_unused_that_an_entry_with_an_error_may_use(rest: str, expected: list[str]) -> None:
    assert codes(ENTRIES + rest) == expected


def test_what_a_gpu_lacks_does_not_hide_what_the_host_lacks() -> None:
    chunks = "chunks: {a: {location: gpu0, size: 90TiB}, b: {location: host, size: 60TiB}}\n"
    assert codes(chunks).count("MT402") == 2


def test_a_range_without_mappings_or_access_is_named() -> None:
    assert [*diagnose("ranges: {b: {size: 6MiB, count: 3}}")] == [
        warning("MT502", "range 'b' has no mappings", ("ranges", "b"))
    ]
    text = "ranges: {b: {size: 2MiB, count: 3}}\nchunks: {p: {location: gpu0, size: 2MiB}}\nmap: {b.1: p}\n"
    for access in ("", "access: {b: {gpu0: none}}", "access: {b.1: {}}"):
        assert [*diagnose(text + access)] == [
            empty(2),
            warning(
                "MT503", "no device has access to range 'b'", ("ranges", "b"), "grant it: 'access: {b: {gpu0: rw}}'"
            ),
        ]
    assert [*diagnose(text + "access: {b: [{size: 2MiB, grant: {gpu0: none, gpu1: r}}]}")] == [empty(2)]


def test_ranges_that_overflow_have_no_warning_besides() -> None:
    text = "ranges: {b: {size: 4MiB, count: 3}}\nchunks: {p: {location: gpu0, size: 3MiB, round: up, count: 1}}\n"
    assert codes(text + "map: {b.0: [p, p]}\naccess: {b: {gpu0: rw}}") == ["MT305"]


def test_each_process_is_warned_about_and_equal_ones_once() -> None:
    chunk = "chunks: {c: {location: gpu0, size: 2MiB}}"
    text = f"processes:\n a: {{{chunk}}}\n b: {{count: 3, {chunk}}}"
    assert [each.path for each in diagnose(text)] == [
        ("processes", "a", "chunks", "c"),
        ("processes", "b", "chunks", "c"),
    ]
