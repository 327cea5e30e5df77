"""Limit how much one user may cause: token buckets, one for each key.  Pure: the caller gives the time.

Refusals are counted, and the caller gets the counts to report them: nothing is suppressed silently.
"""

from collections.abc import Hashable, Mapping

from msgspec import Struct

OTHERS = "others"  # the shared key of all that came after the last free key was taken
_MOST_KEYS = 1024
_TIDY_SECONDS = 1.0  # between searches of a full table for idle keys: a user with many uids must not cause more of them


class Rate(Struct, frozen=True):
    """`burst` at once, `per_second` from then on; of lines, bytes or any other unit of the caller."""

    burst: float
    per_second: float

    def times(self, number: int) -> "Rate":
        return Rate(self.burst * number, self.per_second * number)


class _Bucket(Struct):
    rate: Rate
    level: float  # the amount that may still be spent
    at: float  # the time of `level`
    suppressed: int = 0  # refusals that are not reported yet

    def level_at(self, now: float) -> float:
        return min(self.rate.burst, self.level + (now - self.at) * self.rate.per_second)

    def fill(self, now: float) -> None:
        self.level, self.at = self.level_at(now), now


class Rates:
    """Guards that no key spends more than its rate, nor all together more than `total`.

    Each refusal is counted until it is reported.
    """

    def __init__(self, rate: Rate, total: Rate | None = None, most_keys: int = _MOST_KEYS) -> None:
        self._rate, self._total, self._most = rate, total, most_keys
        self._sum: _Bucket | None = None
        self._buckets: dict[Hashable, _Bucket] = {}
        self._tidied = float("-inf")

    def allows(self, key: Hashable, now: float, cost: float = 1.0) -> bool:
        """Spend `cost` if the key has it, else count a refusal and return False.  A cost above the burst is never allowed."""
        bucket = self._bucket(key, now)
        if self._sum is None and self._total is not None:
            self._sum = _Bucket(self._total, self._total.burst, now)
        spent = [bucket] if self._sum is None else [bucket, self._sum]
        for each in spent:
            each.fill(now)
        if any(each.level < cost for each in spent):
            bucket.suppressed += 1
            return False
        for each in spent:
            each.level -= cost
        return True

    def take_suppressed(self) -> Mapping[Hashable, int]:
        """Return the number of refusals of each key since the last call."""
        found = {key: bucket.suppressed for key, bucket in self._buckets.items() if bucket.suppressed}
        for key in found:
            self._buckets[key].suppressed = 0
        return found

    def _bucket(self, key: Hashable, now: float) -> _Bucket:
        if key not in self._buckets and len(self._buckets) >= self._most:
            self._tidy(now)
            if len(self._buckets) >= self._most:
                key = OTHERS
        return self._buckets.setdefault(key, _Bucket(self._rate, self._rate.burst, now))

    def _tidy(self, now: float) -> None:
        """Forget keys with a full bucket: a new bucket would be the same."""
        if now - self._tidied < _TIDY_SECONDS:
            return
        self._tidied = now
        for key, bucket in list(self._buckets.items()):
            if not bucket.suppressed and bucket.level_at(now) >= self._rate.burst:
                del self._buckets[key]
