"""List convictions, suspicions, pauses and drained GPUs for operators."""

from collections.abc import Iterator, Mapping

from mpsd.api.services import Standing, StandingKind
from mpsd.domains.pool import Drained
from mpsd.policy.blame import Blame


def standings(blame: Blame, drained: Mapping[str, Drained], now_at: float) -> Iterator[Standing]:
    state = blame.state
    faults = {record.key: record.faults for record in state.records}
    for conviction in state.convictions:
        if not conviction.is_released and now_at < conviction.until:
            times = [at for _, at in faults.get(conviction.key, ())]
            since = max(times, default=now_at)
            yield Standing(conviction.key, StandingKind.CONVICTED, since, conviction.until, conviction.times, conviction.number)
    for case in state.cases:
        for number, group in enumerate(case.groups):
            for key in group:
                yield Standing(key, StandingKind.SUSPECTED, case.since, case.until, case.rounds + 1, case.number, number)
    for key, times_of in faults.items():
        if pause := blame.pause(key, now_at):
            yield Standing(key, StandingKind.PAUSED, max(at for _, at in times_of), now_at + pause, len(times_of))
    for uuid, each in drained.items():
        yield Standing(uuid, StandingKind.DRAINED, each.since_at)
