"""Requests whose fields cannot be are refused by name, with what they were and what they may be."""

from typing import Any

import pytest

from common.errors import UsageError
from spoke.asked_fields import FIELDS, checked, shown

DEEP: list[Any] = []
for _ in range(50_000):
    DEEP = [DEEP]

WRONG: tuple[object, ...] = (
    -1, 0.5, 1e400, float("nan"), 10**30, -(10**30), "zz", "\ud800", "a\0b", "x" * 100_000, [7], ["zz"], [["00"]], {"a": 1}, DEEP,
)  # fmt: skip


@pytest.mark.parametrize(("command", "field"), [(command, field) for command in FIELDS for field in FIELDS[command]])
def test_each_field_is_refused_by_name(command: str, field: str) -> None:
    needed = {"plan": {"message": ""}, "order-load": {"path": "a"}, "order-drop": {"name": "a"}}.get(command, {})
    refused = 0
    for wrong in WRONG:
        try:
            checked(command, {**needed, field: wrong})
        except UsageError as error:
            refused += 1
            text = str(error)
            assert text.startswith(f"{command}: {field!r} is {shown(wrong)}; it must be "), text
            assert len(text) < 300
            text.encode()
    assert refused >= 12
    checked(command, {**needed, field: needed.get(field)} if field not in needed else needed)


def test_null_is_not_given_and_what_is_needed_is_named() -> None:
    assert checked("warm", {"paths": None, "rate_bytes_per_s": 1.5, "wait": False, "later": {}}) == {
        "rate_bytes_per_s": 1.5, "wait": False, "later": {},
    }  # fmt: skip
    with pytest.raises(UsageError, match="plan without 'message', which must be hexadecimal digits"):
        checked("plan", {"message": None})
    with pytest.raises(UsageError, match="'everything' is 1; it must be true or false"):
        checked("cache-list", {"everything": 1})
    with pytest.raises(UsageError, match="'most' is true; it must be a whole number from 1 to 100000"):
        checked("cache-list", {"most": True})


def test_what_is_shown_is_short() -> None:
    assert shown(DEEP) == "a list of 1, of which one is a list"
    assert shown(["00", 7]) == "a list of 2, of which one is 7"
    assert shown({"a": DEEP}) == "an object"
    assert shown(float("nan")) == "nan"
