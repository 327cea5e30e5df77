"""A process that has connected to a domain, and has no context there, when another user's client has joined."""

import math
from types import SimpleNamespace

import pytest

from mpsd.domains.domain import Domain
from mpsd.domains.pool import Pool
from mpsd.model.domain import DomainState
from mpsd.model.process import ProcessId

IDLE, OTHER = ProcessId(101, 7), ProcessId(201, 7)


@pytest.mark.parametrize(
    ("uid", "has_channel", "is_multiuser", "is_bound"),
    [
        pytest.param(1001, False, False, False, id="another user's"),
        pytest.param(1000, False, False, True, id="its own user's"),
        pytest.param(1001, True, False, True, id="it may have a server there"),
        pytest.param(1001, False, True, True, id="users share the server"),
    ],
)
async def test_it_leaves_a_domain_that_another_user_has(
    uid: int, has_channel: bool, is_multiuser: bool, is_bound: bool
) -> None:
    """Its next connection made it a client of that user's domain, where its Xids counted as those of the domain."""
    pool = Pool(SimpleNamespace(is_multiuser=is_multiuser), None, (), None, None, None, None)  # type: ignore[arg-type]
    domain = pool.domains["d2"] = Domain("d2", 2, ("GPU-a",), None, 48, state=DomainState.READY)  # type: ignore[arg-type]
    domain.members = {IDLE: math.inf if has_channel else 0.0, OTHER: math.inf}
    domain.uids, domain.joined_uid = {IDLE: uid, OTHER: 1000}, 1000
    assert pool._is_bound(domain, IDLE) is is_bound
    assert (IDLE in domain.members) is is_bound
