"""Refuse leases if mpsd is not root: clients do not connect through it then, so it could not enforce a lease."""

from mpsd.errors import BadRequest
from mpsd.leases.lease_book import LeaseBook
from mpsd.model.lease import Lease, LeaseSpec


class UnenforcedBook(LeaseBook):
    """Guards that no lease is given that would limit no client."""

    def create(self, owner_uid: int, spec: LeaseSpec, for_all_users: bool | None = None) -> Lease:
        raise BadRequest("leases need root: without it clients do not pass through mpsd, and nothing would limit them")
