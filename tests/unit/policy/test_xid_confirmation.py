"""What confirms an Xid of the kernel log, which any user may be able to write."""

import pytest

from mpsd.fault import Observation, Source
from mpsd.policy.hearsay import CONFIRM_NS
from mpsd.policy.xid_confirmation import DEVICE_CONFIRM_NS, UnconfirmedXids

MS = 1_000_000


def record(xid: int, domain: str = "d1", gpu: str = "GPU-a", text: str = "") -> Observation:
    return Observation(Source.KERNEL_LOG, 0, gpu=gpu, domain=domain, xid=xid, text=text)


@pytest.mark.parametrize("xid", [13, 31, 43, 45, 48, 79, 154])
def test_nothing_counts_by_itself(xid):
    waiting = UnconfirmedXids()
    assert not waiting.hear(record(xid), 0)
    assert not waiting.hear(record(xid, domain=""), 0)


@pytest.mark.parametrize(
    ("of", "gpu", "xid", "ms", "counts"),
    [
        pytest.param(record(43), "GPU-a", 43, 1, True, id="the same"),
        pytest.param(record(79, ""), "GPU-a", 79, 1, True, id="of the GPU itself"),
        pytest.param(record(43), "GPU-a", 13, 1, False, id="another number"),
        pytest.param(record(43), "GPU-b", 43, 1, False, id="another GPU"),
        pytest.param(record(43, gpu=""), "", 43, 1, False, id="a GPU that is not known"),
        pytest.param(record(43), "GPU-a", 43, 2001, False, id="too late"),
    ],
)
def test_nvml_confirms(of, gpu, xid, ms, counts):
    """Whichever is first: a slow console shows the record later than NVML has its event."""
    waiting = UnconfirmedXids()
    waiting.hear(of, 0)
    waiting.drop_late(ms * MS)
    assert waiting.hear_nvml(gpu, xid, ms * MS) == ((of,) if counts else ())
    other = UnconfirmedXids()
    other.hear_nvml(gpu, xid, 0)
    assert other.hear(of, ms * MS) == counts


def test_an_event_is_for_one_domain():
    """A user who makes an Xid in a domain of its own writes a record about another one before it, or after it."""
    waiting = UnconfirmedXids()
    waiting.hear(record(43, "victim"), 0)
    waiting.hear(record(43, "own"), MS)
    assert waiting.hear_nvml("GPU-a", 43, 2 * MS) == ()
    assert waiting.hear_server("own") == (record(43, "own"),)
    assert not waiting.hear(record(43, "victim"), 3 * MS)
    after = UnconfirmedXids()
    after.hear(record(43, "own"), 0)
    assert after.hear_nvml("GPU-a", 43, MS) == (record(43, "own"),)
    assert not after.hear(record(43, "victim"), 2 * MS)
    assert after.hear(record(43, "own"), 3 * MS)
    assert after.hear_nvml("GPU-a", 43, 4 * MS) == ()


def test_each_domain_of_a_gpu_has_events_of_its_own():
    """Two domains fault one after the other, in either order of record and event."""
    waiting = UnconfirmedXids()
    waiting.hear(record(43, "d1"), 0)
    assert waiting.hear_nvml("GPU-a", 43, MS) == (record(43, "d1"),)
    waiting.hear(record(43, "d2"), 500 * MS)
    assert waiting.hear_nvml("GPU-a", 43, 501 * MS) == (record(43, "d2"),)
    assert waiting.hear_nvml("GPU-a", 43, 900 * MS) == ()
    assert waiting.hear(record(43, "d3"), 901 * MS)


def test_a_fault_of_several_records_leaves_no_event_for_others():
    """An SM exception makes two records and two events; the second event is not for who is named between."""
    waiting = UnconfirmedXids()
    waiting.hear(record(13, "own"), 0)
    waiting.hear(record(13, "own"), 0)
    assert len(waiting.hear_nvml("GPU-a", 13, MS)) == 2
    assert not waiting.hear(record(13, "victim"), 2 * MS)
    assert waiting.hear_nvml("GPU-a", 13, 3 * MS) == ()


def test_the_server_confirms_for_its_domain_and_says_nothing_of_the_gpu():
    """A client can make its own server fault, and would be excused by an Xid 79."""
    waiting = UnconfirmedXids()
    for each in (record(31), record(79), record(48), record(31, "d2"), record(31, "")):
        waiting.hear(each, 0)
    assert waiting.hear_server("d1") == (record(31),)


def test_a_gpu_that_nvml_cannot_reach_confirms_what_is_said_of_it():
    waiting = UnconfirmedXids()
    for each in (record(31), record(79, ""), record(79, "", "GPU-b"), record(79, "d1")):
        waiting.hear(each, 0)
    assert waiting.waits_for_gpu("GPU-a")
    assert waiting.hear_lost("GPU-a") == (record(79, ""), record(79, "d1"))
    assert not waiting.waits_for_gpu("GPU-a")


def test_what_is_not_confirmed_is_dropped():
    waiting = UnconfirmedXids()
    assert waiting.next_drop_ns() is None
    waiting.hear(record(79), 0)
    waiting.hear(record(43), MS)
    assert waiting.next_drop_ns() == CONFIRM_NS + MS + 1
    assert waiting.drop_late(CONFIRM_NS + MS) == ()
    assert waiting.drop_late(CONFIRM_NS + MS + 1) == (record(43),)
    assert waiting.drop_late(DEVICE_CONFIRM_NS + 1) == (record(79),)
    assert waiting.next_drop_ns() is None


def test_a_flood_keeps_little():
    waiting = UnconfirmedXids()
    for number in range(10_000):
        waiting.hear(record(10_000 + number), number)
    assert len(waiting.drop_late(10**12)) == 16
