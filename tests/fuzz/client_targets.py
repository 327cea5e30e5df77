"""Entry points for random bytes at the readers of the Python client, of mpsctl, and of the metrics' HTTP; see targets.py."""

import math
from functools import partial
from typing import Any

import msgpack
import trio
import trio.testing
from mpsctl import quantities
from mpsd_client import MpsdError, calls
from mpsd_client._conversation import Conversation
from mpsd_client._layout import LayoutError
from mpsd_client._layout import decode as decode_layout
from mpsd_client._layout import encode as encode_layout
from mpsd_client._record import Record, Schema

from mpsd.metrics.http import HttpAnswer, Visit, converse
from tests.fuzz.targets import reads

CALLS: tuple[Any, ...] = (
    calls.status(), calls.lease_list(), calls.client_list(), calls.fault_get(1), calls.arena_take(1), calls.service_get("a"),
    calls.blame_list(), calls.limits_get(), calls.arena_layout(1), calls.domain_list(), calls.health(),
)  # fmt: skip


@reads(
    "clients/python/mpsd_client/_conversation.py", "clients/python/mpsd_client/_reading.py",
    "clients/python/mpsd_client/_datagrams.py", "clients/python/mpsd_client/_session.py",
)  # fmt: skip
def client_answers(data: bytes) -> None:
    """Any datagram as it comes, and any value as the result of every call."""
    conversation = Conversation()
    numbers = [conversation.ask(call)[0] for call in CALLS]
    try:
        value = msgpack.unpackb(data)
    except ValueError:
        value = None
    for frame in (data, *(msgpack.packb([1, number, None, value]) for number in numbers)) if _is_plain(value) else (data,):
        try:
            conversation.receive(frame)
        except MpsdError:
            continue
    for number in numbers:
        try:
            if conversation.answer(number):
                conversation.result(number)
            conversation.take_event()
        except MpsdError:
            continue
        finally:
            conversation.forget(number)


def _is_plain(value: object) -> bool:
    try:
        msgpack.packb(value)
    except (TypeError, ValueError, OverflowError):
        return False
    return True


@reads("clients/python/mpsd_client/_layout.py")
def client_layout(data: bytes) -> None:
    try:
        layout = decode_layout(data)
        encoded = encode_layout(layout)
    except LayoutError:
        return
    assert encode_layout(decode_layout(encoded)) == encoded
    assert all(spec.bytes >= 0 for spec in layout.tensors.values())


@reads("clients/python/mpsd_client/_record.py", "clients/python/mpsd_client/_state_reader.py")
def client_schema(data: bytes) -> None:
    """A schema that is accepted is written unchanged, and reads any record of its size."""
    try:
        schema = Schema.parse(data.decode())
    except ValueError:
        return
    assert Schema.parse(schema.text) == schema or Schema.parse(schema.text).text == schema.text
    record = Record(schema, (data * (schema.record_bytes // len(data) + 1))[: schema.record_bytes], 1, 1)
    assert dict(record).keys() == schema.fields.keys()
    for name in schema.fields:
        assert record.view(name).nbytes == schema.fields[name].bytes


@reads("clients/mpsctl/mpsctl/quantities.py", "clients/mpsctl/mpsctl/table.py")
def mpsctl_words(data: bytes) -> None:
    text = data.decode(errors="replace")
    of_number = partial(quantities.parse_number_of, 0, 100)
    ways = (quantities.parse_size, quantities.parse_duration, quantities.parse_percent, quantities.parse_whole, of_number)
    for parse in ways:
        try:
            found = parse(text)
        except quantities.Unfit:
            continue
        assert math.isfinite(found)


@reads("mpsd/metrics/http.py")
def metrics_http(data: bytes) -> None:
    """One answer, or none; the stream is closed."""
    trio.run(_one_conversation, data)


async def _one_conversation(data: bytes) -> None:
    async def page(visit: Visit) -> HttpAnswer:
        assert all(name == name.lower() for name in visit.headers)
        return HttpAnswer(200, b"numbers")

    ours, theirs = trio.testing.memory_stream_pair()
    await theirs.send_all(data)
    await theirs.send_eof()
    with trio.fail_after(5):
        await converse(ours, {"/metrics": page})
        answer = b"".join([part async for part in theirs])
    assert not answer or answer.startswith(b"HTTP/1.1 ")
