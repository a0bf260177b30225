from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memtopo.common.units import NotADuration, parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("500ms", 0.5), ("0s", 0), ("5s", 5), ("1.5s", 1.5), ("10m", 600), ("2h", 7200), ("1d", 86400)],
)
def test_a_duration_is_digits_and_a_unit(text: str, seconds: float) -> None:
    """A duration is digits, with a fraction of up to three where it is wanted, and a unit"""
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("10", "10s"), ("10 m", "10m"), ("10M", "10m"), ("5 seconds", "5s"), ("5sec", "5s"), ("10min", "10m"),
        ("1 hour", "1h"), ("2 days", "2d"), ("20 msec", "20ms"), ("", None), ("-5s", None), ("soon", None),
        ("5y", None), ("1e3s", None), ("٣s", None), ("nan", None), ("inf", None),
        ("9999999999s", None), ("1h30m", None),
    ],
)  # fmt: skip
def test_what_was_meant(text: str, meant: str | None) -> None:
    """What is no duration is told, with the text that was probably meant, which is one"""
    with pytest.raises(NotADuration) as told:
        parse_duration(text)
    assert told.value.meant == meant
    if meant:
        assert parse_duration(meant) > 0


@given(st.text(max_size=60))
def test_any_text(text: str) -> None:
    """Any text is a duration or is told to be none"""
    try:
        seconds = parse_duration(text)
    except NotADuration as error:
        seconds = 0.0 if len(str(error)) < 200 else -1.0
    assert seconds >= 0
