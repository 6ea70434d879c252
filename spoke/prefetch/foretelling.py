"""What READ the kernel will send for a piece of an order, and what it will read beside it by itself. Pure.

That depends on how a file is read (exactly, or by page faults) and on which pages of it the kernel has by then.
"""

from __future__ import annotations

from collections import deque

from common.blocks import BLOCK_BYTES, BlockRange, count_blocks
from spoke.prefetch.chains import FileFacts
from spoke.prefetch.cursor import Item
from spoke.prefetch.kernel_marks import KernelMarks
from spoke.prefetch.kernel_pages import KernelPages
from spoke.prefetch.kernel_reads import KernelReads
from spoke.prefetch.orders import Order, Reader
from spoke.prefetch.shapes import Shapes, make_room

_BEYOND_MAX = 256
_BEYOND_VOTES_MAX = 8


class Foretelling:
    """Of one order. ``is_learned``: its steps are READs as they came, so that none needs more than it says.

    ``beyond``: (file, first block, end) of what the kernel will read on by itself.
    """

    def __init__(self, order: Order, *, is_learned: bool) -> None:
        self.order = order
        self._is_learned = is_learned
        self.shapes = Shapes(as_recorded=is_learned, is_mapped=order.reader is Reader.MAPPED)
        self.pages = KernelPages()
        self.kernel = KernelMarks(self.pages)
        self.exact = KernelReads(self.pages)
        self.beyond: deque[tuple[int, int, int]] = deque(maxlen=_BEYOND_MAX)
        self._beyond_votes = _BEYOND_VOTES_MAX // 2
        """Whether READs go on beyond steps as the model says: not with O_DIRECT or POSIX_FADV_RANDOM. A READ or two may be cut."""
        self._files: dict[int, FileFacts] = {}
        self._numbers: dict[bytes, int | None] = {}

    def number_of(self, version: bytes) -> int | None:
        """The order's number for a file."""
        try:
            return self._numbers[version]
        except KeyError:
            make_room(self._numbers)
            number = self._numbers[version] = self.order.file_of(version)
            return number

    def facts_of(self, file: int) -> FileFacts:
        facts = self._files.get(file)
        if facts is None:
            make_room(self._files)
            make_room(self._numbers)
            facts = self._files[file] = self.order.files[file]
            self._numbers[facts.version] = file
        return facts

    def read_on(self, file: int, first_page: int, last_page: int) -> None:
        """Somebody will come to these pages, which the kernel has if one of them is marked."""
        beyond = self.kernel.beyond(file, first_page, last_page, self.shapes.fault_bytes(file))
        if beyond is not None and self.kernel.goes_on_as_foretold:
            self.beyond.append((file, *beyond))

    def foretell(self, item: Item) -> None:
        """Foretell the READ that the kernel will send for a piece: by what has to be there, and by which pages it has already."""
        file, size_bytes = item.file, self.facts_of(item.file).size_bytes
        first, end = self.blocks_of(file, item.start_bytes, item.end_bytes)
        item.cost_bytes = (end - first) * BLOCK_BYTES
        if self.shapes.faults(file):
            page = item.start_bytes // BLOCK_BYTES
            if (item.end_bytes - 1) // BLOCK_BYTES > page and self.pages.has(file, page):
                end = min(end + 1, count_blocks(size_bytes))  # the next page is the one that will be wanted
        elif not self._is_learned:
            fault_bytes = self.shapes.fault_bytes(file)
            if self._beyond_votes >= 0:
                item.beyond_bytes, beside = self.exact.foretell(
                    file, item.start_bytes, item.end_bytes, fault_bytes, size_bytes
                )
                end = max(end, count_blocks(item.beyond_bytes))
                self.beyond += [(file, *pages) for pages in beside]
            else:
                beyond_bytes = self.pages.read_end_bytes(file, item.start_bytes, item.end_bytes, fault_bytes)
                item.beyond_bytes = min(beyond_bytes, size_bytes)
                self.pages.add(file, item.start_bytes, end * BLOCK_BYTES)
        item.first_block, item.end_block = first, end

    def blocks_of(self, file: int, start_bytes: int, end_bytes: int) -> tuple[int, int]:
        """Blocks that a READ of these bytes moves where nothing is in the kernel's cache: (first, end)."""
        size_bytes = self.facts_of(file).size_bytes
        page_bytes = start_bytes & ~4095
        if self.shapes.faults(file):
            fault_bytes = self.shapes.fault_bytes(file)
            half = fault_bytes // 2
            last_bytes = end_bytes - 1
            end_bytes = page_bytes + half * (1 + (last_bytes - page_bytes) // half)
            page_bytes = max(0, page_bytes - half)
            end_bytes = max(end_bytes, page_bytes + fault_bytes)
        end_bytes = max(page_bytes, min(end_bytes, size_bytes))
        return page_bytes // BLOCK_BYTES, -(-end_bytes // BLOCK_BYTES)

    def around(self, version: bytes, blocks: BlockRange) -> tuple[int, int, int]:
        """(file, start and end in bytes) of the steps whose READs hold some of the blocks."""
        file = self.number_of(version)
        assert file is not None
        around_bytes = self.shapes.fault_bytes(file) // 2 if self.shapes.faults(file) else 0
        start_bytes = max(0, blocks.first_block * BLOCK_BYTES - around_bytes)
        return file, start_bytes, blocks.end_block * BLOCK_BYTES + around_bytes

    def went_on(self, item: Item, start_bytes: int, end_bytes: int) -> None:
        """A READ came for a piece: whether it went on beyond it, where it was to."""
        if item.beyond_bytes > item.end_bytes and start_bytes == item.start_bytes & ~4095:
            vote = 1 if end_bytes >= item.beyond_bytes else -1
            self._beyond_votes = max(-_BEYOND_VOTES_MAX, min(_BEYOND_VOTES_MAX, self._beyond_votes + vote))

    def learn_shape(self, file: int, vote: int) -> bool:
        """``vote``: as :meth:`Shapes.vote`. True: what was foretold of it in another shape is not read so."""
        if not self.shapes.vote(file, vote):
            return False
        self.pages.clear()
        self.exact.clear()
        return True

    def is_known(self, version: bytes) -> bool:
        """The order has this file, as is known without a look-up."""
        return self._numbers.get(version) is not None
