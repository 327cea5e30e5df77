"""The forward state from Python: what is published is read, and every border has its twin."""

import errno
import fcntl
import os
import random
import struct
import threading
from collections.abc import Iterator

import pytest
from mpsd_client import Schema, State, StateError, StateReader

F_ADD_SEALS, SEAL_SHRINK, SEAL_GROW, SEAL_WRITE = 1033, 2, 4, 8  # fcntl has the names from Python 3.12 on, some of them
FIELDS = {"step": "uint64", "token": "int32", "rng": "uint64[4]", "request": "text[32]"}


@pytest.fixture
def state() -> Iterator[State]:
    with State.create(FIELDS, generation=3) as made:
        yield made


@pytest.fixture
def reader(state: State) -> Iterator[StateReader]:
    with StateReader.open(state.fd, FIELDS, generation=3) as made:
        yield made


def read(reader: StateReader) -> dict[str, object]:
    record = reader.read()
    assert record is not None
    return dict(record)


def test_nothing_is_there_before_the_first_publish(state: State, reader: StateReader) -> None:
    state.set(step=1)
    assert reader.read() is None
    assert (reader.latest, state.published) == (0, (3, 0))


def test_what_was_published_is_read_and_what_was_not_changed_stays(state: State, reader: StateReader) -> None:
    seen = {"step": 0, "token": 0, "rng": (0, 0, 0, 0), "request": ""}
    several = {"step": 2, "request": "b"}
    for values in ({"step": 1}, {"token": -7, "request": "a7ü"}, {"rng": (1, 2, 3, 4)}, {}, several, {"token": 3}):
        state.publish(**values)
        seen |= values
        assert read(reader) == seen
    record = reader.read()
    assert record is not None
    assert (record.generation, record.sequence) == state.published == (3, 6)
    assert reader.latest == 6
    assert record.view("rng").tolist() == [1, 2, 3, 4]


def test_a_record_that_was_read_stays_as_it_was(state: State, reader: StateReader) -> None:
    state.publish(step=1)
    record = reader.read()
    for step in range(2, 20):
        state.publish(step=step)
        reader.read()
    assert record is not None
    assert record["step"] == 1


@pytest.mark.parametrize("seed", range(4))
def test_partial_changes_of_a_large_record_are_all_seen(seed: int) -> None:
    chance = random.Random(seed)
    count = chance.choice([63, 64, 65, 4096, 8191, 8192])
    with State.create({"words": f"uint64[{count}]"}, generation=1) as state, StateReader.open(state.fd) as reader:
        view, expected = state.view("words"), [0] * count
        for step in range(1, 200):
            first = chance.randrange(count)
            size = min(chance.choice([0, 1, 7, 8, 9, 64, 600]), count - first)
            for at in range(first, first + size):
                view[at] = expected[at] = step << 32 | at
            state.changed("words", first, size)
            state.publish()
            if step % 10 == 0:
                record = reader.read()
                assert record is not None
                assert record.view("words").tolist() == expected


def test_a_publisher_sets_neighbours_at_once(state: State, reader: StateReader) -> None:
    state.publish(request="kept")
    publish = state.publisher("step", "token", "rng")
    publish(9, -1, 5, 6, 7, 8)
    assert read(reader) == {"step": 9, "token": -1, "rng": (5, 6, 7, 8), "request": "kept"}
    with pytest.raises(struct.error):
        publish(-1, 0, 0, 0, 0, 0)
    assert read(reader)["step"] == 9
    for names in ((), ("step", "rng"), ("token", "step"), ("rng", "request")):
        with pytest.raises(ValueError, match="one behind the other"):
            state.publisher(*names)


def test_a_value_that_does_not_fit_publishes_nothing(state: State, reader: StateReader) -> None:
    state.publish(step=1)
    with pytest.raises(ValueError, match="token"):
        state.publish(step=2, token=2**31)
    with pytest.raises(TypeError, match="no field 'other'"):
        state.publish(step=2, other=1)
    assert state.published == (3, 1)
    state.publish()
    assert read(reader)["step"] == 1
    with pytest.raises(IndexError):
        state.changed("rng", 3, 2)
    with pytest.raises(IndexError):
        state.changed("rng", -1, 1)


def test_threads_take_turns(state: State, reader: StateReader) -> None:
    def publish(which: int) -> None:
        for step in range(500):
            state.publish(step=step * 4 + which, rng=(step,) * 4)

    threads = [threading.Thread(target=publish, args=(which,)) for which in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        record = reader.read()
        assert record is None or set(record["rng"]) == {record["step"] // 4}  # type: ignore[arg-type, operator]
    assert state.published == (3, 2000)


def test_a_child_after_fork_cannot_publish_and_harms_nothing(state: State, reader: StateReader) -> None:
    state.publish(step=1)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            state.publish(step=2)
        except StateError as error:
            status = 0 if error.errno == errno.ECHILD else 2
            state.close()
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert read(reader)["step"] == 1
    state.publish(step=3)
    assert read(reader)["step"] == 3


def test_a_reader_outlives_its_writer_and_its_descriptor(state: State) -> None:
    copy = os.dup(state.fd)
    state.publish(step=5)
    state.close()
    state.close()
    with StateReader.open(copy) as reader:
        os.close(copy)
        assert read(reader)["step"] == 5
    for ask in (lambda: state.publish(step=6), lambda: reader.read(), lambda: state.view("step")):
        with pytest.raises(ValueError, match="closed"):
            ask()
    assert state.fd == -1


def test_a_view_keeps_the_memory_that_it_shows(state: State) -> None:
    view = state.view("rng")
    state.close()
    view[0] = 7
    assert view.tolist() == [7, 0, 0, 0]


# -- borders ---------------------------------------------------------------------------------------------------------


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
    """Not even through the writer's own descriptor: what a fenced writer had given away is no door."""
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
    """A mark, the mark of the record itself, its digest; a byte of another slot is nobody's business."""
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
    """As a writer in C makes it, which says what it likes in its schema."""
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
