"""When a domain counts as one that makes no contexts any more."""

from types import SimpleNamespace

import pytest

from mpsd.domains.domain import Domain
from mpsd.domains.newcomer_failures import NewcomerFailures
from mpsd.domains.newcomers import Newcomers
from mpsd.fairness.uid_ranges import of_ranges
from mpsd.model.domain import DomainState


class Pool:
    """A pool with two domains, of which the rule reads and sets seven fields."""

    def __init__(self) -> None:
        facts = {"is_ill": False, "is_draining": False, "is_worn": False, "uids": {}}
        self.domains = {name: SimpleNamespace(name=name, failures=NewcomerFailures(), **facts) for name in ("default", "d2")}
        self.notified = 0
        self.ranges = of_ranges([(100_000, 165_536)])

    def notify(self) -> None:
        self.notified += 1


@pytest.mark.parametrize(
    ("ends", "is_worn"),
    [
        ("..." , True),
        ("..", False),
        ("..+..", False),
        ("+...", True),
        ("..+...", True),
    ],
)
def test_three_failures_in_a_row_close_a_domain(ends: str, is_worn: bool) -> None:
    """A dot is a client without a context, a plus is one that had one."""
    pool = Pool()
    newcomers = Newcomers(pool)  # type: ignore[arg-type]
    for end in ends:
        newcomers.note_end("default", end == "+", 7)
        newcomers.note_end("d2", True, 7)
    assert (pool.domains["default"].is_draining, bool(pool.notified)) == (is_worn, is_worn)
    assert pool.domains["default"].is_worn == is_worn
    assert not pool.domains["d2"].is_draining


def test_failures_of_a_domain_in_fault_say_nothing_about_its_next_server() -> None:
    pool = Pool()
    newcomers = Newcomers(pool)  # type: ignore[arg-type]
    for is_ill in (False, False, True, False, False):
        pool.domains["default"].is_ill = is_ill
        newcomers.note_end("default", False, 7)
    assert not pool.domains["default"].is_draining


async def test_failures_at_a_vendor_daemon_that_has_died_do_not_close_the_domain_later() -> None:
    pool = Pool()
    domain = Domain("default", 1, ("GPU-a",), None, 48, state=DomainState.READY)  # type: ignore[arg-type]
    pool.domains["default"] = domain  # type: ignore[assignment]
    newcomers = Newcomers(pool)  # type: ignore[arg-type]
    for _ in range(2):
        newcomers.note_end("default", False, 7)
        newcomers.note_end("default", False, 7)
        domain.forget()
    assert not domain.is_draining


def test_a_domain_that_has_gone_is_forgotten() -> None:
    pool = Pool()
    newcomers = Newcomers(pool)  # type: ignore[arg-type]
    for _ in range(5):
        newcomers.note_end("d9", False, 7)
    assert pool.notified == 0


@pytest.mark.parametrize(
    ("present", "failing", "is_worn"),
    [
        pytest.param([7, 7], [7, 7, 7], True, id="its only user"),
        pytest.param([7, 8], [7] * 20, False, id="one of several users of a server"),
        pytest.param([8], [7, 7, 7, 8], True, id="and then another one"),
        pytest.param([8], [7, 7, None], False, id="and one that nobody knows"),
        pytest.param([], [7, 7, 7], True, id="no client of any other"),
        pytest.param([8], [100_000, 100_001, 100_002], False, id="one user's subordinate uids"),
        pytest.param([8], [7, 100_000] * 10, False, id="one person, who has such uids too"),
        pytest.param([8], [7, 9, 10], True, id="three users"),
    ],
)
def test_no_user_closes_a_domain_to_the_others_in_it(present: list[int], failing: list[int | None], is_worn: bool) -> None:
    """With -multiuser-server: it takes three programs that end early."""
    pool = Pool()
    pool.domains["default"].uids = dict(enumerate(present))
    newcomers = Newcomers(pool)  # type: ignore[arg-type]
    for uid in failing:
        newcomers.note_end("default", False, uid)
    assert pool.domains["default"].is_draining == is_worn


@pytest.mark.parametrize(
    ("containers", "is_worn"),
    [(["a", "a", "a"], False), (["a", "a", ""], False), (["a", "b", ""], True), (["", "", ""], True)],
)
def test_users_of_one_container_count_as_one(containers: list[str], is_worn: bool) -> None:
    """Root of a container without a user namespace was three users, and closed each domain to all others, one after another."""
    pool = Pool()
    pool.domains["default"].uids = {0: 8}
    newcomers = Newcomers(pool)  # type: ignore[arg-type]
    for uid, container in zip((7, 9, 10), containers, strict=True):
        newcomers.note_end("default", False, uid, container)
    assert pool.domains["default"].is_draining == is_worn


@pytest.mark.parametrize(
    ("ends", "failures"),
    [
        pytest.param([(7, False)] * 3, {7: 3}, id="in a row"),
        pytest.param([(7, False), (8, True)] * 3, {7: 3}, id="whatever another one can do"),
        pytest.param([(7, False), (7, False), (7, True), (7, False)], {7: 1}, id="since its last context"),
        pytest.param([(100_000, False), (100_001, False)], {100_000: 2}, id="of one user's subordinate uids"),
        pytest.param([(None, False)], {}, id="of nobody that is known"),
    ],
)
def test_the_failures_of_each_user_are_counted(ends: list[tuple[int | None, bool]], failures: dict[int, int]) -> None:
    """A user who wears the server of all users out, and stays, had them fail there for ever."""
    pool = Pool()
    pool.domains["default"].uids = {0: 8, 1: 9}
    newcomers = Newcomers(pool)  # type: ignore[arg-type]
    for uid, had_context in ends:
        newcomers.note_end("default", had_context, uid)
    assert pool.domains["default"].failures.of_user == failures
    assert not pool.domains["default"].is_draining


def test_few_users_are_counted() -> None:
    pool = Pool()
    pool.domains["default"].uids = {0: 8}
    newcomers = Newcomers(pool)  # type: ignore[arg-type]
    for uid in range(20_000, 24_000):
        pool.domains["default"].is_draining = False
        newcomers.note_end("default", False, uid)
    assert len(pool.domains["default"].failures.of_user) <= 1024
