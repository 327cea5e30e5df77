"""Exports are read by the safetensors library itself, and have the bytes that NumPy finds in the same memory."""

import json
import random
from math import prod
from pathlib import Path
from typing import Any

import numpy
import pytest
import safetensors
from safetensors.numpy import load_file

from mpsd.errors import BadRequest, MpsdError
from mpsd.images.export import export
from mpsd.images.rules.manifest import BLOCK_BYTES
from mpsd.images.rules.refusals import ImageDamaged
from mpsd.images.rules.tensors import ITEM_BYTES, Tensor
from mpsd.images.store import Images
from tests.seeds import seeds
from tests.unit.images.making import facts, flip

BLOCKS = 3
MEMORY = random.Random(1).randbytes(BLOCKS * BLOCK_BYTES)  # of the allocations at the blocks 1 to 3
START = BLOCK_BYTES  # where they begin
Spec = tuple[int, str, list[int], list[int]]  # offset in MEMORY, type, shape, strides


def layout(tensors: dict[str, Spec], **more: Any) -> bytes:
    described = {
        name: {"offset": START + offset, "bytes": 0, "dtype": kind, "shape": shape, "strides": strides}
        for name, (offset, kind, shape, strides) in tensors.items()
    }
    return json.dumps({"format": "mpsd-tensors-1", "tensors": described, "extra": None, **more}).encode()


def exported(images: Images, path: Path, layout: bytes, *, is_raw: bool = False) -> Path:
    with images.begin("first") as new:
        for place in range(BLOCKS):
            new.add("model", (place + 1) * BLOCK_BYTES, MEMORY[place * BLOCK_BYTES : (place + 1) * BLOCK_BYTES])
        new.finish(5.0, [facts(1, 2, 3, layout=layout)])
    with images.reader("first") as image:
        assert export(image, 0, path, is_raw=is_raw) == path.stat().st_size
    assert not path.with_name(path.name + ".part").exists()
    return path


def dense(spec: Spec) -> bytes:
    offset, kind, shape, strides = spec
    size = ITEM_BYTES[kind]
    words = numpy.frombuffer(MEMORY, f"V{size}", count=(len(MEMORY) - offset) // size, offset=offset)
    return numpy.lib.stride_tricks.as_strided(words, shape, [each * size for each in strides]).tobytes()


def read(path: Path) -> dict[str, dict[str, Any]]:
    return dict(safetensors.deserialize(path.read_bytes()))


CASES: dict[str, Spec] = {
    "scalar": (16, "float32", [], []),
    "empty": (0, "float16", [0, 4], [4, 1]),
    "over two blocks": (BLOCK_BYTES - 64, "bfloat16", [8, 16], [16, 1]),
    "over all blocks": (8, "uint8", [2 * BLOCK_BYTES + 100], [1]),
    "transposed": (4096, "float32", [300, 200], [1, 300]),
    "with gaps": (64, "int16", [5, 7], [100, 2]),
    "repeated": (64, "int64", [5, 7], [0, 1]),
    "repeated along the last": (64, "int64", [5, 7], [3, 0]),
    "a last dimension of one": (64, "int16", [40, 1], [3, 1]),
    "dimensions of one between": (64, "int64", [1, 4, 1, 3, 1], [7, 9, 5, 2, 8]),
    "all repeated": (64, "int16", [3, 1], [0, 0]),
    "four dimensions": (128, "uint8", [2, 3, 4, 5], [60, 1, 15, 3]),
}


@pytest.mark.parametrize("case", CASES)
def test_the_library_reads_the_bytes_of_the_arena(case: str, images: Images, tmp_path: Path) -> None:
    spec = CASES[case]
    found = read(exported(images, tmp_path / "out.safetensors", layout({case: spec})))
    assert list(found) == [case]
    assert found[case]["shape"] == spec[2]
    assert bytes(found[case]["data"]) == dense(spec)


def test_every_data_type(images: Images, tmp_path: Path) -> None:
    tensors: dict[str, Spec] = {kind: (4096 * at, kind, [6, 10], [1, 6]) for at, kind in enumerate(ITEM_BYTES)}
    path = exported(images, tmp_path / "out.safetensors", layout(tensors))
    found = read(path)
    for kind, spec in tensors.items():
        assert bytes(found[kind]["data"]) == dense(spec), kind
        assert prod(found[kind]["shape"]) == 60 * (2 if kind in ("complex32", "complex128", "float4_e2m1fn_x2") else 1)
    header = json.loads(path.read_bytes()[8 : 8 + int.from_bytes(path.read_bytes()[:8], "little")])
    offsets = {kind: header[kind]["data_offsets"][0] for kind in ITEM_BYTES}
    assert not [kind for kind, at in offsets.items() if at % ITEM_BYTES[kind]], "not aligned"


@pytest.mark.parametrize("seed", seeds(2, 2))
def test_random_views(seed: int, images: Images, tmp_path: Path) -> None:
    chance = random.Random(seed)
    tensors: dict[str, Spec] = {}
    for number in range(20):
        kind = chance.choice(list(ITEM_BYTES))
        shape = [chance.randrange(1, 6) for _ in range(chance.randrange(1, 5))]
        strides = [chance.randrange(2000) for _ in shape]
        offset = chance.randrange(2 * BLOCK_BYTES) // 16 * 16
        tensors[f"t{number}"] = (offset, kind, shape, strides)
    found = read(exported(images, tmp_path / "out.safetensors", layout(tensors)))
    assert {name: bytes(each["data"]) for name, each in found.items()} == {name: dense(each) for name, each in tensors.items()}


def test_numpy_loads_the_file_with_its_metadata(images: Images, tmp_path: Path) -> None:
    spec: Spec = (256, "float32", [3, 4], [4, 1])
    path = exported(images, tmp_path / "out.safetensors", layout({"w": spec}, extra={"step": 7}))
    found = load_file(path)["w"]
    assert (found.shape, found.dtype, found.tobytes()) == ((3, 4), numpy.float32, dense(spec))
    with safetensors.safe_open(path, "np") as file:
        assert file.metadata() == {
            "mpsd.image": "first", "mpsd.arena": "model", "mpsd.instant": "5.0", "mpsd.extra": '{"step": 7}',
        }  # fmt: skip


def test_raw_memory_needs_no_layout(images: Images, tmp_path: Path) -> None:
    found = read(exported(images, tmp_path / "out.safetensors", b"anything", is_raw=True))
    names = [f"memory.{(place + 1) * BLOCK_BYTES:#x}" for place in range(BLOCKS)]
    assert sorted(found) == names
    assert b"".join(bytes(found[name]["data"]) for name in names) == MEMORY


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"", "names no tensors"),
        (b"[1]", "names no tensors"),
        (b"{" * 100_000, "names no tensors"),
        (layout({}, format="another"), "format"),
        (layout({"w": (0, "float31", [1], [1])}), "data type"),
        (layout({"w": (0, "uint8", [1, 1], [1])}), "strides"),
        (layout({"w": (-START - 1, "uint8", [1], [1])}), "negative"),
        (layout({"w": (0, "uint8", [-1], [1])}), "negative"),
        (layout({"w": (0, "uint8", [1 << 30, 1 << 30], [0, 0])}), "larger"),
        (layout({"w": (0, "uint8", [2, 2], [5 << 30, 1])}), "tensor w is not dense.*takes 5368709122 bytes.*--raw"),
        (layout({"w": (-1, "uint8", [4], [1])}), "tensor w: no block"),
        (layout({"w": (BLOCKS * BLOCK_BYTES - 2, "uint8", [4], [1])}), "tensor w: no block"),
        (layout({"__metadata__": (0, "uint8", [4], [1])}), "__metadata__"),
    ],
    ids=lambda value: "" if isinstance(value, bytes) else value,
)
def test_a_layout_that_cannot_be_exported_leaves_no_file(text: bytes, why: str, images: Images, tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match=why):
        exported(images, tmp_path / "out.safetensors", text)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["state"]


def test_strides_that_make_too_many_rows_are_refused(monkeypatch: pytest.MonkeyPatch, images: Images, tmp_path: Path) -> None:
    """Each is a write: a tensor of 2^31 rows kept the program busy for an hour."""
    monkeypatch.setattr("mpsd.images.export._MOST_ROWS", 11)
    with pytest.raises(BadRequest, match=r"tensor w is not dense.*has 12 rows, the limit is 11.*--raw"):
        exported(images, tmp_path / "out.safetensors", layout({"w": (0, "uint8", [3, 4, 2], [100, 9, 2])}))
    assert sorted(each.name for each in tmp_path.iterdir()) == ["state"]


def test_a_dimension_of_one_makes_no_rows() -> None:
    """10^10 places of one element each were 10^10 rows."""
    many = Tensor(0, "uint8", (10**10, 1), (2, 1))
    assert many.row_count == 1
    assert next(many.rows()) == (0, 10**10, 2)


def test_a_damaged_image_is_not_exported(images: Images, path: Path, tmp_path: Path) -> None:
    exported(images, tmp_path / "whole.safetensors", b"", is_raw=True)
    flip(path / "packs/1", 2 * BLOCK_BYTES + 5)
    with images.reader("first") as image, pytest.raises(ImageDamaged):
        export(image, 0, tmp_path / "damaged.safetensors", is_raw=True)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["state", "whole.safetensors"]


def test_a_file_that_exists_is_kept(images: Images, tmp_path: Path) -> None:
    taken = tmp_path / "out.safetensors"
    taken.write_text("mine")
    with pytest.raises(MpsdError, match="exists already"):
        exported(images, taken, b"", is_raw=True)
    assert taken.read_text() == "mine"
