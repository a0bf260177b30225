"""Errors of pydantic as diagnostics."""

from __future__ import annotations

import pytest

from memtopo.diagnostics.messages import (
    LISTED,
    MOST,
    bad_name,
    choose,
    first,
    known_names,
    merged_by_gpu,
    unknown,
    unknown_state,
)
from memtopo.diagnostics.model import Diagnostic


@pytest.mark.parametrize(
    ("key", "help", "edit"),
    [
        ("sise", "did you mean 'size'?", "size"),
        ("bytes", "did you mean 'size'?", None),
        ("page1", "known are size, page2, page3", None),
        ("ge2", "known are size, page2, page3", None),
    ],
)
def test_a_key_is_replaced_by_the_only_one_that_is_near(key: str, help: str, edit: str | None) -> None:
    """Not by one of two that are near, nor by one that has this name elsewhere."""
    found = unknown(("chunks", key), ("size", "page2", "page3"))
    assert (found.help, found.edit and found.edit.new) == (help, edit)


@pytest.mark.parametrize(
    ("key", "known", "help"),
    [
        ("size:", ("size",), "did you mean 'size'?"),
        ("a:b", ("c",), "known are c"),
        ("handle-type", ("via",), "did you mean 'via'?"),
        ("bytes", ("count",), "known are count"),
        ("round", ("count",), "known are count"),
    ],
)
def test_a_word_of_other_tools_or_a_key_with_a_colon_has_help(key: str, known: tuple[str, ...], help: str) -> None:
    assert unknown(("x", key), known).help == help


def test_of_many_diagnostics_the_last_one_that_is_reported_states_that_there_are_more() -> None:
    every = [Diagnostic("MT101", str(number), notes=("own",)) for number in range(MOST + 1)]
    assert first(every[:MOST]) == every[:MOST]
    *before, last = first(every)
    assert before == every[: MOST - 1]
    assert last.notes == ("own", f"there are more; only the first {MOST:,} are reported")


def test_diagnostics_that_differ_in_their_gpu_alone_are_one() -> None:
    def texts(*every: Diagnostic) -> list[tuple[str, tuple[str, ...]]]:
        return [(each.message, each.notes) for each in merged_by_gpu(every)]

    of_message = [Diagnostic("MT402", f"too much on gpu{number}", notes=("own",)) for number in (0, 1, 1)]
    assert texts(*of_message) == [("too much on gpu0", ("own", "the same on gpu1"))]
    of_notes = [Diagnostic("MT402", "too much", notes=(f"a/gpu{number} has less",)) for number in (0, 1)]
    assert texts(*of_notes) == [("too much", ("a/gpu0, a/gpu1 has less",))]
    of_pairs = [Diagnostic("MT402", f"gpu0 cannot access gpu{number}") for number in (1, 2)]
    assert merged_by_gpu(of_pairs) == of_pairs


def test_known_names_are_listed_up_to_a_number() -> None:
    names = [f"n{number}" for number in range(LISTED + 1)]
    assert known_names(names[:LISTED], "") == f"known are {', '.join(names[:LISTED])}"
    assert known_names(names, "") == f"known are {', '.join(names[:LISTED])} …"
    assert unknown_state("kv", "zz", ["awake"]) == ("layout 'kv' has no states", None)
    assert unknown_state("kv", "zz", names)[1] == f"write one of {', '.join(names[:LISTED])}"
    assert unknown_state("kv", "aslep", ["awake", "asleep"])[1] == "did you mean 'asleep'?"
    assert choose("zz", ["fd"]) == "write fd"


def test_a_name_is_text() -> None:
    assert [bad_name(name, ()).message for name in (3, "1x")] == ["expected a name", "'1x' is not a name"]
