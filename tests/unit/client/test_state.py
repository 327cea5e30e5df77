"""The forward state from Python: what is published is read, and every border has its twin."""

import errno
import os
import random
import signal
import socket
import struct
import threading
from collections.abc import Iterator

import pytest
from mpsd_client import State, StateError, StateReader

from tests.seeds import seeds

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


@pytest.mark.parametrize("seed", seeds(1, 3))
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


def act(passing: socket.socket) -> None:
    """The active process: makes steps until it is killed."""
    with State.create(FIELDS, generation=1) as state:
        socket.send_fds(passing, [b"x"], [state.fd])
        for step in range(1, 1 << 40):
            state.publish(step=step, rng=(step,) * 4, request=f"request {step}")


def test_a_standby_goes_on_where_the_killed_one_stopped() -> None:
    """Which then is the older one: who wants the new one does not take it."""
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        try:
            act(theirs)
        finally:
            os._exit(1)
    _, [fd], _, _ = socket.recv_fds(ours, 1, 1)
    with StateReader.open(fd, FIELDS, generation=1) as reader:
        while reader.latest < 100:  # ends when the record is complete, or the child has ended, which waitpid shows
            assert os.waitpid(child, os.WNOHANG) == (0, 0)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        last = reader.read()
    assert last is not None
    step = last.sequence
    assert dict(last) == {"step": step, "token": 0, "rng": (step,) * 4, "request": f"request {step}"}
    with State.create(FIELDS, generation=2) as state, StateReader.open(state.fd, generation=2) as follower:
        state.publish(**last)
        assert read(follower) == dict(last)
        with pytest.raises(StateError) as refused:
            StateReader.open(fd, generation=2)
    assert refused.value.errno == errno.ESTALE
    os.close(fd)
    ours.close()
    theirs.close()
