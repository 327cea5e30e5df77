"""The sockets of mpsd's network namespace, as sock_diag(7) shows them: listening Unix sockets, and the users of TCP sockets.

/proc/net/unix writes a newline in a socket's name as it is, so that any user can add lines to it that name another's socket.
"""

import errno
import os
import socket
import struct
from collections.abc import Generator, Iterator
from contextlib import closing
from typing import Any

_NETLINK_SOCK_DIAG = 4  # linux/netlink.h
_SOCK_DIAG_BY_FAMILY = 20  # linux/sock_diag.h
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_NLM_F_REQUEST, _NLM_F_DUMP = 0x1, 0x300
_LISTENING = 1 << 10  # TCP_LISTEN in net/tcp_states.h, which Unix sockets have too
_UDIAG_SHOW_NAME, _UNIX_DIAG_NAME = 0x1, 0  # linux/unix_diag.h
_UDIAG_SHOW_UID, _UNIX_DIAG_UID = 0x40, 7
_HEAD = struct.Struct("=IHHII")  # nlmsghdr: length, type
_QUESTION = struct.Struct("=BBHIIIQ")  # unix_diag_req: family, protocol, padding, states, inode, what to show, cookie
_ANSWER = struct.Struct("=BBBBIQ")  # unix_diag_msg: family, type, state, padding, inode, cookie
_ATTRIBUTE = struct.Struct("=HH")  # nlattr: length, type
_ERROR = struct.Struct("=i")  # nlmsgerr: a negative errno
_UID = struct.Struct("=I")
_TCP_QUESTION = struct.Struct("=BBBBI2s2s16s16sI8s")  # inet_diag_req_v2: family, protocol, 2 x 0, states, the socket:
# ports, addresses (the peer's first), device, cookie
_TCP_ANSWER = struct.Struct("=BB2x48x12xI")  # inet_diag_msg: family, state, then the socket, three numbers, the uid
_OPEN_STATES = (1, 8)  # TCP_ESTABLISHED, TCP_CLOSE_WAIT: in others no process may have it, and the kernel reports uid 0
_NO_COOKIE = b"\xff" * 8  # INET_DIAG_NOCOOKIE
_ANSWER_BYTES = 1 << 16  # the kernel makes none longer than 32 KiB
_SECONDS = 5.0  # the kernel answers while it is asked


Address = tuple[str, int]


def listening_sockets(uid: int) -> dict[int, str]:
    """Return the names of this user's listening sockets by inode; that of an abstract one begins with a NUL.  Raises OSError.

    Before Linux 5.3 the kernel does not tell the user, and those of all users are returned.  It gives an inode number out again
    after 2^32 others, so a socket may have the number of one that is still open: then neither of them is returned.
    """
    question = _QUESTION.pack(socket.AF_UNIX, 0, 0, _LISTENING, 0, _UDIAG_SHOW_NAME | _UDIAG_SHOW_UID, 0)
    found: dict[int, str] = {}
    repeated = set()
    for inode, name, owner in map(_socket, _ask(question, _NLM_F_DUMP)):
        if owner in (uid, None):
            repeated.update({inode} & found.keys())
            found[inode] = name
    return {inode: name for inode, name in found.items() if inode not in repeated}


def tcp_user(family: int, peer: Address, own: Address) -> int | None:
    """Return the uid of the process that has the other end of a connection, if it is in this network namespace.

    None: it is elsewhere, or has closed its end.  Raises OSError if the kernel has no answer.
    """
    (host, port), (own_host, own_port) = peer, own
    ends = (port.to_bytes(2, "big"), own_port.to_bytes(2, "big"), _packed(family, host), _packed(family, own_host))
    question = _TCP_QUESTION.pack(family, socket.IPPROTO_TCP, 0, 0, 0xFFFFFFFF, *ends, 0, _NO_COOKIE)
    try:
        with closing(_ask(question, 0)) as answers:
            _, state, uid = _unpacked(_TCP_ANSWER, next(answers, b""))
    except FileNotFoundError:
        return None
    return int(uid) if state in _OPEN_STATES else None


def _packed(family: int, host: str) -> bytes:
    return socket.inet_pton(family, host.partition("%")[0])


def _ask(question: bytes, flags: int) -> Generator[bytes, None, None]:
    """Yield the answers: one, or with the flag of a list any number.  Raises OSError."""
    head = _HEAD.pack(_HEAD.size + len(question), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST | flags, 0, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _NETLINK_SOCK_DIAG) as kernel:
        kernel.settimeout(_SECONDS)
        kernel.connect((0, 0))  # the kernel's address: no process can answer instead
        kernel.send(head + question)
        while True:
            for kind, body in _parts(_HEAD, kernel.recv(_ANSWER_BYTES), 0):
                if kind == _NLMSG_DONE:
                    return
                if kind == _NLMSG_ERROR:
                    [error] = _unpacked(_ERROR, body)
                    raise OSError(-error, os.strerror(-error))
                yield body


def _socket(body: bytes) -> tuple[int, str, int | None]:
    """Return inode, name and uid; an empty name for an unnamed one, None if the kernel does not tell the uid."""
    inode = _unpacked(_ANSWER, body)[4]
    facts = dict(_parts(_ATTRIBUTE, body, _ANSWER.size))
    uid = _unpacked(_UID, facts[_UNIX_DIAG_UID])[0] if _UNIX_DIAG_UID in facts else None
    return inode, os.fsdecode(facts.get(_UNIX_DIAG_NAME, b"").removesuffix(b"\0")), uid


def _parts(head: struct.Struct, data: bytes, at: int) -> Iterator[tuple[int, bytes]]:
    """Yield type and content of each part, which begins with its length and type.  Raises OSError."""
    while at < len(data):
        length, kind, *_ = _unpacked(head, data[at:])
        if not head.size <= length <= len(data) - at:
            raise _unreadable()
        yield kind, data[at + head.size : at + length]
        at += (length + 3) & ~3


def _unpacked(form: struct.Struct, data: bytes) -> tuple[Any, ...]:
    try:
        return form.unpack_from(data)
    except struct.error:
        raise _unreadable() from None


def _unreadable() -> OSError:
    return OSError(errno.EBADMSG, os.strerror(errno.EBADMSG))
