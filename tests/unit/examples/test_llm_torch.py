"""The LLM example's model and engine, on the CPU, where PyTorch is there."""

from typing import Any

import pytest
from toy import mix

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from model import SHAPES, Model  # noqa: E402
from sampling import draw  # noqa: E402
from scheduler import Size  # noqa: E402
from torch_engine import TorchEngine, captured  # noqa: E402

from tests.unit.examples.llm_service import FakeService, Fate  # noqa: E402

pytestmark = pytest.mark.slow
SIZE = Size.of(slots=4, length=96, page=8)
SHAPE = SHAPES["tiny"]


class Memory:
    """Stands for the memory of one arena."""

    def __init__(self) -> None:
        self.state = TorchEngine(SHAPE, SIZE, "cpu").build(586)

    def engine(self, fate: Fate | None = None) -> TorchEngine:
        """Return an engine as another process would have it."""
        made = TorchEngine(SHAPE, SIZE, "cpu")
        made.adopt(lambda model: model.load_state_dict(self.state["model"].state_dict(), assign=True, strict=False), self.state)
        made._model.cos, made._model.sin = self.state["model"].cos, self.state["model"].sin
        made.warm(captured)
        return made


@pytest.fixture(scope="module")
def memory() -> Memory:
    return Memory()


def prompt(seed: int, count: int) -> list[int]:
    return [mix(seed, place) % SHAPE.vocab for place in range(count)]


def answers(memory: Memory, asked: list[tuple[list[int], dict[str, Any]]], deaths: tuple[int, ...] = ()) -> list[list[int]]:
    service = FakeService(SIZE, memory.engine)
    streams = [service.begin(tokens, 12, **options) for tokens, options in asked]
    for left in deaths:
        assert not service.serve(Fate(left))
    assert service.serve(Fate(None))
    assert not service.trouble
    return [stream.tokens for stream in streams]


def logits_of(model: Any, tokens: list[int]) -> Any:
    """The whole text at once, without pages: what all others are compared with."""
    cos, sin = model.cos[: len(tokens), None], model.sin[: len(tokens), None]
    x = model.embedding(torch.tensor(tokens)[None])
    for layer in model.layers:
        q, k, v = (part.transpose(1, 2) for part in layer.split(x, cos, sin))
        k, v = (part.repeat_interleave(SHAPE.heads // SHAPE.kv_heads, dim=1) for part in (k, v))
        x = layer.mix(x, torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2))
    return model.head(model.norm(x))[0]


ASKED = [(prompt(1, 30), {}), (prompt(2, 1), {}), (prompt(3, 70), {}), (prompt(4, 17), {}), (prompt(5, 3), {})]
WARM = [(tokens, {"seed": 7, "temperature": 0.8, "top_k": 10}) for tokens, _ in ASKED]


def test_a_step_writes_one_page_of_each_text(memory: Memory) -> None:
    """An image of the arena then copies few blocks, and a move to another GPU pauses for less."""
    model, kv = memory.state["model"], memory.state["kv"].clone()
    before, tokens = kv.clone(), torch.tensor([[5], [9]])
    pages = torch.tensor([[3, 1, 7], [2, 8, 4]])
    model(tokens, torch.tensor([[9], [17]]), kv, torch.tensor([1 * 8 + 1, 4 * 8 + 1]), pages)
    changed = (kv != before).flatten(1).any(1).nonzero().flatten().tolist()
    assert (kv.shape[0], changed) == (SIZE.pages, [1, 4])


def test_pieces_and_steps_give_what_the_whole_text_gives(memory: Memory) -> None:
    for (tokens, _), found in zip(ASKED, answers(memory, ASKED), strict=True):
        expected = logits_of(memory.state["model"], tokens + found)[len(tokens) - 1 : -1].argmax(-1)
        assert found == expected.tolist()


@pytest.mark.parametrize("asked", [ASKED, WARM], ids=["greedy", "drawn"])
def test_what_others_ask_changes_nothing(memory: Memory, asked: list[tuple[list[int], dict[str, Any]]]) -> None:
    together = answers(memory, asked)
    assert [answers(memory, [each])[0] for each in asked] == together


def test_another_process_goes_on_with_the_same_tokens(memory: Memory) -> None:
    expected = answers(memory, WARM)
    assert answers(memory, WARM, deaths=(3, 8, 11, 20)) == expected


def test_a_standby_writes_nothing(memory: Memory) -> None:
    """Its first decoding steps, and steps of each piece length, write to memory of their own."""
    there = [memory.state["kv"], memory.state["history"], *memory.state["model"].parameters(), memory.state["model"].cos]
    memory.state["kv"].fill_(7)
    memory.state["history"].fill_(7)
    before = [each.clone() for each in there]
    memory.engine()
    assert all(map(torch.equal, before, there))
    memory.state["kv"].zero_()


def test_draws_follow_the_softmax_and_depend_on_seed_and_position_alone() -> None:
    count, wanted = 4000, torch.tensor([0.6, 0.3, 0.1])
    logits = wanted.log().expand(count, 3)
    rows = torch.arange(count)
    same, warm = torch.full((count,), 3), torch.ones(count)
    tokens = draw(logits, rows, torch.full((count,), 5), same, warm)
    assert torch.bincount(tokens, minlength=3) / count == pytest.approx(wanted, abs=0.03)
    assert torch.equal(tokens[100:200], draw(logits[:100], rows[100:200], same[:100] * 0 + 5, same[:100], warm[:100]))
    assert not torch.equal(tokens, draw(logits, rows, torch.full((count,), 6), same, warm))
    assert draw(logits, rows, rows, same, warm * 0).unique().tolist() == [0], "greedy"
    assert draw(logits, rows, rows, same * 0 + 1, warm).unique().tolist() == [0], "one candidate"
    assert draw(logits, rows, rows, same * 0 + 2, warm).unique().tolist() == [0, 1]


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("0.5B", 494_032_768), ("1.5B", 1_543_714_304), ("3B", 3_085_938_688), ("7B", 7_615_616_512), ("14B", 14_770_033_664)],
)
def test_shapes_have_as_many_parameters_as_the_models_they_are_of(name: str, parameters: int) -> None:
    with torch.device("meta"):
        model = Model(SHAPES[name], 16)
    assert sum(each.numel() for each in model.parameters()) == SHAPES[name].parameters == parameters
