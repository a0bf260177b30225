"""Fixed addresses that are known to miss, and the nearest that do not (fact 11)."""

from __future__ import annotations

import pytest

from tests.helpers.specs import diagnose

CHUNK = "chunks: {c: {location: gpu0, size: 2MiB}}\nmap: {r: c}\naccess: {r: {gpu0: rw}}\n"


def helps(ranges: str) -> list[str | None]:
    """Help of each MT307 of a spec with these ranges; `r` has a chunk."""
    return [each.help for each in diagnose(f"ranges: {{{ranges}}}\n{CHUNK}") if each.code == "MT307"]


@pytest.mark.parametrize(
    ("ranges", "near"),
    [
        ("r: {size: 2MiB, address: 0x20000800000, fixed: true}", "write 0x20000000000 or 0x20002000000"),
        ("r: {size: 2MiB, address: 0x800000, fixed: true}", "write 0x2000000"),
        ("r: {size: 2MiB, address: 0x7ffffc200000, fixed: true}", "write 0x7ffffc000000"),
        ("r: {size: 2MiB, address: 0x7ffffe000000, fixed: true}", "write 0x7ffffc000000 or less"),
        ("r: {size: 64MiB, address: 0x7ffffc000000, fixed: true}", "write 0x7ffffa000000 or less"),
        ("r: {size: 64MiB, address: 0x7ffffe200000}", "write 0x7ffffa000000 or less"),
        ("r: {size: 2MiB, count: 3, address: 0x7ffffa000000, fixed: true}", "write 0x7ffff8000000 or less"),
        ("r: {size: 1GiB, address: 0xffffffffffffffff, fixed: true}", "write 0x7fffbe000000 or less"),
        ("r: {size: 2MiB, align: 1TiB, address: 0x7ff000000000, fixed: true}", "write 0x7f0000000000"),
        ("r: {size: 2MiB, address: 0x200000000, fixed: true}", "write 0x1fe000000, the nearest address that is free"),
        ("r: {size: 64MiB, address: 0x1fe000000, fixed: true}", "write 0x1fc000000, the nearest address that is free"),
        (
            "r: {size: 2MiB, address: 0x2000000, fixed: true, count: 9999}",
            "write 0x202000000, the nearest address that is free",
        ),
    ],
)
def test_the_nearest_address_that_would_do_is_named(ranges: str, near: str) -> None:
    assert helps(ranges) == [near]


def test_the_nearest_free_address_is_between_or_beside_other_fixed_ranges() -> None:
    others = (
        "a: {size: 64MiB, address: 0x20000000000, fixed: true}, b: {size: 2MiB, address: 0x20006000000, fixed: true}"
    )
    assert helps(f"{others}, r: {{size: 2MiB, address: 0x20002000000, fixed: true}}") == [
        "write 0x20004000000, the nearest address that is free"
    ]
    assert helps(f"{others}, r: {{size: 64MiB, address: 0x20002000000, fixed: true}}") == [
        "write 0x1fffc000000, the nearest address that is free"
    ]


def test_the_suggested_address_does() -> None:
    ranges = [f"a{n}: {{size: 2MiB, address: {0x20000000000 + n * 0x4000000:#x}, fixed: true}}" for n in range(50)]
    (near,) = helps(", ".join([*ranges, "r: {size: 40MiB, address: 0x20060000000, fixed: true}"]))
    address = str(near).split()[1].rstrip(",")
    assert helps(", ".join([*ranges, f"r: {{size: 40MiB, address: {address}, fixed: true}}"])) == []


def test_a_range_that_fits_nowhere_has_no_suggestion() -> None:
    assert helps("r: {size: 127TiB, address: 0x20000000000, fixed: true}") == ["write 0xfffe000000 or less"]
    (first, *_) = helps(
        "a: {size: 64TiB, address: 0x2000000, fixed: true}, r: {size: 64TiB, address: 0x4000000, fixed: true}"
    )
    assert first is None


def test_addresses_of_contexts_are_free_for_hints_and_in_layouts_without_a_gpu() -> None:
    assert helps("r: {size: 2MiB, address: 0x200000000}") == []
    empty = diagnose("ranges: {e: {size: 2MiB, address: 0x200000000, fixed: true}}")
    assert [each.code for each in empty if each.code == "MT307"] == []


def test_only_the_first_of_many_overlaps_have_a_suggestion() -> None:
    """Each compares the range with all others."""
    found = helps(", ".join(f"r{n}: {{size: 2MiB, address: 0x20000000000, fixed: true}}" for n in range(20)))
    assert [bool(each) for each in found] == [True] * 10 + [False] * 9
