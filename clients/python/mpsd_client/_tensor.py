"""A view of memory in an arena, which other libraries take without a copy: DLPack, and the CUDA array interface."""

from typing import TYPE_CHECKING, Any

from mpsd_client import _dlpack
from mpsd_client._layout import DATA_TYPES, TensorSpec

if TYPE_CHECKING:
    from mpsd_client._arena import Arena

class Tensor:
    """Elements in an arena; it has no memory of its own, and computes nothing.

    `torch.from_dlpack(tensor)`, `cupy.from_dlpack(tensor)`, `numba.cuda.as_cuda_array(tensor)`: each is the same memory.
    Nothing of ours runs on the GPU, so there is nothing to wait for; whoever wrote last synchronizes.
    Read-only where the arena is; a consumer that cannot be told so is refused (BufferError).
    """

    __slots__ = ("__weakref__", "arena", "name", "spec")

    def __init__(self, arena: "Arena", name: str, spec: TensorSpec) -> None:
        self.arena, self.name, self.spec = arena, name, spec

    @property
    def address(self) -> int:
        """Of its first element; the same in every process.  0 where it has none."""
        return self.arena.base + self.spec.offset if self.spec.bytes else 0

    @property
    def dtype(self) -> str:
        return self.spec.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return self.spec.shape

    @property
    def strides(self) -> tuple[int, ...]:
        """In elements."""
        return self.spec.strides

    @property
    def nbytes(self) -> int:
        """From its first byte to its last."""
        return self.spec.bytes

    @property
    def is_read_only(self) -> bool:
        return not self.arena.is_writable

    def __repr__(self) -> str:
        return f"<Tensor {self.name!r} {self.dtype}{list(self.shape)} at {self.address:#x} of arena {self.arena.name}>"

    def tobytes(self) -> bytes:
        """A copy of its elements in host memory.  ValueError: it has gaps, or is in another order."""
        self._require_contiguous()
        return self.arena.copy_out(self.address, self.nbytes)

    def frombytes(self, data: bytes) -> None:
        """Fills it, after all work on the default stream.  data: bytes, or what has a buffer of them.  ValueError: it has gaps,
        is read-only, or of another size."""
        self._require_contiguous()
        if self.is_read_only:
            raise ValueError(f"tensor {self.name} is read-only: arena {self.arena.name} is open for reading")
        given = data if isinstance(data, bytes) else bytes(memoryview(data))  # TypeError: no bytes, as text is none
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
        """A capsule; versioned, if the consumer takes that.  Raises BufferError: a copy, another device, or it is read-only
        and the consumer too old to be told; ValueError: the arena is closed."""
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
        """Version 3.  AttributeError for a type that it has no word for (bfloat16, float8): use DLPack."""
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
