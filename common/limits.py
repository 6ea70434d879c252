"""Every limit, with its unit, its reason, and what happens at it (wait, drop or refuse).

A limit that only one module could ever need still stands here: an operator reads one page.
"""

from __future__ import annotations

from common.blocks import BLOCK_BYTES, EXTENT_BLOCKS, EXTENT_BYTES

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

BLOCK_INDEX_LIMIT = 1 << 40
"""Block indices are below it, so a file holds at most 4 PiB and no sum of offsets leaves 64 bits. Refuse: protocol error."""

FILE_MAX_BYTES = BLOCK_INDEX_LIMIT * BLOCK_BYTES
"""An entry's size. Refuse: protocol error."""

HELLO_MAX_ITEMS = 64
"""Versions, codecs or capabilities in a HELLO or WELCOME. Refuse: protocol error."""

LABEL_MAX_BYTES = 64
"""Capability names, STATS names and error codes. Refuse: protocol error."""

DURATION_MAX_MS = 7 * 24 * 3600 * 1000
"""Deadlines and heartbeat intervals on the wire: a week. Refuse: protocol error."""

PINGS_MAX_OUTSTANDING = 16
"""PINGs of one side not answered yet: what a peer can make us remember. Refuse: protocol error."""

REQUESTS_MAX_UNANSWERED = 4 * REQUESTS_MAX_OUTSTANDING
"""READs of a connection that the hub has not ended, withdrawn ones included. Refuse with ``overloaded``."""

CHECKS_MAX_OUTSTANDING = 1024
"""CHECKs of a connection that the hub has not answered: each may cost a look at the disk. Refuse with ``overloaded``."""

HELLO_TIMEOUT_S = 10.0
"""From accept to HELLO, and from HELLO to WELCOME. Drop the connection."""

HEARTBEAT_INTERVAL_S = 2.0
"""Silence on a feed after which the hub sends a heartbeat; a spoke that hears nothing for five of them re-dials."""

FILES_LOOK_S = 1.0
"""Between two looks whether a hub's table of identities has changed; certificates and tokens are looked at with each connection."""

AUDIT_AGAIN_S = 3600.0
AUDIT_REFUSED_AGAIN_S = 60.0
"""How long an audit log says nothing of an identity that reads the same version again, or of a host refused for the same reason."""

AUDIT_REMEMBERED_MAX = 100_000
"""What it remembers to have said (some 20 MB). The oldest is forgotten, and may be said again sooner."""

AUDIT_QUEUE_MAX = 10_000
AUDIT_RESOLVING_MAX = 256
"""Lines that wait for a slow disk: then dropped, and counted; versions whose paths are looked up at once: then said without path."""

AUDIT_FILE_MAX_BYTES = 64 * 1024 * 1024
AUDIT_FILES_KEPT = 5
"""An audit log that has grown to this becomes ``.1``, what was ``.1`` becomes ``.2``; the last one goes."""

CERTIFICATE_WARN_S = 7 * 24 * 3600.0
"""From here to its end a certificate of our own is warned of in the log when it is read; the metric tells at all times."""

TOKEN_MIN_BYTES = 32
TOKEN_FILE_MAX_BYTES = 4096
"""A shared token: what cannot be guessed from its proofs (``openssl rand -hex 32`` makes 64), and what is read of its file. Refuse:
UsageError."""

# --- links to the hub ------------------------------------------------------------------------------------

NAME_TIMEOUT_S = 2.0
"""How long a dial waits for name service. Then it goes where the name led last; without that it fails, and is tried again."""

DIAL_TIMEOUT_S = 5.0
"""From SYN to connected; a lost SYN is sent again after 1 and 3 s. Then back off and dial again."""

REDIAL_FIRST_S = 0.1
REDIAL_CAP_S = 2.0
"""Back-off between dials, with jitter. The cap keeps recovery after an outage under 5 s."""

REDIAL_SETTLED_S = 1.0
"""After a link that lived so long the back-off begins anew. A hub that welcomes and then fails would be dialled ten times a second."""

REDIAL_REFUSED_FIRST_S = 5.0
REDIAL_REFUSED_CAP_S = 60.0
"""The same once one end refused the other for who it is: somebody must act first, and each try costs both a handshake."""

REDIAL_WAITED_FOR_S = 0.5
"""The longest back-off while a reader waits: from one SYN to the next it is then at most 2.5 s, on each of a dozen links."""

LINK_CHECK_INTERVAL_S = 1.0
"""How often a spoke pings each link."""

LINK_MAX_PINGS = 3
"""Unanswered pings on one link. No more are sent until one is answered."""

LINK_DEAD_AFTER_S = 8.0
"""Silence on a link with a ping unanswered: eight round trips of a 900 ms path. Drop it; its requests move to another."""

LINK_CRAWL_BYTES_PER_S = 1024
"""A link that brings less than this, with a ping unanswered for LINK_DEAD_AFTER_S, is as good as silent. Drop it: a new connection
may do better, and readers and operators learn that there is no hub."""

LINKS_LOST_TOLD_AFTER_S = 2.0
"""Links lost within this time of the first make one line in the log: they mostly go together."""

LINK_STALLED_AFTER_S = 2.0
"""Silence on one link, with a ping unanswered, while others are heard (and at least four round trips). Drop it, move its requests."""

RATE_SAMPLE_S = 0.1
"""Shortest span over which a spoke measures the rate of arrivals; on longer paths a round trip."""

RATE_SPAN_S = 1.0
RATE_SPAN_MIN_BYTES = 1024 * 1024
RATE_SPAN_MAX_S = 10.0
"""What counts as a rate that a link carried: so long and so much, within so long at most. Less is no measurement."""

BULK_LINKS_MIN = 12
BULK_LINKS_MAX = 32
"""Bulk links a spoke chooses by itself: each starts slowly anew, so more start sooner and hide each other's losses; each costs
system calls. At 1 Gbit/s and 60 ms 12 had cold pages under load at 1.57 x idle (p99) where 8 had 1.86, and 16 cost goodput.
A setting wins."""

LINK_MAX_OUTSTANDING_BYTES = 64 * 1024 * 1024
"""Bytes asked for on one link and not received. Further prefetch waits in the spoke, where it can still be reordered."""

RECEIVE_WAKE_MIN_BYTES = 64 * 1024
RECEIVE_WAKE_MAX_BYTES = 1024 * 1024
RECEIVE_WAKE_MAX_S = 0.02
"""While a payload arrives its link wakes for so much at once, at most for what it brings in 20 ms. Less than the least: for every byte."""

LINK_YOUNG_BYTES = 256 * 1024
LINK_YOUNG_PIECE_BLOCKS = 4
"""While a link has brought less than this, what a reader waits for is asked for in pieces of 16 KiB over all links: TCP begins with
10 packets a connection, so 128 KiB on one took 2 to 4 round trips. Split."""

LINK_GROWN_BYTES = 16 * 1024 * 1024
"""A link that has brought so much is through its start: links are told apart by what they brought up to here. 1.6 s of a twelfth
of 1 Gbit/s."""

CONTROL_DEMAND_BYTES = 48 * 1024
CONTROL_ALONE_BYTES = 256 * 1024
SMALL_DEMAND_BYTES = 8 * 1024
"""Demand asked for on the control link at once, and one READ that is there alone: a new connection's first round trip brings 64 KiB, so
that a small read finds room behind it; 5 and 25 ms of a twelfth of 1 Gbit/s. The rest goes over bulk links, but for small READs, which
go wherever least waits."""

LINK_WINDOW_BYTES = 1024 * 1024
"""What may be on its way to a new link at once, once its sender has grown to that; the kernel goes on from there. Twelve hold more than
60 ms of 1 Gbit/s. It is a bound: memory is taken by what has arrived and was not read."""

REQUEST_MAX_TRIES = 4
"""Answers with a wrong digest, or a disk error at the hub, for one flight. Then its readers get EIO."""

RETRY_FIRST_S = 0.1
RETRY_CAP_S = 5.0
"""Back-off of a flight the hub answered with a retryable error."""

CACHE_WRITERS = 4
"""Landed flights written to the cache at once: an NVMe queue is kept busy, a slow disk holds no more threads than this."""

CACHE_WRITE_RUN_FLIGHTS = 64
"""Landed flights that lie one after another, written in one go. The rest makes the next run. With 8 a link of 3 Gbit/s and more got ahead
of the disk: a run takes some turns of a busy event loop, however long it is."""

CACHE_WRITE_RUN_SHARE = 16
"""A run is at most 1/16 of the cache. One as large as the cache had all of it evicted, and then did not fit. Split."""

CACHE_WRITE_GATHER_FLIGHTS = 8
"""With fewer to write a run waits for what follows it, CACHE_WRITE_GATHER_S."""

CACHE_WRITE_GATHER_S = 0.03
"""How long what has landed waits for what follows it, so that one hop to a thread serves several: four extents at 1 Gbit/s, where 10 ms
brought one, and a run takes some 0.15 ms however long it is. Readers have it from memory meanwhile. Then write what there is."""

RECENT_MAX_BYTES = 16 * 1024 * 1024
"""The last arrivals, kept in memory for readers in step with the link. The oldest are forgotten."""

CACHE_DRAIN_TIMEOUT_S = 3.0
"""At stop, the time landed flights have to reach the cache. What has not is fetched again after the restart."""

WRITE_BACKLOG_MAX_BYTES = 256 * 1024 * 1024
"""Landed flights that wait for the cache disk; what lands beyond is served and not cached. Prefetch stops where these and what it has asked
for are PREFETCH_MAX_OUTSTANDING_BYTES, ``warm`` where these are WARM_OUTSTANDING_BYTES."""

BYPASS_MEMORY_BYTES = 64 * 1024 * 1024
"""Landed flights kept in memory when the cache disk would not take them, or not in time. The oldest are dropped."""

PREFETCH_MAX_OUTSTANDING_BYTES = 256 * 1024 * 1024
"""Prefetch asked for or not yet written, over all streams: 1 Gbit/s x 900 ms is 112 MB, and the disk may be behind. The planner waits."""

SLOW_READ_AFTER_S = 5.0
"""A read that has waited this long for the hub is counted while it goes on waiting; the first of an incident is logged."""

WAIT_INCIDENT_QUIET_S = 60.0
"""Reads that fail in the read timeout with less than this between them are one incident, told once."""

READ_ASKED_AGAIN_S = 0.2
"""A READ of blocks whose read timeout passed so little ago is the kernel asking again, not a reader trying again."""

READ_ASKED_AGAIN_TIMEOUT_S = 1.0
"""How long that may wait at most."""

# --- serving ---------------------------------------------------------------------------------------------

CONNECTIONS_MAX = 2048
"""Connections a server holds, all spokes. Refuse the next with ``overloaded``."""

HUB_OPEN_FILES = 16_384
"""Open files a hub asks the kernel for (the usual soft limit of 1,024 is below CONNECTIONS_MAX): connections, files served, catalogs."""

CONNECTIONS_PER_SPOKE_MAX = 64
"""Connections of one spoke to one server (a far 10 Gbit/s path wants about 16). Refuse with ``overloaded``."""

CONNECTIONS_PER_IDENTITY_MAX = CONNECTIONS_MAX // 2
"""Connections of all spokes that show certificates of one name, where the table of identities says nothing. Refuse with ``overloaded``."""

REFUSALS_LOGGED_PER_S = 20
"""Lines in the log about connections that were refused or ended for a fault: strangers can cause any number. The rest is counted."""

LIBRARY_LINES_PER_S = 5
"""Of what libraries log (aiohttp, of a request it cannot read) so many lines are said, the others counted."""

CONNECTIONS_HALF_OPEN_MAX = 256
"""Connections that have not said HELLO yet. Drop the oldest: an honest spoke says it within a round trip."""

REPLIES_UNSENT_MAX_BYTES = 256 * 1024
"""Small replies (PONG, ERROR) queued for a peer that does not read them. Wait: its requests are not read meanwhile."""

FEED_FRAME_MAX_ENTRIES = 1024
"""Entries a server puts into one SNAPSHOT or CHANGES frame: a few ms to encode, and a demand read waits behind one at most. Split."""

READING_MAX_BYTES = 32 * 1024 * 1024
"""Extents a server reads from its source at once. Wait. Covers a disk of 20 ms at 10 Gbit/s; more decides too early whom to serve."""

READ_AHEAD_LINK_BYTES = 4 * 1024 * 1024
"""Extents read, or being read, for one connection and one priority before the socket takes them. Wait."""

READ_AHEAD_PATH_BYTES = 32 * 1024 * 1024
"""Prefetch read for all spokes behind one address, when several wait: each has its part, two extents at least. Wait. What is read
for a spoke leaves by TCP's shares, not by its turns; 25 ms at 10 Gbit/s."""

READ_AHEAD_TOTAL_BYTES = 256 * 1024 * 1024
"""The same for all connections together; past it each connection may still hold one extent, so that none stands still. Wait."""

PUMP_PICKS = 8
"""Extents begun in one step of the event loop: 2 ms of reading and digests. Of 54 at once the first left 20 ms later, behind the last.
The rest wait for the next step."""

READ_AHEAD_ITEM_MIN_BYTES = 64 * 1024
"""What the smallest read counts for in the three limits above: it bounds how many small reads are open at once."""

UNSENT_KERNEL_BYTES = 512 * 1024
"""TCP_NOTSENT_LOWAT: bytes the kernel holds beyond what is in flight. 4 ms at 1 Gbit/s: how long a demand read waits behind prefetch."""

CLOSE_GRACE_S = 2.0
"""From the decision to close a connection (its last words queued) to dropping it; at either end."""

# --- replica of the names (spoke/namespace) ----------------------------------------------------------------

TREE_MAX_ENTRIES = 16_000_000
"""Entries a spoke mirrors (about 400 bytes of memory each). A larger snapshot is refused: protocol error."""

REPLICA_STEP_ENTRIES = 2048
"""Entries of a snapshot compared or applied before the event loop gets its turn (about 10 ms). Wait."""

RESYNC_ANSWER_TIMEOUT_S = 20.0
"""From SUBSCRIBE to the first page or change that fits. Subscribe again."""

SUSPICIOUS_MIN_ENTRIES = 100
"""A tree smaller than this may lose anything unasked: small trees are emptied on purpose."""

SUSPICIOUS_LOSS_FRACTION = 0.5
"""More than this part of the entries gone within SUSPICIOUS_WINDOW_S: the old tree stays until somebody says otherwise. Refuse."""

SUSPICIOUS_WINDOW_S = 60.0
"""The time over which losses add up, so that a vanishing tree told in many small batches is seen too."""

LOSS_EXAMPLES = 10
"""Files that ``headrace-spoke accept`` names before it believes their loss; all are counted."""

SUSPICIOUS_RECHECK_S = 5.0
SUSPICIOUS_RECHECK_MAX_S = 300.0
"""While a hub is suspicious and says more: how long until its whole tree is asked for again; doubles up to the maximum."""

JOURNAL_RECORD_MAX_BYTES = 4 * 1024 * 1024
"""One record of the names' journal: a page of a snapshot or a CHANGES frame. A longer one is damage: cut there."""

JOURNAL_PAGE_ENTRIES = 4096
"""Entries in one page of the journal's snapshot. Split."""

JOURNAL_COMPACT_MIN_BYTES = 1024 * 1024
"""A change log shorter than this is never compacted; a longer one when it outgrows the snapshot."""

JOURNAL_QUEUE_MAX_CHANGES = 100_000
"""Changes queued for a slow disk. Past it they are dropped and the whole tree is written instead."""

JOURNAL_RETRY_S = 30.0
"""From a failed write of the journal to the next attempt, which writes everything anew."""

# --- the block cache ---------------------------------------------------------------------------------------

CACHE_MIN_BYTES = 16 * 1024 * 1024
"""Smallest capacity: sixteen extents, below which eviction only thrashes. Refuse: CacheDirectoryError."""

CACHE_OPEN_FILES_MAX = 256
"""Cached files whose two descriptors stay open (512 of the usual soft limit of 1,024). The least recently used idle one is closed."""

CACHE_READ_THREADS = 8
"""Disk reads under way at once; an NVMe disk wants a queue, a slow one must not collect the whole process. Wait."""

CACHE_WRITE_THREADS = 2
"""Disk writes, hole punches and removals under way at once; apart from the reads, so that a slow write delays no read. Wait."""

CACHE_READ_ATTEMPTS = 4
"""Times a read starts again because its extents were evicted and refilled meanwhile, before it says "missing"."""

CACHE_READ_ERRORS_MAX = 8
"""Failed disk reads in a row (each drops its blocks) after which the cache is bypassed."""

CACHE_VERIFY_SLICE_BYTES = 4 * 1024 * 1024
"""What one verify job reads before it gives its thread back."""

SCRUB_SLICE_BLOCKS = 64
"""What the scrub reads at once (256 KiB): some 150 us of the interpreter, in which no reader is answered."""

SCRUB_LOOK_BLOCKS = 65_536
"""How far one look for the next present block goes, over 256 extents: it asks for the first one only (some 10 us)."""

SCRUB_SAVE_INTERVAL_S = 30.0
"""Between two notes of how far the scrub is. A kill costs what was compared since."""

SCRUB_REST_S = 5.0
"""Between the end of a pass and the next, and between two looks at an empty cache."""

MEND_FILE_MAX_BLOCKS = 4096
"""Blocks (16 MiB) of one file that are fetched again as soon as they were found bad. Of more, or of a file dropped as a whole,
the rest is fetched when somebody reads it; a file that the kernel reads by itself is mended whole, so much at a time."""

UNREADABLE_LOG_INTERVAL_S = 60.0
"""Between two log lines of the hub about one block that its disk cannot read; a spoke asks for it several times."""

UNREADABLE_NOTED_MAX = 1024
"""Such blocks remembered. Beyond it all are forgotten, and logged anew."""

COMPLAINT_GATHER_S = 0.25
"""Bad blocks of one file found within it make one log line."""

COMPLAINTS_MAX = 256
"""Files with bad blocks that wait for their log line. Those beyond it are logged by version alone."""

VERIFY_REPAIR_TIMEOUT_S = 60.0
"""How long ``verify`` waits for the blocks it found bad to come again. What has not come by then is said to be missing."""

VERIFY_SHOWN_MAX = 200
"""Files with bad blocks that ``verify`` names; further ones are counted."""

CACHE_EVICT_BATCH_BYTES = 4 * 1024 * 1024
"""Bytes freed at once (at most 1/64 of the capacity), so that not every write waits for its own hole."""

CACHE_EVICT_ROUNDS_MAX = 64
"""Batches one write evicts for before it gives up (256 MiB): a cache far over its limit is trimmed apart from writes."""

CACHE_EVICT_SAMPLE = 32
"""Extents looked at to choose one victim: the cost of a decision, whatever the size of the cache."""

CACHE_GHOSTS_MAX = 65536
"""Evicted extents whose last use is remembered, to learn how far apart uses are. Beyond it: every second one is forgotten."""

CACHE_WANTED_MAX = 4096
"""Extents a reader missed and nobody wrote yet: their arrival is a use, not a prefetch. Oldest forgotten."""

CACHE_STATVFS_EVERY_BYTES = 16 * 1024 * 1024
"""Bytes written between two looks at the disk's free space."""

CACHE_BYPASS_RETRY_S = 5.0
"""First wait after a disk error before the cache is tried again; doubles up to CACHE_BYPASS_RETRY_MAX_S."""

CACHE_BYPASS_RETRY_MAX_S = 30.0
"""Longest wait between two tries of a failing cache disk; a try is one small file."""

CACHE_TROUBLE_LOG_S = 60.0
"""Trouble of one kind with the cache disk that comes back within this time is not logged again."""

CACHE_INODE_FLOOR_SHARE = 10
"""One part in so many of a file system's inodes is left free where that is less than CACHE_FREE_FLOOR_INODES: a small disk has fewer."""

CACHE_SLOW_LOAD_S = 0.05
CACHE_SLOW_FOR_S = 10.0
"""A look into an index that held the event loop for so long: for that time none is looked into but in threads, and what is not
known yet counts as not cached."""

CACHE_STUCK_WRITE_S = 5.0
"""A write under way for so long: the disk counts as slow."""

CACHE_TEND_WAIT_S = 1.0
"""How long housekeeping waits for the disk. What takes longer goes on by itself."""

CACHE_CLOSE_TIMEOUT_S = 3.0
"""At stop, how long jobs on the cache disk are waited for. Left behind: a kill at any moment costs nothing but what was not written."""

CACHE_LENT_FILES_MAX = 256
"""Descriptors lent to the kernel that stay open; it keeps a reference of its own. The one lent longest ago is closed."""

CONTROL_LINE_MAX_BYTES = 1024 * 1024
"""One request line on the control socket. Refuse: the connection is closed."""

# --- the mount (spoke/fuse) ----------------------------------------------------------------------------------

FUSE_MAX_BACKGROUND = 65_535
"""READs of readahead and page faults the kernel may have in flight: all that the field holds. Further readers wait in the kernel,
those of cached blocks too: with 1,024, so many readers stuck on a silent hub stopped every other one. The kernel's default of 12
allows 190 READs a second over 60 ms."""

FUSE_CONGESTION_THRESHOLD = 768
"""From so many on the kernel skips asynchronous readahead."""

FUSE_REQUESTS_PER_WAKEUP = 64
"""Requests answered before the event loop turns to others. The rest wait for its next round."""

FUSE_LOOK_S = 0.002
"""Between two looks for requests while the event loop takes what links brought. More often each look costs what it spares."""

FUSE_LISTING_MAX_BYTES = 128 * 1024
"""One READDIR reply (~700 names, ~2 ms to pack). The kernel asks for the rest."""

FUSE_NOTIFICATIONS_MAX_QUEUED = 64 * 1024
"""Names the kernel is still to be told about. Beyond, all are dropped for one "forget every name"."""

FUSE_TELL_TIMEOUT_S = 10.0
"""How long a command waits until the kernel has heard what it changed. Beyond, its answer says that the kernel may not know yet."""

FUSE_NEGATIVE_LIFETIME_S = 60.0
"""How long the kernel may remember that a name does not exist, were it never told that the name appeared."""

FUSE_REQUESTS_IN_HAND_MAX = 16 * 1024
"""Requests noted for the next worker while they wait for their answer. Beyond, one is not noted: only on a kernel without re-send,
and only if the worker then dies, does its reader wait until it is killed."""

FUSE_LEDGER_SEGMENT_BYTES = 1024 * 1024
"""The ledger grows and shrinks by so much: about 10,000 names that the kernel holds."""

FUSE_LEDGER_NUMBERS_RESERVED = 4096
"""Node ids and handle ids put aside at once for one worker; those it has not used are left out by the next."""

FUSE_BACKING_IDS_SEARCHED = 4096
"""Backing ids below the newest that a worker which takes over looks at for ones nobody wrote down (a microsecond each)."""

FUSE_ANSWER_TIMEOUT_S = 2.0
"""How long a mountpoint that may hang is waited for, in a thread. Beyond, it counts as not answering."""

FUSE_MOUNT_TIMEOUT_S = 10.0
"""The mount call, fusermount3, and the kernel's first request. Refuse: the mount fails with the reason."""

FUSE_UNMOUNT_TIMEOUT_S = 2.0
"""Each step of an unmount (detach, abort, the last notification). Then the next, harder step."""

FEED_BACKLOG_MAX = 32
"""Messages of the change stream taken from the socket and not yet applied (each at most a page). The link waits."""

PROGRESS_INTERVAL_S = 0.2
"""Between two progress lines of one command."""

WARM_WINDOW_BYTES = 16 * 1024 * 1024
WARM_OUTSTANDING_BYTES = 128 * 1024 * 1024
"""``warm`` asks for runs of this size, and for so much at once in all: over 10 Gbit/s x 100 ms. The rest waits."""

WARM_PACED_S = 0.25
"""With ``warm --rate`` what is asked for at once is what the rate carries in this time, an extent at least. The rest waits."""

WARM_RUNS_MAX = 4_000_000
"""Separate pieces of files that one ``warm`` holds (some 500 MB at the most). Refuse: UsageError."""

WARM_JOBS_SHOWN = 8
"""Ended warms that ``status`` still shows. The oldest goes."""

WARM_JOBS_MAX = 16
"""Warms under way at once. Refuse: UsageError."""

PIN_PATHS_MAX = 100_000
"""Pinned paths (a file of some 10 MB). Refuse: UsageError; a directory counts once."""

PINS_SHOWN_MAX = 64
"""Pinned paths that ``status`` names; all are counted."""

PIN_MAX_SHARE = 15 / 16
"""The part of the cache that may be pinned: the rest is for what else is read, which would be fetched each time. Refuse: UsageError."""

WARM_TRIES = 3
"""Rounds over one file before ``warm`` calls it failed: blocks can be found corrupt, or be evicted, meanwhile."""

WARM_HUB_WAIT_S = 30.0
"""How long ``warm`` waits for a hub that went away while it fetched: longer than a restart takes. Then it fails, and is asked for anew."""

WARM_START_WAIT_S = 600.0
"""How long ``warm --wait`` waits for a spoke that is not there yet, or not any more: a node that pulls images. Then it fails."""

WARM_SILENCE_TIMEOUT_S = 330.0
"""How long the command ``warm`` waits for the next progress line: longer than the default read timeout."""

# --- hub -------------------------------------------------------------------------------------------------

CHANGE_LOG_MAX_CHANGES = 262_144
"""Changes the catalog's log keeps. Drop the oldest: a spoke from before them resyncs from a snapshot."""

PAST_ROWS_MAX = 1_048_576
"""Former entries the catalog keeps (some 150 B each) so that trees back to the log's beginning can be given. Past it, only
those that named snapshots show."""

SNAPSHOTS_SHOWN_MAX = 8
"""Snapshots named in the message about one that is missing: it must fit TEXT_MAX_BYTES."""

SNAPSHOT_MAX_S = 300.0
"""How long one snapshot may take to be read: it holds a read transaction, behind which the database's log grows. Drop it."""

SNAPSHOTS_PER_IDENTITY_MAX = 8
"""The same for spokes of one identity, half of all: who takes snapshots and does not read them holds up nobody else. Wait."""

SNAPSHOTS_MAX_OPEN = 16
"""Snapshots read at once, one database connection each. Wait."""

HUB_RESOLVE_CACHE_MAX_VERSIONS = 65_536
"""Versions whose place is remembered in memory (~300 B each). Drop the least recently used."""

HUB_VIEW_CACHE_KIB = 16 * 1024
"""Pages of a catalog that a serving process keeps in memory; the process that writes it keeps four times as many. Read again."""

HUB_OPEN_FILES_MAX = 512
"""Descriptors of served files kept open, below the usual limit of 1,024 a process. Close the least recently used."""

HUB_DIRTY_NAMES_MAX = 200_000
"""Names one burst of file events may touch (some 100 MB of memory); beyond, a rescan takes less of it. Drop them and rescan."""

# --- a hub's serving processes (hub/workers) -----------------------------------------------------------------

WORKERS_MAX = 64
"""Processes that serve the spokes of one hub. Refuse: a usage error."""

WORKER_TICK_S = 0.1
"""Between two words of a serving process about what waits in it, and between two divisions of the total rate."""

WORKER_REPORT_S = 0.5
"""Between two reports of what a serving process has counted and who is linked to it: how old ``status`` and metrics may be."""

WORKER_SILENT_S = 15.0
"""A serving process that says nothing for so long hangs. Kill it; spokes dial again."""

WORKER_START_S = 30.0
"""From its start until it can serve; opening a catalog takes milliseconds, importing a second. Kill it."""

WORKER_STOP_S = 6.0
"""From the word to stop to the end of a serving process; its connections have CLOSE_GRACE_S. Kill it."""

WORKER_DEATHS_MAX = 5
WORKER_DEATHS_WINDOW_S = 60.0
"""Deaths of one serving process within this time at which the hub ends with an error: whatever kills it would go on."""

WORKER_RESTART_FIRST_S = 0.1
WORKER_RESTART_CAP_S = 5.0
"""Back-off between the deaths of a serving process and its restart."""

WORKER_IDLE_SHARE = 0.01
"""The part of the total rate that a serving process keeps while nothing waits in it, so that its next spoke can begin."""

WORKER_ASKS_MAX = 256
"""CHECKs and looks at moved files that one serving process has open with the main one. Wait."""

WORKER_ORDER_ASKS_MAX = 16
"""Questions about orders, of up to 64 KiB each, that one serving process has open with the main one. Wait."""

WORKER_REPLACED_MAX = 4096
"""Versions named to the serving processes after one batch of changes; of more they forget all places, and look them up again."""

CHANNEL_PIECE_BYTES = 64 * 1024
"""What goes between two processes of a hub at once: an eighth or so of what the kernel takes (net.core.wmem_default). Split."""

CHANNEL_QUEUE_MAX_BYTES = 8 * 1024 * 1024
"""Messages for a process that does not take them. Past it that process counts as hung: the channel is closed, the process ended."""

# --- TCP -------------------------------------------------------------------------------------------------

TCP_KEEPALIVE_IDLE_S = 10
TCP_KEEPALIVE_INTERVAL_S = 5
TCP_KEEPALIVE_PROBES = 4
"""A silent peer is probed after 10 s, then every 5 s; four unanswered probes drop the connection (30 s in all)."""

TCP_DEAD_AFTER_MS = 30_000
"""Data unacknowledged, or a window shut, for this long. The kernel drops the connection."""

HOLDERS_TIMEOUT_S = 5.0
"""How long ``umount`` looks for processes that use the mount. Then it says that it cannot tell."""

STOP_ANSWER_TIMEOUT_S = 2.0
STOP_TIMEOUT_S = 10.0
"""How long ``umount`` waits for the spoke to answer, and then to end. Then it takes the mount away itself."""

# --- doctor (spoke/doctor) ---------------------------------------------------------------------------------

DOCTOR_ASK_TIMEOUT_S = 2.0
"""The running spoke's status, and the mount's statfs, asked side by side. Give up and say so: it is stuck."""

DOCTOR_DIAL_TIMEOUT_S = 2.2
DOCTOR_HELLO_TIMEOUT_S = 2.2
"""From SYN to connected (a lost SYN is sent again after 1 s), and from HELLO to its answer. Give up and say which."""

DOCTOR_HUB_TIMEOUT_S = 5.0
"""All talk with the hub, name service and pings included. With the status before it doctor stays under nine seconds."""

DOCTOR_PINGS = 5
DOCTOR_PINGS_S = 2.0
"""Round trips measured, one after another, and the time for them; on a long path fewer, but one at least."""

DOCTOR_DISK_TIMEOUT_S = 5.0
"""The look at the cache disk. Give up: it hangs."""

DOCTOR_DISK_TEST_BYTES = 8 * 1024 * 1024
DOCTOR_DISK_TEST_S = 1.0
"""Written to a nameless file in the cache directory, synced, and read back; a slow disk gets only that time for each."""

DOCTOR_HOST_TIMEOUT_S = 2.0
"""Reading /proc and /sys. Give up."""

LOG_MAX_BYTES = 4 * 1024 * 1024
"""A background spoke's log in the runtime directory (often memory): a longer one is put aside, also while it runs; one is kept."""

LOG_KEPT_S = 7 * 24 * 3600.0
"""How long the log of a spoke that did not end in order is kept for whoever wants to know why. Remove."""

METRICS_PORT_RETRY_S = 2.0
"""How often a spoke whose metrics port another one of the host has tries to get it: so long its figures are missing when that one ends."""

METRICS_ASK_TIMEOUT_S = 1.0
"""For the figures of another mount at this port, all asked at once; below any scrape timeout. Go on without: it is shown as silent."""

METRICS_ANSWER_MAX_BYTES = 4 * 1024 * 1024
"""One answer of figures, or of a page with its hour of curves, some 100 KB. Refuse: it counts as not answering."""

METRICS_MOUNTS_MAX = 64
"""Mounts at one metrics port, 80 series each. Those that come later in the order of their paths are left out."""

RUNTIME_FILE_SWEPT_AFTER_S = 60.0
"""Sockets and records of dead spokes younger than this are left alone: their spoke may just be starting."""

# --- supervisor and worker (spoke/supervisor) ----------------------------------------------------------------

SUPERVISED_FAILED_STARTS_MAX = 5
"""Starts of a worker that fail one after another (about 12 s in all). Then the mount is given up: pending reads get EIO."""

SUPERVISED_DEATHS_MAX = 40
SUPERVISED_DEATHS_WINDOW_S = 300.0
"""Deaths of workers that did serve, within this time: whatever kills them goes on. The mount is given up."""

SUPERVISED_QUICK_RESTARTS = 5
SUPERVISED_RECENT_S = 30.0
SUPERVISED_SLOWED_S = 0.5
"""Up to five deaths in half a minute are followed by a start at once, further ones after half a second."""

SUPERVISED_RETRY_FIRST_S = 0.5
SUPERVISED_RETRY_MAX_S = 4.0
"""Back-off between a start that failed and the next; doubled each time."""

SUPERVISED_START_S = 120.0
"""A worker that takes over a mount and does not serve after this time is killed. A million names take about ten seconds."""

SUPERVISED_SILENT_S = 60.0
"""A worker whose event loop gave no sign for so long (or for the unit's WatchdogSec, if less) hangs: it is killed."""

SUPERVISED_SIGN_INTERVAL_S = 2.0
"""Between two signs of life of a worker."""

SUPERVISED_LOOK_AFTER_S = 3.0
"""A worker silent for longer than one sign takes is looked at so often, in /proc: some 50 us."""

SUPERVISED_STOP_S = 5.5
"""From SIGTERM to the end of a worker, which unmounts in 3 s at most. Then it is killed, and the supervisor unmounts."""

SUPERVISED_ABORT_S = 3.0
"""Between the SIGABRT that makes a hanging worker show its stacks and the SIGKILL."""

UPGRADE_PREPARE_S = 60.0
"""A new worker imports its code and reads its settings, beside the old one. Then the upgrade is called off."""

UPGRADE_DRAIN_S = 1.0
"""How long reads in hand may still be answered by the worker that is going; the kernel sends the others again to the next."""

UPGRADE_GOODBYE_S = 0.3
"""Instead of CLOSE_GRACE_S, at a worker that is going: with the drain and FRESH_NAMES_WAIT_S of the next a silent hub makes readers
wait less than 3 s."""

UPGRADE_RELEASE_S = 10.0
"""From the word to go to the end of the old worker's work. Then it is killed: the cache survives that."""

UPGRADE_ANSWER_S = 300.0
"""How long ``upgrade`` waits to hear how it went."""

SUPERVISOR_CLIENTS_MAX = 16
"""Commands that ask one supervisor at once. Refuse: the connection is closed."""

REFUSING_S = 1.0
"""Once a mount is given up: how long requests are still answered with EIO before the connection ends."""

SERVICE_JOBS_TIMEOUT_S = 1.0
"""Asking systemd which job stops this unit. No answer counts as a stop: the mount is taken away."""

# --- under systemd (common/systemd) -----------------------------------------------------------------------

SERVICE_SIGN_INTERVAL_S = 10.0
"""Between two signs of life to systemd, or a third of the unit's WatchdogSec where that is less: two may be lost."""

SERVICE_START_EXTENSION_S = 60.0
"""More time that each sign asks for while a daemon starts. A loop that hangs for longer then: systemd ends the start."""

# --- prefetch (spoke/prefetch) -------------------------------------------------------------------------------

PREFETCH_SMALL_FILE_BYTES = 4 * 1024 * 1024
"""A file up to this size is fetched whole at its first read (a setting; 0: never)."""

PREFETCH_WINDOW_MIN_BYTES = EXTENT_BYTES
"""Smallest window of a stream that has shown itself (a younger one has PREFETCH_EVIDENCE_FACTOR times what it read)."""

PREFETCH_STREAM_MAX_BYTES = 384 * 1024 * 1024
"""How far one stream runs ahead: 10 Gbit/s x 60 ms is 75 MB, 1 Gbit/s x 900 ms is 112 MB, as much again while a lost packet is sent
again, and what waits to be read. The stream waits."""

PREFETCH_WINDOWS_MAX_BYTES = 512 * 1024 * 1024
"""How far all active streams run ahead together, shared evenly, never below the smallest window each. They wait."""

PREFETCH_WINDOWS_CACHE_SHARE = 4
"""One part in so many of the cache is for all windows together, where that is less: what is evicted unread was fetched in vain."""

PREFETCH_THROUGHOUT_MAX_BYTES = 8 * 1024 * 1024 * 1024
PREFETCH_THROUGHOUT_CACHE_SHARE = 2
"""So much is fetched and not read in all files that are read throughout, or one part in so many of the cache where that is less, which is
what eviction keeps of such: 64 chunks of 64 MB, half read, are 2 GB. Beyond it files wait until something of the others is read."""

PREFETCH_THROUGHOUT_FILE_MAX_BYTES = 128 * 1024 * 1024
"""A file larger than this, or than half of the above, is not fetched as one: loaders' chunks and shards are 64 MB, rarely more."""

PREFETCH_DECLARED_CACHE_SHARE = 0.75
"""The part of the cache that may lie ahead of the readers of declared plans, in flight or waiting to be read: what was read of a plan
is not used again and leaves first, so that hardly anything else need stay. The rest is for what is just being read and written. Wait."""

PREFETCH_OUTSTANDING_MIN_BYTES = 16 * 1024 * 1024
"""In flight whatever the link was measured at: a low measure may be our own doing. 16 MiB / 60 ms is above 1 Gbit/s."""

PREFETCH_START_BYTES = 16 * 1024 * 1024
"""A window below this grows eightfold with a late read, above twofold: the first round trips of a file are the dear ones."""

PREFETCH_START_PIECE_BLOCKS = 11
PREFETCH_BEGUN_PIECE_BLOCKS = 32
"""A stream that has read less than 1 MiB asks for pieces of 44 KiB, then, until it has read PREFETCH_START_BYTES and up to as much ahead of
its reader, for pieces of 128 KiB, spread over the links: a new connection takes 65,535 bytes in its first round trip (a SYN's window has
16 bits), which hold one of the first behind 16 KiB of demand, headers included. What ends beyond them comes a round trip later as a whole;
and a whole extent is there when one on each other link is. Split."""

PREFETCH_SHORT_RTT_S = 0.005
"""On a path with a shorter round trip it asks for extents from the start: one more costs less than what each piece costs (0.3 ms)."""

PREFETCH_FIRST_BYTES = 4 * 1024 * 1024
PREFETCH_FIRST_SHARE = 64
"""Fetched with the first read of a file that begins at its first byte, but at most 1/64 of the file: two round trips of what nine
new connections carry, so that TCP's start does not wait for the reader. Capped."""

EXPEDITED_PIECE_BLOCKS = 32
"""What readers abreast stand before is asked for in pieces of 128 KiB, so that each goes on with what has come. Split."""

PREFETCH_EVIDENCE_FACTOR = 8
"""A window is at most so many times what its stream has read in a row: who reads 1 MiB and stops wastes at most 8."""

PREFETCH_MAX_FILES = 512
"""Files whose streams are remembered; the longest unread is forgotten."""

PREFETCH_MAX_HANDLES = 65536
"""Open handles the planner knows; reads through later ones are served without prefetch."""

PREFETCH_STREAMS_PER_FILE = 128
"""Recognised streams in one file; the longest unread is forgotten."""

PREFETCH_STRIDES_PER_FILE = 32
"""Progressions (reads at equal distances) followed in one file; the longest unread is forgotten."""

PREFETCH_CANDIDATES_PER_FILE = 128
"""Reads in one file that might begin a stream; the oldest is forgotten."""

PREFETCH_ACTIVE_S = 10.0
"""A stream not read for this long no longer takes part in sharing the windows."""

PREFETCH_ACTIVE_MAX_STREAMS = 1024
"""Streams that take part; beyond, the longest unread does not."""

PREFETCH_WASTE_ALLOWANCE_BYTES = 4 * 1024 * 1024
PREFETCH_WASTE_SHARE = 0.03
"""Prefetched and unread, in a file and in all: the allowance and this share of what was read. Past it only long runs are streams."""

PREFETCH_DISTRUST_MAX_BYTES = 64 * 1024 * 1024
"""Waste beyond what is forgiven that is held against a file, or all: after 2.1 GB more of reads it gets another try. Forgotten."""

PREFETCH_PIECE_MAX_BLOCKS = 1024
"""4 MiB: what is longer is no piece that is fetched at its first READ, but a stream."""

PREFETCH_FAILURE_PAUSE_S = 1.0
"""After a failed fetch nothing is planned for that file for so long."""

PREFETCH_ASSUMED_RTT_S = 0.1
"""Round trip until the link was measured."""

PREFETCH_MAX_CHAINS = 64
PREFETCH_CHAIN_MAX_FILES = 256
"""Sequences of whole files followed at once, and files anticipated in each. The oldest is forgotten; the sequence waits."""

PREFETCH_LEDGER_MAX_EXTENTS = 65536
"""Extents (1 MiB) planned or prefetched and unread that are kept account of: 64 GiB. The oldest is forgotten, uncounted."""

RECORD_MAX_BYTES = 1 << 30
"""One file of ``--record``: 38 million READs. At it the recording ends, with a line in the log; the mount goes on."""

RECORD_PIECE_BYTES = 64 * 1024
"""What a recording gathers before it writes: some 2,300 READs, 20 us in one call. Also written every HOUSEKEEPING_INTERVAL_S."""

# --- orders: what will be read, known ahead (spoke/orders) ----------------------------------------------------

ORDER_MAX_STEPS = 1 << 32
"""Steps of one order, on disk (24 B each). Refuse: PlanTooLong."""

ORDER_MAX_LANES = 65_536
"""Lanes of one order: ranks of a job, or jobs. Refuse: PlanTooLong."""

ORDER_MAX_FILES = 4_194_304
"""Files of one order (on disk some 120 B each). Refuse: PlanTooLong."""

ORDER_MAX_RUNS = 4_194_304
"""Pieces of lanes in one order file (24 B each, checked one by one at open: 2 s). Refuse: DamagedOrder, PlanTooLong."""

ORDER_SEGMENT_STEPS = 1 << 18
"""Steps of an order file that are sorted together: 12 MB of memory for its writer. At most 2^20, which is what a reader takes."""

ORDER_ABOUT_MAX_BYTES = 64 * 1024
"""Name, reason and notes of an order, as JSON. Refuse: OrderError when written, DamagedOrder when read."""

ORDER_NAME_MAX_BYTES = 255
"""An order's name in UTF-8. Refuse: OrderError."""

ORDER_GROWING_MAX_STEPS = 1_000_000
"""Steps of one growing order held in memory at once (about 26 B each, and 150 B for the latest 4,096 of a lane). Refuse: PlanTooLong."""

ORDER_GROWING_TAIL_STEPS = 4096
"""The latest steps of a growing lane, found by a dict; then they are sorted, which takes 1 ms."""

ORDER_FIND_SCAN_STEPS = 4096
"""Steps looked at for one look-up in one sorted piece, 0.5 ms: a place that is read more often than that is found in part."""

PREFETCH_GATE_ALLOWANCE_BYTES = 32 * 1024 * 1024
PREFETCH_GATE_WASTE_SHARE = 0.5
"""A source of predictions that wasted the allowance and this share of what it fetched is switched off: it predicts without fetching."""

PREFETCH_GATE_TRIAL_BYTES = 32 * 1024 * 1024
PREFETCH_GATE_TRIAL_MAX_BYTES = 1024 * 1024 * 1024
"""Predicted without fetching until a source is judged anew; doubles with each judgement against it."""

PREFETCH_GATE_MEMORY_BYTES = 1024 * 1024 * 1024
"""Fetched bytes a judgement rests on: beyond, older ones count half."""

ORDERS_MAX_ACTIVE = 32
"""Orders followed at once. Refuse the next: PlanTooLong."""

ORDER_CURSORS_MAX = 128
"""Places in one order that are followed at once: lanes of this node, and workers of a lane that read far apart. The longest unread goes."""

ORDER_AHEAD_MAX_STEPS = 8192
"""Steps fetched ahead of one place and not read (about 300 B each): 1 GiB at 128 KiB a fault. The order waits."""

ORDER_TRAIL_MIN_STEPS = 256
"""How far behind the furthest read of a place a step may be read and count as in time; more when workers are seen further apart."""

ORDER_WINDOW_MIN_BYTES = 8 * 1024 * 1024
"""Smallest window of a place in an order, where the cache has room for it: all workers of a lane may ask for a batch at once,
and an order says what that will be, whatever rate they had on average."""

NEVER_STEPS = 1 << 40
"""Steps until the next use of what an order will not use again; more is the same. Orders say it, and eviction lets such blocks go first."""

ORDER_START_BYTES = 64 * 1024 * 1024
ORDER_START_STEPS = 512
"""Fetched of an order before anybody reads it, its lanes together, and steps of each: 4 workers that start ask for 2 batches of 8 samples
each, which cut from short documents are 200 page faults, 25 MiB, before a step of the job gives the link any time. The order waits.
So much, or ORDER_WINDOW_MIN_BYTES if that is less, also lies ahead of a reader of a recipe however slow he is. A job that stops leaves it
unread: of small records 4 MiB, with 70 of them a second 3.6 s of the job, so that a link that is away for a second is noticed by nobody."""

ORDER_LATE_STEPS = 1024
"""Steps that late reads of a recipe may widen its lead to. Where files are read exactly only those that were not asked for ORDER_LEAD_S
before: else it is the link or the hub that is too slow, and a longer lead helps nobody; where reads are hits again it comes back.
In mapped files, where 8 MiB are 64 faults, it stays."""

ORDER_LEAD_S = 2.0
"""A plan or recipe runs at least so much of its readers' time ahead: what comes is known, and the link is idle half the time; so a burst,
a lost packet or a busy hub is nobody's wait. Within the windows' share of the cache."""

ORDER_KERNEL_MARKS_MAX = 16_384
"""Pages of an order's mapped files at which the kernel will read on by itself, and MiB of those read exactly that have such pages (at most
300 B each). The oldest is forgotten."""

ORDER_PLAN_PIECES = 128
"""Pieces that an order plans in one go (0.1 to 0.25 ms each, of the event loop's time): readers come in between. The rest waits."""

ORDER_SPREAD_MAX_STEPS = 4096
"""Beyond this distance workers of a lane are followed as places of their own."""

ORDER_MARK_CHUNKS_MAX = 256
"""Stretches of 4,096 positions of one order of which it is known what was read (4 KiB each). The oldest is forgotten."""

ORDER_VOTES_MAX = 256
"""Reads without a place that are remembered to find one. The oldest is forgotten."""

ORDER_LOOKUPS_IN_VAIN = 256
"""Look-ups that found no place after which only every eighth read without one is looked up."""

ORDER_CANDIDATES_MAX = 64
"""Places in an order that one read may stand for; a read at which more steps begin counts for the first found."""

ORDER_IDLE_READS = 512
"""Reads of an order's files after which a place that none of them was at is given up, its bytes wasted (64 more for each other place)."""

ORDER_USED_PIECES_MAX = 65_536
"""Pieces of at most 128 KiB that orders have used, until room is needed (about 300 B each). The oldest is forgotten: eviction then finds
it by chance, as it finds others."""

ORDER_PAGE_GROUPS_MAX = 65_536
"""MiB of an order's files of whose pages it is known that the kernel read them (about 200 B each). Those read longest ago are forgotten."""

ORDER_FILES_KNOWN_MAX = 16_384
"""Files of an order whose names and numbers are kept at hand (about 400 B each). Forgotten all, and looked up again."""

# --- insight: who waited for what, why, and how the last hour went (spoke/insight) ----------------------------

STALL_ROWS_MAX = 256
"""Processes, cgroups and files whose stall seconds are kept apart (some 5 KB each when busy). The least is added to the others."""

STALL_RANKS_MAX = 32
"""Ranks with a series of their own in the metrics: twice the GPUs of a host. The least gives way."""

STALL_MINUTES = 10
STALL_MINUTE_ROWS_MAX = 128
"""Minutes looked back on in "lost 41 s of 10 min", and rows of each. The oldest minute goes; the least row joins the others."""

STALL_BATCH_WAITS = 256
"""Waits that have ended and are credited together, at the latest with the next sample: at most some 10 ms of work at once."""

STALL_PENDING_MAX = 1024
"""Waits whose process is still being looked up. Beyond, they are counted as unknown."""

STALLS_SHOWN_MAX = 20
"""Rows of each kind that status shows."""

PROCESSES_MAX = 1024
"""Threads whose process is remembered. The oldest is looked up again."""

PROCESSES_ASKED_MAX = 64
"""Threads that are being looked up at once, 0.1 ms each. Others are looked up when they wait next, and are unknown until then."""

PROCESS_CHECK_S = 5.0
"""For so long a thread id is believed to be who it was: with pid_max at its default of 4,194,304 none comes round in that time."""

PROCESS_ENVIRONMENT_MAX_BYTES = 256 * 1024
"""Read of a process's environment, for RANK. What stands behind is not seen."""

HISTORY_EXTENTS_MAX = 32_768
HISTORY_NOTES_KEPT = 8
"""Extents (32 GiB) of which the last decisions are known, 16 B each: some 10 MB in all. The one noted longest ago is forgotten."""

HISTORY_WHOM_MAX = 4096
"""Versions for which others were evicted, by number. The oldest is forgotten: "evicted", and not for whom."""

SLOW_READS_KEPT = 512
SLOW_READS_SHOWN = 32
"""Reads that waited, with their causes: kept, and shown by explain. The oldest goes."""

TRAINING_JOBS_MAX = 64
TRAINING_STEPS_KEPT = 256
TRAINING_READS_KEPT = 256
TRAINING_STEPS_SHOWN = 20
"""Jobs that mark their steps, and steps of each kept and shown. The job heard of longest ago, the oldest step goes."""

TRAINING_FORGOTTEN_S = 3600.0
"""A job that marked no step for so long is not shown any more."""

PLAN_MARKS_MAX = 512
"""Marks of training steps in one message. Refuse: E2BIG."""

SAMPLE_INTERVAL_S = 5.0
SAMPLES_KEPT = 720
SERIES_POINTS = 240
"""Between two samples; an hour of them (some 0.5 MB); and points of a curve on the page."""

FLEET_SPOKES_MAX = 256
FLEET_POINTS = 60
FLEET_ALERTS_MAX = 100
"""Spokes on the hub's page with 5 minutes of each one's rate (some 3 KB), and alerts. The rest is counted; status has all."""

CACHE_MAP_FILES = 24
CACHE_MAP_CELLS = 48
"""Files of the page's map of the cache, those opened last, and cells of each."""

NAME_SEARCH_SLICE = 20_000
"""Names looked at between two turns of the event loop (some 5 ms) when somebody asks which path has a version."""

CACHE_LIST_MAX = 1000
"""Rows that ``cache ls`` shows unless told otherwise."""

CACHE_LIST_MOST = 100_000
"""Rows that ``cache ls`` shows at most."""

BUG_REPORT_LOG_BYTES = 2 * 1024 * 1024
"""The end of each log that a bug report takes."""

# --- plans: what a job says it will read (spoke/plans, PLAN.md) -----------------------------------------------

PLAN_MESSAGE_MAX_BYTES = 16_383
"""One message, by either way: what the kernel lets an ioctl through FUSE carry. Refuse: E2BIG."""

PLAN_MESSAGE_MAX_STEPS = 4096
"""Steps one message leads to, ranges over PLAN_STEP_MAX_BYTES counted as the pieces they are cut into: some 10 ms of the event
loop. Refuse: E2BIG, send several."""

PLAN_MESSAGE_MAX_PATH_BYTES = 1024 * 1024
"""All paths of one message, which share beginnings and so could be far longer than it. Refuse: E2BIG."""

PLAN_PATH_MAX_BYTES = 4096
"""One path (Linux' PATH_MAX). Refuse: EINVAL."""

PLAN_NAME_MAX_BYTES = 64
"""A plan's name. Refuse: EINVAL."""

PLAN_TEXT_MAX_BYTES = 1024
"""The text of an answer. Cut."""

PLAN_STEP_MAX_BYTES = EXTENT_BYTES
"""The longest step kept: a longer range is cut at extents, so that its progress is seen."""

PLANS_MAX = 24
"""Plans at once: training and validation for each of 8 ranks, and some; below ORDERS_MAX_ACTIVE, which recipes share. One not
heard or read for PLAN_IDLE_S makes way; else refuse: ENOSPC."""

PLAN_IDLE_S = 60.0
"""Longer than a checkpoint or a step; a job that evaluates for minutes keeps its plan unless others want the place."""

PLAN_MAX_STEPS = 131_072
"""Steps of one plan kept and not read yet (some 26 B each): eight times what ``hints`` says ahead. Refuse: ENOSPC."""

PLANS_MAX_STEPS = 1_048_576
"""The same over all plans: some 30 MB. Refuse: ENOSPC."""

PLAN_MAX_FILES = 65_536
"""Files of one plan (some 400 B each). Beyond, it begins anew with the latest message."""

PLANS_MAX_FILES = 262_144
"""The same over all plans: some 100 MB. Refuse: ENOSPC."""

PLAN_UNUSED_S = 1800.0
"""A plan of which nothing was said or read for so long is nobody's any more (evaluations take up to 10 minutes). Forget it."""

PLAN_LOG_INTERVAL_S = 60.0
"""Between two log lines about plans for one reason. Those between are counted and said with the next."""

CACHE_FREE_FLOOR_INODES = 10_000
"""Inodes the cache leaves free on its file system (two are used for each file version). Evict, then bypass."""

FRESH_NAMES_WAIT_S = 1.0
"""A start with names on disk waits so long for the hub to bring them up to date. Then it mounts with what it has."""

RETENTION_BATCH_FILES = 1000
RETENTION_WRITE_S = 60.0
"""Files erased in one go of the housekeeping, and how often at most what is due when is written down. The rest waits."""

HOUSEKEEPING_INTERVAL_S = 5.0
"""Between two STATS to the hub, and two looks for cached versions that no name has any more."""

READAHEAD_DECIDE_READS = 256
"""READs between two looks at whether the mount wants another kernel readahead: 20 ms at 1 GB/s and 128 KiB each."""

READAHEAD_RUNS_MAX = 256
"""Ends of reads remembered to tell a stream from a random read. The oldest is dropped: its stream counts as beginning anew."""

READAHEAD_MIN_KIB = 4
READAHEAD_MAX_KIB = 1024
"""What ``--read-ahead`` allows: a page, and the largest READ of the kernel (256 pages). Refuse: UsageError."""

SIBLING_DIRECTORIES_MAX = 64
"""Directories whose sorted names are kept for finding the next file. The oldest is sorted again when needed."""

# --- compression ------------------------------------------------------------------------------------------

PACK_MIN_BYTES = 1024
"""Extents below this go raw: the frame around them weighs as much as what could be saved."""

PACK_WORTH_RATIO = 0.95
"""Packed bytes over raw bytes above which an extent goes raw, and its version is passed over for a while."""

PACK_RETRY_EXTENTS = 64
"""Extents of a version that did not shrink, passed over until one is tried again: costs at most 1.6 % of packing all."""

PACK_VERSIONS_MAX = 4096
"""Versions whose shrinkage is remembered; the one seen longest ago is forgotten, and simply tried again."""

PACK_HERE_BYTES = 16 * 1024
"""Up to here an extent is packed on the event loop (25 us of noise, 110 us of token ids; a thread's answer takes as long), and so much of
a larger one tells what to expect of its file."""

PACK_QUEUE_BYTES = 8 * 1024 * 1024
"""Given to the packing threads and not packed yet: 10 ms of two. Beyond it what could leave at once goes raw."""

PACK_WHEN_WAITING_BYTES = 128 * 1024
"""Bytes waiting for a connection's socket from which an extent may as well wait for the packing threads."""

PACK_COST_EXTENTS = 16
"""The cost of packing follows about so many extents."""

PACK_PATHS_MAX = 1024
"""Addresses of which it is remembered whether packing pays; the one used longest ago is forgotten, and learned anew."""

PATHS_KNOWN_MAX = 1024
PATHS_KNOWN_S = 3600.0
"""Addresses of which it is remembered what their path carried, and for how long after the last connection: a mount that comes back
begins at that rate. The one that went longest ago is forgotten, and learned anew."""

PACK_THREADS = 2
"""Threads that compress; zstd at level 1 does some 400 MB/s in each. Further extents wait their turn."""

UNPACK_THREADS = 2
"""Threads of a spoke that decompress, at about 1 GB/s each. Further extents wait their turn."""

# --- process ----------------------------------------------------------------------------------------------

COLLECTOR_THRESHOLDS = (20_000, 20, 50)
"""New objects between two looks of Python's garbage collector, and looks between those at older ones. With the default (700, 10, 10) a
burst of 100,000 changes has it walk all that lives for 0.2 to 0.4 s again and again, and every read waits; reference counts free
nearly everything without it."""

THREAD_SWITCH_S = 0.0005
"""How long a thread may keep Python's lock from others that want it. With the default of 5 ms an answer from a thread waits up
to 5 ms, at every step, for an event loop that has much to do."""

HEAP_KEPT_BYTES = 128 * 1024 * 1024
"""Freed memory a daemon keeps for its next buffers. Above it, and once a daemon is idle, it goes back to the kernel."""

MEMORY_LIMIT_BYTES = 512 * 1024 * 1024
"""A spoke's own memory by default (``--memory-limit``). At it prefetch stops, then what is idle is dropped, then new demand waits."""

MEMORY_LIMIT_MIN_BYTES = 128 * 1024 * 1024
"""The least ``--memory-limit``: the process with nothing under way takes some 45 MiB. Refuse: UsageError."""

MEMORY_CGROUP_SHARE = 2
"""One part in so many of a control group's memory is the default limit, where that is less: the rest is for names and page cache."""

MEMORY_FIXED_BYTES = 64 * 1024 * 1024
"""What a spoke with nothing under way takes, until it was measured."""

MEMORY_DATA_SHARE = 0.75
"""The part of what is left of the limit that data may fill: the allocator's leftovers, and what has no account, take the rest. With
the default limit three quarters of it, for prefetch, are PREFETCH_MAX_OUTSTANDING_BYTES."""

MEMORY_DATA_MIN_BYTES = 24 * 1024 * 1024
"""For data whatever the process itself takes: less cannot make progress."""

MEMORY_LEVELS = (0.80, 0.88, 0.96)
"""Parts of the limit beyond which prefetch stops, what is idle is dropped, new demand waits (one always goes on)."""

MEMORY_LOOK_S = 0.2
"""Between two looks at what the process takes."""

MEMORY_TRIM_S = 1.0
"""Between two times that free heap memory is given back under pressure: some milliseconds each."""

MEMORY_RETRY_S = 0.1
"""A read for which the kernel had no memory is tried again after so long, within its read timeout."""

MEMORY_STEP_BYTES = 26
"""One step of a plan that is kept."""

MEMORY_NAME_BYTES = 450
"""What one name of the mirrored tree takes (a million: 450 MB measured). Counted apart from the limit."""

MEMORY_CACHED_FILE_BYTES = 1200
"""What one cached file takes in memory. Counted apart from the limit."""

EXTENT_BUFFERS_KEPT = 96
"""Buffers of one extent that a process keeps for the next use; a spoke keeps as many as its prefetch may fill, by its memory limit.
Beyond these each is made anew, zeroed and faulted in. While a cache disk is behind, all that prefetch may hold is in use: with
96 of them kept 250 of 940 were made anew, 16 % of the time with the interpreter's lock."""

EXTENT_BUFFERS_IDLE_LOOKS = 10
"""Buffers that were idle at so many looks of the memory watch (2 s), half of them each time, go back to the kernel."""

# --- recipes: orders computed from what is public (spoke/recipes), in the command's own process ---------------

RECIPE_MEMORY_ARRAY_BYTES = 16 * 1024 * 1024
"""A recipe's arrays from this size on are kept in files without a name, whose pages the kernel may take back."""

RECIPE_PIECE_ROWS = 1 << 18
"""Rows worked on at once: some 20 MB in a handful of temporary columns."""

RECIPE_READ_BYTES = 8 * 1024 * 1024
"""One read of an index file through the mount."""

RECIPE_TABLE_READERS = 16
"""Offset tables of shards read through the mount at once: each waits a round trip or two for the hub."""

RECIPE_MAX_SAMPLES = 1 << 34
"""Samples or documents of one run (128 GiB of scratch). Refuse: UsageError."""

RECIPE_INDEX_MAX_BYTES = 256 * 1024 * 1024
"""An index.json; 64 MiB shards of 100 TB make some 600 MB of samples' text in none, about 150 MB here. Refuse: UsageError."""

RECIPE_DESCRIPTION_MAX_BYTES = 4 * 1024 * 1024
"""A *-description.txt of Megatron (a blend of some hundred datasets has 200 KB). Refuse: UsageError."""

RECIPE_NPY_HEADER_BYTES = 4096
"""Header of a .npy: 128 bytes for plain numbers. Refuse: UsageError."""

RECIPE_PERMUTATION_WITHOUT_TORCH = 4_000_000
"""Records shuffled as PyTorch does without PyTorch (2 s in Python). Refuse: UsageError."""

RECIPE_SEGMENT_STEPS = 4_000_000
"""Steps of one order file of a recipe, all lanes together (100 MB on disk). The next file is made while this one is followed."""

RECIPE_SEGMENT_EPOCHS = 4096
"""Epochs of one order file. An epoch costs 0.4 ms and more, however short: 4,000,000 steps of 100 records took 16 s."""

RECIPE_FIRST_STEPS = 125_000
"""Steps of the order a run begins with, or RECIPE_FIRST_EPOCHS: half a second's work. The whole first segment (5 s) takes its place."""

RECIPE_FIRST_EPOCHS = 128
"""As RECIPE_FIRST_STEPS."""

RECIPE_OVERLAP_SHARE = 1 / 8
"""The part of a segment with which the next one begins, so that the follower finds its place there before this one ends."""

RECIPE_FOLLOW_INTERVAL_S = 5.0
"""How often the command asks how far the lanes are. A segment lasts minutes at 10,000 reads a second."""

RECIPE_PROC_MAX_BYTES = 2 * 1024 * 1024
"""Environment or command line of a running job (the kernel's own limit for both). Refuse: UsageError."""

ORDER_FILES_MAX_KEPT = 16
"""Order files followed again after a restart, the newest; half of ORDERS_MAX_ACTIVE is left for plans. Older ones are removed."""

ORDER_LOAD_TIMEOUT_S = 60.0
"""How long a command waits until the spoke has checked an order file (100 MB are read once). Then it fails."""

# --- succession: orders learned from what is read (spoke/prefetch/succession, spoke/orders/learner) -----------

LEARN_MEMORY_BYTES = 128 * 1024 * 1024
"""Default of the setting ``learn_memory``, for all that is being recorded: a million steps, 128 GiB read by page faults. A longer
epoch becomes several orders."""

LEARN_MIN_STEPS = 64
"""A shorter sequence is not kept."""

LEARN_CLOSED_REST_S = 30.0
"""All files closed and nothing read for so long: the job is over, and so is its recording."""

LAST_JOB_SAVE_S = 60.0
"""Between two writes of what the job that goes on has read (``warm --last``): what a worker that is killed forgets."""

LEARN_REST_S = 1800.0
"""The same with files open: evaluations and checkpoints take up to 10 minutes."""

LEARN_SEGMENT_STEPS = 1 << 16
"""Steps of a learned order file that are sorted together. Smaller than elsewhere: writing and checking it share the daemon's lock."""

LEARN_PIECE_MAX_STEPS = 1 << 15
"""Steps of a recording's index that are sorted at once on the loop (some 4 ms). More pieces instead: each costs a look-up 1 µs."""

LEARN_SLICE_STEPS = 1 << 13
"""Steps copied at once while a learned order is written, between two looks whether the daemon stops."""

LEARN_STOP_S = 3.0
"""How long a daemon that stops may write down what it learned (a million steps). Then it is left."""

LEARN_GATE_ALLOWANCE_BYTES = 8 * 1024 * 1024
LEARN_GATE_WASTE_SHARE = 0.15
"""As PREFETCH_GATE_…, for learned orders: nobody said that they hold, and with another shuffle each epoch there is a new one each time."""

LEARN_SURE_WASTE_SHARE = 0.02
"""A learned order of which LEARN_GATE_ALLOWANCE_BYTES were read, and no more than this share fetched in vain, may have as much between
its readers as a declared plan has (PREFETCH_DECLARED_CACHE_SHARE); else what is furthest behind is given up. Ahead of them it has a guess's
share: what was read comes again, and is worth its room (else four epochs of a shuffle in a cache of half the data moved 12 % more)."""

LEARNED_UNPROVEN_KEPT = 2
"""Learned orders of a dataset kept that nobody has followed yet, the newest: each costs a look-up for some reads. Dropped."""

LEARNED_PROVEN_KEPT = 3
"""Those that were followed, the last ones (training, evaluation, another job). Dropped."""

# --- orders that spokes tell each other through the hub (common/order_report, hub/orders, spoke/orders/exchange) ---

ORDER_REPORT_MAX_STEPS = 1 << 21
"""Steps of an order that is told to others: 256 GiB read by page faults, 32 MiB when unpacked. Longer ones stay where they were learned."""

ORDER_REPORT_MAX_FILES = 1 << 18
"""Files of one. Longer ones stay where they were learned; refuse: DamagedOrder."""

ORDER_REPORT_MAX_BYTES = 16 * 1024 * 1024
"""One, packed (a shuffle takes some 4 B a step). Senders keep it, receivers refuse."""

ORDER_PIECE_BYTES = 64 * 1024
"""Of an order, in one REPORT or PIECE: 5 ms at 100 Mbit/s, the most that anything can wait behind it. Refuse: protocol error."""

ORDER_QUESTIONS_MAX_OUTSTANDING = 4
"""REPORT, ORDERS and FETCH of a connection that the hub has not answered; a spoke has one. Refuse with ``overloaded``."""

ORDER_KEPT_LISTED = 64
"""Orders named in one KEPT: the hub keeps no more of a dataset. Refuse: protocol error."""

ORDERS_KEPT_PROVEN = 32
ORDERS_KEPT_UNPROVEN = 32
"""Orders of a dataset that a hub keeps: those that somebody followed or several spokes told of, and others. The oldest of a kind goes."""

ORDERS_KEPT_PER_SPOKE = 8
"""Unproven ones of these from one identity, so that one that tells of many does not push out the others'. Its oldest goes."""

ORDERS_KEPT_MAX_BYTES = 256 * 1024 * 1024
"""All of a dataset's, packed. The oldest unproven goes first."""

ORDERS_DROPPED_KNOWN = 256
"""Orders that an operator dropped and that the hub does not take again. The oldest is forgotten."""

ORDER_TELLERS_COUNTED = 64
"""Spokes that told of one order and are known by name; more are not counted."""

ORDER_ASSEMBLY_MAX_BYTES = 64 * 1024 * 1024
"""Reports that are arriving at a hub, together in memory. Refuse with ``overloaded``; the spoke tells it again later."""

ORDER_ASSEMBLY_IDLE_S = 60.0
"""A report of which nothing came for so long is dropped; the spoke begins again."""

ORDER_REPORTS_BURST = 16
ORDER_REPORTS_INTERVAL_S = 30.0
"""New orders that a hub takes from one identity: so many at once, then one each interval (an epoch lasts longer).
Refuse with ``overloaded``."""

ORDER_REPORTS_TOTAL_BURST = 64
ORDER_REPORTS_TOTAL_INTERVAL_S = 1.0
"""The same over all identities: each costs half a second of a core, and a write of up to 16 MiB."""

ORDER_ALIVE_SHARE = 0.5
"""Of an order's steps, those whose files must exist: below that it is not taken, and what was kept is dropped."""

ORDERS_LOOK_INTERVAL_S = 60.0
"""How often a hub looks whether the files of kept orders still exist, if names have changed and somebody asks."""

ORDERS_ASK_INTERVAL_S = 60.0
"""How often a spoke asks which orders there are: one small question, answered from memory."""

ORDERS_FOREIGN_KEPT = 6
"""Orders of other spokes that a spoke holds: each costs a look-up for some reads, and what LEARN_GATE_… allows when it is wrong."""

ORDERS_FOREIGN_REFUSED_KNOWN = 1024
"""Digests of orders that a spoke does not take again. The oldest is forgotten."""

ORDER_ANSWER_TIMEOUT_S = 30.0
"""How long a spoke waits for the hub's answer about an order, which may wait behind data. Then the round ends; the next one comes later."""

ORDER_REPORT_PATIENCE_S = 10.0
ORDER_FETCH_PATIENCE_S = 0.25
"""How long each piece waits while a reader waits for the hub. Telling may last; an order that comes after its epoch is of no use, and
a piece each 0.25 s is 2 Mbit/s."""

ORDER_RETRY_S = 60.0
ORDER_RETRY_MAX_S = 1800.0
"""Back-off after the hub refused or could not keep a report (its disk is full)."""

ORDER_RETELL_S = 3600.0
"""An order that the hub was sent and let go of (it had better ones) is not sent again before."""

ORDER_STOP_S = 3.0
"""How long a spoke that stops may tell the hub what it learned last. What is not said then is said after the next start."""
