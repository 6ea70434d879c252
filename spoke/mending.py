"""What is done about bad blocks, wherever they were seen: one log line that names the file, and the right bytes fetched again.

The cache has forgotten a bad block by the time this hears of it, so no reader gets it. A file that the kernel reads by
itself (passthrough) cannot be taken away from it: its right bytes are written over the wrong ones, and until then new
opens go the plain way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from common.blocks import BlockRange, coalesce, whole_file
from common.limits import COMPLAINT_GATHER_S, COMPLAINTS_MAX, MEND_FILE_MAX_BLOCKS
from common.log import get_logger
from common.runtime import cancel_and_wait
from spoke.cache.store import Bad, Store
from spoke.fetcher import Fetcher
from spoke.namespace.tree import Tree
from spoke.naming import paths_of

log = get_logger(__name__)
_RANGES_SHOWN = 8


@dataclass(slots=True)
class _Complaint:
    said: str
    causes: dict[str, None] = field(default_factory=dict)
    blocks: list[BlockRange] = field(default_factory=list)
    facts: dict[str, object] = field(default_factory=dict)


class Mending:
    """``found`` and ``on_wire`` may be called at any time on the event loop; ``tend`` now and then; ``close`` at the end."""

    def __init__(self, tree: Tree, store: Store, fetcher: Fetcher, cache_dir: str) -> None:
        self._tree = tree
        self._store = store
        self._fetcher = fetcher
        self._cache_dir = cache_dir
        self._complaints: dict[tuple[bytes, str], _Complaint] = {}
        self._telling: asyncio.Task[None] | None = None
        self._lent: dict[bytes, int] = {}
        self.refetches: Callable[[bytes], bool] = lambda version: True
        """Whether what is bad of a version is fetched again now; else when somebody reads it."""
        self.on_found: Callable[[Bad], None] = lambda bad: None
        """Told of each finding, whoever made it."""

    @property
    def mending_files(self) -> int:
        """Files the kernel reads by itself that still hold wrong bytes."""
        return len(self._lent)

    async def close(self) -> None:
        await cancel_and_wait(self._telling)
        while self._complaints:
            self._say(*self._complaints.popitem(), path=None)

    def found(self, bad: Bad) -> None:
        """The cache could not believe blocks of its own."""
        self.on_found(bad)
        complaint = self._complain(bad.version, "cached blocks were bad, they are fetched again from the hub")
        if complaint is not None:
            complaint.causes[bad.cause] = None
            complaint.blocks = coalesce([*complaint.blocks, *bad.blocks])
            complaint.facts["data_path"] = bad.data_path
            complaint.facts["next_step"] = (
                f"none now; if it comes again, look at dmesg and smartctl for the disk under {self._cache_dir}, "
                "and at who else writes there"
            )
        if bad.lent:
            self._lent[bad.version] = bad.size_bytes
        if bad.lent or self._tree.is_live(bad.version):
            # After whoever read them has asked for them himself: what waits goes first.
            asyncio.get_running_loop().call_soon(self._fetch, bad.version, bad.size_bytes, bad.blocks)

    def on_wire(self, version: bytes, block: int, tries: int) -> None:
        """A block from the hub did not match its digest; the fetcher asks for it again."""
        complaint = self._complain(version, "a block from the hub was wrong, it is asked for again")
        if complaint is None:
            return
        complaint.causes["its bytes do not match their digest: they were changed on the way"] = None
        complaint.blocks = coalesce([*complaint.blocks, BlockRange(block, 1)])
        complaint.facts["tries"] = tries
        complaint.facts["next_step"] = (
            "none now; if it comes again, look at network cards, middleboxes and memory between hub and spoke"
        )

    def tend(self) -> None:
        """Go on with the files that are lent: a hub that was away may be back."""
        for version, size_bytes in list(self._lent.items()):
            missing = self._store.missing(version, size_bytes, whole_file(size_bytes))
            if not missing:
                self._complain(version, "a file that is open by passthrough is mended")
                del self._lent[version]
            elif not self._store.is_lent(version):
                del self._lent[version]  # nobody has it open that way any more
            else:
                self._fetch(version, size_bytes, missing)

    def _fetch(self, version: bytes, size_bytes: int, blocks: Sequence[BlockRange]) -> None:
        if version not in self._lent and not self.refetches(version):
            return
        left = MEND_FILE_MAX_BLOCKS
        for found in blocks:
            part = BlockRange(found.first_block, min(found.block_count, left))
            if part.block_count > 0:
                self._fetcher.prefetch(version, size_bytes, part)
                left -= part.block_count

    # --- the log -----------------------------------------------------------------------------------------

    def _complain(self, version: bytes, said: str) -> _Complaint | None:
        key = (version, said)
        complaint = self._complaints.get(key)
        if complaint is None:
            if len(self._complaints) >= COMPLAINTS_MAX:
                log.warning(said, version=version.hex())
                return None
            complaint = self._complaints[key] = _Complaint(said)
        if self._telling is None or self._telling.done():
            self._telling = asyncio.create_task(self._tell(), name="bad blocks")
        return complaint

    async def _tell(self) -> None:
        while self._complaints:
            await asyncio.sleep(COMPLAINT_GATHER_S)
            paths = await paths_of(self._tree, {version for version, _ in self._complaints})
            for key in list(self._complaints):
                self._say(key, self._complaints.pop(key), path=paths.get(key[0]))

    def _say(self, key: tuple[bytes, str], complaint: _Complaint, path: bytes | None) -> None:
        blocks = complaint.blocks
        shown_path = path if path is not None else "(no name has it now)"
        if not blocks:
            log.info(complaint.said, path=shown_path, version=key[0].hex())
            return
        log.warning(
            complaint.said,
            path=shown_path,
            version=key[0].hex(),
            block=", ".join(map(_shown, blocks[:_RANGES_SHOWN])) + (", …" if len(blocks) > _RANGES_SHOWN else ""),
            count=sum(found.block_count for found in blocks),
            cause="; ".join(complaint.causes),
            **complaint.facts,
        )


def _shown(blocks: BlockRange) -> str:
    return str(blocks.first_block) if blocks.block_count == 1 else f"{blocks.first_block}-{blocks.end_block - 1}"
