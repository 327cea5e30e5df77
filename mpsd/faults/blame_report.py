"""List convictions, suspicions, pauses and drained GPUs for operators."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec.structs import replace

from mpsd.domains.pool import Drained
from mpsd.faults.rules.blame import Blame, needed
from mpsd.model.blame import BlameKind, BlameStatus
from mpsd.model.fault import is_under_lease


def standings(blame: Blame, drained: Mapping[str, Drained], now_at: float) -> Iterator[BlameStatus]:
    state = blame.state
    faults = {record.key: record.faults for record in state.records}
    for conviction in state.convictions:
        if conviction.binds(now_at):
            since = _last_fault(faults.get(conviction.key, ()), now_at)
            yield BlameStatus(conviction.key, BlameKind.CONVICTED, since, conviction.until, conviction.times, conviction.number)
    for key, within in blame.wider_quarantines(now_at).items():
        since = max(_last_fault(faults.get(each.key, ()), now_at) for each in within)
        until = within[needed(within[0], key) - 1].until
        yield BlameStatus(key, BlameKind.CONVICTED, since, until, sum(each.times for each in within), within[0].number)
    for case in state.cases:
        for number, group in enumerate(case.groups):
            for key in group:
                yield BlameStatus(key, BlameKind.SUSPECTED, case.since, case.until, case.rounds + 1, case.number, number)
    for key, times_of in faults.items():
        if pause := blame.pause(key, now_at):
            yield BlameStatus(key, BlameKind.PAUSED, max(at for _, at in times_of), now_at + pause, len(times_of))
    for uuid, each in drained.items():
        yield BlameStatus(uuid, BlameKind.DRAINED, each.since_at)


def status_of(key: str, held: Iterable[BlameStatus]) -> BlameStatus | None:
    """Return the first entry of the key, or, if the key names a lease, of a user of that lease; under the given key."""
    found = next((each for each in held if each.key == key or is_under_lease(each.key, key)), None)
    return None if found is None else replace(found, key=key)


def _last_fault(faults: Sequence[tuple[int, float]], now_at: float) -> float:
    """Return the time of the last of a key's faults; now if none is recorded any more."""
    return max((at for _, at in faults), default=now_at)
