"""Invalid forward states: no state, too old, of another schema, or damaged; each is reported as such."""

import errno
import fcntl
import os
import struct
import subprocess
import sys
from collections.abc import Iterator

import pytest
from mpsd_client import Schema, State, StateError, StateReader

F_ADD_SEALS, SEAL_SHRINK, SEAL_GROW, SEAL_WRITE = 1033, 2, 4, 8  # fcntl has the names from Python 3.12 on, some of them
FIELDS = {"step": "uint64", "token": "int32", "rng": "uint64[4]", "request": "text[32]"}


@pytest.fixture
def state() -> Iterator[State]:
    with State.create(FIELDS, generation=3) as made:
        yield made


def read(reader: StateReader) -> dict[str, object]:
    record = reader.read()
    assert record is not None
    return dict(record)


def refused(fd: int, schema: Schema | None = None, generation: int = 0) -> int:
    with pytest.raises(StateError) as caught:
        StateReader.open(fd, schema, generation=generation)
    return caught.value.errno or 0


@pytest.fixture
def image(state: State) -> bytearray:
    state.publish(step=1)
    return bytearray(os.pread(state.fd, 1 << 20, 0))


def forge(image: bytes, seals: int = SEAL_SHRINK | SEAL_GROW) -> int:
    fd = os.memfd_create("forged", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.pwrite(fd, image, 0)
    fcntl.fcntl(fd, F_ADD_SEALS, seals)
    return fd


def test_nobody_but_the_writer_can_write_and_nobody_can_cut_it(state: State) -> None:
    """Not even through the writer's own descriptor: a duplicate that a fenced writer passed on cannot be used for writing."""
    for attempt in (
        lambda: os.pwrite(state.fd, b"x", 0),
        lambda: os.pwrite(state.fd, b"x", 65536),
        lambda: os.ftruncate(state.fd, 0),
        lambda: os.ftruncate(state.fd, 1 << 20),
        lambda: fcntl.fcntl(state.fd, F_ADD_SEALS, SEAL_WRITE),
    ):
        with pytest.raises(PermissionError):
            attempt()


def test_an_older_generation_is_refused(state: State) -> None:
    assert refused(state.fd, generation=4) == errno.ESTALE
    StateReader.open(state.fd, generation=2).close()


def test_another_schema_is_refused(state: State) -> None:
    assert refused(state.fd, Schema.of({"step": "uint64"})) == errno.EBADMSG
    assert refused(state.fd, Schema.of(FIELDS | {"request": "bytes[32]"})) == errno.EBADMSG


@pytest.mark.parametrize("seals", [0, SEAL_SHRINK, SEAL_GROW])
def test_a_descriptor_that_could_shrink_or_grow_is_refused(image: bytearray, seals: int) -> None:
    fd = forge(image, seals)
    assert refused(fd) == errno.EPERM
    os.close(fd)


def test_a_descriptor_of_something_else_is_refused(tmp_path: object) -> None:
    reading, writing = os.pipe()
    file = os.open(f"{tmp_path}/file", os.O_RDWR | os.O_CREAT)
    assert [refused(fd) for fd in (reading, file)] == [errno.EPERM] * 2
    for fd in (reading, writing, file):
        os.close(fd)
    assert refused(reading) == errno.EBADF


def test_huge_pages_are_refused(image: bytearray) -> None:
    """A page of those that was taken away is a SIGBUS."""
    try:
        fd = os.memfd_create("huge", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING | os.MFD_HUGETLB)
    except OSError:
        pytest.skip("this kernel has no huge pages")
    fcntl.fcntl(fd, F_ADD_SEALS, SEAL_SHRINK | SEAL_GROW)
    assert refused(fd) == errno.EPERM
    os.close(fd)


@pytest.mark.parametrize(
    ("at", "data", "error"),
    [
        pytest.param(0, b"\2\0", errno.EPROTONOSUPPORT, id="another major version"),
        pytest.param(4, b"xxxx", errno.EPROTO, id="no magic"),
        pytest.param(8, bytes(8), errno.EPROTO, id="generation 0"),
        pytest.param(16, bytes(8), errno.EPROTO, id="another hash"),
        pytest.param(24, bytes(4), errno.EPROTO, id="no bytes"),
        pytest.param(24, struct.pack("=I", 200), errno.EPROTO, id="a larger record than the file"),
        pytest.param(24, struct.pack("=I", 8), errno.EPROTO, id="a smaller record than the file"),
        pytest.param(24, b"\xff" * 4, errno.EPROTO, id="a huge record"),
        pytest.param(28, b"\xff" * 4, errno.EPROTO, id="a huge schema"),
        pytest.param(28, bytes(4), errno.EPROTO, id="a schema that goes on"),
        pytest.param(32, b"\1", errno.EPROTO, id="something reserved"),
        pytest.param(127, b"\1", errno.EPROTO, id="the last reserved"),
        pytest.param(128, b"M", errno.EPROTO, id="another letter of the schema"),
        pytest.param(4095, b"x", errno.EPROTO, id="something after the schema"),
    ],
)
def test_a_head_that_no_writer_writes_is_refused(image: bytearray, at: int, data: bytes, error: int) -> None:
    image[at : at + len(data)] = data
    fd = forge(image)
    assert refused(fd) == error
    os.close(fd)


def test_another_minor_version_is_read(image: bytearray) -> None:
    image[2:4] = b"\x09\0"
    fd = forge(image)
    with StateReader.open(fd, FIELDS) as reader:
        assert read(reader)["step"] == 1
    os.close(fd)


@pytest.mark.parametrize("length", [0, 100, 4096, 65536, 65600, "one less", "one more"])
def test_a_file_of_another_length_is_refused(image: bytearray, length: int | str) -> None:
    cut = {"one less": len(image) - 1, "one more": len(image) + 1}.get(str(length), length)
    assert isinstance(cut, int)
    fd = forge((bytes(image) + b"x")[:cut])
    assert refused(fd) == errno.EPROTO
    os.close(fd)


@pytest.mark.parametrize("at", [65536, 65544, 65560, -129, 65600 + 128])
def test_a_damaged_record_is_no_record(image: bytearray, at: int) -> None:
    """A mark, the mark of the record itself, its digest; a byte of another slot does not matter."""
    is_read = at == -129
    image[at] ^= 1
    fd = forge(image)
    with StateReader.open(fd) as reader:
        if is_read:
            assert read(reader)["step"] == 1
        else:
            with pytest.raises(StateError, match="damaged"):
                reader.read()
    os.close(fd)


def test_a_state_without_fields_of_ours_is_bytes(image: bytearray) -> None:
    """A writer in C makes such a state, and may use any text as its schema."""
    from mpsd_client._native import ffi, lib

    handle = ffi.new("struct mpsd_state **")
    assert lib.mpsd_state_create(b"struct forward, version 2", 12, 1, handle) == 0
    ffi.memmove(lib.mpsd_state_record(handle[0]), b"twelve bytes", 12)
    assert lib.mpsd_state_publish(handle[0]) == 0
    with StateReader.open(lib.mpsd_state_fd(handle[0])) as reader:
        record = reader.read()
    lib.mpsd_state_close(handle[0])
    assert record is not None
    assert (record.data, dict(record)) == (b"twelve bytes", {})


@pytest.mark.parametrize(("size", "generation"), [(0, 1), (1048577, 1), (2**64 - 1, 1), (8, 0)])
def test_a_state_that_cannot_be_is_not_created(size: int, generation: int) -> None:
    from mpsd_client._native import ffi, lib

    handle = ffi.new("struct mpsd_state **")
    assert lib.mpsd_state_create(b"", size, generation, handle) == -errno.EINVAL
    assert handle[0] == ffi.NULL
    if size == 8:
        with pytest.raises(ValueError, match="generation"):
            State.create(FIELDS, generation=generation)


def test_nothing_is_left_open(state: State) -> None:
    def count() -> tuple[int, int]:
        with open("/proc/self/maps") as maps:
            return len(os.listdir("/proc/self/fd")), sum("mpsd-state" in line for line in maps)

    before = count()
    for _ in range(20):
        with State.create(FIELDS, generation=1) as made, StateReader.open(made.fd) as reader:
            made.publish(step=1)
            reader.read()
        with pytest.raises(StateError):
            StateReader.open(state.fd, generation=9)
    assert count() == before


LIMITED = """
import resource, signal
from mpsd_client import State, StateError
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # as in a program in C
resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))
try:
    State.create({"step": "uint64"}, generation=1)
except StateError as exc:
    print(exc.errno)
"""


def test_a_limit_of_files_ends_no_program() -> None:
    """The kernel sends SIGXFSZ to who makes a larger one."""
    done = subprocess.run([sys.executable, "-c", LIMITED], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{errno.EFBIG}\n", "")
