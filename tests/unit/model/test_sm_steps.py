"""SMs come in steps: the SMs of a share, the reservation of its lease, and the rest for leases without a reservation."""

import pytest
from msgspec.structs import replace

from mpsd.model.device import Device
from mpsd.model.lease import LeaseSpec, Selector, SelectorKind
from mpsd.model.sm_steps import as_given, given, of_count, remainder, reserved, whole

H200 = Device(0, "GPU-a", "NVIDIA H200", 1 << 37, "0", multiprocessors=132, capability=(9, 0))
SMALL = replace(H200, uuid="GPU-b", multiprocessors=16)
UNKNOWN = replace(H200, multiprocessors=0)
SPEC = LeaseSpec("a lease", Selector(SelectorKind.UID, "1000"))

# Percent and SMs as a kernel counted them on H100 and H200.
MEASURED = [
    (0.1, 8), (4, 8), (7, 8), (10, 12), (13, 16), (20, 26), (25, 32), (29, 38), (40, 52), (47, 62), (50, 66), (60, 78),
    (100, 132),
]  # fmt: skip


@pytest.mark.parametrize(("percent", "sms"), MEASURED)
def test_a_share_gives_what_was_measured(percent: float, sms: int) -> None:
    assert given(percent, H200) == sms


@pytest.mark.parametrize(("percent", "sms"), MEASURED)
def test_what_a_lease_reserves_is_what_its_client_is_given(percent: float, sms: int) -> None:
    """And the share that stands for it gives the same again, so that nothing is rounded twice."""
    spec = as_given(replace(SPEC, sm_percent=percent), [H200])
    assert reserved(spec.sm_percent, 1, H200) == given(spec.sm_percent, H200) == sms
    assert spec.sm_asked_percent == percent
    assert as_given(spec, [H200]).sm_percent == pytest.approx(spec.sm_percent)


@pytest.mark.parametrize(
    ("percent", "processes", "devices", "expected"),
    [
        pytest.param(30.0, 3, [H200], 300 * 12 / 132, id="each process for itself"),
        pytest.param(10.0, 5, [H200], 500 * 8 / 132, id="each has the fewest there can be"),
        pytest.param(100.0, 20, [H200], 100.0, id="never more than the GPU"),
        pytest.param(4.0, 1, [H200, SMALL], 50.0, id="the GPU where it is most"),
        pytest.param(4.0, 1, [UNKNOWN], 4.0, id="as asked where nobody knows"),
        pytest.param(0.0, 1, [H200], 0.0, id="none"),
    ],
)
def test_the_share_of_a_lease(percent: float, processes: int, devices: list[Device], expected: float) -> None:
    spec = replace(SPEC, sm_percent=percent, processes=processes)
    assert as_given(spec, devices).sm_percent == pytest.approx(expected)


@pytest.mark.parametrize("count", range(1, 133))
@pytest.mark.parametrize("processes", [1, 3])
def test_a_count_gives_at_least_so_many(count: int, processes: int) -> None:
    found = reserved(of_count(count, processes, H200), processes, H200)
    assert count <= found <= max(8 * processes, count + 2 * processes)


@pytest.mark.parametrize(
    ("percent", "sms"), [(100.0, 132), (99.9, 130), (46.0, 60), (6.07, 8), (6.0, 0), (0.0, 0)]
)
def test_what_is_dealt_is_rounded_down_to_a_step_or_is_nothing(percent: float, sms: int) -> None:
    assert whole(percent, [H200]) == pytest.approx(sms * 100 / 132)


@pytest.mark.parametrize(
    ("taken", "sms"), [(0.0, 132), (7800 / 132, 54), (12400 / 132, 8), (12600 / 132, 8), (100.0, 8)]
)
def test_what_is_left_for_a_lease_that_reserves_none(taken: float, sms: int) -> None:
    """Never fewer SMs than a client has to have, even where all are reserved."""
    assert remainder(taken, [H200]) == pytest.approx(sms * 100 / 132)
