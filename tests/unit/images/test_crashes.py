"""A process is killed or interrupted at every system call, or one fails, or the disk is full: an image is whole or absent."""

import errno
import fcntl
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from mpsd.errors import MpsdError, NoRoom
from mpsd.images import pack
from mpsd.images.rules.manifest import BLOCK_BYTES
from mpsd.images.rules.retention import Limits
from mpsd.images.store import Images
from tests.unit.images.making import block, contents_of, expected, facts, stored_blocks, take

CONTENTS = {"first": {0: 10, 1: 11}, "second": {0: 10, 1: 21, 2: 22}, "third": {0: 11, 3: 30}}
CALLS = ((os, "open"), (os, "mkdir"), (os, "write"), (os, "pwrite"), (os, "fsync"), (os, "rename"), (os, "unlink"),
         (fcntl, "flock"), (pack, "_punch"))  # fmt: skip
Step = Callable[[Path], object]


def prepare(path: Path) -> None:
    with Images.open(path) as images:
        for name in ("first", "third"):
            take(images, name, CONTENTS[name])


def prepare_removed(path: Path) -> None:
    prepare(path)
    remove(path)


def prepare_nothing(path: Path) -> None:
    pass


def take_second(path: Path) -> None:
    with Images.open(path) as images, images.begin("second") as new:
        new.add("model", BLOCK_BYTES, block(99))  # replaced below: its slot is used again
        for place, content in CONTENTS["second"].items():
            new.add("model", place * BLOCK_BYTES, block(content))
        new.finish(2.0, [facts(0, 1, 2)])


def remove(path: Path) -> None:
    with Images.open(path) as images:
        images.remove("third")


def collect(path: Path) -> None:
    with Images.open(path) as images:
        images.collect()


def set_limits(path: Path) -> None:
    with Images.open(path) as images:
        images.set_limits(Limits(keep=5))


STEPS = {  # what was there before, and which images may be there after a death
    take_second: (prepare, [{"first", "third"}, {"first", "second", "third"}]),
    remove: (prepare, [{"first", "third"}, {"first"}]),
    collect: (prepare_removed, [{"first"}]),
    set_limits: (prepare, [{"first", "third"}]),
}


def kill_at(deadly: int) -> None:
    """Let this process be killed before its so-manieth call, or in the middle if it is a write."""
    count = 0

    def deadly_version(call: Callable[..., object], name: str) -> Callable[..., object]:
        def version(*arguments: object, **named: object) -> object:
            nonlocal count
            count += 1
            if count == deadly:
                if name in ("write", "pwrite"):
                    descriptor, data, *at = arguments
                    with suppress(OSError):  # memory that does not suit O_DIRECT
                        call(descriptor, memoryview(data)[: len(data) // 2 // 4096 * 4096], *at)  # type: ignore[arg-type]
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*arguments, **named)

        return version

    for module, name in CALLS:
        setattr(module, name, deadly_version(getattr(module, name), name))


def die_in(step: Step, path: Path, deadly: int) -> bool:
    """Carry out the step in another process, which is killed at a call; return False if it ended before."""
    child = os.fork()
    if child == 0:
        try:
            kill_at(deadly)
            step(path)
            os._exit(0)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.waitstatus_to_exitcode(status) == 0, "the step failed by itself"
    return os.WIFSIGNALED(status)


@pytest.mark.deadline(300)
@pytest.mark.parametrize("step", [
    pytest.param(step, marks=() if step is take_second else pytest.mark.slow, id=step.__name__) for step in STEPS
])  # fmt: skip
def test_a_death_at_any_call_leaves_every_image_whole_or_absent(step: Step, tmp_path: Path) -> None:
    begin, allowed = STEPS[step]
    deadly, is_cut = 0, True
    while is_cut:
        deadly += 1
        path = tmp_path / str(deadly)
        begin(path)
        is_cut = die_in(step, path, deadly)
        with Images.open(path) as images:
            check_whole(images, allowed)
        shutil.rmtree(path)
    assert deadly > (35 if step is take_second else 20)


def check_whole(images: Images, allowed: list[set[str]]) -> None:
    listing = images.listing()
    assert images.directory.limits() in (Limits(), Limits(keep=5))
    assert listing.damaged == {}
    names = {each.name for each in listing.images}
    assert names in allowed
    assert list(images.verify()) == []
    for name in names:
        assert contents_of(images, name) == expected(CONTENTS[name])
    images.collect()
    assert list(images.verify()) == []
    different = {content for name in names for content in CONTENTS[name].values()}
    assert stored_blocks(images) == len(different), "something was left behind"
    assert "manifest-new" not in os.listdir(images.directory.top)
    if "second" not in names:
        take(images, "second", CONTENTS["second"])
    assert contents_of(images, "second") == expected(CONTENTS["second"])


def interrupted(call: Callable[[], object]) -> None:
    """A user types Ctrl-C during the call."""
    call()
    raise KeyboardInterrupt


def broken(call: Callable[[], object]) -> None:
    """The disk has an error, and what was called may have had an effect."""
    call()
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def refused(call: Callable[[], object]) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def fail_in(step: Step, path: Path, number: int, how: Callable[[Callable[[], object]], None]) -> bool:
    """Carry out the step in another process, of which one call fails; return False if it has fewer calls."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0
    count = 0

    def failing_version(call: Callable[..., object]) -> Callable[..., object]:
        def version(*arguments: object, **named: object) -> object:
            nonlocal count
            count += 1
            if count == number:
                how(lambda: call(*arguments, **named))
            return call(*arguments, **named)

        return version

    try:
        for module, name in CALLS:
            setattr(module, name, failing_version(getattr(module, name)))
        with suppress(KeyboardInterrupt, OSError, MpsdError):
            step(path)
    finally:
        os._exit(int(count >= number))


@pytest.mark.deadline(300)
@pytest.mark.slow
@pytest.mark.parametrize("how", [interrupted, broken, refused])
def test_a_failure_of_any_call_leaves_every_image_whole_or_absent(
    how: Callable[[Callable[[], object]], None], tmp_path: Path
) -> None:
    begin, allowed = STEPS[take_second]
    number, is_cut = 0, True
    while is_cut:
        number += 1
        path = tmp_path / str(number)
        begin(path)
        is_cut = fail_in(take_second, path, number, how)
        with Images.open(path) as images:
            check_whole(images, allowed)
        shutil.rmtree(path)
    assert number > 35


@pytest.mark.deadline(120)
def test_a_death_while_the_directory_is_made(tmp_path: Path) -> None:
    deadly = 1
    while die_in(lambda path: Images.open(path).close(), tmp_path / str(deadly), deadly):
        with Images.open(tmp_path / str(deadly)) as images:
            take(images, "first", CONTENTS["first"])
            assert contents_of(images, "first") == expected(CONTENTS["first"])
        deadly += 1
    assert deadly > 10


# -- the order of what reaches the disk -----------------------------------------------------------------------------------


@contextmanager
def traced(path: Path) -> Iterator[list[tuple[str, str]]]:
    """Collect the calls that change or sync files, with the file's name in the directory."""
    trace: list[tuple[str, str]] = []

    def name_of(what: object) -> str:
        return os.path.relpath(os.readlink(f"/proc/self/fd/{what}"), path) if isinstance(what, int) else str(what)

    def traced_version(call: Callable[..., object], name: str) -> Callable[..., object]:
        def version(*arguments: object, **named: object) -> object:
            trace.append((name, name_of(arguments[0])))
            return call(*arguments, **named)

        return version

    with pytest.MonkeyPatch.context() as patch:
        for module, name in CALLS[2:-2]:
            patch.setattr(module, name, traced_version(getattr(module, name), name))
        patch.setattr(pack, "_punch", traced_version(pack._punch, "punch"))
        yield trace


def test_the_blocks_are_on_the_disk_before_the_manifest_and_the_manifest_before_the_answer(tmp_path: Path) -> None:
    path = tmp_path.resolve() / "images"
    prepare(path)
    with traced(path) as trace:
        take_second(path)
    order = [
        ("fsync", "packs/3"), ("fsync", "packs"), ("write", "manifest-new"), ("fsync", "manifest-new"),
        ("rename", "manifest-new"), ("fsync", "complete"),
    ]  # fmt: skip
    assert [each for each in trace if each[0] != "pwrite"] == order
    assert max(at for at, each in enumerate(trace) if each[0] == "pwrite") < trace.index(order[0])


def test_a_manifest_is_gone_on_the_disk_before_its_blocks(tmp_path: Path) -> None:
    path = tmp_path.resolve() / "images"
    prepare_removed(path)
    with traced(path) as trace:
        collect(path)
    [first] = [at for at, each in enumerate(trace) if each == ("unlink", "2")]
    before = trace[:first]
    assert ("fsync", "complete") in before
    assert before.index(("fsync", "removed")) > next(at for at, each in enumerate(before) if each[1].startswith("third."))


# -- a full disk -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Return a file system of eight blocks."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={8 * BLOCK_BYTES},mode=700", "none", tmp_path], check=True)
    yield tmp_path
    subprocess.run(["umount", tmp_path], check=True)


@pytest.mark.root
@pytest.mark.parametrize("spare_bytes", [0, BLOCK_BYTES // 2, 2 * BLOCK_BYTES], ids=["no block", "half a block", "no manifest"])
def test_on_a_full_disk_old_images_stay_and_the_new_one_is_refused(small_disk: Path, spare_bytes: int) -> None:
    prepare(small_disk / "images")
    with Images.open(small_disk / "images") as images:
        stored = images.directory.stored_bytes()
        ballast = small_disk / "ballast"
        fill(ballast, spare_bytes)
        with pytest.raises(NoRoom, match="full"):
            take(images, "second", CONTENTS["second"])
        assert images.directory.names() == ["first", "third"]
        assert images.directory.stored_bytes() == stored
        for name in ("first", "third"):
            assert contents_of(images, name) == expected(CONTENTS[name])
        ballast.unlink()
        take(images, "second", CONTENTS["second"])
        assert contents_of(images, "second") == expected(CONTENTS["second"])


def fill(ballast: Path, spare_bytes: int) -> None:
    """Fill the disk but for some bytes."""
    with ballast.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            file.truncate(file.tell() - spare_bytes)
