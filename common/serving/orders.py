"""Who keeps the orders that spokes tell of, as a session sees it. What is kept, and where, is not here."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from common.errors import HeadraceError
from common.wire import messages as m

OrderQuestion = m.Report | m.Orders | m.Fetch
OrderAnswer = m.Reported | m.Kept | m.Piece


class Teller(NamedTuple):
    """The spoke that asks. ``identity``: as it was let in; ``spoke_id``: one life of it."""

    identity: str
    spoke_id: bytes


class OrderDesk(Protocol):
    """One authority for all datasets of a server, whichever process asks."""

    async def answer(self, dataset: str, teller: Teller, question: OrderQuestion) -> OrderAnswer:
        """Never raises HeadraceError: an answer has room for it."""
        ...


def refusal(question: OrderQuestion, error: HeadraceError) -> OrderAnswer:
    """The answer that says why there is none."""
    code, text = error.wire_code, str(error)
    if isinstance(question, m.Report):
        return m.Reported(question.token, 0, code, text)
    if isinstance(question, m.Orders):
        return m.Kept(question.token, (), code, text)
    return m.Piece(question.token, 0, 0, b"", code, text)
