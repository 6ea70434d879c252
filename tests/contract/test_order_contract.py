"""A mapped order file and a growing order keep the contract."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from common import limits
from spoke.orders.growing import GrowingOrder
from spoke.orders.mapped import open_order
from spoke.orders.writer import OrderWriter
from spoke.prefetch.orders import FileFacts, Order, Reason, Step
from tests.contract.order_suite import Make, OrderSuite


class TestMappedOrder(OrderSuite):
    @pytest.fixture(params=[1, 100, 1 << 18])
    def make(self, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
        monkeypatch.setattr(limits, "ORDER_SEGMENT_STEPS", request.param)

        def make(files: Sequence[FileFacts], lanes: Sequence[Sequence[Step]]) -> Order:
            path = tmp_path / "it.order"
            with OrderWriter(
                path, name="contract", reason=Reason.RECIPE, files=files, lane_count=len(lanes), meta={"seed": "7"}
            ) as writer:
                for position in range(max(map(len, lanes))):
                    for lane, steps in enumerate(lanes):
                        if position < len(steps):
                            writer.add(lane, *steps[position])
                writer.finish()
            order = open_order(path)
            assert order.meta == {"seed": "7"}
            assert order.step_count == sum(map(len, lanes))
            return order

        return make


class TestGrowingOrder(OrderSuite):
    @pytest.fixture(params=[1, 64, 4096])
    def make(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Make:
        monkeypatch.setattr(limits, "ORDER_GROWING_TAIL_STEPS", request.param)

        def make(files: Sequence[FileFacts], lanes: Sequence[Sequence[Step]]) -> Order:
            order = GrowingOrder("contract", Reason.RECIPE)
            for file in files:
                order.add_file(file)
            for lane, steps in enumerate(lanes):
                for step in steps:
                    order.append(lane, *step)
            return order

        return make
