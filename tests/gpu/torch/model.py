"""A decoder-only model in plain PyTorch, of the shape of Qwen2.5-0.5B, with random weights: big enough to be a real tenant's.

Twice the same run gives the same bits: one token a step, the same kernels in every step, no kernel that adds in any order.
"""

import hashlib
import os
from dataclasses import dataclass

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when cuBLAS starts

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class Shape:
    layers: int = 24
    hidden: int = 896
    heads: int = 14
    kv_heads: int = 2
    head: int = 64
    mlp: int = 4864
    vocab: int = 151936
    length: int = 1024  # positions that the cache has

    @classmethod
    def small(cls) -> "Shape":
        """For a first look: seconds become milliseconds."""
        return cls(layers=2, hidden=128, heads=4, kv_heads=2, head=32, mlp=256, vocab=512, length=128)


class Norm(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size, dtype=torch.bfloat16))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * self.weight


def linear(inputs: int, outputs: int, bias: bool = False) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=bias, dtype=torch.bfloat16)


class Layer(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.before_attention, self.before_mlp = Norm(shape.hidden), Norm(shape.hidden)
        self.qkv = linear(shape.hidden, (shape.heads + 2 * shape.kv_heads) * shape.head, bias=True)
        self.out = linear(shape.heads * shape.head, shape.hidden)
        self.gate, self.up = linear(shape.hidden, shape.mlp), linear(shape.hidden, shape.mlp)
        self.down = linear(shape.mlp, shape.hidden)

    def mix(self, x: Tensor) -> Tensor:
        inner = self.before_mlp(x)
        return x + self.down(functional.silu(self.gate(inner)) * self.up(inner))

    def split(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of x [..., hidden] as [..., heads, head]; the first two turned by their position."""
        shape = self.shape
        parts = self.qkv(self.before_attention(x)).unflatten(-1, (-1, shape.head))
        q, k, v = parts.split((shape.heads, shape.kv_heads, shape.kv_heads), dim=-2)
        return rotate(q, cos, sin), rotate(k, cos, sin), v

    def step(self, x: Tensor, kv: Tensor, position: Tensor, hidden: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """One token, x [hidden]: its key and value go into kv [2, kv_heads, length, head], and it looks at all up to itself."""
        shape = self.shape
        q, k, v = self.split(x, cos, sin)
        kv.index_copy_(2, position, torch.stack((k, v)).unsqueeze(2))
        q = q.view(shape.kv_heads, shape.heads // shape.kv_heads, shape.head)
        scores = (q @ kv[0].transpose(1, 2)).float() * shape.head**-0.5
        weights = scores.masked_fill(hidden, float("-inf")).softmax(-1).to(x.dtype)
        return self.mix(x + self.out((weights @ kv[1]).flatten()))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """A whole text, x [batch, length, hidden]; for training."""
        shape = self.shape
        q, k, v = (part.transpose(1, 2) for part in self.split(x, cos, sin))
        k, v = (part.repeat_interleave(shape.heads // shape.kv_heads, dim=1) for part in (k, v))
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.mix(x + self.out(seen.transpose(1, 2).flatten(2)))


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    left, right = x.float().chunk(2, dim=-1)
    return torch.cat((left * cos - right * sin, right * cos + left * sin), dim=-1).to(x.dtype)


class Model(nn.Module):
    """Tied embeddings; the tables of the positions are buffers that are not persistent."""

    cos: Tensor
    sin: Tensor
    places: Tensor

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = nn.Embedding(shape.vocab, shape.hidden, dtype=torch.bfloat16)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = Norm(shape.hidden)
        with torch.device("meta"):  # its weight is the embedding's
            self.head = linear(shape.hidden, shape.vocab)
        self.head.weight = self.embedding.weight
        turns = 1e6 ** (-torch.arange(0, shape.head, 2, dtype=torch.float32) / shape.head)
        angles = torch.arange(shape.length, dtype=torch.float32)[:, None] * turns
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)
        self.register_buffer("places", torch.arange(shape.length), persistent=False)

    @torch.no_grad()
    def fill(self, seed: int) -> None:
        """Random weights, the same for the same seed on every GPU of a kind."""
        generator = torch.Generator(device=self.norm.weight.device).manual_seed(seed)
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                parameter.zero_()
            elif parameter.dim() > 1:
                parameter.normal_(0.0, parameter.shape[-1] ** -0.5, generator=generator)

    def step(self, token: Tensor, kv: Tensor, position: Tensor) -> Tensor:
        """The logits [vocab] behind a token [1] at a position [1]; kv [layers, 2, kv_heads, length, head] is written there."""
        cos, sin = self.cos[position], self.sin[position]
        hidden = self.places > position
        x = self.embedding(token)[0]
        for number, layer in enumerate(self.layers):
            x = layer.step(x, kv[number], position, hidden, cos, sin)
        return self.head(self.norm(x))

    def forward(self, tokens: Tensor) -> Tensor:
        """The logits of texts [batch, length]; for training."""
        cos, sin = (table[: tokens.shape[1], None] for table in (self.cos, self.sin))
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.head(self.norm(x))

    def cache(self) -> Tensor:
        shape = self.shape
        return torch.zeros(shape.layers, 2, shape.kv_heads, shape.length, shape.head, dtype=torch.bfloat16)


def be_deterministic() -> None:
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # a kernel more for every tensor
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False


def digest(tensor: Tensor) -> str:
    """Return a digest of a tensor's bits."""
    return hashlib.sha256(tensor.detach().contiguous().view(torch.uint8).cpu().numpy().tobytes()).hexdigest()[:32]
