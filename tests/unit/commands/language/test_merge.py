"""One table out of the tables of several domains."""

from hypothesis import given
from hypothesis import strategies as st

from mpsd.commands.language.merge import merge_device_clients, merge_device_queries, merge_ps

HEADER = "PID       ID        SERVER         DEVICE                    NAMESPACE      COMMAND        \n"
ROW = "586       1         512            GPU-196ea3e9-3f87-78c8    4026531836     /tmp/lab       \n"
OTHER = "587       1         633            GPU-196ea3e9-3f87-78c8    4026531836     /tmp/lab       \n"
GONE = "Server 633 not found\nServer 633 not found\n\n"
A, B = "GPU-90496d2f-68cf-ad72-f361-08e59367de69", "GPU-af74ba99-2640-40af-89f5-3288e8af3d69"
TABLE = "Device Ordinal  PCI IDs        UUID                                      Name           Attributes\n"
CSV = "Device Ordinal,PCI IDs,UUID,Name,Attributes\n"


def device_row(ordinal: int, uuid: str) -> str:
    return f"{ordinal:<16}0000:00.06.00  {uuid}  NVIDIA H200    N/A\n"


def test_ps_has_its_header_once() -> None:
    assert merge_ps([HEADER + ROW, "", HEADER + OTHER]) == HEADER + ROW + OTHER


def test_device_clients_of_one_device_come_together() -> None:
    answers = [("[0] 00:00.0, NVIDIA H200\n586.1\n", []), ("", []), ("[0] 00:00.0, NVIDIA H200\n587.1\n", [])]
    assert merge_device_clients(answers) == "[0] 00:00.0, NVIDIA H200\n586.1\n587.1\n"


def test_device_clients_show_the_public_ordinals() -> None:
    """A domain of the second GPU calls it 0."""
    answers = [("[0] 00:00.0, NVIDIA H200\n587.1\n", [1]), ("[0] 00:00.0, NVIDIA H200\n586.1\n", [0])]
    assert merge_device_clients(answers) == "[0] 00:00.0, NVIDIA H200\n586.1\n[1] 00:00.0, NVIDIA H200\n587.1\n"


def test_device_queries_unite_the_defaults_and_keep_the_servers() -> None:
    first = f"Default\n{TABLE}{device_row(0, A)}\nServer 512\n{TABLE}{device_row(0, A)}"
    second = f"Default\n{TABLE}{device_row(0, B)}\nServer 633\n{TABLE}{device_row(0, B)}"
    assert merge_device_queries([first, second], {A: 0, B: 1}) == (
        f"Default\n{TABLE}{device_row(0, A)}{device_row(1, B)}"
        f"\nServer 512\n{TABLE}{device_row(0, A)}\nServer 633\n{TABLE}{device_row(0, B)}"
    )


def test_device_queries_in_csv() -> None:
    first, second = (f"Default\n{CSV}0,0000:00.06.00,{uuid},NVIDIA H200,N/A\n" for uuid in (A, B))
    united = merge_device_queries([first, second], {A: 0, B: 11})
    assert united == f"Default\n{CSV}0,0000:00.06.00,{A},NVIDIA H200,N/A\n11,0000:00.06.00,{B},NVIDIA H200,N/A\n"


LINES = st.sampled_from([HEADER, ROW, OTHER, GONE, "\n", "[0] a\n", "[9999999999] b\n", "1.1\n", "Default\n", device_row(0, A)])
ANSWERS = st.lists(st.one_of(st.lists(LINES).map("".join), st.text(max_size=60)), max_size=4)


@given(ANSWERS)
def test_no_answer_is_too_odd_to_merge(answers: list[str]) -> None:
    size = sum(map(len, answers)) + 20 * sum(answer.count("\n") + 1 for answer in answers)
    assert len(merge_ps(answers)) <= size
    assert len(merge_device_clients([(answer, [3, 1]) for answer in answers])) <= size
    assert len(merge_device_queries(answers, {A: 5})) <= size
