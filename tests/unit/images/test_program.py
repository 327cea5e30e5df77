"""The program mpsd-images: what it prints, and its exit status."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import safetensors
from prometheus_client.parser import text_string_to_metric_families

from mpsd.images import progress
from mpsd.images.__main__ import main
from mpsd.images.default_directory import default_directory
from mpsd.images.rules.manifest import BLOCK_BYTES
from mpsd.images.store import Images
from tests.unit.images.making import FIRST, block, contents_of, expected, facts, flip, stored_blocks, take


class Program:
    """Runs command lines on one directory."""

    def __init__(self, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._path = path
        self._capsys = capsys

    def __call__(self, verb: str, *words: str) -> tuple[int, str, str]:
        status = main([verb, "--directory", str(self._path), *words])
        out, error = self._capsys.readouterr()
        return status, out, error

    def json(self, verb: str, *words: str) -> dict:  # type: ignore[type-arg]
        found: dict = json.loads(self(verb, "--json", *words)[1])  # type: ignore[type-arg]
        return found


@pytest.fixture
def program(path: Path, capsys: pytest.CaptureFixture[str]) -> Program:
    return Program(path, capsys)


def test_list_and_show(program: Program, images: Images) -> None:
    take(images, "second", {0: 10}, instant=100.0)
    take(images, "first", FIRST, instant=50.0)
    status, out, _ = program("list")
    assert status == 0
    assert [line.split()[:2] for line in out.splitlines()[:2]] == [
        ["first", "1970-01-01T00:00:50.000Z"], ["second", "1970-01-01T00:01:40.000Z"],
    ]  # fmt: skip
    assert f"2 images, {progress.size_text(images.directory.stored_bytes())} on disk" in out
    assert [each["name"] for each in program.json("list")["images"]] == ["first", "second"]
    assert program.json("show", "first")["bytes"] == 3 * BLOCK_BYTES
    assert "arena model: 6 MiB in 3 allocations of GPU GPU-1" in program("show", "first")[1]


def test_what_does_not_exist(program: Program, images: Images, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, error = program("show", "none")
    assert (status, out) == (1, "")
    assert error.startswith("mpsd-images show: there is no image none in ")
    assert main(["list", "--directory", str(tmp_path / "nowhere")]) == 1
    assert "nowhere is no directory" in capsys.readouterr().err
    assert not (tmp_path / "nowhere").exists()


def test_a_directory_of_other_files_stays_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A mistyped path took away from its group what the directory had, and put files of images there."""
    other = tmp_path / "results"
    other.mkdir()
    other.chmod(0o775)
    (other / "table").touch()
    assert main(["list", "--directory", str(other)]) == 1
    assert "results has other files and no images: name another with --directory" in capsys.readouterr().err
    assert (os.listdir(other), other.stat().st_mode & 0o777) == (["table"], 0o775)


def test_limits_can_be_set_on_a_new_file_system(tmp_path: Path) -> None:
    (tmp_path / "disk/lost+found").mkdir(parents=True)
    assert main(["limits", "--quota", "10G", "--directory", str(tmp_path / "disk")]) == 0


def test_verify(program: Program, images: Images, path: Path) -> None:
    take(images, "first", FIRST)
    assert program("verify")[:2] == (0, "6 MiB were read, 0 blocks or manifests are damaged\n")
    flip(path / "packs/1", BLOCK_BYTES)
    status, out, _ = program("verify", "first")
    assert status == 1
    assert out.startswith("image first, arena model, offset 0x200000: the bytes in pack 1, slot 1 are not those")
    assert [each["offset"] for each in program.json("verify")["damage"]] == [BLOCK_BYTES]
    flip(path / "complete/first", 50)
    status, out, error = program("list")
    assert (status, "0 images" in out) == (1, True)
    assert "image first: its manifest was changed" in error


def test_export(program: Program, images: Images, tmp_path: Path) -> None:
    with images.begin("first", "llm") as new:
        for name in ("weights", "kv"):
            new.add(name, 0, block(len(name)))
        new.finish(1.0, [facts(0, name="weights"), facts(0, name="kv")])
    file = tmp_path / "out"
    status, _, error = program("export", "first", str(file), "--raw")
    assert (status, "choose one" in error) == (1, True)
    status, _, error = program("export", "first", str(file), "--arena", "kv")
    assert (status, "names no tensors" in error) == (1, True)
    assert program("export", "first", str(file), "--arena", "kv", "--raw")[0] == 0
    [(name, tensor)] = safetensors.deserialize(file.read_bytes())
    assert (name, bytes(tensor["data"])) == ("memory.0x0", block(2))


def test_copy(program: Program, images: Images, tmp_path: Path) -> None:
    take(images, "first", FIRST)
    there = tmp_path / "there"
    assert program("copy", "first", str(there), "--as", "copied")[1] == f"image copied in {there}: 6 MiB\n"
    with Images.open(there) as others:
        assert contents_of(others, "copied") == expected(FIRST)


@pytest.mark.parametrize("verb", ["verify", "copy", "export"])
def test_long_work_says_how_much_is_done(
    program: Program, images: Images, tmp_path: Path, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    take(images, "first", FIRST)
    take(images, "same", FIRST)  # whose blocks are read once
    there = str(tmp_path / "there")
    words = {"verify": [], "copy": ["first", there], "export": ["first", there, "--raw"]}[verb]
    monkeypatch.setattr(progress, "EACH_SECONDS", 0.0)
    _, out, error = program(verb, "--json", *words)
    json.loads(out)
    found = [json.loads(line) for line in error.splitlines()]
    assert found[0]["done_bytes"] < found[-1]["done_bytes"]
    assert found[-1] == {"done_bytes": 3 * BLOCK_BYTES, "total_bytes": 3 * BLOCK_BYTES}
    assert program("verify")[2] == "", "no terminal"
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert program("verify")[2].endswith("\rread 6 MiB of 6 MiB \n")


def test_removing_frees_the_disk(program: Program, images: Images) -> None:
    for number in range(4):
        take(images, f"image{number}", {0: number}, instant=number)
    assert program("remove", "image3")[1] == "1 images were removed, 2 MiB are free\n"
    assert program.json("prune", "--keep", "2") == {"removed": ["image0"], "freed_bytes": BLOCK_BYTES}
    assert program.json("prune", "--older-than", "1h")["removed"] == ["image1"]
    assert images.directory.names() == ["image2"]
    assert stored_blocks(images) == 1
    assert program("prune")[0] == 1


def test_numbers_for_prometheus(program: Program, images: Images, path: Path) -> None:
    take(images, "first", FIRST, instant=50.0)
    take(images, "second", {0: 10}, instant=100.0)
    take(images, "third", {0: 10})
    flip(path / "complete/third", 50)
    for why in ("once", "the disk is full"):
        images.directory.note_failure(why)
    found = {
        sample.name: (sample.labels, sample.value)
        for family in text_string_to_metric_families(program("metrics")[1])
        for sample in family.samples
    }
    arena = {"arena": "model"}
    assert found == {
        "mpsd_images": (arena, 2), "mpsd_images_bytes": (arena, 4 * BLOCK_BYTES),
        "mpsd_images_last_timestamp_seconds": (arena, 100.0), "mpsd_images_damaged": ({}, 1),
        "mpsd_images_stored_bytes": ({}, images.directory.stored_bytes()), "mpsd_images_failures_total": ({}, 2),
    }  # fmt: skip
    assert ": the disk is full\n" in program("list")[1]
    (path / "failures").write_bytes(b"\xff{")
    assert program.json("list")["failures"] == {"count": 0, "at": 0.0, "why": ""}


def test_a_name_in_the_numbers_is_no_code_for_a_terminal(program: Program, images: Images) -> None:
    """The arena's owner chose it; and a reader of the numbers takes no file with an escape that it does not know."""
    take(images, "first", {0: 10}, arena="\x1b]0;it\x07")
    out = program("metrics")[1]
    assert (out.isprintable(), out.replace("\n", "").isprintable()) == (False, True)
    labels = [each.labels for family in text_string_to_metric_families(out) for each in family.samples if each.labels]
    assert labels == [{"arena": "\\x1b]0;it\\x07"}] * 3


def test_a_name_is_one_line(program: Program, images: Images) -> None:
    """A sender of another machine chose it."""
    forged = "model\nnewest  2026-01-01T00:00:00.000Z  1 GiB  model"
    take(images, "first", {0: 10}, arena=forged)
    for verb, lines in (("list", 2), ("show", 5)):
        out = program(verb, *(["first"] if verb == "show" else []))[1]
        assert (len(out.splitlines()), out.count("\\nnewest")) == (lines, 1)


def test_limits(program: Program, images: Images) -> None:
    assert program.json("limits") == {"quota_bytes": None, "keep": None, "age_seconds": None}
    program("limits", "--quota", "500G", "--older-than", "7d")
    assert program("limits", "--keep", "3")[1] == "quota: 500 GiB\nimages of each arena: 3\nseconds: 604800.0\n"
    assert program.json("limits", "--quota", "none") == {"quota_bytes": None, "keep": 3, "age_seconds": 604800.0}
    for words in (("--keep", "0"), ("--quota", "5"), ("--older-than", "week")):
        with pytest.raises(SystemExit):
            program("limits", *words)
    assert images.directory.limits().keep == 3


def test_collect(program: Program, images: Images) -> None:
    take(images, "first", FIRST)
    images.remove("first")
    assert program("collect")[1] == "6 MiB are free\n"


def test_a_full_pipe_that_is_closed_is_no_failure_of_the_program(path: Path, images: Images) -> None:
    take(images, "first", FIRST)
    words = [sys.executable, "-m", "mpsd.images", "list", "--directory", path]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as found:
        assert found.stdout is not None
        assert found.stderr is not None
        found.stdout.close()
        assert found.stderr.read() == b""


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"MPSD_IMAGES": "/a/b"}, "/a/b"),
        ({"XDG_STATE_HOME": "/state"}, "/state/mpsd/images"),
        ({"XDG_STATE_HOME": "relative"}, "/users/me/.local/state/mpsd/images"),
        ({}, "/users/me/.local/state/mpsd/images"),
    ],
)
def test_the_default_directory(variables: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MPSD_IMAGES", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/users/me")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert str(default_directory()) == expected
