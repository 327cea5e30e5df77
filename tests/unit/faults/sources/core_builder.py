"""Core dumps made by hand: tables as in cudacoredump.h, nothing else."""

import struct

DEVICES, CONTEXTS, SMS, GRIDS, BLOCKS, WARPS, LANES = (0x80000000 + number for number in (9, 10, 11, 12, 13, 14, 15))


def sm(number: int = 0, exception: int = 0) -> bytes:
    return struct.pack("<IIIIQIIII", number, 0, exception, 0, 0, 0, 0, 0, 0) + bytes(8)


def grid(number: int = 2) -> bytes:
    return struct.pack("<Q", number) + bytes(128)


def block(number: int = 2) -> bytes:
    return struct.pack("<QIII", number, 3, 0, 0) + bytes(36)


def warp(number: int = 1, *, is_broken: bool = False) -> bytes:
    return struct.pack("<QIIIII", 0, number, 1, 1, is_broken, 0) + bytes(36)


def lane(number: int = 0, exception: int = 0) -> bytes:
    return struct.pack("<QQIIIII", 0x1000, 16, number, number, 0, 0, exception) + bytes(20)


Table = tuple[int, int, int, list[bytes]]  # kind, link, info, rows


def core(tables: list[Table], *, fillers: int = 0) -> bytes:
    """The tables become sections 1 and so on; `fillers` empty ones follow."""
    body, headers = bytearray(64), bytearray(64)
    for kind, link, info, rows in tables:
        data = b"".join(rows)
        size = len(rows[0]) if rows else 56
        headers += struct.pack("<IIQQQQIIQQ", 0, kind, 0, 0, len(body), len(data), link, info, 0, size)
        body += data
    headers += struct.pack("<IIQQQQIIQQ", 0, 0x80000005, 0, 0, 64, 0, 0, 0, 0, 4) * fillers
    count = len(headers) // 64
    if count >= 0xFF00:  # elf(5): the number is where it has room
        struct.pack_into("<Q", headers, 32, count)
        count = 0
    identity = struct.pack("<4sBBBB8xHHI", b"\x7fELF", 2, 1, 1, 0x33, 4, 0xBE, 1)
    body[:64] = identity + struct.pack("<QQQIHHHHHH", 0, 0, len(body), 0, 64, 0, 0, 64, count, 0)
    return bytes(body + headers)


def work(*, lanes: list[bytes], is_broken: bool = False, sm_exception: int = 0) -> list[Table]:
    """Return one warp of one block on one SM."""
    return [
        (GRIDS, 0, 0, [grid()]),
        (SMS, 0, 0, [sm(5, sm_exception)]),
        (BLOCKS, 2, 0, [block()]),
        (WARPS, 3, 0, [warp(is_broken=is_broken)]),
        (LANES, 4, 0, lanes),
    ]
