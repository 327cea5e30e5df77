"""A program that stands in for a simulated client: it has the files that show its VA space, and obeys commands.

One command a line on standard input, one answer a line. Its own `layout` repeats mpsd's by hand: a test that used mpsd's
could not find errors in it.
"""

import fcntl
import os
import struct
import sys
from pathlib import Path

MAGIC = 0x534D5655


class Client:
    """Reads and writes the page as a file: Python's mmap keeps a descriptor of its own."""

    def __init__(self, directory: Path) -> None:
        self.folder = directory / "uvm"
        self.descriptors: list[int] = []

    def open(self) -> None:
        """Open the files as cuInit does."""
        self.folder.mkdir(exist_ok=True)
        space, events, control = (self.folder / f"{os.getpid()}.{kind}" for kind in ("space", "events", "control"))
        for path in (space, events, control):
            path.unlink(missing_ok=True)
        self.descriptors = [os.open(space, os.O_RDWR | os.O_CREAT, 0o600)]
        os.ftruncate(self.descriptors[0], 4096)
        fcntl.flock(self.descriptors[0], fcntl.LOCK_EX)
        self.write("<II", 0, MAGIC, 1)
        os.mkfifo(events, 0o600)
        self.descriptors.append(os.open(events, os.O_RDWR | os.O_NONBLOCK))
        self.descriptors.append(os.open(control, os.O_RDWR | os.O_CREAT, 0o600))

    def swap(self, count: int) -> None:
        """Open the page so many times more, and close the first one."""
        path = self.folder / f"{os.getpid()}.space"
        self.descriptors += [os.open(path, os.O_RDWR) for _ in range(count)]
        os.close(self.descriptors.pop(0))

    def register(self) -> None:
        """Register as a context does."""
        self.write("<I", 12, 1)

    def write(self, layout: str, offset: int, *values: int) -> None:
        os.pwrite(self.descriptors[0], struct.pack(layout, *values), offset)

    def read(self, layout: str, offset: int) -> tuple[int, ...]:
        return struct.unpack(layout, os.pread(self.descriptors[0], struct.calcsize(layout), offset))

    def fault(self, kind: int, address: int, access: int, reason: int, count: int) -> None:
        entry = struct.pack("<BBBBB3xQQ40x", kind, 1, access, 1, reason, address, 12345)
        for _ in range(count):
            try:
                os.write(self.descriptors[1], entry)
            except BlockingIOError:
                self.drop()

    def drop(self) -> None:
        self.write("<Q", 16, *(count + 1 for count in self.read("<Q", 16)))

    def ranges(self) -> str:
        (count,) = self.read("<I", 24)
        found = [self.read("<QQQ", 32 + 24 * each) for each in range(count)]
        return " ".join(f"{base:x}+{length:x}{'s' if is_sparse else ''}" for base, length, is_sparse in found)

    def close(self) -> None:
        for descriptor in self.descriptors:
            os.close(descriptor)
        self.descriptors = []


def answer(client: Client, words: list[str]) -> str:
    match words:
        case ["open" | "register" | "close" as name]:
            getattr(client, name)()
        case ["word", offset, value]:
            client.write("<I", int(offset), int(value))
        case ["swap", count]:
            client.swap(int(count))
        case ["cut"]:
            os.ftruncate(client.descriptors[0], 0)
        case ["fault", *numbers]:
            client.fault(*(int(number, 0) for number in numbers))
        case ["ranges"]:
            return client.ranges()
        case ["attached"]:
            return str(client.read("<I", 8)[0])
        case ["exec"]:
            sys.stdout.write("ok\n")
            sys.stdout.flush()
            os.execv(sys.executable, [sys.executable, *sys.argv])
        case ["exit", status]:
            os._exit(int(status))
    return "ok"


def main() -> None:
    client = Client(Path(sys.argv[1]))
    for line in iter(sys.stdin.readline, ""):
        print(answer(client, line.split()), flush=True)


if __name__ == "__main__":
    main()
