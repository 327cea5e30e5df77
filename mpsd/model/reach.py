"""Which processes a caller reaches: those of its own pid namespace and of the namespaces below it, as with kill(2).

| the caller's bound | it reaches |
|---|---|
| EVERYTHING: it is in mpsd's own pid namespace | every process that mpsd sees |
| a pid namespace, by its number | processes of that namespace and of those below |
| NOTHING: its pid namespace is not known | no process |

A process in a container without a user namespace can take any uid, so its uid alone gives it no right to a process outside.
Prose: docs/decisions/033-a-caller-reaches-its-own-pid-namespace.md.
"""

from collections.abc import Iterable

EVERYTHING = None
NOTHING = 0  # the number of no namespace

Bound = int | None


def bound_of(namespaces: tuple[int, ...]) -> Bound:
    """Return the bound of a caller in these pid namespaces, its own first, mpsd's own last; an empty tuple: not known."""
    if not namespaces:
        return NOTHING
    return EVERYTHING if len(namespaces) == 1 else namespaces[0]


def reaches(bound: Bound, namespaces: tuple[int, ...]) -> bool:
    """Return whether a caller with this bound reaches a process in these pid namespaces."""
    return bound is EVERYTHING or (bound != NOTHING and bound in namespaces)


def is_within(directory: str, tops: Iterable[str]) -> bool:
    """Return whether a cgroup is one of `tops`, or below one."""
    return any(directory == top or directory.startswith(f"{top}/") for top in tops)
