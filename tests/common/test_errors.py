"""Exit statuses: one table, which the pages show, and which errors and commands take theirs from."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from memtopo.common.errors import (
    Exit,
    InternalError,
    MemtopoError,
    NotWritten,
    Unavailable,
    internal_errors,
    on_failure,
    outcome,
    reason,
    signal_status,
    system_errors,
)

ROOT = Path(__file__).parent.parent.parent
SIGNALS = "129, 130, 143"
WRITTEN = re.compile(r"exit_code(?:: int)? ?= ?[0-9]|128 \+ ")


def rows(page: str, heading: str) -> dict[str, str]:
    """The first two cells of each row of a page's table of exit statuses."""
    table = (ROOT / page).read_text().partition(heading)[2].partition("\n\n")[0]
    return dict(re.findall(r"^\| ([0-9, ]+) \| ([^|]+) \|", table, re.MULTILINE))


def test_the_page_of_commands_shows_the_table() -> None:
    meanings = {str(int(each)): each.meaning for each in Exit}
    assert rows("docs/commands.md", "| exit | meaning |") == meanings | {
        SIGNALS: "interrupted, after an orderly teardown"
    }


def test_the_page_of_services_has_the_same_statuses() -> None:
    listed = [number for cell in rows("docs/service.md", "| status | after | restart |") for number in cell.split(", ")]
    assert sorted(listed, key=int) == [*(str(int(each)) for each in Exit), *SIGNALS.split(", ")]


def test_no_module_writes_a_status_as_a_number() -> None:
    table = ROOT / "memtopo/common/errors.py"
    modules = [each for each in (ROOT / "memtopo").rglob("*.py") if each != table]
    assert modules
    assert [str(each) for each in modules if WRITTEN.search(each.read_text())] == []


@pytest.mark.parametrize(
    ("leaks", "signal", "as_declared", "codes", "expected"),
    [
        (["a chunk"], 15, False, [70], ("leaked", 5)),
        ([], 15, False, [70], ("interrupted", 143)),
        ([], None, False, [70], ("different", 6)),
        ([], None, True, [4, 3], ("failed", 3)),
        ([], None, True, [4, 70], ("failed", 70)),
        ([], None, True, [2], ("failed", 4)),
        ([], None, True, [], ("ok", 0)),
    ],
)
def test_the_worst_outcome_counts(
    leaks: list[str], signal: int | None, as_declared: bool, codes: list[int], expected: tuple[str, int]
) -> None:
    assert outcome(leaks, signal=signal, as_declared=as_declared, codes=codes) == expected


@pytest.mark.parametrize("error", [Unavailable("no GPU", hint="install one"), ValueError("a bug"), KeyError("w")])
def test_an_unexpected_error_is_internal_and_an_expected_one_stays_as_it_is(error: Exception) -> None:
    with pytest.raises(MemtopoError) as caught, internal_errors():
        raise error
    if isinstance(error, MemtopoError):
        assert caught.value is error
    else:
        assert (type(caught.value), caught.value.exit_code) == (InternalError, Exit.BUG)
        assert caught.value.message == f"internal error: {type(error).__name__}: {error}"


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_what_was_begun_is_undone_after_any_error_and_only_then(error: type[BaseException]) -> None:
    undone: list[str] = []
    with on_failure(undone.append, "success"):
        pass
    with pytest.raises(error), on_failure(undone.append, "failure"):
        raise error
    assert undone == ["failure"]


def test_an_error_of_the_system_is_one_of_its_kind_with_its_hint_and_any_other_error_is_not() -> None:
    with pytest.raises(NotWritten) as caught, system_errors(NotWritten, "the file", "free some"):
        raise OSError(28, "No space left on device")
    assert (caught.value.message, caught.value.hint) == ("the file: No space left on device", "free some")
    with pytest.raises(KeyError), system_errors(NotWritten, "the file"):
        raise KeyError("w")


def test_the_reason_of_an_error_of_a_path_reads_within_a_sentence() -> None:
    errors = OSError(28, "No space left on device"), OSError("no number"), ValueError("embedded null byte")
    assert [reason(each) for each in errors] == ["no space left on device", "error", "not a path"]
    assert signal_status(2) == 130
