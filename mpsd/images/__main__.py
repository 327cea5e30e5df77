"""mpsd-images: list, show, verify, export and remove a user's images.  It needs neither the daemon nor a GPU.

Prose: docs/images.md, "The program mpsd-images".
"""

import argparse
import json
import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

from msgspec.structs import asdict, replace

from mpsd.errors import BadRequest, MpsdError
from mpsd.host.command_line import Parser
from mpsd.images.copying import copy
from mpsd.images.default_directory import default_directory
from mpsd.images.export import export
from mpsd.images.progress import ProgressLine, size_text
from mpsd.images.receiving import receive
from mpsd.images.rules.epochs import EpochState, epochs_of, newest_complete, next_life
from mpsd.images.rules.manifest import BLOCK_BYTES, BlockPlace, Manifest
from mpsd.images.rules.naming import check_name
from mpsd.images.sending import send_by
from mpsd.images.store import Images
from mpsd.images.stream import STALL_SECONDS, Stream
from mpsd.model.visible_text import visible

DONE, FAILED = 0, 1
_NONE = "none"
_SHIFTS = {"M": 20, "G": 30, "T": 40}
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
Run = Callable[[Images, argparse.Namespace], int]


def run() -> None:
    """Run the command line of this process."""
    try:
        status = main(sys.argv[1:])
        sys.stdout.flush()
        sys.exit(status)
    except BrokenPipeError:  # the reader of the output went away
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(FAILED)
    except KeyboardInterrupt:
        sys.exit(130)


def main(words: Sequence[str]) -> int:
    """Run a command line and return its exit status.  Exits for --help and wrong command lines."""
    asked = _parser().parse_args(words)
    try:
        asked.directory = asked.directory or default_directory()
        with asked.open(asked.directory) as images:
            status: int = asked.run(images, asked)
            return status
    except BrokenPipeError:
        raise
    except (MpsdError, OSError) as exc:
        _say(f"mpsd-images {asked.verb}: {exc}", sys.stderr)
        return FAILED


def _parser() -> argparse.ArgumentParser:
    shared = Parser(add_help=False)
    shared.add_argument(
        "--directory", type=Path,
        help="of the images; default: $MPSD_IMAGES, else mpsd/images in $XDG_STATE_HOME or ~/.local/state",
    )  # fmt: skip
    shared.add_argument("--json", action="store_true", help="print JSON; each second also the progress, on standard error")
    parser = Parser(prog="mpsd-images", description="Images of arenas, on disk.", allow_abbrev=False)
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)

    def verb(name: str, run: Run, help: str) -> argparse.ArgumentParser:
        made = verbs.add_parser(name, help=help, description=help, parents=[shared], allow_abbrev=False)
        made.set_defaults(run=run, open=Images.open_existing)
        return made

    verb("list", _list, "List all images, oldest first")
    group = verb("epochs", _epochs, "Show the epochs of a group of processes, and which one a recovery takes")
    group.add_argument("group")
    group.set_defaults(open=Images.open)  # before its first image
    verb("show", _show, "Show one image").add_argument("name")
    verb("verify", _verify, "Read all blocks, and report damage; exit status 1 if any").add_argument("name", nargs="*")
    exporting = verb("export", _export, "Write an arena of an image as a safetensors file")
    exporting.add_argument("name")
    exporting.add_argument("file", type=Path, help="must not exist")
    exporting.add_argument("--arena", help="which, if the image has several")
    exporting.add_argument("--raw", action="store_true", help="each allocation as bytes, if the layout names no tensors")
    copying = verb("copy", _copy, "Copy an image to another directory, as from host memory to disk")
    copying.add_argument("name")
    copying.add_argument("to", type=Path, metavar="DIRECTORY", help="made if it is missing")
    copying.add_argument("--as", dest="new_name", metavar="NAME", help="otherwise the same name")
    sending = verb("send", _send, "Send an image to another machine, by a command that runs `mpsd-images receive` there")
    sending.add_argument("name")
    sending.add_argument("--as", dest="new_name", metavar="NAME", help="otherwise the same name")
    sending.add_argument("command", nargs="+", metavar="COMMAND", help="after --, as: -- ssh HOST mpsd-images receive")
    receiving = verb("receive", _receive, "Receive the image that `mpsd-images send` sends")
    receiving.set_defaults(open=Images.open)
    for each in (sending, receiving):
        each.add_argument(
            "--stall", type=_seconds, default=STALL_SECONDS, metavar="DURATION",
            help="give up when the other side stands still for so long; default: 5m",
        )  # fmt: skip
    verb("remove", _remove, "Remove images, and free their disk space").add_argument("name", nargs="+")
    pruning = verb("prune", _prune, "Remove old images, and free their disk space; the newest of each arena stays")
    pruning.add_argument("--keep", type=_count, metavar="N", help="this many of each arena stay")
    pruning.add_argument("--older-than", type=_seconds, metavar="DURATION", help="as 12h or 7d")
    limiting = verb("limits", _limits, "Show or set the limits of the directory, which apply to every image from then on")
    limiting.add_argument("--quota", type=_or_none(_bytes), metavar="SIZE", help="of disk space, as 500G; none: no limit")
    limiting.add_argument("--keep", type=_or_none(_count), metavar="N", help="this many of each arena stay; none: no limit")
    limiting.add_argument("--older-than", type=_or_none(_seconds), metavar="DURATION", help="older ones go; none: no limit")
    verb("metrics", _metrics, "Print the numbers of the directory for Prometheus")
    verb("collect", _collect, "Free what killed writers left behind")
    return parser


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 0 < int(text[:10]) < 2**31):
        raise argparse.ArgumentTypeError(f'found "{text}"; accepted: a whole number from 1 on')
    return int(text)


def _seconds(text: str) -> float:
    found = re.fullmatch(r"([0-9]{1,9})([smhd])", text)
    if found is None:
        raise argparse.ArgumentTypeError(f'found "{text}"; accepted: a whole number and s, m, h or d, as 12h or 7d')
    return float(found[1]) * _SECONDS[found[2]]


def _bytes(text: str) -> int:
    found = re.fullmatch(r"([0-9]{1,9})([MGT])", text)
    if found is None:
        raise argparse.ArgumentTypeError(f'found "{text}"; accepted: a whole number and M, G or T, as 500G')
    return int(found[1]) << _SHIFTS[found[2]]


def _or_none(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    return lambda text: _NONE if text == _NONE else parse(text)


# -- the verbs -------------------------------------------------------------------------------------------------------------


def _list(images: Images, asked: argparse.Namespace) -> int:
    listing = images.listing()
    stored, failures = images.directory.stored_bytes(), images.directory.failures()
    if asked.json:
        _print_json({
            "images": [_facts(each) for each in listing.images], "damaged": listing.damaged, "stored_bytes": stored,
            "failures": asdict(failures),
        })  # fmt: skip
    else:
        for each in listing.images:
            _say(f"{each.name}  {_moment(each.instant)}  {size_text(each.content_bytes)}  {each.series}")
        _say(f"{len(listing.images)} images, {size_text(stored)} on disk, in {asked.directory}")
        if failures.count:
            _say(f"{failures.count} images failed, the last one {_moment(failures.at)}: {failures.why}")
    _complain(listing.damaged)
    return FAILED if listing.damaged else DONE


def _show(images: Images, asked: argparse.Namespace) -> int:
    found = images.find(asked.name)
    if asked.json:
        _print_json(_facts(found))
        return DONE
    _say(f"name: {found.name}")
    if found.group:
        _say(f"group: {found.group}")
    if epoch := found.epoch:
        _say(f"epoch: {epoch.number} of life {epoch.life} of group {epoch.group}, member {epoch.member}")
    _say(f"instant: {_moment(found.instant)}")
    _say(f"bytes: {found.content_bytes} ({size_text(found.content_bytes)})")
    _say(f"digest: {found.digest.hex()}")
    if found.members:
        _say("parity of the arenas below, whose own blocks are not stored")
    for facts in [each.facts for each in found.members or found.arenas]:
        memory = f"{size_text(facts.content_bytes)} in {len(facts.allocations)} allocations of GPU {facts.gpu}"
        more = f"layout of {len(facts.layout)} bytes, {'a' if facts.state else 'no'} forward state"
        _say(f"arena {facts.name}: {memory}, commit {facts.commit}, {more}")
    return DONE


def _epochs(images: Images, asked: argparse.Namespace) -> int:
    check_name(asked.group)
    listing, now = images.listing(), time.time()
    epochs = epochs_of(listing.images, asked.group, now)
    newest, life = newest_complete(epochs), next_life(epochs, now)
    if asked.json:
        recovery = None if newest is None else asdict(newest)
        _print_json({
            "group": asked.group, "epochs": [asdict(each) for each in epochs], "recovery": recovery, "next_life": life,
            "damaged": listing.damaged,
        })  # fmt: skip
    else:
        for each in epochs:
            _say(_epoch_text(each))
        found = f"epoch {newest.number} of life {newest.life}" if newest else "no epoch is complete"
        _say(f"a recovery of {asked.group} takes: {found}; the next life: {life}")
    _complain(listing.damaged)
    return FAILED if listing.damaged else DONE


def _epoch_text(epoch: EpochState) -> str:
    state = "complete" if epoch.is_complete else "incomplete"
    missing = f", without {', '.join(epoch.missing)}" if epoch.missing else ""
    return f"epoch {epoch.number} of life {epoch.life}  {_moment(epoch.instant)}  {state}: {', '.join(epoch.images)}{missing}"


def _verify(images: Images, asked: argparse.Namespace) -> int:
    progress = ProgressLine("read", BLOCK_BYTES * len(_blocks(images, asked.name)), is_json=asked.json)
    damage = list(images.verify(asked.name, progress.add))
    progress.end()
    if asked.json:
        _print_json({"read_bytes": progress.done, "damage": [asdict(each) for each in damage]})
    else:
        for each in damage:
            where = f", arena {each.arena}, offset {each.offset:#x}" if each.arena else ""
            _say(f"image {each.image}{where}: {each.why}")
        _say(f"{size_text(progress.done)} were read, {len(damage)} blocks or manifests are damaged")
    return FAILED if damage else DONE


def _blocks(images: Images, names: Sequence[str]) -> set[BlockPlace]:
    """Return the blocks of these images, or of all, that can be read."""
    return {place for each in images.listing().images if not names or each.name in names for place in each.places()}


def _export(images: Images, asked: argparse.Namespace) -> int:
    with images.reader(asked.name) as image:
        arena = image.arena(asked.arena)
        progress = ProgressLine("wrote", image.manifest.arenas[arena].facts.content_bytes, is_json=asked.json)
        written = export(image, arena, asked.file, is_raw=asked.raw, told=progress.add)
        progress.end()
    _report(asked, {"file": str(asked.file), "bytes": written}, f"{asked.file}: {size_text(written)}")
    return DONE


def _copy(images: Images, asked: argparse.Namespace) -> int:
    with images.reader(asked.name) as image, Images.open(asked.to) as to:
        progress = ProgressLine("copied", image.manifest.content_bytes, is_json=asked.json)
        made = copy(image, to, asked.new_name or asked.name, progress.add)
        progress.end()
        to.tidy()
    text = f"image {made.name} in {asked.to}: {size_text(made.content_bytes)}"
    _report(asked, {"name": made.name, "directory": str(asked.to), "bytes": made.content_bytes}, text)
    return DONE


def _send(images: Images, asked: argparse.Namespace) -> int:
    with images.reader(asked.name) as image:
        progress = ProgressLine("sent", 0, is_json=asked.json)
        sent = send_by(asked.command, image, asked.new_name or asked.name, progress.add, asked.stall)
        progress.end()
        whole = image.manifest.content_bytes
    text = f"image {asked.name}: {size_text(sent)} were sent, the other side had the rest of {size_text(whole)}"
    _report(asked, {"name": asked.name, "bytes": whole, "sent_bytes": sent}, text)
    return DONE


def _receive(images: Images, asked: argparse.Namespace) -> int:
    if sys.stdin.isatty():
        raise BadRequest("`mpsd-images send NAME -- COMMAND` starts this and writes the image to its standard input")
    made = receive(images, Stream(sys.stdin.fileno(), sys.stdout.fileno(), asked.stall))
    images.tidy()
    _say(f"image {made.name} in {asked.directory}: {size_text(made.content_bytes)}", sys.stderr)
    return DONE


def _remove(images: Images, asked: argparse.Namespace) -> int:
    for name in asked.name:
        images.remove(name)
    return _after_removing(images, asked, asked.name)


def _prune(images: Images, asked: argparse.Namespace) -> int:
    if asked.keep is None and asked.older_than is None:
        raise BadRequest("say which images: --keep N, --older-than DURATION, or both")
    return _after_removing(images, asked, images.retain(asked.keep, asked.older_than))


def _after_removing(images: Images, asked: argparse.Namespace, names: Sequence[str]) -> int:
    freed = images.collect()
    text = f"{len(names)} images were removed, {size_text(freed)} are free"
    _report(asked, {"removed": list(names), "freed_bytes": freed}, text)
    return DONE


def _limits(images: Images, asked: argparse.Namespace) -> int:
    given = {"quota_bytes": asked.quota, "keep": asked.keep, "age_seconds": asked.older_than}
    changes = {name: None if value == _NONE else value for name, value in given.items() if value is not None}
    limits = replace(images.directory.limits(), **changes)
    if changes:
        images.set_limits(limits)
    quota = _NONE if limits.quota_bytes is None else size_text(limits.quota_bytes)
    lines = f"quota: {quota}", f"images of each arena: {limits.keep or _NONE}", f"seconds: {limits.age_seconds or _NONE}"
    _report(asked, asdict(limits), *lines)
    return DONE


def _metrics(images: Images, asked: argparse.Namespace) -> int:
    from mpsd.images.metrics import metrics_text  # the other verbs begin faster without it

    print(metrics_text(images), end="")
    return DONE


def _collect(images: Images, asked: argparse.Namespace) -> int:
    freed = images.collect()
    _report(asked, {"freed_bytes": freed}, f"{size_text(freed)} are free")
    return DONE


# -- output ----------------------------------------------------------------------------------------------------------------


def _say(text: str, to: TextIO | None = None) -> None:
    """Print a line that may have names of whoever made the image or committed the layout."""
    print(visible(text), file=to)


def _facts(image: Manifest) -> dict[str, Any]:
    arenas, members = ([
        {
            "name": each.facts.name, "gpu": each.facts.gpu, "bytes": each.facts.content_bytes, "commit": each.facts.commit,
            "allocations": each.facts.allocations, "layout_bytes": len(each.facts.layout),
            "state_bytes": len(each.facts.state),
        }
        for each in those
    ] for those in (image.arenas, image.members))  # fmt: skip
    return {
        "name": image.name, "group": image.group, "series": image.series, "instant": image.instant,
        "written_at": image.written_at, "bytes": image.content_bytes, "digest": image.digest.hex(), "arenas": arenas,
        "members": members,
        "epoch": image.epoch and asdict(image.epoch),
    }  # fmt: skip


def _report(asked: argparse.Namespace, document: dict[str, Any], *lines: str) -> None:
    if asked.json:
        _print_json(document)
    for line in () if asked.json else lines:
        _say(line)


def _print_json(document: dict[str, Any]) -> None:
    print(json.dumps(document, indent=2))


def _complain(damaged: dict[str, str]) -> None:
    for why in damaged.values():
        _say(f"mpsd-images: {why}", sys.stderr)


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


if __name__ == "__main__":
    run()
