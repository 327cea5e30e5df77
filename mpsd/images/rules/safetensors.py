"""The header of a safetensors file: 8 bytes with its length, and JSON that says where each tensor's data is.

The format is public (https://github.com/huggingface/safetensors).  Data is dense, row-major and without gaps between tensors.
Pure.
"""

import json
import struct
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from mpsd.errors import BadRequest
from mpsd.images.rules.tensors import Tensor

MOST_HEADER_BYTES = 100_000_000  # as its library reads
_METADATA = "__metadata__"
_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "bool": "BOOL", "uint8": "U8", "uint16": "U16", "uint32": "U32", "uint64": "U64",
        "int8": "I8", "int16": "I16", "int32": "I32", "int64": "I64",
        "float16": "F16", "float32": "F32", "float64": "F64", "bfloat16": "BF16", "complex64": "C64",
        "float8_e4m3fn": "F8_E4M3", "float8_e4m3fnuz": "F8_E4M3FNUZ", "float8_e5m2": "F8_E5M2",
        "float8_e5m2fnuz": "F8_E5M2FNUZ", "float8_e8m0fnu": "F8_E8M0", "float4_e2m1fn_x2": "F4",
    }
)  # fmt: skip
_AS_PAIRS: Mapping[str, str] = MappingProxyType({"complex32": "F16", "complex128": "F64"})  # with one more dimension


class Header:
    """The bytes of the header, and the tensors in the order of their data."""

    def __init__(self, tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> None:
        """metadata: kept as text, which is all that the format allows.  Raise BadRequest if the header is too large."""
        if _METADATA in tensors:
            raise BadRequest(f"no tensor of a safetensors file can have the name {_METADATA}")
        # Larger elements first: so each tensor begins at a multiple of its elements' size.
        self.tensors = dict(sorted(tensors.items(), key=lambda each: (-each[1].item_bytes, each[1].offset, each[0])))
        described: dict[str, Any] = {}
        self.data_bytes = 0
        for name, each in self.tensors.items():
            kind, shape = _kind(each)
            end = self.data_bytes + each.data_bytes
            described[name] = {"dtype": kind, "shape": shape, "data_offsets": [self.data_bytes, end]}
            self.data_bytes = end
        changed = {name: each.dtype for name, each in self.tensors.items() if each.dtype in _AS_PAIRS}
        told = {**metadata, **({"mpsd.complex": changed} if changed else {})}
        described[_METADATA] = {key: each if isinstance(each, str) else json.dumps(each) for key, each in told.items()}
        text = json.dumps(described, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        if len(text) > MOST_HEADER_BYTES:
            raise BadRequest(f"the header of {len(self.tensors)} tensors has {len(text)} bytes, over the format's limit")
        self.data = struct.pack("<Q", len(text)) + text


def _kind(tensor: Tensor) -> tuple[str, list[int]]:
    """Return the format's name of the data type, and the shape in elements of it."""
    if tensor.dtype in _AS_PAIRS:
        return _AS_PAIRS[tensor.dtype], [*tensor.shape, 2]
    shape = list(tensor.shape)
    if tensor.dtype == "float4_e2m1fn_x2":  # two values a byte
        shape = [*shape[:-1], 2 * shape[-1]] if shape else [2]
    return _NAMES[tensor.dtype], shape
