"""Entry points for random bytes at every Python reader of foreign bytes: one function a reader.

Each takes an input and returns; an exception is a finding. The function catches what a reader may raise, and asserts what must
always hold. `reads` names the modules of the readers: parsers.py checks that none is missed.
"""

import math
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice, pairwise

from mpsd.api.method_table import METHODS
from mpsd.api.topics import parse_patterns
from mpsd.commands.language import merge
from mpsd.commands.language.command_table import COMMANDS
from mpsd.commands.language.dispatch import answer_error
from mpsd.commands.language.grammar import MAX_LINE_BYTES, PinnedLimit, Rejected, parse_words
from mpsd.domains.rules import vendor_limits
from mpsd.domains.rules.log_lines import OwnCommands, parse_line, read_news
from mpsd.domains.rules.server_answers import parse_pids
from mpsd.errors import BadRequest, MpsdError, NoSuchDevice, ProtocolError
from mpsd.faults.sources import kernel_log_lines, kmod_records
from mpsd.faults.sources.core_dump_file import parse_core
from mpsd.host import inspector_messages as inspector_wire
from mpsd.host.cgroups import parse_cgroups
from mpsd.host.process_exit import decode as decode_exit
from mpsd.host.process_stat import parse_stat
from mpsd.images.rules.block_hash import KEY_BYTES, BlockHash
from mpsd.images.rules.manifest import BLOCK_BYTES, BODY_AT, MAJOR, MINOR, ArenaFacts, decode
from mpsd.images.rules.refusals import ImageDamaged
from mpsd.images.rules.safetensors import Header
from mpsd.images.rules.tensors import read_layout
from mpsd.images.rules.transfer import (
    Answer,
    Want,
    block_ids,
    decode_message,
    plan_transfer,
    read_offer,
    to_numbers,
    to_ranges,
)
from mpsd.keeper import messages as keeper_wire
from mpsd.model import stop
from mpsd.model.cgroup_path import describe
from mpsd.model.device import Device
from mpsd.model.device_names import find_device
from mpsd.model.quantities import parse_limit
from mpsd.sentinel.messages import parse_report
from mpsd.stop import rules
from mpsd.uvm import abi
from mpsd.uvm.rules.memory_maps import parse_maps
from mpsd.wire import rpc
from mpsd.wire.forward_state import CONTROL_AT, parse_control, parse_head
from mpsd.wire.params import parse as parse_params

Read = Callable[[bytes], None]
MOST_NUMBER = 2**63


@dataclass(frozen=True, slots=True)
class Target:
    """modules: those with the readers that it drives, as paths from the root of the checkout."""

    read: Read
    modules: tuple[str, ...]


TARGETS: dict[str, Target] = {}


def reads(*modules: str) -> Callable[[Read], Read]:
    def enter(function: Read) -> Read:
        TARGETS[function.__name__] = Target(function, modules)
        return function

    return enter


def text_of(data: bytes) -> str:
    return data.decode(errors="replace")


# -- sockets -----------------------------------------------------------------------------------------------------------


@reads("mpsd/wire/rpc.py", "mpsd/api/datagrams.py")
def rpc_frame(data: bytes) -> None:
    """A frame is encoded to one that means the same."""
    try:
        frame = rpc.decode(data)
        encoded = rpc.encode(frame)
    except ProtocolError as error:
        rpc.encode(rpc.Notification("goodbye", rpc.error_map(error)))
        return
    assert rpc.encode(rpc.decode(encoded)) == encoded


@reads(
    "mpsd/wire/params.py", "mpsd/wire/messages.py", "mpsd/wire/arena_messages.py", "mpsd/wire/service_messages.py",
    "mpsd/api/topics.py",
)  # fmt: skip
def rpc_params(data: bytes) -> None:
    """The parameters of any method; a refusal fits into an answer."""
    try:
        frame = rpc.decode(data)
        if not isinstance(frame, rpc.Request) or (method := METHODS.get(frame.method)) is None:
            return
        message = parse_params(method.ask, frame.params)
        if frame.method == "events.subscribe":
            parse_patterns(message.topics)
    except MpsdError as error:
        rpc.encode(rpc.Response(1, rpc.error_map(error), None))
        assert str(error).isprintable()


@reads("mpsd/sentinel/messages.py")
def sentinel_report(data: bytes) -> None:
    with suppress(ProtocolError):
        assert isinstance(parse_report(data).why, str)


@reads("mpsd/keeper/messages.py")
def keeper_reply(data: bytes) -> None:
    try:
        reply = keeper_wire.parse_reply(data)
    except ProtocolError:
        return
    for look in (reply.entries, reply.keeper_pid, reply.most_held):
        try:
            look()
        except ProtocolError:
            continue


@reads("mpsd/wire/forward_state.py", "mpsd/services/heartbeats.py", "mpsd/vault/descriptor_checks.py")
def state_head(data: bytes) -> None:
    try:
        assert parse_head(data).file_bytes > CONTROL_AT
    except BadRequest:
        return


@reads("mpsd/wire/forward_state.py", "mpsd/services/heartbeats.py", "mpsd/services/elastic.py")
def state_control(data: bytes) -> None:
    try:
        _, work = parse_control(data, MOST_NUMBER)
    except BadRequest:
        return
    assert work is None or work.seconds >= 0.0


@reads("mpsd/host/inspector_messages.py", "mpsd/host/inspector.py", "mpsd/host/process_reader.py")
def inspector_answer(data: bytes) -> None:
    try:
        _, payload = inspector_wire.parse_answer(data)
    except (ProtocolError, OSError):
        return
    with suppress(ProtocolError):
        assert len(inspector_wire.parse_numbers(payload)) == len(payload) / 4
    with suppress(ProtocolError):
        assert inspector_wire.parse_linked_file(payload).path
        inspector_wire.parse_spaces(payload)
    assert "\0" not in inspector_wire.parse_cgroup(payload).text
    assert len(inspector_wire.parse_cgroups(payload)) == payload.count(b"\0")
    facts = inspector_wire.parse_facts(payload)
    assert "/" not in facts.program
    assert "\0" not in "".join(facts.variables)


# -- files -------------------------------------------------------------------------------------------------------------

IMAGE_HASH = BlockHash(bytes(KEY_BYTES))


@reads("mpsd/images/rules/manifest.py", "mpsd/images/directory.py")
def image_manifest(data: bytes) -> None:
    """A manifest's file, and one with the right head and hash for these bytes."""
    head = struct.pack("<8sHHI", b"mpsdimg\0", MAJOR, MINOR, len(data))
    for file in (data, head + IMAGE_HASH(head + data) + data):
        try:
            found = decode(file, IMAGE_HASH)
        except ImageDamaged:
            continue
        assert len(file) > BODY_AT
        assert sum(1 for _ in found.places()) * BLOCK_BYTES == found.content_bytes
        assert found.series


@reads("mpsd/images/rules/transfer.py")
def image_transfer(data: bytes) -> None:
    """The messages of the other side of a transfer."""
    with suppress(BadRequest):
        offer = read_offer(data)
        have, wanted = plan_transfer(offer, {each: each for each in block_ids(offer)[::2]})
        assert len(have) + len(wanted) == len(set(block_ids(offer)))
        assert to_numbers(Want(to_ranges(wanted)), len(block_ids(offer))) == wanted
    with suppress(BadRequest):
        answer = decode_message(data, Answer)  # type: ignore[arg-type]
        if isinstance(answer, Want):
            assert all(0 <= each < 100 for each in to_numbers(answer, 100))


@reads("mpsd/images/rules/tensors.py")
def image_layout(data: bytes) -> None:
    """An arena's layout, as it is exported."""
    try:
        tensors, _ = read_layout(ArenaFacts("arena", "", 0, 0, 0, (), layout=data))
        header = Header(tensors, {})
    except BadRequest:
        return
    assert header.data_bytes == sum(each.data_bytes for each in tensors.values())
    assert len(header.data) % 8 == 0
    for each in tensors.values():
        words = each.in_words()
        assert (words.data_bytes, words.span_bytes) == (each.data_bytes, each.span_bytes)
        for first, count, stride in islice(words.rows(), 100 if each.data_bytes else 0):
            assert (first + (count - 1) * stride + 1) * words.item_bytes <= words.span_bytes


# -- the kernel's and the vendor's text, in which that of others can stand ---------------------------------------------


@reads(
    "mpsd/faults/sources/core_dump_file.py", "mpsd/faults/sources/elf_tables.py", "mpsd/faults/sources/core_dump_directory.py"
)
def core_dump(data: bytes) -> None:
    try:
        core = parse_core(lambda offset, size: data[offset : offset + size], len(data))
    except ProtocolError:
        return
    assert all(each.name for each in core.exceptions)
    assert core.kernel.isprintable()


@reads("mpsd/faults/sources/kernel_log_lines.py", "mpsd/faults/sources/kernel_log.py")
def kernel_log(data: bytes) -> None:
    xid = kernel_log_lines.parse_xid(text_of(data))
    if xid is not None:
        seen = kernel_log_lines.observe(xid, "default", DEVICES, 10**12)
        assert seen.text.isprintable()
        assert (seen.xid or 0) < MOST_NUMBER


@reads("mpsd/faults/sources/kmod_records.py", "mpsd/faults/sources/kmod.py")
def kmod_channel(data: bytes) -> None:
    try:
        for record in kmod_records.parse_records(data):
            assert kmod_records.observe(record, 10**12).text.isprintable()
    except ProtocolError:
        pass
    if len(data) >= kmod_records.INFO.size:
        try:
            kmod_records.parse_info(data[: kmod_records.INFO.size])
        except ProtocolError:
            pass


@reads("mpsd/host/process_stat.py", "mpsd/host/process_exit.py", "mpsd/host/processes.py", "mpsd/host/file_writers.py")
def proc_stat(data: bytes) -> None:
    if (found := parse_stat(data)) is not None:
        assert len(str(decode_exit(found.exit_code))) < 20


@reads("mpsd/uvm/rules/memory_maps.py", "mpsd/uvm/holding.py")
def proc_maps(data: bytes) -> None:
    try:
        found = parse_maps(text_of(data))
    except ValueError:
        return
    assert all(one.end <= other.start for one, other in pairwise(found))


@reads("mpsd/host/cgroups.py", "mpsd/model/cgroup_path.py", "mpsd/model/stop.py", "mpsd/stop/freezer.py")
def proc_cgroup(data: bytes) -> None:
    paths = tuple(parse_cgroups(text_of(data)))
    describe(paths)
    rules.container_of(paths)
    for kind in (stop.TargetKind.CGROUP, stop.TargetKind.CONTAINER):
        target = stop.Target(kind, paths[0] if paths else "word")
        top = rules.branch(paths, target, stop.Asker(1000, 1))
        assert top is None or top.startswith("/")


@reads("mpsd/domains/rules/log_lines.py", "mpsd/host/growing_file.py", "mpsd/domains/log_follower.py")
def vendor_log(data: bytes) -> None:
    own = OwnCommands()
    for text in text_of(data).split("\n"):
        if (line := parse_line(text)) is not None:
            own.is_own(line)
            read_news(line)
            assert line.pid < MOST_NUMBER


@reads("mpsd/commands/language/merge.py", "mpsd/domains/rules/vendor_limits.py", "mpsd/domains/rules/server_answers.py")
def vendor_answers(data: bytes) -> None:
    text = text_of(data)
    halves = text[: len(text) // 2], text[len(text) // 2 :]
    merge.merge_ps(halves)
    merge.merge_device_clients([(half, [0, 1]) for half in halves])
    merge.merge_device_queries(halves, {DEVICES[0].uuid: 1})
    percent, memory = vendor_limits.read_percent(text), vendor_limits.read_memory(text)
    assert percent is None or 0 < percent <= 100
    assert memory is None or 0 <= memory < MOST_NUMBER
    assert all(pid < MOST_NUMBER for pid in parse_pids(text))
    vendor_limits.overrides(text, {DEVICES[0].uuid: 0})


@reads("mpsd/uvm/abi.py", "mpsd/uvm/device.py", "mpsd/uvm/simulator.py", "mpsd/uvm/sim_page.py")
def uvm_queue(data: bytes) -> None:
    """What a client's process can write into too: places and entries of an event queue."""
    get, put = (int.from_bytes(data[at : at + 4], "little") for at in (0, 4))
    places = abi.pending(get, put)
    assert len(places) < abi.QUEUE_ENTRIES
    assert all(0 <= place < abi.QUEUE_ENTRIES for place in places)
    try:
        event = abi.parse_entry(data[8:])
    except ValueError:
        return
    assert event is None or (event.fault_text and event.reason_text)


# -- commands ----------------------------------------------------------------------------------------------------------

DEVICES = (
    Device(0, "GPU-11111111-1111-1111-1111-111111111111", "A", 1 << 36, "00000000:00:06.0"),
    Device(1, "GPU-22222222-2222-2222-2222-222222222222", "B", 1 << 36, "00000000:00:07.0"),
)


@reads(
    "mpsd/commands/language/grammar.py", "mpsd/model/quantities.py", "mpsd/model/device_names.py", "mpsd/commands/sessions.py"
)
def command_line(data: bytes) -> None:
    """A request or a refusal; all output is printable."""
    try:
        words = parse_words(data)
        assert len(data) <= MAX_LINE_BYTES
        command = COMMANDS.get(words.name)
        request = command.parse(words.arguments) if command else None
    except Rejected as error:
        assert answer_error(error).status in (0, 1)
        return
    assert all(word.isprintable() for word in (words.name, *words.arguments))
    if isinstance(request, PinnedLimit):
        try:
            find_device(DEVICES, request.device or "")
        except NoSuchDevice:
            pass
        try:
            assert 0 <= parse_limit(request.value or "", request.stray) < MOST_NUMBER
        except BadRequest:
            pass
    percent = getattr(request, "thread_percent", None)
    assert percent is None or (math.isfinite(percent) and 0 < percent <= 100)
