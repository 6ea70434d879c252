from hypothesis import given
from hypothesis import strategies as st

from common.blocks import BLOCK_BYTES, EXTENT_BLOCKS, BlockRange, split_at_extents
from common.errors import HeadraceError, StaleVersion
from spoke.hub_client.single_flight import Flight, Flights, Landed, Want

VERSION = b"v" * 16


class Ends:
    """What a want's ``done`` was called with."""

    def __init__(self) -> None:
        self.calls: list[HeadraceError | None] = []

    def __call__(self, error: HeadraceError | None) -> None:
        self.calls.append(error)


def landed(first_block: int, block_count: int) -> Landed:
    data = b"".join(bytes([block % 251]) * BLOCK_BYTES for block in range(first_block, first_block + block_count))
    return Landed(BlockRange(first_block, block_count), memoryview(data), b"")


def bytes_of(offset_bytes: int, length_bytes: int) -> bytes:
    first_block = offset_bytes // BLOCK_BYTES
    data = landed(first_block, (offset_bytes + length_bytes) // BLOCK_BYTES - first_block + 1).data
    return bytes(data[offset_bytes - first_block * BLOCK_BYTES :][:length_bytes])


def test_a_block_under_way_is_joined_and_only_the_gaps_are_asked_for() -> None:
    flights = Flights()
    flight = Flight(VERSION, 10**7, BlockRange(10, 20), prefetched=True)
    flights.add(flight)
    joined, gaps = flights.plan(VERSION, BlockRange(5, 10))
    assert (joined, gaps) == ([flight], [BlockRange(5, 5)])
    assert flights.plan(b"w" * 16, BlockRange(5, 10)) == ([], [BlockRange(5, 10)])
    flights.remove(flight)
    assert flights.plan(VERSION, BlockRange(5, 10)) == ([], [BlockRange(5, 10)])
    assert len(flights) == 0


@given(st.lists(st.tuples(st.integers(0, 600), st.integers(1, 300)), min_size=1, max_size=12))
def test_however_reads_overlap_no_block_is_asked_for_twice(reads: list[tuple[int, int]]) -> None:
    flights, asked = Flights(), set()
    for first_block, block_count in reads:
        wanted = BlockRange(first_block, block_count)
        joined, gaps = flights.plan(VERSION, wanted)
        for gap in gaps:
            assert gap.first_block // EXTENT_BLOCKS == (gap.end_block - 1) // EXTENT_BLOCKS
            blocks = set(range(gap.first_block, gap.end_block))
            assert not blocks & asked
            asked |= blocks
            flights.add(Flight(VERSION, 10**9, gap, prefetched=False))
        assert set(range(first_block, wanted.end_block)) <= asked
        assert len({id(flight) for flight in joined}) == len(joined)


@given(st.integers(0, 5000), st.integers(1, 9000), st.randoms(use_true_random=False))
def test_a_want_is_filled_byte_for_byte_in_any_order_of_arrival(offset_bytes: int, length_bytes: int, dice) -> None:
    ends = Ends()
    first_block = offset_bytes // BLOCK_BYTES
    blocks = BlockRange(first_block, (offset_bytes + length_bytes - 1) // BLOCK_BYTES + 1 - first_block)
    want = Want(blocks, offset_bytes, length_bytes, ends)
    want.expect([blocks])
    pieces = [landed(block, 1) for block in range(blocks.first_block, blocks.end_block)]
    dice.shuffle(pieces)
    for piece in pieces:
        assert not ends.calls
        want.landed(piece)
    assert not ends.calls, "held: more blocks could still be added"
    want.release_hold()
    assert ends.calls == [None]
    assert bytes(want.buffer) == bytes_of(offset_bytes, length_bytes)


def test_what_one_piece_has_whole_is_not_copied_and_stays_as_it_came() -> None:
    ends = Ends()
    want = Want(BlockRange(1, 2), BLOCK_BYTES + 10, BLOCK_BYTES, ends)
    want.expect([BlockRange(1, 2)])
    piece = Landed(BlockRange(0, 4), bytearray(bytes_of(0, 4 * BLOCK_BYTES)), b"")
    want.landed(piece)
    want.fill(1, bytes(BLOCK_BYTES))  # more of the same blocks, as after a second try
    want.release_hold()
    assert ends.calls == [None]
    assert want.buffer is not None
    assert bytes(want.buffer) == bytes_of(BLOCK_BYTES + 10, BLOCK_BYTES)
    assert piece.data == bytes_of(0, 4 * BLOCK_BYTES)
    piece.data[BLOCK_BYTES + 10] ^= 1
    assert want.buffer[0] == piece.data[BLOCK_BYTES + 10], "the same memory"


def test_who_joins_late_gets_what_has_landed() -> None:
    flight = Flight(VERSION, 10**7, BlockRange(0, 4), prefetched=True)
    flight.landed.append(landed(0, 2))
    ends = Ends()
    want = Want(BlockRange(1, 2), BLOCK_BYTES, 2 * BLOCK_BYTES, ends)
    want.expect([BlockRange(1, 2)])
    flight.join(want)
    want.release_hold()
    assert not ends.calls
    for waiting in list(flight.wants):
        waiting.landed(landed(2, 2))
    assert ends.calls == [None]
    assert bytes(want.buffer) == bytes_of(BLOCK_BYTES, 2 * BLOCK_BYTES)
    assert not flight.wants


def test_one_reader_leaving_does_not_hurt_the_others_and_a_failure_reaches_all() -> None:
    flight = Flight(VERSION, 10**7, BlockRange(0, 1), prefetched=False)
    ends = [Ends() for _ in range(3)]
    wants = [Want(BlockRange(0, 1), 0, 5, end) for end in ends]
    for want in wants:
        want.expect([BlockRange(0, 1)])
        flight.join(want)
        want.release_hold()
    wants[0].leave()
    error = StaleVersion("changed")
    for want in list(flight.wants):
        want.fail(error)
    assert [end.calls for end in ends] == [[], [error], [error]]


def test_unlanded_blocks_of_a_flight() -> None:
    flight = Flight(VERSION, 10**7, BlockRange(0, 10), prefetched=False)
    flight.landed += [landed(0, 3), landed(5, 2)]
    assert flight.unlanded() == [BlockRange(3, 2), BlockRange(7, 3)]
    assert list(split_at_extents(BlockRange(0, 10))) == [flight.blocks]
