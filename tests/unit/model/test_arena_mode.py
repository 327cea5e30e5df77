"""The mode of an arena works like that of a file; a writer must be allowed to read."""

from typing import Any

import pytest

from mpsd.model.arena import Access
from mpsd.model.arena_mode import may

OWNER, MEMBER, OTHER = (1000, (1000,)), (2000, (1100, 2000)), (3000, (3000,))

# mode: what each may
RULES = {
    0o600: ("rw", "", ""),
    0o640: ("rw", "r", ""),
    0o660: ("rw", "rw", ""),
    0o644: ("rw", "r", "r"),
    0o666: ("rw", "rw", "rw"),
    0o000: ("", "", ""),
    0o400: ("r", "", ""),
    0o200: ("", "", ""),
    0o004: ("", "", "r"),
    0o006: ("", "", "rw"),
    0o060: ("", "rw", ""),
    0o022: ("", "", ""),
    0o777: ("rw", "rw", "rw"),
    0o111: ("", "", ""),
}


@pytest.mark.parametrize(("mode", "rights"), RULES.items(), ids=[f"{mode:03o}" for mode in RULES])
def test_who_may_what(mode: int, rights: tuple[str, str, str]) -> None:
    for (uid, gids), expected in zip((OWNER, MEMBER, OTHER), rights, strict=True):
        assert may(Access.READ, mode, 1000, 1100, uid, gids) == ("r" in expected)
        assert may(Access.WRITE, mode, 1000, 1100, uid, gids) == ("w" in expected)


def test_the_first_that_one_belongs_to_decides() -> None:
    """An owner that is locked out is not let in as one of the group, nor a member as one of the others."""
    assert not may(Access.READ, 0o077, 1000, 1100, 1000, (1100,))
    assert not may(Access.READ, 0o707, 1000, 1100, 2000, (1100,))


class Looked(list[int]):
    """Counts how many of its items are looked at."""

    count = 0

    def __getitem__(self, at: Any) -> Any:
        self.count += 1
        return super().__getitem__(at)

    def __contains__(self, item: object) -> bool:
        self.count += len(self)
        return super().__contains__(item)


def test_a_process_with_many_groups_costs_little() -> None:
    """A list of 1,024 arenas took 0.5 s in one step for a process with 65,536 groups."""
    gids = Looked(range(100_000, 165_536))
    assert may(Access.READ, 0o640, 1000, 165_535, 2000, gids)
    assert not may(Access.READ, 0o640, 1000, 1100, 2000, gids)
    assert not may(Access.READ, 0o640, 1000, 165_536, 2000, gids)
    assert gids.count <= 64
