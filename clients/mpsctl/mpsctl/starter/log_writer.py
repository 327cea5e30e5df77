"""A process that writes the output of one member, and outlives the starter.

    python -I -S log_writer.py lines PREFIX             each line to standard output, after a prefix
    python -I -S log_writer.py file PATH MOST_BYTES     to a file, mode 0600; a full file becomes PATH.1

It reads standard input to its end.  It drops data that it cannot write: a member must not wait for a full disk or a closed
terminal.  In file mode it reports that once on standard output, and in the file as soon as it can write there again.  It
imports nothing of mpsctl.
"""

import errno
import os
import signal
import sys

_CHUNK_BYTES = 65536


def write_lines(prefix: bytes) -> None:
    """Copy standard input to standard output with a prefix before each line.  A line longer than a chunk becomes several."""
    rest = b""
    while chunk := os.read(0, _CHUNK_BYTES):
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) >= _CHUNK_BYTES:
            lines, rest = [*lines, rest], b""
        _write(1, b"".join(prefix + line + b"\n" for line in lines))
    if rest:
        _write(1, prefix + rest + b"\n")


def write_file(path: str, most_bytes: int) -> None:
    lost, why = 0, ""
    try:
        fd, size = _open(path)
    except OSError as exc:
        fd, size, why = os.open(os.devnull, os.O_WRONLY), 0, _say(exc)
    while chunk := os.read(0, _CHUNK_BYTES):
        if size and size + len(chunk) > most_bytes:
            fd, size = _begin_anew(path, fd)
        note = f"\n[{lost} bytes are missing here: {why}]\n".encode() if lost else b""
        left, error = _write(fd, note + chunk)
        size += len(note) + len(chunk) - left
        lost = left if left < len(chunk) else lost + len(chunk)
        if error and not why:
            why = _say(error)


def _say(error: OSError) -> str:
    why = error.strerror or str(error)
    _write(1, f"{why}\n".encode())
    return why


def _open(path: str) -> tuple[int, int]:
    """Open the file for appending, and return its descriptor and size.  Raises OSError, also for a symbolic link, a FIFO that
    nobody reads, and another user's file."""
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    found = os.fstat(fd)
    if found.st_uid not in (os.geteuid(), 0):
        os.close(fd)
        raise PermissionError(errno.EPERM, f"it belongs to user {found.st_uid}")
    return fd, found.st_size


def _begin_anew(path: str, fd: int) -> tuple[int, int]:
    """Rename the full file to PATH.1 and open a new one; continue with the old file if that fails.  One that cannot be renamed
    is emptied: another user may have made PATH.1 a directory, as in /tmp, and the file must not fill the disk."""
    try:
        os.replace(path, f"{path}.1")
    except OSError:
        _empty(fd)
        return fd, 0
    try:
        made = _open(path)
    except OSError:
        return fd, 0
    os.close(fd)
    return made


def _empty(fd: int) -> None:
    try:
        os.ftruncate(fd, 0)
    except OSError:
        pass  # no regular file: it keeps nothing


def _write(fd: int, data: bytes) -> tuple[int, OSError | None]:
    """Write the data.  Return the number of unwritten bytes and the error that prevented the rest."""
    while data:
        try:
            data = data[os.write(fd, data) :]
        except OSError as exc:
            return len(data), exc
    return 0, None


def main(words: list[str]) -> None:
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(each, signal.SIG_IGN)  # it ends when all writers have closed its input
    if words[0] == "lines":
        write_lines(os.fsencode(words[1]))
    else:
        write_file(words[1], int(words[2]))


if __name__ == "__main__":
    main(sys.argv[1:])
