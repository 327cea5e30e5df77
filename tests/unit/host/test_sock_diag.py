"""The kernel's answers about sockets."""

import os
import socket
import struct
from pathlib import Path

import pytest

from mpsd.host import sock_diag

HEAD = struct.Struct("=IHHII")
NOBODY = 65534
MESSAGE = HEAD.pack(HEAD.size + 4, 20, 0, 0, 0) + b"body"


def messages(data: bytes) -> list[tuple[int, bytes]]:
    return list(sock_diag._parts(sock_diag._HEAD, data, 0))


def test_each_message_has_its_kind_and_body() -> None:
    odd = HEAD.pack(HEAD.size + 1, 3, 0, 0, 0) + b"x\0\0\0"
    assert messages(odd + MESSAGE) == [(3, b"x"), (20, b"body")]


@pytest.mark.parametrize("length", [0, HEAD.size - 1, HEAD.size + 5, 1 << 31])
def test_no_length_keeps_mpsd_reading(length: int) -> None:
    """Of a length of 0 it read the same bytes again, without end, on the event loop."""
    with pytest.raises(OSError, match="Bad message"):
        messages(HEAD.pack(length, 20, 0, 0, 0) + b"body")


@pytest.mark.parametrize("size", range(1, len(MESSAGE)))
def test_a_part_of_a_message_is_none(size: int) -> None:
    """struct.error would end mpsd where OSError is expected."""
    with pytest.raises(OSError, match="Bad message"):
        messages(MESSAGE[:size])


@pytest.mark.parametrize("body", [b"", b"\1" * 15, b"\1" * 16 + b"\0\0\0\0", b"\1" * 16 + b"\xff\xff\0\0"])
def test_a_part_of_a_socket_is_none(body: bytes) -> None:
    with pytest.raises(OSError, match="Bad message"):
        sock_diag._socket(body)


def test_listening_sockets_and_the_user_of_a_connection_are_found(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as named, socket.create_server(("127.0.0.1", 0)) as listener:
        named.bind(str(tmp_path / "s"))
        named.listen()
        assert sock_diag.listening_sockets(os.geteuid())[os.fstat(named.fileno()).st_ino] == str(tmp_path / "s")
        with socket.create_connection(listener.getsockname()) as peer:
            ours, address = listener.accept()
            with ours:
                assert sock_diag.tcp_user(socket.AF_INET, address, ours.getsockname()) == os.geteuid()
                peer.shutdown(socket.SHUT_WR)
                assert sock_diag.tcp_user(socket.AF_INET, address, ours.getsockname()) is None
        assert sock_diag.tcp_user(socket.AF_INET, ("192.0.2.1", 9), listener.getsockname()) is None


@pytest.mark.root
def test_listening_sockets_are_those_of_one_user(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as named:
        named.bind(str(tmp_path / "s"))
        named.listen()
        inode = os.fstat(named.fileno()).st_ino
        os.fchown(named.fileno(), NOBODY, NOBODY)
        assert inode not in sock_diag.listening_sockets(os.geteuid())
        assert sock_diag.listening_sockets(NOBODY)[inode] == str(tmp_path / "s")


@pytest.mark.parametrize(
    ("sockets", "expected"),
    [
        pytest.param([(7, "/a", 0)], {7: "/a"}, id="one's own"),
        pytest.param([(7, "/a", None)], {7: "/a"}, id="the kernel does not tell the user"),
        pytest.param([(7, "/a", 0), (7, "/b", 0), (8, "/c", 0)], {8: "/c"}, id="a number given out again"),
        pytest.param([(7, "/a", 0), (7, "/b", NOBODY)], {7: "/a"}, id="given out again to another user"),
    ],
)
def test_no_socket_replaces_another(
    monkeypatch: pytest.MonkeyPatch, sockets: list[tuple[int, str, int | None]], expected: dict[int, str]
) -> None:
    """The numbers have 32 bits, so a user can make sockets until one has the number of mpsd's."""
    monkeypatch.setattr(sock_diag, "_ask", lambda question, flags: iter([answer(*each) for each in sockets]))
    assert sock_diag.listening_sockets(0) == expected


def answer(inode: int, name: str, uid: int | None) -> bytes:
    body = sock_diag._ANSWER.pack(socket.AF_UNIX, socket.SOCK_SEQPACKET, 10, 0, inode, 0)
    for kind, value in ((0, name.encode()), (7, b"" if uid is None else struct.pack("=I", uid))):
        if value:
            body += struct.pack("=HH", 4 + len(value), kind) + value + b"\0" * (-len(value) % 4)
    return body
