"""Decide which clients are placed apart after a fault, because they caused it or could have.  It must never convict wrongly.

The effect of an incident; the first row that fits.  Its suspects' keys are taken together: two processes of one key are one.

| incident | effect |
|---|---|
| of the class DEVICE or HOST, or accuses no client | none; effects of an earlier revision are undone |
| culprit PROVEN | its key is convicted; its case, if it is in one, is over |
| culprit ALONE or LEFT, or all suspects have one key; settled | the same |
| suspects are a part of one group of a case | they are split anew, all others of the case are cleared: one round |
| a suspect's key is not known, the others are a part of one group | the case continues unchanged: that one may be the cause |
| an earlier revision began or narrowed a case that has continued without it or is over | none |
| any other suspects | a new case; they leave the cases that they were in |

So of n suspects in k groups, one that faults again and again is convicted after at most ceil(log_k n) + 1 further faults, if
groups are placed apart.  HOST and DEVICE convict and suspect no client: a kill or broken memory is not a client's fault.

A culprit that comes back under a new name has a new key, in the same wider keys (mpsd/model/fault.py, Party.wider_keys).  While
enough keys within a wider one are in quarantine, all other new clients of the wider one are placed apart too, together.  A
pause binds the key alone: it would cost innocent clients time.

Pure: time is given, in seconds since the epoch.  Prose: docs/faults.md, "Blame without proof".
"""

import itertools
from collections import Counter, deque
from collections.abc import Collection, Iterable, Sequence

from msgspec.structs import replace

from mpsd.faults.rules.blame_state import (
    BlameState,
    Change,
    Cleared,
    Convicted,
    Conviction,
    CrashRecord,
    Released,
    Suspected,
    SuspectSet,
)
from mpsd.faults.rules.settings import FaultSettings
from mpsd.model.accusation import accused, convicted_key, keys, wider_keys
from mpsd.model.fault import Incident, is_under_lease

MOST_CASES = 64
MOST_KEYS = 1024  # convicted, and as many with a record
_MOST_FAULTS = 32  # in a record
_MOST_PARDONED = 64
_MOST_SUSPECTED = 256
_KEYS_FOR_A_WIDER_ONE, _KEYS_FOR_A_USER = 2, 3  # in quarantine at the same time, to count for it
_MOST_SECONDS = 86_400.0  # of quarantine, if it is not configured to be longer


class Blame:
    """Guards that only a client that faulted alone or by proof is convicted, that a key is in one case at most, and bounds.

    state: all that has to be stored; a Blame that is made from it continues where this one was.
    """

    def __init__(self, settings: FaultSettings, state: BlameState | None = None) -> None:
        self._settings = settings
        state = state or BlameState()
        self._cases = {case.number: case for case in state.cases}
        self._convictions = {each.key: each for each in state.convictions}
        self._records = {each.key: each for each in state.records}
        self._pardoned: deque[int] = deque(maxlen=_MOST_PARDONED)  # incidents: later revisions of them convict no client again
        self._suspected: deque[int] = deque(maxlen=_MOST_SUSPECTED)  # incidents that began or narrowed cases

    @property
    def state(self) -> BlameState:
        cases, convictions = tuple(self._cases.values()), tuple(self._convictions.values())
        return BlameState(cases, convictions, tuple(self._records.values()))

    def configure(self, settings: FaultSettings) -> None:
        """Use other settings from now on; earlier decisions stay."""
        self._settings = settings

    def take(self, incident: Incident, now_at: float) -> Sequence[Change]:
        """Take any revision of an incident, any number of times; return what it changes."""
        if incident.number in self._pardoned:
            return ()
        if not (those := accused(incident)):
            return self._undo(incident.number, "")
        if (guilty := convicted_key(incident)) is not None:
            return self._convict(guilty, wider_keys(incident, guilty), incident.number, now_at)
        of_all = keys(incident, those)
        known = frozenset(each for each in of_all if each is not None)
        taken_back = self._take_back(incident.number)
        if not self._settings.quarantine:
            return taken_back
        users = {wider_keys(incident, each)[-1:] for each in known}
        user = "".join(users.pop()) if len(users) == 1 else ""
        if known != of_all:
            return (*taken_back, *self._prolong(incident.number, known, now_at, user))
        return (*taken_back, *self._suspect(incident.number, known, now_at, user))

    def placement(self, key: str, now_at: float, wider: Sequence[str] = ()) -> str:
        """Return the key of the domain that the client has to be placed in; empty if it shares one with others.

        wider: the keys that contain it, the narrowest first.
        """
        if not self._settings.quarantine:
            return ""
        conviction = self._convictions.get(key)
        if conviction is not None and conviction.binds(now_at):
            return f"quarantine:{key}"
        case = self._case_of(key)
        if case is not None and now_at < case.until:
            index = next(index for index, group in enumerate(case.groups) if key in group)
            return f"suspects:{case.number}:{case.version}.{index}"
        apart = self.wider_quarantines(now_at) if wider else {}
        return next((f"quarantine:{each}" for each in wider if each in apart), "")

    def wider_quarantines(self, now_at: float) -> dict[str, tuple[Conviction, ...]]:
        """Return the wider keys whose new clients are placed apart, and the convictions within each, the last to end first."""
        found: dict[str, list[Conviction]] = {}
        for each in sorted(self._convictions.values(), key=lambda one: one.until, reverse=True):
            for wider in each.wider if each.binds(now_at) else ():
                found.setdefault(wider, []).append(each)
        return {key: tuple(those) for key, those in found.items() if len(those) >= needed(those[0], key)}

    def pause(self, key: str, now_at: float) -> float:
        """Return for how many seconds the key's client may not start."""
        record = self._records.get(key)
        if record is None:
            return 0.0
        times = [at for _, at in record.faults if now_at - at < self._settings.crash_seconds]
        beyond = len(times) - self._settings.crash_faults
        if not times or beyond < 0:
            return 0.0
        whole = min(2.0 ** min(beyond, _MOST_FAULTS), self._settings.crash_pause_max)
        return max(0.0, min(whole, max(times) + whole - now_at))

    def pardon(self, key: str) -> Sequence[Change]:
        """Forget all convictions, suspicions and faults of the key, and of the keys that it contains.

        `lease:7` contains the keys of all users of the lease.
        """
        changes: list[Change] = []
        suspected = itertools.chain.from_iterable(case.keys for case in self._cases.values())
        of_lease = [each for each in (*self._convictions, *self._records, *suspected) if is_under_lease(each, key)]
        for inner in dict.fromkeys([*of_lease, *(each.key for each in self._convictions.values() if key in each.wider)]):
            changes += self.pardon(inner)
        self._pardoned.extend(number for number, _ in self._faults(key))
        self._records.pop(key, None)
        if (conviction := self._convictions.pop(key, None)) is not None:
            self._pardoned.append(conviction.number)
            changes.append(Released(key, "pardoned"))
        if (case := self._case_of(key)) is not None:
            self._leave_cases(frozenset({key}))
            changes.append(Cleared(case.number, (key,), "pardoned"))
        return tuple(changes)

    def decay(self, now_at: float) -> Sequence[Change]:
        """Release and clear the keys after their time; forget old faults."""
        changes: list[Change] = []
        for case in [each for each in self._cases.values() if each.until <= now_at]:
            changes += self._close(case, "no further fault")
        for each in list(self._convictions.values()):
            if each.forget_at <= now_at:
                del self._convictions[each.key]
            if each.until <= now_at and not each.is_released:
                changes.append(Released(each.key, "its time is over"))
            if each.until <= now_at < each.forget_at:
                self._convictions[each.key] = replace(each, is_released=True)
        for record in list(self._records.values()):
            late = tuple(fault for fault in record.faults if now_at - fault[1] < self._settings.crash_seconds)
            self._keep_record(replace(record, faults=late))
        return tuple(changes)

    def next_decay_at(self) -> float | None:
        """Return the time at which `decay` next changes something."""
        held = (each.until for each in self._convictions.values() if not each.is_released)
        return min((*(case.until for case in self._cases.values()), *held), default=None)

    # -- convictions -------------------------------------------------------------------------------------------------

    def _convict(self, key: str, wider: tuple[str, ...], number: int, now_at: float) -> Sequence[Change]:
        before = self._convictions.get(key)
        if number in dict(self._faults(key)) or (before is not None and before.number == number):
            return ()
        changes = [*self._undo(number, f"{key} did it")]
        self._keep_record(CrashRecord(key, (*self._faults(key), (number, now_at))[-_MOST_FAULTS:]))
        if not self._settings.quarantine:
            return (*changes, *self._bound())
        for case in [each for each in self._cases.values() if key in each.keys]:
            changes += self._close(case, f"{key} did it", but=key)
        times = before.times + 1 if before is not None else 1
        seconds = self._quarantine_seconds(times)
        self._convictions.pop(key, None)
        self._convictions[key] = Conviction(key, number, times, now_at + seconds, now_at + 2 * seconds, wider=wider)
        changes.append(Convicted(key, number, times, now_at + seconds))
        return (*changes, *self._bound())

    def _undo(self, number: int, why: str) -> Sequence[Change]:
        """Undo what an earlier revision of this incident did."""
        changes = [*self._take_back(number, why)]
        for case in [each for each in self._cases.values() if each.number == number or (why and each.last == number)]:
            changes += self._close(case, why or "no client is suspected any more")
        if number in self._suspected and not why:
            self._suspected.remove(number)
        return changes

    def _take_back(self, number: int, why: str = "") -> Sequence[Change]:
        """Withdraw the conviction that an earlier revision of this incident caused."""
        changes: list[Change] = []
        for record in [each for each in self._records.values() if number in dict(each.faults)]:
            self._keep_record(replace(record, faults=tuple(fault for fault in record.faults if fault[0] != number)))
        for each in [each for each in self._convictions.values() if each.number == number]:
            del self._convictions[each.key]
            if each.times > 1:
                self._convictions[each.key] = replace(each, number=0, times=each.times - 1)
            else:
                changes.append(Released(each.key, why or "it did not do it"))
        return tuple(changes)

    def _quarantine_seconds(self, times: int) -> float:
        first = self._settings.quarantine_seconds
        return min(first * 2.0 ** min(times - 1, 64), max(first, _MOST_SECONDS))

    def _faults(self, key: str) -> tuple[tuple[int, float], ...]:
        return self._records[key].faults if key in self._records else ()

    def _keep_record(self, record: CrashRecord) -> None:
        self._records.pop(record.key, None)
        if record.faults:
            self._records[record.key] = record

    # -- cases -------------------------------------------------------------------------------------------------------

    def _suspect(self, number: int, keys: frozenset[str], now_at: float, user: str) -> Sequence[Change]:
        until = now_at + self._settings.suspect_seconds
        said = next((case for case in self._cases.values() if case.last == number), None)
        if (said is not None and said.keys == keys) or (said is None and number in self._suspected):
            return ()
        wide = said or next((case for case in self._cases.values() if any(keys <= {*group} for group in case.groups)), None)
        changes: list[Change] = []
        if wide is None:
            self._leave_cases(keys)
            case = SuspectSet(number, number, 0, 0, self._split(keys), until, now_at, user)
        else:
            cleared = wide.keys - keys
            self._leave_cases(keys - wide.keys)
            rounds = wide.rounds + (said is None)
            case = SuspectSet(wide.number, number, rounds, wide.version + 1, self._split(keys), until, wide.since, user)
            if cleared:
                changes.append(Cleared(wide.number, tuple(sorted(cleared)), "others faulted without them"))
        self._cases.pop(case.number, None)
        self._cases[case.number] = case
        if number not in self._suspected:
            self._suspected.append(number)
        return (*changes, Suspected(case.number, case.groups), *self._bound())

    def _prolong(self, number: int, keys: frozenset[str], now_at: float, user: str) -> Sequence[Change]:
        """Continue the case of the known suspects, or begin one, if another suspect's key is not known."""
        if not keys:
            return ()
        inside = next((case for case in self._cases.values() if any(keys <= {*group} for group in case.groups)), None)
        if inside is not None:
            self._cases[inside.number] = replace(inside, until=now_at + self._settings.suspect_seconds)
            return ()
        return self._suspect(number, keys, now_at, user)

    def _split(self, keys: Iterable[str]) -> tuple[tuple[str, ...], ...]:
        """Split the keys into groups of about the same size."""
        ordered = sorted(keys)
        count = min(max(2, self._settings.groups), len(ordered))
        ends = [len(ordered) * index // count for index in range(count + 1)]
        return tuple(tuple(ordered[begin:end]) for begin, end in itertools.pairwise(ends))

    def _leave_cases(self, keys: frozenset[str]) -> None:
        for case in list(self._cases.values()):
            if case.keys & keys:
                groups = (tuple(key for key in group if key not in keys) for group in case.groups)
                self._cases[case.number] = replace(case, groups=tuple(groups))
                if not self._cases[case.number].keys:
                    del self._cases[case.number]

    def _close(self, case: SuspectSet, why: str, but: str = "") -> Sequence[Change]:
        del self._cases[case.number]
        keys = tuple(sorted(case.keys - {but}))
        return (Cleared(case.number, keys, why),) if keys else ()

    def _case_of(self, key: str) -> SuspectSet | None:
        return next((case for case in self._cases.values() if key in case.keys), None)

    def _bound(self) -> Sequence[Change]:
        """Drop the oldest beyond the bounds: records, cases of the user with the most, convictions, the expired ones first."""
        changes: list[Change] = []
        while len(self._cases) > MOST_CASES:
            of_user = Counter(case.user for case in self._cases.values())
            excess_case = max(self._cases.values(), key=lambda case: of_user[case.user])  # the first of several
            changes += self._close(excess_case, "too many cases")
        while len(self._records) > MOST_KEYS:
            del self._records[next(iter(self._records))]
        while len(self._convictions) > MOST_KEYS:
            excess = _first_to_go(self._convictions.values())
            del self._convictions[excess.key]
            changes.append(Released(excess.key, "too many convictions"))
        return changes


def _first_to_go(convictions: Collection[Conviction]) -> Conviction:
    """Return an expired one, else the oldest of the user with the most: new names of one user push out none of another."""
    of_user = Counter(each.wider[-1:] for each in convictions)
    return min(convictions, key=lambda each: (not each.is_released, -of_user[each.wider[-1:]], each.until))


def needed(conviction: Conviction, wider: str) -> int:
    """Return how many keys in quarantine within the wider key place its other clients apart too."""
    return _KEYS_FOR_A_USER if wider == conviction.wider[-1] else _KEYS_FOR_A_WIDER_ONE
