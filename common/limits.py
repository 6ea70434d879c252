"""Every limit, with its unit, its reason, and what happens at it (wait, drop or refuse).

A limit that only one module could ever need still stands here: an operator reads one page.
"""

from __future__ import annotations

from common.blocks import EXTENT_BLOCKS, EXTENT_BYTES

# --- wire ------------------------------------------------------------------------------------------------

FRAME_MAP_MAX_BYTES = 64 * 1024
"""The msgpack map of a frame. Largest honest one: a READ of READ_MAX_RANGES ranges (~12 KiB). Refuse: protocol error."""

FRAME_PAYLOAD_MAX_BYTES = EXTENT_BYTES + EXTENT_BYTES // 64 + 4096
"""A frame's payload: one extent, plus what a codec may add to incompressible data. Refuse: protocol error."""

READ_MAX_RANGES = 512
"""Block ranges in one READ. Refuse: protocol error."""

READ_MAX_BLOCKS = 16 * EXTENT_BLOCKS
"""Blocks in one READ (16 MiB): one request cannot hold a hub for long. Refuse: protocol error."""

REQUESTS_MAX_OUTSTANDING = 1024
"""READs a connection may have open. Refuse with ``overloaded``."""

SPOKE_MAX_OUTSTANDING_BYTES = 512 * 1024 * 1024
"""Bytes one spoke may have asked for and not received, all connections (10 Gbit/s x 400 ms). Refuse with ``overloaded``."""

STATS_MAX_ITEMS = 64
"""Numbers in one STATS. Refuse: protocol error."""

TEXT_MAX_BYTES = 1024
"""Dataset names, identities, reasons, error messages on the wire. Senders cut, receivers refuse."""

SNAPSHOT_PAGE_MAX_ENTRIES = 4096
"""Entries in a snapshot page or changes in a CHANGES frame; pages also keep under FRAME_PAYLOAD_MAX_BYTES. Senders split."""

HELLO_TIMEOUT_S = 10.0
"""From accept to HELLO, and from HELLO to WELCOME. Drop the connection."""

HEARTBEAT_INTERVAL_S = 2.0
"""Silence on a feed after which the hub sends a heartbeat; a spoke that hears nothing for five of them re-dials."""
