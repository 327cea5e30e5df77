"""The results about arenas."""

from mpsd.model.arena import Arena, Portion
from mpsd.wire.fields import ALLOCATIONS, BOOLEAN, NUMBER, TEXT, TEXTS, TIME, UUID, WHOLE, WHOLES, Field, Map, Result, maybe

_MOST_READERS = 1024  # in the answer, which has to fit into a datagram

ARENA = Result(
    "Arena", "A named set of GPU memory.",
    Field("id", WHOLE, "never used twice"),
    Field("name", TEXT),
    Field("owner_uid", WHOLE, "the user who made it"),
    Field("owner_gid", WHOLE, "their group when they did"),
    Field("mode", WHOLE, "permissions, as of a file"),
    Field("gpu", UUID),
    Field("base", WHOLE, "the first address of its window: map everything there, in every process"),
    Field("window_bytes", WHOLE),
    Field("capacity_bytes", WHOLE),
    Field("used_bytes", WHOLE, "held now, committed or not"),
    Field("allocations", WHOLE, "committed ones"),
    Field("layout_hash", TEXT, "SHA-256 in hexadecimal of the committed layout; empty before the first"),
    Field("layout_bytes", WHOLE),
    Field("commit", WHOLE, "of the last commit: it only grows; 0: no commit yet"),
    Field("state_serial", WHOLE, "of the forward state that is kept with it; 0: none"),
    Field("generation", WHOLE, "counts writers"),
    Field("is_sealed", BOOLEAN, "it cannot be changed any more"),
    Field("writer_pid", maybe(WHOLE), "also while it has ended and is not fenced yet"),
    Field("writer_start_time", maybe(WHOLE), "of that process, field 22 of /proc/PID/stat: a later one with its pid differs"),
    Field("reader_pids", WHOLES, "the first 1,024"),
    Field("lease_id", maybe(WHOLE), "that its memory counts against"),
    Field("ttl_seconds", maybe(NUMBER)),
    Field("created_at", TIME),
    Field("unheld_since", maybe(TIME), "nil: a process holds it"),
)  # fmt: skip

OPENED = Result(
    "", "An arena that this process has opened.",
    Field("openings", WHOLE,
          "how often this process has opened it since it holds it, as far as this mpsd knows; 1: it had it not before"),
    Field("has_layout", BOOLEAN, "with `takes`: the first descriptor is that of the layout"),
    Field("items", ALLOCATIONS, "with `takes`: as `arena.take` has them"),
    Field("next", maybe(WHOLE), "with `takes`: where `arena.take` goes on; nil: this was all"),
    extends=ARENA,
)  # fmt: skip

USE = Result("ArenaUse", "The memory of an arena.", Field("used_bytes", WHOLE, "held by the arena now"))

COMMITTED = Result(
    "Committed", "The committed contents of an arena, which the next writer would adopt.",
    Field("layout_hash", TEXT, "of the layout that holds now"),
    Field("allocations", WHOLE, "committed ones"),
    Field("used_bytes", WHOLE, "held by the arena now"),
    Field("commit", WHOLE, "of this one"),
    Field("state_serial", WHOLE, "of the forward state that is kept now; 0: none is"),
)  # fmt: skip

TAKEN = Result(
    "Taken", "A page of allocations.",
    Field("commit", WHOLE, "that this is of"),
    Field("items", ALLOCATIONS, "the third is the commit that each came with"),
    Field("next", maybe(WHOLE), "the last offset; nil: this was the last"),
    descriptors="fds: tuple[int, ...]  # of the allocations that came with one; the caller closes them",
)  # fmt: skip
LAYOUT = Result(
    "ArenaLayout", "The layout of an arena.",
    Field("layout_hash", TEXT, "SHA-256 in hexadecimal"),
    Field("layout_bytes", WHOLE),
    descriptors="fd: int | None  # read it from offset 0, and close it; None: the arena has no layout",
)  # fmt: skip
STATE_KEPT = Result("StateKept", "A forward state that mpsd keeps now.",
                    Field("state_serial", WHOLE, "larger than that of any state before"))  # fmt: skip
KEPT_STATE = Result(
    "KeptState", "The forward state that mpsd keeps.",
    Field("state_serial", WHOLE, "0: none is kept"),
    Field("generation", WHOLE, "of the writer that made it, which may be one before; 0: none is kept"),
    descriptors="fd: int | None  # a memory file, which the caller closes; None: mpsd keeps no state",
)  # fmt: skip

ROOM_MADE = Result(
    "RoomMade", "The result of an eviction.",
    Field("freed_bytes", WHOLE),
    Field("names", TEXTS, "of the arenas that went, as far as you could see them"),
    Field("why", TEXT, "why less was freed than asked; empty if enough was"),
)  # fmt: skip


def arena(of: Arena) -> Map:
    readers = [reader.pid for reader in of.readers[:_MOST_READERS]]
    writer_pid, writer_start_time = (of.writer.pid, of.writer.start_time) if of.writer else (None, None)
    return ARENA.of(of, writer_pid=writer_pid, writer_start_time=writer_start_time, reader_pids=readers)


def portion(of: Portion) -> Map:
    """The descriptors of the portion are sent with the result."""
    items = [[each.offset, each.bytes, each.since] for each in of.allocations]
    return {"commit": of.arena.commit, "items": items, "next": of.allocations[-1].offset if of.has_more else None}
