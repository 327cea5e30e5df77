"""Find the lease of a client: the most precise one that names it.

| selector | precision |
|---|---|
| its pid and start time | 1 |
| a token that it was started with | 2 |
| a cgroup that it is in; the deeper one first | 3 |
| its user | 4 |

Within one precision the newer lease wins.  A lease for one user never serves another user's process.  A process that mpsd
cannot see gets no lease: mpsd would not notice its end.  Prose: docs/leases.md, "Which lease a client gets".
"""

import hashlib
import hmac
from array import array
from collections.abc import Iterator

from mpsd.model import sorted_numbers
from mpsd.model.cgroup_path import parse_path
from mpsd.model.lease import Identity, Lease, Selector, SelectorKind

EVERYBODY = -1  # in place of a user

Key = tuple[str, str | int | bytes, int]  # kind, value, start time
Place = tuple[Key, int]  # with the user that its leases serve

_ROOT = "/"


class LeaseIndex:
    """Guards that every lease is found by its selector, in a time that does not grow with their number."""

    def __init__(self) -> None:
        self._places: dict[Place, dict[int, Lease]] = {}

    def put(self, lease: Lease) -> None:
        self._places.setdefault(place_of(lease), {})[lease.id] = lease

    def take(self, lease: Lease) -> None:
        place = place_of(lease)
        here = self._places.get(place, {})
        here.pop(lease.id, None)
        if not here:
            self._places.pop(place, None)

    def match(self, identity: Identity) -> Lease | None:
        for places in _by_precision(identity):
            found = [self._newest(place) for place in places if place in self._places]
            good = [lease for lease in found if _has_its_token(lease, identity)]
            if good:
                return max(good, key=lambda lease: lease.id)
        return None

    def _newest(self, place: Place) -> Lease:
        return next(reversed(self._places[place].values()))  # ids rise, and a lease is put in once


def place_of(lease: Lease) -> Place:
    return key_of(lease.spec.selector), EVERYBODY if lease.for_all_users else lease.owner_uid


def places_of(identity: Identity) -> "array[int]":
    """Return all places where a lease for this process could be, as sorted hashes: see `is_among`.

    With the paths, those of one process can take 167 KB, and thousands of processes wait.
    """
    return array("q", sorted({hash(place) for places in _by_precision(identity) for place in places}))


def is_among(place: Place, places: "array[int]") -> bool:
    """Return whether the place is one of these; a place with the same hash as one is taken for it."""
    return sorted_numbers.has(places, hash(place))


def key_of(selector: Selector) -> Key:
    if selector.kind is SelectorKind.TOKEN:
        return (selector.kind.value, _digest(selector.value), 0)
    if selector.kind is SelectorKind.CGROUP:
        return (selector.kind.value, selector.value, 0)
    return (selector.kind.value, int(selector.value), selector.start_time)


def why(lease: Lease) -> str:
    """Return the reason in words for the client's own user: without the name and the token of the lease."""
    selector = lease.spec.selector
    words = {
        SelectorKind.PID: f"names its pid {selector.value}",
        SelectorKind.TOKEN: "has its token",
        SelectorKind.CGROUP: f"names its cgroup {selector.value}",
        SelectorKind.UID: f"names its user {selector.value}",
    }
    return f"lease {lease.id} {words[selector.kind]}"


def _by_precision(identity: Identity) -> Iterator[list[Place]]:
    """Yield the places, the most precise first; equally precise ones together."""
    if identity.process is None:
        return
    both = (identity.uid, EVERYBODY)
    process = identity.process
    yield [((SelectorKind.PID.value, process.pid, process.start_time), uid) for uid in both]
    if identity.token:
        yield [((SelectorKind.TOKEN.value, _digest(identity.token), 0), uid) for uid in both]
    by_depth = _cgroup_places(identity)
    for depth in sorted(by_depth, reverse=True):
        yield by_depth[depth]
    yield [((SelectorKind.UID.value, identity.uid, 0), uid) for uid in both]


def _cgroup_places(identity: Identity) -> dict[int, list[Place]]:
    """Return the places by the depth of the directory: every path from the root, and every word for a part of it.

    A name that was given inside a container, or by a user's own service manager, serves only that user's leases.
    """
    found: dict[int, list[Place]] = {}
    kind = SelectorKind.CGROUP.value
    for cgroup in dict.fromkeys(identity.cgroups):
        path, directories = "", list(filter(None, cgroup.split(_ROOT)))
        for part in parse_path(cgroup):
            here = found.setdefault(part.depth, [])
            if part.name == directories[part.depth - 1]:  # not a name within one, as SLICE of SLICE:RUNTIME:ID
                path += f"{_ROOT}{part.name}"
                here += [((kind, path, 0), identity.uid), ((kind, path, 0), EVERYBODY)]
            for word in part.words():
                here.append(((kind, word, 0), identity.uid))
                if not part.is_chosen_inside:
                    here.append(((kind, word, 0), EVERYBODY))
    return found


def _digest(token: str) -> bytes:
    """Return the digest that a token is found by, so that the time of a look-up reveals at most something about the digest."""
    return hashlib.sha256(token.encode(errors="surrogatepass")).digest()


def _has_its_token(lease: Lease, identity: Identity) -> bool:
    selector = lease.spec.selector
    if selector.kind is not SelectorKind.TOKEN:
        return True
    return hmac.compare_digest(selector.value.encode(errors="surrogatepass"), identity.token.encode(errors="surrogatepass"))
