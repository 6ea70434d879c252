import pytest

from common.errors import UsageError
from common.units import (
    format_address,
    format_rate,
    format_size,
    parse_address,
    parse_duration,
    parse_rate,
    parse_size,
)


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [("0", 0), ("4096", 4096), ("4KiB", 4096), ("1kb", 1000), ("1.5GiB", 3 << 29), (" 100 GB ", 10**11), ("7b", 7)],
)
def test_sizes(text: str, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize(
    ("text", "rate"),
    [("10gbit", 1.25e9), ("1gbit/s", 1.25e8), ("100MB/s", 1e8), ("1MiB/s", 1 << 20), ("8bit", 1.0), ("0bit", 0.0)],
)
def test_rates(text: str, rate: float) -> None:
    assert parse_rate(text) == rate


@pytest.mark.parametrize(
    ("text", "seconds"), [("300", 300.0), ("300s", 300.0), ("5m", 300.0), ("250ms", 0.25), ("0", 0.0)]
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "x", "-1", "1 furlong", "1e9", "99999999999999TiB", "nan", "1..2", "GiB"])
@pytest.mark.parametrize("parse", [parse_size, parse_rate, parse_duration])
def test_what_is_no_quantity_is_refused_with_an_example(parse, text: str) -> None:
    with pytest.raises(UsageError, match=r"write it like|too large"):
        parse(text)


def test_a_rate_is_not_a_size() -> None:
    with pytest.raises(UsageError, match="not a size"):
        parse_size("10gbit")
    with pytest.raises(UsageError, match="not a rate"):
        parse_rate("10GiB")


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("h:1", ("h", 1)),
        ("127.0.0.1:7420", ("127.0.0.1", 7420)),
        ("[::1]:0", ("::1", 0)),
        ("hub.example", ("hub.example", 9)),
    ],
)
def test_addresses(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text, default_port=9) == address


@pytest.mark.parametrize("text", ["", ":1", "h:", "h:65536", "h:x", "::1:7", "a b:1"])
def test_bad_addresses(text: str) -> None:
    with pytest.raises(UsageError, match="not an address"):
        parse_address(text)


def test_an_address_is_shown_as_it_is_read() -> None:
    for address in [("::1", 7420), ("127.0.0.1", 1)]:
        assert parse_address(format_address(*address)) == address


def test_shown_sizes_and_rates() -> None:
    assert [format_size(value) for value in (0, 1023, 1536, 3 << 30)] == ["0 B", "1023 B", "1.5 KiB", "3 GiB"]
    assert format_rate(1.25e9) == "10 Gbit/s"
