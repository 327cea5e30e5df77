"""Handles of files."""

import os

from mpsd.host.file_handles import handle_of


def test_a_handle_is_of_one_file_under_any_name(tmp_path):
    (tmp_path / "a").write_text("x")
    os.link(tmp_path / "a", tmp_path / "b")
    (tmp_path / "c").write_text("x")
    handles = []
    for name in "abc":
        with open(tmp_path / name, "rb") as file:
            handles.append(handle_of(file.fileno()))
    assert handles[0] == handles[1] != handles[2]
