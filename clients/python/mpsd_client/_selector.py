"""The rule by which a lease matches clients."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Selector:
    """The rule by which a lease matches clients.  `value` is None if this user may not see it: another user's token."""

    kind: str
    value: str | None
    start_time: int = 0

    @classmethod
    def of_self(cls) -> "Selector":
        """Select this process; mpsd identifies it across pid namespaces."""
        return cls("pid", "self")

    @classmethod
    def of_pid(cls, pid: int, start_time: int = 0) -> "Selector":
        """Select a process by its pid in mpsd's pid namespace.  start_time: field 22 of /proc/PID/stat; 0: that of the process
        with this pid now."""
        return cls("pid", str(pid), start_time)

    @classmethod
    def of_token(cls, token: str) -> "Selector":
        """Select processes with MPSD_LEASE=token in their environment."""
        return cls("token", token)

    @classmethod
    def of_cgroup(cls, path: str) -> "Selector":
        """Select processes in this cgroup or below, or in a container, job or unit of this name."""
        return cls("cgroup", path)

    @classmethod
    def of_uid(cls, uid: int) -> "Selector":
        return cls("uid", str(uid))
