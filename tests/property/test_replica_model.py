"""A replica fed by an honest hub over a bad line: in the end it holds the hub's tree, and in between only states that were."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st
from names_support import CATALOG, Model, batch, contents, fitting, pages, steps

from common.entries import Entry
from common.wire.messages import Changes, Heartbeat, SnapshotPage, Subscribe
from spoke.namespace.replica import Replica
from spoke.namespace.tree import Tree

Message = SnapshotPage | Changes | Heartbeat


class Hub:
    def __init__(self) -> None:
        self.model: Model = {}
        self.log: list[Changes] = []
        self.states: dict[int, Model] = {0: {}}
        self.revision = 0

    def change(self, wanted: list[tuple[bytes, Entry | None]]) -> None:
        message = batch(self.revision, *fitting(self.model, wanted))
        if message.changes:
            self.log.append(message)
            self.revision = message.to_revision
            self.states[self.revision] = dict(self.model)

    def answer(self, request: Subscribe, snapshot: bool) -> list[Message]:
        if request.catalog_id != CATALOG or request.from_revision not in self.states or snapshot:
            return [*pages(self.model, self.revision), Heartbeat(CATALOG, self.revision)]
        return [
            *(message for message in self.log if message.after_revision >= request.from_revision),
            Heartbeat(CATALOG, self.revision),
        ]


@settings(max_examples=60)
@given(st.lists(steps, min_size=1, max_size=6), st.integers(0, 2**32))
def test_it_ends_with_the_hubs_tree(histories: list[list[tuple[bytes, Entry | None]]], seed: int) -> None:
    dice, hub, replica, now_s = random.Random(seed), Hub(), Replica(Tree()), 0.0
    for round_number in range(len(histories) + 1):
        if round_number < len(histories):
            hub.change(histories[round_number])
        for _ in range(4):  # connections, most of which fail somehow
            now_s += 1.0
            stream = hub.answer(replica.subscribe_request(now_s), dice.random() < 0.3)
            bad_line = round_number < len(histories) and dice.random() < 0.6
            if bad_line:
                mishap = dice.choice(("cut", "lose", "repeat", "other"))
                at = dice.randrange(len(stream))
                if mishap == "cut":
                    stream = stream[:at]
                elif mishap == "lose":
                    del stream[at]
                elif mishap == "repeat":
                    stream.insert(at, stream[at])
                else:
                    stream.insert(at, batch(hub.revision + 5, catalog_id=b"x" * 16))
            for message in stream:
                outcome = replica.receive(message, now_s)
                while outcome.more:
                    outcome = replica.proceed(now_s)
                assert contents(replica.tree) == hub.states[replica.tree.revision]
                if outcome.resubscribe:
                    break
            replica.disconnected()
            if not bad_line and replica.tree.revision == hub.revision and replica.usable:
                break
    assert contents(replica.tree) == hub.model
    assert replica.tree.revision == hub.revision
    assert replica.suspicious is None
