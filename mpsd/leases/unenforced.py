"""Leases where mpsd is not root: none.  Clients do not pass through it there, so it could not keep what it promised."""

from mpsd.errors import BadRequest
from mpsd.lease import Lease, LeaseSpec
from mpsd.leases.book import LeaseBook


class UnenforcedBook(LeaseBook):
    """Guards that no lease is given that would limit nobody."""

    def create(self, owner_uid: int, spec: LeaseSpec, for_all_users: bool | None = None) -> Lease:
        raise BadRequest("leases need root: without it clients do not pass through mpsd, and nothing would limit them")
