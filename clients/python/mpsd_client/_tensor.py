"""A view of arena memory that other libraries import without a copy, by DLPack or the CUDA array interface."""

from typing import TYPE_CHECKING, Any

from mpsd_client import _dlpack
from mpsd_client._layout import DATA_TYPES, TensorSpec

if TYPE_CHECKING:
    from mpsd_client._arena import Arena

class Tensor:
    """A view of elements in an arena.  It owns no memory and computes nothing.

    `torch.from_dlpack(tensor)`, `cupy.from_dlpack(tensor)` and `numba.cuda.as_cuda_array(tensor)` share its memory.
    This package runs no work on the GPU and does not synchronize; the last writer must.
    The tensor is read-only if the arena is; a consumer that does not support read-only memory gets BufferError.
    """

    __slots__ = ("__weakref__", "arena", "name", "spec")

    def __init__(self, arena: "Arena", name: str, spec: TensorSpec) -> None:
        self.arena, self.name, self.spec = arena, name, spec

    @property
    def address(self) -> int:
        """The address of the first element, the same in every process; 0 for a tensor without elements."""
        return self.arena.base + self.spec.offset if self.spec.bytes else 0

    @property
    def dtype(self) -> str:
        return self.spec.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return self.spec.shape

    @property
    def strides(self) -> tuple[int, ...]:
        """The strides, in elements."""
        return self.spec.strides

    @property
    def nbytes(self) -> int:
        """The number of bytes from the first to the last, gaps included."""
        return self.spec.bytes

    @property
    def is_read_only(self) -> bool:
        """Whether this process must not write it: no tensor of its own arena, nor, in a rehearsal, of the copies."""
        return not (self.arena.is_writable or self.arena._is_copied(self.spec.offset, self.spec.bytes))

    def __repr__(self) -> str:
        return f"<Tensor {self.name!r} {self.dtype}{list(self.shape)} at {self.address:#x} of arena {self.arena.name}>"

    def tobytes(self) -> bytes:
        """Copy the elements to host memory.  Raises ValueError if the tensor is not contiguous."""
        self._require_contiguous()
        return self.arena.copy_out(self.address, self.nbytes)

    def frombytes(self, data: bytes) -> None:
        """Copy the data into the tensor, after all work on the default stream.  data: bytes or an object with the buffer
        protocol.  Raises ValueError if the tensor is not contiguous, is read-only, or has another size."""
        self._require_contiguous()
        if self.is_read_only:
            raise ValueError(f"tensor {self.name} is read-only: arena {self.arena.name} is open for reading")
        given = data if isinstance(data, bytes) else bytes(memoryview(data))  # raises TypeError without a buffer, as for str
        if len(given) != self.nbytes:
            raise ValueError(f"tensor {self.name} takes {self.nbytes} bytes, not {len(given)}")
        self.arena.copy_in(self.address, given)

    def _require_contiguous(self) -> None:
        if not self.spec.is_contiguous:
            raise ValueError(f"tensor {self.name} is not contiguous: {list(self.shape)} in strides {list(self.strides)}")

    def __dlpack_device__(self) -> tuple[int, int]:
        return _dlpack.CUDA, self.arena.device

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """Return a DLPack capsule, versioned if the consumer supports that.  Raises BufferError if the consumer asks for a
        copy or another device, or if the tensor is read-only and the consumer's DLPack is older than 1.0; ValueError if the
        arena is closed."""
        if dl_device is not None and tuple(dl_device) != self.__dlpack_device__():
            raise BufferError(f"tensor {self.name} is on device {self.__dlpack_device__()}, not {tuple(dl_device)}")
        if copy:
            raise BufferError(f"tensor {self.name}: an arena's memory is shared, never copied; copy it yourself")
        is_versioned = max_version is not None and max_version[0] >= _dlpack.VERSION
        if self.is_read_only and not is_versioned:
            raise BufferError(f"tensor {self.name} is read-only, and DLPack before version 1.0 cannot say so")
        return self.arena.lend(self, is_versioned)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The CUDA array interface, version 3.  Raises AttributeError for a type that the interface lacks (bfloat16, float8):
        use DLPack for those."""
        kind = DATA_TYPES[self.dtype]
        if kind.typestr is None:
            raise AttributeError(f"the CUDA array interface has no {self.dtype}; use DLPack")
        self.arena.note(self)
        return {
            "shape": self.shape,
            "typestr": kind.typestr,
            "data": (self.address, self.is_read_only),
            "strides": None if self.spec.is_contiguous else tuple(step * kind.bytes for step in self.strides),
            "stream": None,
            "version": 3,
        }
