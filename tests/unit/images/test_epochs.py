"""Epochs of a group of processes: which are complete, what stays for a recovery, and what is refused."""

import json
import time
from pathlib import Path

import pytest
from msgspec import msgpack
from msgspec.structs import replace

from mpsd.errors import BadRequest
from mpsd.images.__main__ import main
from mpsd.images.copying import copy
from mpsd.images.rules.epochs import EpochState, epochs_of, newest_complete, next_life
from mpsd.images.rules.manifest import Manifest
from mpsd.images.rules.membership import Epoch
from mpsd.images.rules.transfer import Offer, offer_of, read_offer
from mpsd.images.store import Images
from tests.unit.images.making import block, facts

ALL = ("a", "b", "c")


def part(member: str, number: int, life: int = 1, quorum: int = 3, grace: float = 0.0) -> Epoch:
    return Epoch("job", member, ALL, life, number, quorum, grace)


def take(images: Images, epoch: Epoch, instant: float = 1.0) -> Manifest:
    name = f"job.{epoch.life}.{epoch.number}.{epoch.member}"
    with images.begin(name, epoch=epoch) as new:
        new.add("model", 0, block(epoch.number))
        return new.finish(instant, [facts(0)])


def states(images: Images, now: float | None = None) -> list[EpochState]:
    return epochs_of(images.listing().images, "job", time.time() if now is None else now)


def recovery(images: Images, now: float | None = None) -> tuple[int, int] | None:
    found = newest_complete(states(images, now))
    return found and (found.life, found.number)


def test_the_newest_epoch_that_all_have_is_recovered(images: Images) -> None:
    assert recovery(images) is None
    for member in ALL:
        take(images, part(member, 1))
    for member in ("a", "b"):  # c hangs: the others go on
        take(images, part(member, 2))
        take(images, part(member, 3))
    assert recovery(images) == (1, 1)
    assert [(each.number, each.missing) for each in states(images)] == [(1, ()), (2, ("c",)), (3, ("c",))]
    take(images, part("c", 2))
    assert recovery(images) == (1, 2)


def test_images_of_two_lives_make_no_epoch(images: Images) -> None:
    """An image of the life before, which its imager completes when the next one has begun, has other bytes."""
    take(images, part("a", 8))
    for member in ("b", "c"):
        take(images, part(member, 8, life=2))
    assert recovery(images) is None
    for member in ("b", "c"):
        take(images, part(member, 8))
    assert recovery(images) == (1, 8), "complete, though late"
    take(images, part("a", 8, life=2))
    assert recovery(images) == (2, 8)
    assert next_life(states(images), 0.0) == 3, "also if the clock was set back"


def test_members_that_state_another_quorum_do_not_count_together(images: Images) -> None:
    take(images, part("a", 1))
    for member in ("b", "c"):
        take(images, part(member, 1, quorum=2))
    assert [(each.is_complete, sorted(each.images)) for each in states(images)] == [(False, ["a"]), (True, ["b", "c"])]


def test_a_quorum_completes_an_epoch_after_the_grace_time(images: Images) -> None:
    first = take(images, part("a", 4, quorum=2, grace=60))
    assert recovery(images, first.written_at + 3600) is None, "one of three is no quorum"
    second = take(images, part("c", 4, quorum=2, grace=60))
    assert recovery(images, second.written_at + 59) is None
    assert recovery(images, second.written_at + 60) == (1, 4)
    [state] = states(images, second.written_at + 60)
    assert (state.missing, state.images) == (("b",), {"a": first.name, "c": second.name})
    take(images, part("b", 4, quorum=2, grace=60))
    assert recovery(images, second.written_at) == (1, 4), "all are there: no time to wait for"


def test_what_a_recovery_takes_stays(images: Images) -> None:
    """Whatever the limits are: a member that runs ahead would remove its own part otherwise."""
    for number in (1, 2):
        for member in ALL:
            take(images, part(member, number), instant=number)
    for number in (3, 4):
        take(images, part("a", number), instant=number)
    gone = images.retain(keep=1, age_seconds=0.0)
    assert sorted(gone) == ["job.1.1.a", "job.1.1.b", "job.1.1.c", "job.1.3.a"]
    assert recovery(images) == (1, 2)


def test_copies_and_offers_keep_the_epoch(images: Images, tmp_path: Path) -> None:
    made = [take(images, part(member, 1)) for member in ALL]
    with Images.open(tmp_path / "other") as other:
        for each in made:
            with images.reader(each.name) as image:
                copy(image, other, f"copy-{each.name}")
            with images.reader(each.name) as image:
                copy(image, other, f"again-{each.name}")
        assert recovery(other) == (1, 1)
        assert len(states(other)[0].images) == 3
    offer = offer_of(made[0], "sent")
    assert read_offer(msgpack.encode(offer)).epoch == offer.epoch == part("a", 1)
    wrong: Offer = replace(offer, epoch=part("z", 1))
    with pytest.raises(BadRequest, match="z is no member of group job, which has a, b, c"):
        read_offer(msgpack.encode(wrong))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"member": "z"}, "z is no member of group job"),
        ({"group": "../x"}, "image name '../x'"),
        ({"members": ("a", "b/")}, "image name 'b/'"),
        ({"members": ()}, "has 0 members: name 1 to 1024"),
        ({"members": ("a", "a", "b")}, "has 3 members: name 1 to 1024, each once"),
        ({"quorum": 1}, "a quorum of 1 for 3 members: more than half"),
        ({"quorum": 4}, "a quorum of 4 for 3 members"),
        ({"life": 0}, "life 0 and epoch 1"),
        ({"number": -1}, "epoch -1"),
        ({"number": 2**53}, "whole numbers up to"),
        ({"grace_seconds": float("nan")}, "a grace time of nan s"),
        ({"grace_seconds": -1.0}, "a grace time of -1.0 s"),
    ],
)
def test_an_epoch_that_cannot_be_is_refused(images: Images, changes: dict[str, object], why: str) -> None:
    with pytest.raises(BadRequest) as refused:
        images.begin("x", epoch=replace(part("a", 1), **changes))
    assert why in str(refused.value)
    assert not images.directory.names()


def test_a_member_has_one_image_of_an_epoch(images: Images) -> None:
    take(images, part("a", 1))
    with pytest.raises(BadRequest, match=r"an image has the name job\.1\.1\.a already"):
        take(images, part("a", 1))


def test_the_program_shows_epochs(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["epochs", "job", "--directory", str(path)]
    assert main([*words, "--json"]) == 0, "before the first image"
    document = json.loads(capsys.readouterr().out)
    assert (document["epochs"], document["recovery"]) == ([], None)
    with Images.open(path) as images:
        for member in ALL:
            take(images, part(member, 1, life=document["next_life"]))
        take(images, part("b", 2, life=document["next_life"]))
    assert main([*words, "--json"]) == 0
    later = json.loads(capsys.readouterr().out)
    assert later["recovery"]["images"]["c"] == f"job.{document['next_life']}.1.c"
    assert later["next_life"] > document["next_life"]
    assert main(words) == 0
    first, second, last = capsys.readouterr().out.splitlines()
    assert first.endswith("  complete: a, b, c")
    assert second.endswith("  incomplete: b, without a, c")
    assert last.startswith(f"a recovery of job takes: epoch 1 of life {document['next_life']}; the next life: ")
    assert main(["show", f"job.{document['next_life']}.2.b", "--directory", str(path)]) == 0
    assert f"epoch: 2 of life {document['next_life']} of group job, member b\n" in capsys.readouterr().out
    assert main(["epochs", "no such", "--directory", str(path)]) == 1
    assert "use 1 to 128 of A-Z" in capsys.readouterr().err


def test_a_damaged_manifest_stops_a_recovery(images: Images, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The epoch that it belongs to may be the newest one, and an older one would lose more."""
    made = take(images, part("a", 1))
    manifest = path / "complete" / made.name
    manifest.write_bytes(manifest.read_bytes()[:-1])
    assert main(["epochs", "job", "--directory", str(path)]) == 1
    assert made.name in capsys.readouterr().err
