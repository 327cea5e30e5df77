"""Operators are root, the daemon's own user and members of the group, as the kernel reports the peer."""

import contextlib
import errno
import grp
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from mpsd.api import authority
from mpsd.api.authority import peer_of
from mpsd.host import peers, processes
from mpsd.host.peers import caller_of, is_operator
from mpsd.host.process_reader import Unanswered
from mpsd.host.processes import process_id
from mpsd.model.reach import EVERYTHING, NOTHING

ANOTHER = 54321
CONNECTS = """
import os, socket, sys
out, uid, gid, *groups = map(int, sys.argv[1:])
os.setgroups(groups); os.setgid(gid); os.setuid(uid)
made = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
socket.send_fds(socket.socket(fileno=out), [b"x"], [made[0].fileno()])
sys.stdin.read()
"""


@contextmanager
def connected(uid: int, gid: int, groups: list[int], *namespaces: str) -> Iterator[socket.socket]:
    """A connection of a process with these ids, which lives; namespaces: words of unshare(1)."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    command = [*(["unshare", "--fork", *namespaces] if namespaces else []), sys.executable, "-S", "-c", CONNECTS]
    words = [str(theirs.fileno()), str(uid), str(gid), *map(str, groups)]
    child = subprocess.Popen([*command, *words], pass_fds=[theirs.fileno()], stdin=subprocess.PIPE)
    try:
        _, [descriptor], _, _ = socket.recv_fds(ours, 1, 1)
        with socket.socket(fileno=descriptor) as made:
            yield made
    finally:
        child.communicate()
        ours.close()
        theirs.close()


def connection_of(uid: int, gid: int, groups: list[int]) -> socket.socket:
    """One that a process with these ids has made; the process has ended."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    child = os.fork()
    if child == 0:
        try:
            os.setgroups(groups)
            os.setgid(gid)
            os.setuid(uid)
            made = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            socket.send_fds(theirs, [b"x"], [made[0].fileno()])
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    _, descriptors, _, _ = socket.recv_fds(ours, 1, 1)
    ours.close()
    theirs.close()
    return socket.socket(fileno=descriptors[0])


@contextmanager
def connected_child() -> Iterator[socket.socket]:
    """A connection of a child process, which lives."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with ours, theirs:
        if os.fork() == 0:
            try:
                made = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                socket.send_fds(theirs, [b"x"], [made[0].fileno()])
                signal.pause()
            finally:
                os._exit(0)
        _, [descriptor], _, _ = socket.recv_fds(ours, 1, 1)
    with socket.socket(fileno=descriptor) as made:
        yield made


@pytest.fixture
def group() -> grp.struct_group:
    """A group that this machine has, and that no user is in by default."""
    return next(each for each in grp.getgrall() if each.gr_gid not in (0, os.getgid(), *os.getgroups()))


@pytest.mark.root
def test_root_and_the_daemons_own_user_are_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    with connected(0, 0, []) as made:
        assert peer_of(made, None).is_operator
        assert caller_of(made, None)[1].is_owner
    with connected(ANOTHER, ANOTHER, []) as made:
        peer = peer_of(made, None)
        assert (peer.uid, peer.is_operator) == (ANOTHER, False)
        monkeypatch.setattr(os, "geteuid", lambda: ANOTHER)
        assert peer_of(made, None).is_operator


@pytest.mark.root
def test_members_of_the_group_are_operators(group: grp.struct_group) -> None:
    many = [*range(20000, 21000), group.gr_gid]
    for gid, groups in ((group.gr_gid, []), (ANOTHER, [7, group.gr_gid]), (ANOTHER, many)):
        with connected(ANOTHER, gid, groups) as made:
            assert peer_of(made, group.gr_gid).is_operator
            assert is_operator(made, group.gr_gid) == (groups is not many), "so many are not read for each connection"
            assert not is_operator(made, None)
            assert not peer_of(made, None).is_operator
            assert not peer_of(made, group.gr_gid + 1).is_operator


@pytest.mark.root
def test_others_are_not(group: grp.struct_group) -> None:
    with connection_of(ANOTHER, ANOTHER, [ANOTHER + 1]) as made:
        assert not peer_of(made, group.gr_gid).is_operator


def test_who_made_a_connection_is_told_by_the_kernel() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        peer = peer_of(ours, None)
        assert (peer.pid, peer.uid, peer.is_operator) == (os.getpid(), os.getuid(), True)


def test_a_process_is_told_apart_from_a_later_one_with_its_pid() -> None:
    """As long as it lives; an ended process gets no identity, even before its pid is free."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        assert peer_of(ours, None).process == process_id(os.getpid())


@pytest.mark.root
def test_a_process_that_has_ended_is_nobody() -> None:
    with connection_of(0, 0, []) as made:
        peer = peer_of(made, None)
        assert peer.pid
        assert peer.process is None


@pytest.mark.root
def test_a_process_that_is_ending_is_nobody() -> None:
    """Its parent has not collected it yet, so its pid is still its own."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    child = os.fork()
    if child == 0:
        try:
            made = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            socket.send_fds(theirs, [b"x"], [made[0].fileno()])
        finally:
            os._exit(0)
    with ours, theirs:
        _, [fd], _, _ = socket.recv_fds(ours, 1, 1)
        os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
        with socket.socket(fileno=fd) as made:
            assert peer_of(made, None).process is None
        os.waitpid(child, 0)


def test_an_older_kernel_is_asked_by_pid(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not know SO_PEERPIDFD, which came with Linux 6.5."""
    monkeypatch.setattr(peers, "_SO_PEERPIDFD", 9999)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        assert peer_of(ours, None).process == process_id(os.getpid())
        monkeypatch.setattr(processes, "has_uid", lambda pid, uid: uid == ANOTHER)  # the pid went to another user's process
        assert peer_of(ours, None).process is None


@pytest.mark.root
def test_root_of_a_container_is_no_operator(group: grp.struct_group) -> None:
    """Without a user namespace it has root's uid, and can take any group; its pid namespace distinguishes it."""
    with connected(0, group.gr_gid, [], "--pid") as made:
        peer = peer_of(made, group.gr_gid)
        assert (peer.uid, peer.is_operator) == (0, False)
        assert not caller_of(made, group.gr_gid)[1].is_owner
        assert not is_operator(made, group.gr_gid)
        assert is_operator(made, None, trusts_containers=True)
        assert peer_of(made, None, trusts_containers=True).is_operator
        assert caller_of(made, None, trusts_containers=True)[1].is_owner


@pytest.mark.root
def test_root_of_a_container_is_no_operator_when_its_pid_becomes_a_host_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends between mpsd's look at who connected, and its look at the namespace of the pid."""

    def asked_too_late(pid: int) -> tuple[int, ...]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        return (1,)  # mpsd's own alone

    monkeypatch.setattr(processes, "read_pid_namespaces", asked_too_late)
    for finds_operator in (lambda made: peer_of(made, None).is_operator, lambda made: caller_of(made, None)[1].is_owner):
        with connected_child() as made:
            assert not finds_operator(made)


@pytest.mark.root
@pytest.mark.parametrize("way", ["stat", "uids", "namespaces"])
def test_an_operator_whose_process_cannot_be_read_is_not_taken_for_a_stranger(
    monkeypatch: pytest.MonkeyPatch, group: grp.struct_group, way: str
) -> None:
    """Leases that are there do not exist for a stranger: Slurm's Epilog took its job's for released."""

    def unread(pid: int, *_: object, **__: object) -> None:
        raise Unanswered(errno.EBUSY, "its user's processes are not read for 5 s")

    def without_pidfd(connection: socket.socket) -> int:
        raise OSError(errno.ENOPROTOOPT, "as before Linux 6.5")

    names = {"stat": "process_id", "uids": "_status", "namespaces": "read_pid_namespaces"}
    with connected(0, 0, []) as root, connected(ANOTHER, group.gr_gid, []) as member, connected(ANOTHER, 7, []) as other:
        monkeypatch.setattr(processes, names[way], unread)
        if way == "uids":
            monkeypatch.setattr(peers, "_pidfd_of", without_pidfd)
        for each in (root, member):
            with pytest.raises(Unanswered):
                caller_of(each, group.gr_gid)
            assert not is_operator(each, group.gr_gid), "it only decides who is accepted first"
            assert caller_of(each, group.gr_gid, trusts_containers=True)[1].is_owner
        assert not caller_of(other, group.gr_gid)[1].is_owner
        monkeypatch.setattr(peers, "groups_of", lambda _: pytest.fail("they take 6 ms, for each look"))
        monkeypatch.setattr(authority, "groups_of", peers.groups_of)
        with pytest.raises(Unanswered):
            caller_of(root, group.gr_gid)
        for each in (root, member, other):
            with pytest.raises(Unanswered):
                peer_of(each, group.gr_gid)


@pytest.mark.root
def test_a_peer_reaches_its_own_pid_namespace_and_those_below() -> None:
    ours = processes.pid_namespaces(os.getpid())
    assert len(ours) == 1
    with connected(ANOTHER, ANOTHER, []) as made:
        assert peer_of(made, None).bound is EVERYTHING
    with connected(0, 0, [], "--pid") as made, connected(0, 0, [], "--pid") as other:
        peer, neighbour = peer_of(made, None), peer_of(other, None)
        inside = processes.pid_namespaces(peer.pid)
        assert (peer.bound, inside[1:]) == (inside[0], ours)
        assert peer.may_name(0, peer.pid, processes.pid_namespaces)
        assert not peer.may_name(0, os.getpid(), processes.pid_namespaces)
        assert not peer.may_name(0, neighbour.pid, processes.pid_namespaces)


@pytest.mark.root
def test_a_peer_that_has_ended_reaches_nothing() -> None:
    with connection_of(ANOTHER, ANOTHER, []) as made:
        assert peer_of(made, None).bound == NOTHING


@pytest.mark.root
@pytest.mark.parametrize("count", [0, 3, 255, 256, 257, 1000])
def test_groups_are_told_however_many(count: int) -> None:
    groups = list(range(30000, 30000 + count))
    with connection_of(ANOTHER, 4321, groups) as made:
        peer = peer_of(made, None)
        assert (peer.gid, list(peer.gids)) == (4321, [4321, *groups])
