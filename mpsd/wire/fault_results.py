"""The results about faults and blame; incidents.py fills in those of faults."""

from mpsd.model.blame import BlameKind, BlameStatus
from mpsd.model.fault import Confidence, FaultClass, Source
from mpsd.wire.fields import BOOLEAN, NUMBER, TEXT, TIME, UUID, WHOLE, Field, Kind, Map, Result, array, choice, maybe

PARTY = Result(
    "Party", "A process that an incident names. All fields are None or empty if this user may not see the process.",
    Field("pid", maybe(WHOLE)),
    Field("start_time", maybe(WHOLE)),
    Field("uid", maybe(WHOLE)),
    Field("program", TEXT, "base name of argv[0]"),
    Field("container", TEXT, "a container, a job, a unit"),
    Field("lease_id", maybe(WHOLE)),
    Field("key", maybe(TEXT), "by which `blame.list` knows it"),
)  # fmt: skip

XID = Result(
    "Xid", "An error number of NVIDIA's driver, and its meaning.", Field("number", WHOLE), Field("name", TEXT),
    Field("meaning", TEXT),
)  # fmt: skip

_CULPRIT = maybe(Kind("party", {"type": "object"}, "Party"))
_PARTIES = Kind("array of parties", {"type": "array"}, "tuple[Party, ...]")
_XIDS = Kind("array of xids", {"type": "array"}, "tuple[Xid, ...]")
_ADDRESS = (
    Field("access", TEXT, '"read", "write", "atomic", "prefetch", or empty: not known'),
    Field("address", maybe(WHOLE), "where; nil: not known, or not yours to know"),
    Field("kernel", TEXT, "name of the function on the GPU; may be empty"),
    Field("pc", maybe(WHOLE), "where in its code"),
)

INCIDENT = Result(
    "Incident", "One fault.",
    Field("number", WHOLE),
    Field("revision", WHOLE, "grows with each change"),
    Field("began_at", TIME, "time of the first sign"),
    Field("is_settled", BOOLEAN, "nothing more is expected"),
    Field("fault_class", choice(FaultClass), "an access without a mapping; an exception of an SM; the end of a process while "
          "its work ran; the GPU itself"),
    Field("gpu", maybe(UUID), "nil: not known"),
    Field("domain", maybe(TEXT), "nil: not known, or of the GPU as a whole"),
    Field("confidence", choice(Confidence), "how it is known who did it"),
    Field("culprit", _CULPRIT, "nil: no single process is found guilty"),
    Field("culprit_key", maybe(TEXT), "the key that the fault is held against, as in `blame.list`: that of the culprit, or the "
          "one key that all suspects have, though it is not known which of them did it; nil: none, not yet, or not yours to "
          "know"),
    Field("suspected", WHOLE, "how many could have done it"),
    Field("hurt", WHOLE, "how many others lost their work by it: those who are known not to have done it, and all suspects but "
          "one"),
    Field("xids", _XIDS, "of NVIDIA's driver"),
    *_ADDRESS,
)  # fmt: skip

EVIDENCE = Result(
    "Evidence", "One observation of one source.",
    Field("source", choice(Source)),
    Field("after_seconds", NUMBER, "after the first sign; negative for an earlier observation that came later"),
    Field("fault_class", TEXT),
    Field("gpu", maybe(UUID)),
    Field("domain", maybe(TEXT)),
    Field("process", _CULPRIT, "the party that it names"),
    Field("is_proof", BOOLEAN, "its process did it"),
    Field("clears", BOOLEAN, "its process did not do it"),
    Field("xid", maybe(WHOLE)),
    Field("present", WHOLE, "how many clients the domain had"),
    Field("text", TEXT),
    *_ADDRESS,
)  # fmt: skip

DEED = Result("Deed", "An action that mpsd took, or failed to take, because of a fault.",
              Field("after_seconds", NUMBER), Field("text", TEXT))  # fmt: skip

REPORT = Result(
    "IncidentReport", "An incident with its lists of processes, observations and actions.",
    Field("suspects", _PARTIES, "those who could have done it"),
    Field("victims", _PARTIES, "those who lost their work, and did not do it"),
    Field("evidence", array(EVIDENCE), "the observations, in the order of time"),
    Field("deeds", array(DEED), "actions of mpsd, also failed ones"),
    Field("left_out", WHOLE, "entries of these lists for which the datagram had no room"),
    extends=INCIDENT,
)  # fmt: skip

REPORTED = Result(
    "Reported", "mpsd's answer to a report of this process.",
    Field("pid", WHOLE, "your pid as mpsd sees it"),
    Field("start_time", WHOLE),
    Field("counts", BOOLEAN, "false: this process has reported enough"),
    Field("left", WHOLE, "how many more reports of this process count"),
)  # fmt: skip

GUARDED = Result(
    "Guarded", "mpsd's answer about a guarded range.",
    Field("is_watched", BOOLEAN,
          "false: mpsd does not watch this process, for instance without root; lay guards that only absorb"),
)  # fmt: skip

STANDING = Result(
    "Standing", "A key with faults against it.",
    Field("key", TEXT, "whom"),
    Field("standing", choice(BlameKind), "in quarantine; placed apart until one faults alone; not admitted for a while; a GPU "
          "that takes no new clients"),
    Field("since", TIME),
    Field("until", maybe(TIME), "nil: no end is known"),
    Field("faults", WHOLE, "the number of faults that count"),
    Field("case", maybe(WHOLE), "the number of a fault: of the last one of who is convicted, of the one for which suspects are "
          "placed apart"),
    Field("group", maybe(WHOLE), "of suspects: those with the same number of a case are placed together"),
)  # fmt: skip


def standing(of: BlameStatus) -> Map:
    """Return a standing with the fact names that events of the family `blame` use."""
    return STANDING.of(of, standing=of.kind.value, since=of.since_at, until=of.until_at)
