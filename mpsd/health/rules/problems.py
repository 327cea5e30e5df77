"""Decide whether a client that starts now would be served, from facts that mpsd keeps up to date (health/collector.py).

A problem keeps a client of a further user out; a warning is about present clients or their arenas: a client that starts now is
served, and it may be the doing of their user, who must not make mpsd look ill.  Each names what was found and what to do.
Prose: docs/monitoring.md, "Health".
"""

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct, field

from mpsd.domains.rules.placement import Create, Join, Wait
from mpsd.model.arena import KeeperView
from mpsd.model.domain import DomainState, DomainView

LEAST_FREE_BYTES = 256 << 10  # a database takes up to 50 KiB at its first writes, a vendor daemon's files up to 20
LEAST_FREE_FILES = 32  # a domain makes a dozen
LATE_SECONDS = 5.0  # checks run every half second, and later on a busy machine


class Storage(Struct, frozen=True):
    """The result of a check of the state directory.

    trouble: why it is not the directory that mpsd was started with; "": it is. free_files: None if the file system has no fixed
    number of files. damaged: databases that were removed or truncated.
    """

    path: str
    trouble: str = ""
    is_read_only: bool = False
    free_bytes: int = LEAST_FREE_BYTES
    free_files: int | None = None
    damaged: tuple[str, ...] = ()


class HealthFacts(Struct, frozen=True):
    """The facts at the time of a request.

    placement: the place of a client of a user without a domain. storage: None before its first check. seen_seconds: the age
    of that check. unwritten: why mpsd's facts about its domains could not be stored; "": they could. has_keeper: None if mpsd
    needs none. vault: the keepers of arenas. missing: files by which clients find mpsd, and that do not exist. queued,
    places: of the queue. waiting, waited_seconds, waits_for: the number of clients that wait for a fault domain, the wait of
    the first one, and its reason; without those that wait for their own user's clients, since a user must not make mpsd look
    ill. clients, most_clients: running or starting clients, and their limit. lost_gpus: GPUs whose errors NVML no longer
    reports, with the reason. unprotected: domains without the sentinel that is configured, in words. barred: why no client
    gets the one that it needs.
    """

    domains: Sequence[DomainView]
    placement: Join | Create | Wait
    is_stopping: bool = False
    storage: Storage | None = None
    seen_seconds: float = 0.0
    unwritten: str = ""
    has_keeper: bool | None = None
    vault: KeeperView = KeeperView("works")
    missing: Sequence[str] = ()
    queued: int = 0
    places: int = 1
    waiting: int = 0
    waited_seconds: float = 0.0
    waits_for: str = ""
    clients: int = 0
    most_clients: int = 1
    lost_gpus: Mapping[str, str] = field(default_factory=dict)
    unprotected: Sequence[str] = ()
    barred: Sequence[str] = ()


def problems(facts: HealthFacts) -> list[str]:
    """Return why a client that starts now might not be served, or its grant not be kept; empty if all is well."""
    if facts.is_stopping:
        return ["mpsd is quitting and takes no new clients"]
    found = (_of_domains(facts), _of_doors(facts), _of_storage(facts), _of_rooms(facts), _of_gpus(facts))
    return [*(problem for each in found for problem in each), *facts.barred]


def warnings(facts: HealthFacts) -> list[str]:
    """Return what ails clients or arenas that are there, and keeps no further user's client out."""
    blocked = (
        f"domain {view.name}: {view.trouble} (`client.stopped` in mpsd.log has its pid; docs/sentinel.md)"
        for view in facts.domains
        if view.is_blocked
    )
    mute = (_mute(view) for view in _mute_ones(facts) if facts.placement != Join(view.name))
    return [*blocked, *mute, *_of_vault(facts.vault), *facts.unprotected]


def _of_vault(vault: KeeperView) -> Iterator[str]:
    if not vault.works:
        pids = ", ".join(map(str, vault.pids)) or "not known"
        yield f"the vault's keepers (pid {pids}): {vault.state}, and arenas with memory there are refused; is it stopped?"


def _mute_ones(facts: HealthFacts) -> list[DomainView]:
    return [view for view in facts.domains if view.state is DomainState.READY and not view.is_answering]


def _mute(view: DomainView) -> str:
    return f"{describe(view)}, and clients that are placed there wait: is it stopped, or its GPU very busy?"


def _of_domains(facts: HealthFacts) -> Iterator[str]:
    ready = [view for view in facts.domains if view.state is DomainState.READY]
    if not any(view.is_answering for view in ready):
        states = ", ".join(describe(view) for view in facts.domains)
        yield f"no fault domain takes clients: {states}" if states else "no fault domain exists"
        return
    yield from (_mute(view) for view in _mute_ones(facts) if facts.placement == Join(view.name))
    if isinstance(facts.placement, Wait):
        yield f"a client of a further user would wait: {facts.placement.reason}"
    elif facts.waited_seconds > LATE_SECONDS:  # until then its domain may be starting
        yield (
            f"clients that wait for a fault domain: {facts.waiting}, one for {facts.waited_seconds:.0f} s: {facts.waits_for} "
            "(mpsctl queue)"
        )
    elif isinstance(facts.placement, Create) and (failed := list(filter(_has_failed, facts.domains))):
        yield f"a client of a further user needs a new fault domain, and {describe(failed[0])}"


def _has_failed(view: DomainView) -> bool:
    """Return whether a new domain may fail as this one.  With clients its silence can be the doing of their user."""
    return view.state is DomainState.DEAD or (view.state is DomainState.SILENT and not view.clients)


def describe(view: DomainView) -> str:
    if view.state is DomainState.READY and not view.is_answering:
        return f"{view.name} does not answer"
    return f"{view.name} is {view.state.value}" + (f" ({view.trouble})" if view.trouble else "")


def _of_doors(facts: HealthFacts) -> Iterator[str]:
    if facts.missing:
        names = ", ".join(facts.missing)
        yield f"clients cannot find mpsd: {names} is missing; mpsd makes it again, or mpsd.log has the reason"
    if facts.has_keeper is False:
        yield "no keeper runs, so clients that are starting would notice a restart of mpsd; mpsd.log has the reason"


def _of_storage(facts: HealthFacts) -> Iterator[str]:
    if facts.seen_seconds > LATE_SECONDS:
        yield f"the disk of the state directory has not answered for {facts.seen_seconds:.0f} s: look at it (dmesg)"
    if (storage := facts.storage) is None:
        return
    if storage.trouble:
        yield (
            f"the state directory {storage.path} {storage.trouble}: running clients continue, and mpsd keeps a copy there; "
            "kill mpsd (`kill -9`, which clients do not notice) and start it"
        )
        return
    if storage.is_read_only:
        yield f"the state directory {storage.path} is read-only: remount it writable (dmesg has the reason)"
    elif lack := _lack(storage):
        yield f"the disk of the state directory {storage.path} is full: {lack}; make room"
    for name in storage.damaged:
        yield f"{storage.path}/{name} was removed, replaced or truncated: let clients end, then `quit` and start mpsd"
    if facts.unwritten:
        yield f"the facts about the domains cannot be stored: {facts.unwritten}"


def _of_gpus(facts: HealthFacts) -> Iterator[str]:
    for gpu, why in facts.lost_gpus.items():
        yield f"NVML reports no errors of GPU {gpu} any more, and clients there may fail: {why} (nvidia-smi, dmesg)"


def _lack(storage: Storage) -> str:
    """Return what is lacking; empty if nothing is."""
    if storage.free_bytes < LEAST_FREE_BYTES:
        return f"{storage.free_bytes >> 10} KiB are free, {LEAST_FREE_BYTES >> 10} are needed"
    if storage.free_files is not None and storage.free_files < LEAST_FREE_FILES:
        return f"{storage.free_files} more files can be made, {LEAST_FREE_FILES} are needed"
    return ""


def _of_rooms(facts: HealthFacts) -> Iterator[str]:
    if facts.queued >= facts.places:
        yield f"the queue is full: {facts.queued} wait, and a client that would wait has no place (mpsctl queue)"
    if facts.clients >= facts.most_clients:
        yield (
            f"{facts.clients} clients run, as many as mpsd takes on: raise relay.max_connections and LimitNOFILE= "
            '(docs/operating.md, "Open files"), or end clients'
        )
