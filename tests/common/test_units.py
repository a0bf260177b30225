from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from memtopo.common.errors import UsageError
from memtopo.common.units import (
    LARGEST,
    UNITS,
    MiB,
    NotADuration,
    NotASize,
    Share,
    Size,
    TiB,
    by_key,
    exact,
    parse_count,
    parse_duration,
    parse_share,
    parse_size,
    parsed,
    rounded,
    rounded_up,
    shorten,
    summed,
)

AMOUNTS = st.integers(0, LARGEST)


@given(AMOUNTS)
@example(LARGEST)
@example(LARGEST - 1023)
def test_an_exact_size_is_read_back_as_the_same_number(amount: int) -> None:
    assert parse_size(exact(amount)) == Size(amount)


@given(st.builds(Size, AMOUNTS, st.booleans()))
def test_a_written_size_is_read_back_as_the_same_size(size: Size) -> None:
    assert parse_size(str(size)) == size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", Size(0)),
        ("0B", Size(0)),
        ("1B", Size(1)),
        ("2MiB", Size(2 * MiB)),
        ("2 MiB", Size(2 * MiB)),
        ("16777215TiB", Size(16777215 * TiB)),
        ("4 granules", Size(4, in_granules=True)),
        ("1 granule", Size(1, in_granules=True)),
        ("4granules", Size(4, in_granules=True)),
    ],
)
def test_a_size_is_digits_and_a_unit(text: str, size: Size) -> None:
    """A size is digits and a binary unit, digits and granules, or a bare 0"""
    assert parse_size(text) == size


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("64MB", "64MiB"),
        ("64mb", "64MiB"),
        ("64M", "64MiB"),
        ("64 Mib", "64MiB"),
        ("64  MiB", "64MiB"),
        ("64k", "64KiB"),
        ("512 bytes", "512B"),
        ("1_000MiB", "1000MiB"),
        ("1,000MiB", "1000MiB"),
        ("1,5GiB", None),
        ("1.5GiB", "1536MiB"),
        ("1.1GiB", None),
        ("0.5B", None),
        ("1..5GiB", None),
        ("1.5 granules", None),
        ("4 Granules", "4 granules"),
        ("2 pages", "2 granules"),
        ("007MiB", "7MiB"),
        ("04 granules", "4 granules"),
        ("00", "0"),
        ("64XB", None),
        ("", None),
        ("MiB", None),
        ("-1MiB", None),
        ("+1MiB", None),
        ("1e3MiB", None),
        ("0x200000", None),
        ("64MiB\n", None),
        ("٦٤MiB", None),
        ("99999999TiB", None),
        ("99999999tb", None),
        ("18446744073709551616B", None),
        ("18446744073709551616 granules", None),
        ("9" * 5000, None),
        ("9" * 5000 + "MiB", None),
    ],
)
def test_text_that_is_no_size_is_refused_with_a_suggestion(text: str, meant: str | None) -> None:
    with pytest.raises(NotASize) as refused:
        parse_size(text)
    assert refused.value.meant == meant
    assert len(str(refused.value)) < 200


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("12441600", "12150KiB"),
        ("1000", "1000B"),
        ("1_000", "1000B"),
        ("64", "64B"),
        ("2097152", "2MiB"),
        ("18446744073709551616", None),
    ],
)
def test_a_number_without_unit_is_suggested_as_that_many_bytes(text: str, meant: str | None) -> None:
    with pytest.raises(NotASize, match="has no unit") as refused:
        parse_size(text)
    assert refused.value.meant == meant


@given(
    st.text(max_size=40) | st.from_regex(r"[0-9][0-9_.,]{0,25} {0,2}[kKmMgGtTiIbB]{0,3}(granules?)?", fullmatch=True)
)
def test_a_suggested_size_is_a_size(text: str) -> None:
    try:
        parse_size(text)
    except NotASize as refused:
        meant = refused.meant
    else:
        return
    assert meant is None or parse_size(meant)


@given(AMOUNTS)
def test_a_count_is_plain_digits(number: int) -> None:
    """An unsigned 64-bit number in plain digits is read as itself"""
    assert parse_count(str(number)) == number


@pytest.mark.parametrize(
    "text",
    ["", "-1", "+1", "01", "1.0", "1e3", "1_000", "1:30", "true", "0x10", " 1", "٣", str(LARGEST + 1), "9" * 5000],
)
def test_signs_fractions_exponents_and_leading_zeros_are_no_count(text: str) -> None:
    """Nor are other digits and numbers of more than 64 bits."""
    with pytest.raises(ValueError, match=r"whole number|64 bits"):
        parse_count(text)


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (0, "0 B"),
        (512, "512 B"),
        (1023, "1023 B"),
        (2 * MiB, "2 MiB"),
        (3 * MiB // 2, "1.5 MiB"),
        (MiB - 1, "1.0 MiB"),
        (-2 * MiB, "-2 MiB"),
        (LARGEST, "16777216.0 TiB"),
    ],
)
def test_a_rounded_size_has_at_most_a_tenth_in_its_largest_unit(amount: int, text: str) -> None:
    assert rounded(amount) == text


def test_granules_are_converted_to_bytes_and_bytes_are_unchanged() -> None:
    assert Size(4, in_granules=True).bytes(2 * MiB) == 8 * MiB
    assert Size(4).bytes(2 * MiB) == 4


def test_units_are_binary() -> None:
    """Each unit is 1024 of the one before"""
    assert list(UNITS.values()) == [1024**power for power in range(5)]


@given(st.text(), st.integers(1, 50))
def test_shortened_text_keeps_the_limit(text: str, limit: int) -> None:
    assert len(shorten(text, limit)) <= limit


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("500ms", 0.5), ("0s", 0), ("5s", 5), ("1.5s", 1.5), ("10m", 600), ("2h", 7200), ("1d", 86400)],
)
def test_a_duration_is_digits_and_a_unit(text: str, seconds: float) -> None:
    """Digits, if permitted with a fraction of up to three digits, and a unit."""
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
def test_text_that_is_no_duration_is_refused_with_a_duration(text: str, meant: str | None) -> None:
    with pytest.raises(NotADuration) as caught:
        parse_duration(text)
    assert caught.value.meant == meant
    if meant:
        assert parse_duration(meant) > 0


@given(st.text(max_size=60))
def test_any_text_is_a_duration_or_refused(text: str) -> None:
    try:
        seconds = parse_duration(text)
    except NotADuration as error:
        seconds = 0.0 if len(str(error)) < 200 else -1.0
    assert seconds >= 0


def test_a_product_of_numbers_is_no_size_and_means_bytes() -> None:
    with pytest.raises(NotASize, match=r"an arithmetic has a \$name") as refused:
        parse_size("1920 * 1080 * 4")
    assert refused.value.meant == "8100KiB"


@pytest.mark.parametrize(
    ("text", "thousandths"),
    [("90%", 90_000), ("12.5%", 12_500), ("0.001%", 1), ("1.05%", 1_050), ("100%", 100_000), ("100.0%", 100_000)],
)
def test_a_share_has_up_to_three_decimals_and_is_rounded_down(text: str, thousandths: int) -> None:
    assert parse_share(text) == Share(thousandths)
    assert str(Share(thousandths)) == text.replace(".0%", "%")
    assert Share(thousandths).of(99_999) == 99_999 * thousandths // 100_000


@pytest.mark.parametrize("text", ["0%", "0.000%", "100.001%", "101%", "-1%", "5", "05%", "1.2345%", ".5%", "5 %", ""])
def test_text_that_is_no_share_of_something_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a share"):
        parse_share(text)


def test_an_argument_that_cannot_be_parsed_is_wrong_usage_with_the_name_of_its_option_and_what_is_meant() -> None:
    assert parsed(parse_duration, "5s", "--for") == 5
    for text, name, hint in (("5 s", "--for ", "write 5s"), ("soon", "", None)):
        with pytest.raises(UsageError) as refused:
            parsed(parse_duration, text, name.strip())
        assert refused.value.message.startswith(f"{name}{text!r} is not")
        assert refused.value.hint == hint


def test_a_multiple_of_a_unit_is_not_rounded_up_any_further() -> None:
    assert [rounded_up(amount, 4) for amount in (0, 1, 4, 5)] == [0, 4, 4, 8]


def test_values_and_keys_are_in_the_order_in_which_they_come() -> None:
    found = by_key(iter([("b", 2), ("a", 1), ("b", 2), ("b", 1)]))
    assert [*found.items()] == [("b", [2, 2, 1]), ("a", [1])]


def test_amounts_of_all_are_summed_by_their_keys() -> None:
    assert summed(({"a": 1, "b": 2}, {}, {"a": 3, "c": 0})) == {"a": 4, "b": 2, "c": 0}
