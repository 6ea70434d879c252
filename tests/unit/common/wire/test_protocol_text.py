"""PROTOCOL.md and the code say the same: the table of moves, the types, the codes, the limits."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import common.wire
from common import limits
from common.errors import BY_WIRE_CODE
from common.wire.frame import FrameType
from common.wire.moves import MAY_RECEIVE, MAY_SEND, Role, State

TEXT = Path(common.wire.__file__).with_name("PROTOCOL.md").read_text()


@pytest.mark.parametrize("role", Role, ids=lambda role: role.value)
def test_the_table_of_moves(role: Role) -> None:
    section = TEXT.split("## 2. States")[1].split("## 3.")[0]
    table = section.split(f"| {role.value} | may send")[1].split("\n\n")[0]
    rows = {State[row[0]]: row[1:] for row in re.findall(r"^\| ([A-Z_]+) \| (.*?) \| (.*?) \|$", table, re.MULTILINE)}
    assert {(role, state) for state in rows} == {key for key in MAY_SEND if key[0] is role}
    for state, cells in rows.items():
        for cell, legal in zip(cells, (MAY_SEND, MAY_RECEIVE), strict=True):
            names = set() if cell == "nothing" else set(cell.split(", "))
            assert names == {frame_type.name for frame_type in legal[role, state]}


def test_what_one_end_may_send_the_other_may_receive_when_both_are_ready() -> None:
    for role in Role:
        assert MAY_SEND[role, State.READY] == MAY_RECEIVE[role.peer, State.READY]


def test_types_codes_and_limits() -> None:
    rows = dict(re.findall(r"^\| (\d+) \| ([A-Z]+) \|", TEXT, re.MULTILINE))
    assert {int(code): name for code, name in rows.items()} == {int(found): found.name for found in FrameType}
    codes = TEXT.split("**ERROR codes**:")[1].split(". An unknown")[0]
    assert set(re.findall(r"`([a-z-]+)`", codes)) == set(BY_WIRE_CODE)
    for name, number in re.findall(r"`([A-Z][A-Z_]+)` \(([\d,]+)\)", TEXT):
        assert getattr(limits, name) == int(number.replace(",", ""))
    for name in re.findall(r"`([A-Z][A-Z_]+)`", TEXT):
        assert hasattr(limits, name)
