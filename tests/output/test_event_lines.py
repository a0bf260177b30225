"""Events of holders as lines of a log."""

from __future__ import annotations

import time

import pytest

from memtopo.output.monitoring import event_line as line
from memtopo.sharing.holder.state import HolderEvent


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("kv-store", "kv-store"),
        ("/run/a b", '"/run/a b"'),
        ('a"\n<3>forged key=1', '"a\\"\\n<3>forged key=1"'),
        ("\x1b[2J\u202e", '"\\x1b[2J\\u202e"'),
        ("", '""'),
        ("größe", '"größe"'),
        (7, "7"),
    ],
)
def test_values_of_a_line_are_quoted_and_cannot_end_it(value: str | int, shown: str) -> None:
    assert line(HolderEvent("checked", {"key": value})) == f"memtopo: checked key={shown}"


@pytest.mark.parametrize("char", ["\u202e", "\U0001f600"], ids=["escaped", "printed"])
def test_a_line_has_its_priority_or_its_time_and_fits_into_a_pipe(char: str) -> None:
    event = HolderEvent("checked", {str(number): char * 1000 for number in range(9)}, "warning")
    assert len(line(event, at=0.0).encode()) < 4096
    assert line(event, priority=True).startswith("<4>memtopo: checked ")
    ranks = [line(HolderEvent("checked", {}, each), priority=True)[:3] for each in ("info", "warning", "error")]
    assert ranks == ["<6>", "<4>", "<3>"]
    assert line(event, at=0.0).startswith("1970-01-01T00:00:00Z memtopo: checked ")


def test_the_time_of_a_line_is_in_utc(monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        monkeypatch.setenv("TZ", "UTC-9")
        time.tzset()
        assert line(HolderEvent("checked", {}), at=3600.0) == "1970-01-01T01:00:00Z memtopo: checked"
    finally:
        monkeypatch.undo()
        time.tzset()
