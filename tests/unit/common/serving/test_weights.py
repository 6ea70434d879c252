"""Weights from configuration to the spoke they are for."""

from __future__ import annotations

import pytest

from common.errors import UsageError
from common.serving.weights import Weights, parse_weights


def test_the_identity_itself_wins_then_the_first_pattern_then_one() -> None:
    weights = Weights({"gpu-*": 2, "gpu-7": 0.5, "*-7": 9})
    assert [weights.of(name) for name in ("gpu-7", "gpu-8", "batch-7", "laptop")] == [0.5, 2, 9, 1]
    assert Weights({"*": 0.25}).of("anybody") == 0.25


def test_tables_flags_and_the_environment_read_alike() -> None:
    expected = {"gpu-7": 2.0, "a=b": 0.5}
    assert parse_weights({"gpu-7": 2, "a=b": 0.5}).table == expected
    assert parse_weights(["gpu-7=2", "a=b=0.5"]).table == expected
    assert parse_weights("gpu-7=2, a=b=0.5").table == expected


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"a": 0}, "not a number from 0.01 to 100"),
        ({"a": 101}, "not a number from 0.01 to 100"),
        ({"a": True}, "not a number from 0.01 to 100"),
        ({"a": "2"}, "not a number from 0.01 to 100"),
        ("a", "is not IDENTITY=WEIGHT"),
        ("=2", "is not IDENTITY=WEIGHT"),
        ("a=much", "'much' is not a number"),
        ("a=nan", "is not a number"),
        (["a=1", "a=2"], "given twice"),
    ],
)
def test_refusals(value: object, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        parse_weights(value)
