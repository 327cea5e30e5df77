"""Who an operator is: a command's caller, from the kernel's facts."""

from msgspec import Struct

ROOT_UID = 0


class Caller(Struct, frozen=True):
    """The user behind a command, from the kernel, and the user this daemon runs as."""

    uid: int
    daemon_uid: int
    is_admin: bool = False  # a member of the configured admin group
    is_inside: bool = True  # in mpsd's own pid namespace, or trusted nevertheless: not a container's root

    @property
    def is_owner(self) -> bool:
        return self.is_inside and (self.is_admin or self.uid in (ROOT_UID, self.daemon_uid))
