"""The engine with a real model: one CUDA graph decodes a step of all slots; prompts are prefilled in chunks of fixed lengths.

The arena holds the model, the cache and the history.  Private memory holds the table of the slots, in which the graph also
advances tokens and positions, so that consecutive steps need no data from the host; and all temporary tensors.
"""

import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from engine import Chunk
from model import Model, Shape, be_deterministic, cache_of
from sampling import draw
from scheduler import ACTIVE, COLUMNS, POSITION, SEED, TEMPERATURE, TOKEN, TOP_K, Size, Slot
from torch import Tensor

CHUNKS = (16, 64, 256)  # tokens; the last chunk of a prompt is padded


class TorchEngine:
    """An Engine after `build` or `adopt`, and then `warm`.

    Capturing the graph runs nothing, because this process must not and cannot write to the arena before it serves.  The runs
    that load kernels and allocate the workspaces of libraries use a private cache with a single page.
    """

    writes = ("kv", "history")

    def __init__(self, shape: Shape, size: Size, device: str = "cuda") -> None:
        be_deterministic()
        torch.set_grad_enabled(False)  # for this thread, the only one that computes
        self.shape, self.size, self.device = shape, size, torch.device(device)
        self.dtype = torch.float32 if self.device.type == "cpu" else torch.bfloat16
        self.vocab = shape.vocab
        self._graph: Any = None
        self._model: Any = None
        self._kv: Any = None
        self._history: Any = None
        with self.device:
            rows = torch.arange(size.slots)
            self._idle_places = rows % size.page  # on page 0, which no slot owns
            self._idle_history = size.slots * size.length + rows % size.length  # in the last row, without an owner
            self._own_history = rows * size.length
            self._table = torch.zeros(size.slots, size.width, dtype=torch.int64)
            self._drawn = torch.zeros(size.slots, dtype=torch.int64)
        self._host_table = self._on_host(size.slots * size.width)
        self._host_drawn = self._on_host(size.slots)
        self._table_words, self._drawn_words = words_of(self._host_table), words_of(self._host_drawn)
        self._is_stale = True  # the GPU's copy of the table is stale
        self._done = torch.cuda.Event() if self.device.type == "cuda" else None

    # -- memory --------------------------------------------------------------------------------------------------------

    def build(self, seed: int) -> dict[str, Any]:
        """Make all that outlives the process, in PyTorch's current pool; return it as mpsd_client.torch.save takes it."""
        state = self._made(self.device)
        state["model"].fill(seed)
        self._take(state)
        return state

    def adopt(self, load_model: Callable[[Any], None], tensors: Mapping[str, Any]) -> None:
        """Use the memory that another process has filled.  load_model: gives memory to a module on the meta device."""
        state = self._made(torch.device("meta"))
        load_model(state["model"])
        self._take(state | {name: tensors[name] for name in ("kv", "history")})

    def _made(self, device: Any) -> dict[str, Any]:
        size, before = self.size, torch.get_default_dtype()
        torch.set_default_dtype(self.dtype)
        try:
            with device:
                return {
                    "model": Model(self.shape, size.length),
                    "kv": cache_of(self.shape, size.pages, size.page, self.dtype),
                    "history": torch.zeros((size.slots + 1) * size.length, dtype=torch.int32),
                }
        finally:
            torch.set_default_dtype(before)

    def _take(self, state: Mapping[str, Any]) -> None:
        self._model, self._kv, self._history = state["model"], state["kv"], state["history"]

    def forget(self) -> None:
        """Free the model, the cache and the history on the GPU."""
        self._model = self._kv = self._history = None
        torch.cuda.empty_cache()

    def _on_host(self, count: int) -> Tensor:
        return torch.zeros(count, dtype=torch.int64, pin_memory=self.device.type == "cuda")

    # -- computing -----------------------------------------------------------------------------------------------------

    def warm(self, capture: Callable[[Callable[[], None], Callable[[], None]], Any]) -> None:
        """Capture the decode graph and load all kernels.  capture: mpsd_client.torch.capture, or `captured` below."""
        with self.device:
            kv = cache_of(self.shape, 1, self.size.page, self.dtype)
            history = torch.zeros_like(self._history)
        self._table.zero_()
        begin = capture if self.device.type == "cuda" else uncaptured
        self._graph = begin(lambda: self._step(self._kv, self._history), lambda: self._step(kv, history))
        for count in CHUNKS:
            self._fill(kv, Chunk(0, 0, (0,) * count))
        self._synchronize()
        self._is_stale = True
        if self.device.type == "cuda":
            del kv, history
            torch.cuda.empty_cache()  # a standby must not keep memory that it does not need

    def _step(self, kv: Tensor, history: Tensor) -> None:
        table, pages = self._table, self._table[:, COLUMNS:]
        token, position, is_active = table[:, TOKEN], table[:, POSITION], table[:, ACTIVE] > 0
        page = self.size.page
        own = pages.gather(1, position[:, None] // page)[:, 0] * page + position % page
        places = torch.where(is_active, own, self._idle_places)
        behind = self._model(token[:, None], position[:, None], kv, places, pages)
        temperature = table[:, TEMPERATURE].int().view(torch.float32)
        drawn = draw(self._model.head(behind[:, 0]), position + 1, table[:, SEED], table[:, TOP_K], temperature)
        history.index_copy_(0, torch.where(is_active, self._own_history + position + 1, self._idle_history), drawn.int())
        self._drawn.copy_(drawn)
        token.copy_(torch.where(is_active, drawn, token))
        position.add_(table[:, ACTIVE])

    def _fill(self, kv: Tensor, chunk: Chunk) -> None:
        """Compute keys and values of a chunk of a prompt.  The padding is written to page 0."""
        count, page = self.chunk(len(chunk.tokens)), self.size.page
        padded = chunk.tokens + (0,) * (count - len(chunk.tokens))
        tokens = torch.tensor(padded, dtype=torch.int64).to(self.device)
        pages = self._table[chunk.slot, COLUMNS:]
        with self.device:
            positions = (chunk.first + torch.arange(count)).clamp_(max=self.size.length - 1)
            is_text = torch.arange(count) < len(chunk.tokens)
            places = torch.where(is_text, pages[positions // page] * page + positions % page, positions % page)
        self._model(tokens[None], positions[None], kv, places, pages[None])

    def _synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    # -- Engine --------------------------------------------------------------------------------------------------------

    def arrange(self, slots: Sequence[Slot]) -> None:
        width = self.size.width
        for slot in slots:
            self._table_words[slot.number * width : (slot.number + 1) * width] = slot.row(width)
        self._is_stale = True

    def keep(self, slot: int, tokens: Sequence[int]) -> None:
        first = slot * self.size.length
        self._history[first : first + len(tokens)] = torch.tensor(tokens, dtype=torch.int32)
        self._synchronize()

    def kept(self, slot: int, first: int, end: int) -> list[int]:
        begin = slot * self.size.length
        found: list[int] = self._history[begin + first : begin + end].tolist()
        return found

    def chunk(self, left: int) -> int:
        return next((count for count in CHUNKS if count >= left), CHUNKS[-1])

    def launch(self, chunk: Chunk | None, is_step: bool) -> None:
        if self._is_stale:
            self._table.view(-1).copy_(self._host_table, non_blocking=True)
            self._is_stale = False
        if chunk:
            self._fill(self._kv, chunk)
        if is_step:
            self._graph.replay()
        self._host_drawn.copy_(self._drawn, non_blocking=True)
        if self._done is not None:
            self._done.record()

    def wait(self) -> list[int]:
        if self._done is not None:
            self._done.synchronize()
        return self._drawn_words.tolist()


def words_of(tensor: Tensor) -> memoryview:
    """Return a view of a host tensor of 64-bit numbers: PyTorch would take microseconds for each access."""
    return memoryview((ctypes.c_int64 * tensor.numel()).from_address(tensor.data_ptr())).cast("B").cast("q")


def captured(step: Callable[[], None], warm_up: Callable[[], None]) -> Any:
    """Return a CUDA graph of `step`, without mpsd_client."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            warm_up()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        step()
    return graph


class Uncaptured:
    """Stands in for a graph on the CPU: `replay` runs the step."""

    def __init__(self, step: Callable[[], None]) -> None:
        self.replay = step


def uncaptured(step: Callable[[], None], warm_up: Callable[[], None]) -> Uncaptured:
    warm_up()
    return Uncaptured(step)


class Asleep:
    """An engine with its weights in pinned host memory and little more than a context on the GPU, as the "sleep" of other
    servers, for comparison."""

    def __init__(self, engine: TorchEngine, seed: int) -> None:
        model = engine.build(seed)["model"]
        self._engine = engine
        self._weights = {name: each.detach().cpu().pin_memory() for name, each in _of(model).items()}
        del model
        engine.forget()

    def wake(self) -> None:
        """Load the weights to the GPU, and make everything else again."""
        engine, size = self._engine, self._engine.size
        with engine.device:
            kv = cache_of(engine.shape, size.pages, size.page, engine.dtype)
            history = torch.zeros((size.slots + 1) * size.length, dtype=torch.int32)
        engine.adopt(self._load, {"kv": kv, "history": history})
        engine.warm(captured)

    def _load(self, model: Any) -> None:
        model.to_empty(device=self._engine.device)
        if self._engine.shape.is_tied:  # to_empty unties the weights
            model.head.weight = model.embedding.weight
        for name, each in _of(model).items():
            each.copy_(self._weights[name], non_blocking=True)


def _of(model: Any) -> dict[str, Any]:
    return dict(model.named_parameters()) | dict(model.named_buffers())
