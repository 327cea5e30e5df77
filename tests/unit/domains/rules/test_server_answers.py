"""Several questions in one session: which part of the answer belongs to which."""

import pytest

from mpsd.domains.rules import server_answers


@pytest.mark.parametrize(
    ("answer", "pids", "about"),
    [
        ("", [], ""),
        ("7\n", [7], ""),
        ("7\nACTIVE\n", [7], "ACTIVE\n"),
        ("7\nFAULT\n21\n22\n", [7], "FAULT\n21\n22\n"),
        ("7\n8\nACTIVE\n21\n", [7, 8], "ACTIVE\n21\n"),
        ("Server 7 not found\nServer 7 not found\n", [], "Server 7 not found\nServer 7 not found\n"),
    ],
)
def test_the_list_ends_where_the_state_of_a_server_begins(answer: str, pids: list[int], about: str) -> None:
    assert server_answers.split_list(answer) == (pids, about)


def test_the_state_of_a_server_and_its_clients() -> None:
    assert server_answers.parse_server("ACTIVE\n21\n22\n") == ("ACTIVE", [21, 22])
    assert server_answers.parse_server("ACTIVE\n") == ("ACTIVE", [])


def test_a_server_that_has_just_ended_is_no_client_of_its_own() -> None:
    assert server_answers.parse_server("Server 7 not found\nServer 7 not found\n") == ("Server 7 not found", [])
