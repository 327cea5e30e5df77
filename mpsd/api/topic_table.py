"""Every topic of events: its meaning, its facts, and the minor version that introduced it.

page.py generates the table of topics in docs/protocol.md from this one.  No client can subscribe to a topic that is not here.
"""

from collections.abc import Mapping
from typing import NamedTuple


class Topic(NamedTuple):
    """A topic, in the words of the page."""

    what: str
    facts: str
    since: int = 0


TOPICS: Mapping[str, Topic] = {
    "lease.created": Topic("a lease was made", "`lease_id`, `owner_uid`, `name`, `state`, `expires_at`"),
    "lease.queued": Topic("it does not fit yet", "the same, and `reason`"),
    "lease.activated": Topic("it was queued, and now it fits", "as of created"),
    "lease.renewed": Topic("it lasts longer", "as of created"),
    "lease.released": Topic("it was given back, or its process has ended (then `reason`)", "as of created"),
    "lease.expired": Topic("its time was over", "as of created"),
    "lease.refused": Topic("it was queued for as long as it may be, and is gone", "as of created, and `reason`"),
    "client.queued": Topic("a client waits", "`pid`, `start_time`, `uid`, `lease_id`, `reason`"),
    "client.admitted": Topic(
        "a client may run",
        "`pid`, `start_time`, `uid`, `lease_id`, `sm_percent`, `memory_bytes`, `rule`",
    ),
    "client.refused": Topic("a client may not run", "`pid`, `start_time`, `uid`, `way` (wait, error or end), `why`"),
    "client.stranger": Topic("a vendor server lists a client that mpsd did not let in", "`pid`, `uid`, `domain`", 4),
    "client.left": Topic("a client has ended", "`pid`, `start_time`, `uid`, `lease_id`"),
    "domain.starting": Topic(
        "a domain came to be in this state",
        "`domain`, `was` (its state before, or nil), `gpus`, `clients`",
    ),
    "domain.ready": Topic("it takes clients", "the same"),
    "domain.fault": Topic("a fatal GPU error; it takes nobody until its clients have gone", "the same"),
    "domain.silent": Topic("its vendor daemon does not answer", "the same"),
    "domain.recycling": Topic("its servers are being replaced", "the same"),
    "domain.draining": Topic("it is being emptied", "the same"),
    "domain.stopping": Topic("it was told to quit", "the same"),
    "domain.dead": Topic("its vendor daemon died; it is started again", "the same"),
    "domain.gone": Topic("it is there no more", "`domain`, `was`"),
    "fault.xid": Topic(
        "the kernel log reports a GPU error",
        "`xid` (NVIDIA's number), `device`, `domain` or nil; for operators `pid`, which may be an innocent client's",
    ),
    "fault.opened": Topic("the first sign of a fault", "as of an entry of `fault.list`", 2),
    "fault.culprit": Topic("it is known who did it: the earliest moment to act", "the same", 2),
    "fault.settled": Topic("nothing more is expected", "the same", 2),
    "gpu.drained": Topic(
        "a GPU takes no new clients, because it failed",
        "`gpu`, `number` (of the fault), `xids` (numbers)",
        2,
    ),
    "gpu.restored": Topic("a GPU that was drained takes clients again: it was pardoned", "`gpu`", 2),
    "blame.suspected": Topic(
        "suspects of a fault are placed apart",
        "`case` (the number of the fault), `groups` (arrays of keys)",
        2,
    ),
    "blame.convicted": Topic(
        "somebody is found guilty, and in quarantine",
        "`key`, `number` (of the fault), `times`, `until`",
        2,
    ),
    "blame.cleared": Topic("suspects are innocent of a fault", "`case`, `keys`, `why`", 2),
    "blame.released": Topic("nothing is held against somebody any more", "`key`, `why`", 2),
    "arena.created": Topic("an arena was made", "`id`, `name`, `owner_uid`, `owner_gid`, `mode`, `gpu`, `capacity_bytes`", 3),
    "arena.opened": Topic(
        "a process has it open now; or to write from now on, or no longer, as its service wants it",
        "the first six, and `access`, `generation`, `pid`",
        3,
    ),
    "arena.committed": Topic("what was put and dropped holds", "the first six, and `generation`, `allocations`", 3),
    "arena.fenced": Topic(
        "a process that had it open has ended, and all its work on the GPU",
        "the first six, and `pid`, `was_writer`, `seconds` (how long that took)",
        3,
    ),
    "arena.sealed": Topic("nobody writes it any more", "the first six, and `generation`", 3),
    "arena.closed": Topic("a process has it open no longer", "the first six, and `pid`", 3),
    "arena.expired": Topic("its time without a holder was over, and it is gone", "the first six, and `freed_bytes`", 3),
    "arena.evicted": Topic("it made room for others, and is gone", "the same", 3),
    "arena.removed": Topic("it is gone", "the same", 3),
    "arena.lost": Topic(
        "a keeper has ended, and its descriptors of this memory with it; a writer that lives may give it again",
        "the first six, and `lost_bytes`",
        3,
    ),
    "service.joined": Topic("a process is a member now", "`id`, `name`, `owner_uid`, `pid`, `domain`, `rank`", 3),
    "service.ready": Topic("it could take over", "the first three, and `pid`", 3),
    "service.left": Topic("it is a member no longer, or has ended", "the same", 3),
    "service.silent": Topic(
        "it does not ask any more what to do; or it serves, and its forward state stands still",
        "the same",
        3,
    ),
    "service.failed": Topic("it says that it cannot take over, or go on", "the same, and `why`", 3),
    "service.yielding": Topic("the one that serves was asked to let go", "the first three, and `pid`", 3),
    "service.kept": Topic("and goes on, since there is nobody else", "the same", 3),
    "service.fencing": Topic("the one that serves is being ended", "the same", 3),
    "service.fenced": Topic("it can write no more", "the same, and `why`: by a fault, or by its own end", 3),
    "service.promoting": Topic("a member was told to serve", "the first three, and `from_pid` (or nil), `to_pid`, `cause`", 3),
    "service.promoted": Topic(
        "and does",
        "the same, and `generation`, `detect_ms`, `fence_ms`, `promote_ms`: as of `last` in `service.get`",
        3,
    ),
    "service.unserved": Topic(
        "nobody serves, and nobody is promoted now; told again when the reason changes", "the first three, and `why`", 3
    ),
    "service.unprotected": Topic(
        "the one that serves and its standbys are in one fault domain; or the vault has lost what it has "
        "come to, and who serves has not given it again",
        "the same",
        3,
    ),
    "service.lost": Topic(
        "a member was told to serve, and begins anew: the vault and the process that served have both ended, and with them the "
        "memory and the forward state of the arena",
        "the first three, and `pid`, `generation`, `why`, `losses`: as of `lost` and `losses` in `service.get`",
        4,
    ),
}
