"""The writer of an empty arena fills it with the newest image, and leaves any other arena alone."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from mpsd_client import _filling
from mpsd_client._filling import fill_if_empty
from mpsd_client._imager import ImageError, NoSuchImage
from mpsd_client._restoring import KILLED_TTL


class FakeMpsd:
    """Records what is asked, together with what the source does."""

    def __init__(self, ttl: float | None) -> None:
        self.ttl, self.done = ttl, list[str]()

    def ask(self, call: Any) -> Any:
        self.done.append(call.method)
        return SimpleNamespace(ttl_seconds=self.ttl)

    def __call__(self, *_: object, **__: object) -> "FakeMpsd":
        return self

    def __enter__(self) -> "FakeMpsd":
        return self

    def __exit__(self, *_: object) -> None:
        self.done.append("closed")


class FakeSource(FakeMpsd):
    """The newest image, with a layout, and with a state that is written as the writer's own."""

    blocks = 3

    def __init__(self, done: list[str], trouble: ImageError | None = None) -> None:
        self.done, self.trouble, self.layout = done, trouble, 0
        self.imager = SimpleNamespace(answer=lambda what, seconds: self._do(what))

    def _do(self, what: str) -> None:
        if self.trouble is not None:
            raise self.trouble
        self.done.append(what)

    def put(self, mpsd: FakeMpsd, arena: int, generation: int, gpu: str) -> None:
        self.done.append(f"put {arena} {generation} {gpu}")

    def fill(self, order: range) -> None:
        self.done.append(f"fill {len(order)}")

    def state(self, generation: int) -> None:
        self.done.append(f"state {generation}")

    def record(self) -> str:
        return "the record"


@pytest.fixture(name="directory")
def directory_of_images(tmp_path: Path) -> Path:
    (tmp_path / "complete").mkdir()
    (tmp_path / "complete/one").touch()
    return tmp_path


def fill(
    directory: Path, monkeypatch: pytest.MonkeyPatch, trouble: ImageError | None = None, ttl: float | None = None, **facts: Any
) -> tuple[object, list[str]]:
    """Return what was returned or raised, and what was done."""
    mpsd = FakeMpsd(ttl)
    done = mpsd.done

    def source(image: str, name: str, place: object, gpu: str) -> FakeSource:
        assert (image, name, place, gpu) == ("", "llm", directory, "GPU-1")
        if isinstance(trouble, NoSuchImage):
            raise trouble
        return FakeSource(done, trouble)

    monkeypatch.setattr(_filling, "ImageSource", source)
    monkeypatch.setattr(_filling, "Client", mpsd)
    empty = {"id": 7, "name": "llm", "gpu": "GPU-1", "generation": 4, "layout": None, "used_bytes": 0}
    arena: Any = SimpleNamespace(**(empty | facts), refresh=lambda: done.append("refresh"))
    try:
        return fill_if_empty(arena, None, directory, 9.0, lambda: done.append("begun")), done
    except ImageError as exc:
        return exc, done


FILLED = ["begun", "fill 3", "put 7 4 GPU-1", "filled", "state 4", "arena.get", "arena.commit", "refresh", "closed", "closed"]


def test_an_empty_arena_has_the_image_in_one_commit(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert fill(directory, monkeypatch) == ((True, "the record"), FILLED)


def test_one_of_a_killed_restorer_does_not_expire_so_soon_any_more(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, done = fill(directory, monkeypatch, ttl=KILLED_TTL)
    assert done[done.index("arena.get") :][:3] == ["arena.get", "arena.change", "arena.commit"]


@pytest.mark.parametrize("facts", [{"layout": b"weights"}, {"used_bytes": 1}], ids=["layout", "memory"])
def test_contents_are_left_alone(directory: Path, monkeypatch: pytest.MonkeyPatch, facts: dict[str, Any]) -> None:
    assert fill(directory, monkeypatch, **facts) == ((False, None), [])


def test_without_an_image_the_arena_stays_empty(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of no arena: then no imager is started.  Of others only: the imager finds that."""
    assert fill(directory, monkeypatch, NoSuchImage("none of llm")) == ((False, None), ["begun"])
    os.unlink(directory / "complete/one")
    assert fill(directory, monkeypatch) == ((False, None), [])
    assert fill(directory / "missing", monkeypatch) == ((False, None), [])


def test_a_damaged_image_is_not_committed(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    damaged = ImageError("damaged")
    assert fill(directory, monkeypatch, damaged) == (damaged, ["begun", "fill 3", "put 7 4 GPU-1", "closed", "closed"])
