"""A decoder in plain PyTorch with the shapes of Qwen2.5, random weights, and a cache of keys and values in pages.

One forward pass serves prompts and single tokens: texts [batch, length], each with its own pages.  For a fixed batch and
length the same kernels run for all texts, and every kernel adds in a fixed order: a text gives the same bits each time,
independent of the other texts in the batch.
"""

import os
from dataclasses import dataclass

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # makes sums deterministic; cuBLAS reads it when it starts

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True, slots=True)
class Shape:
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head: int
    mlp: int
    vocab: int
    is_tied: bool  # the output layer shares the embedding's weights

    @property
    def parameters(self) -> int:
        qkv = (self.heads + 2 * self.kv_heads) * self.head
        layer = self.hidden * (qkv + self.heads * self.head + 3 * self.mlp + 2) + qkv
        return self.layers * layer + self.hidden * (self.vocab * (1 if self.is_tied else 2) + 1)


SHAPES = {
    "tiny": Shape(2, 64, 4, 2, 16, 128, 512, True),
    "0.5B": Shape(24, 896, 14, 2, 64, 4864, 151936, True),
    "1.5B": Shape(28, 1536, 12, 2, 128, 8960, 151936, True),
    "3B": Shape(36, 2048, 16, 2, 128, 11008, 151936, True),
    "7B": Shape(28, 3584, 28, 4, 128, 18944, 152064, False),
    "14B": Shape(48, 5120, 40, 8, 128, 13824, 152064, False),
}


class Norm(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * self.weight


class Layer(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.before_attention, self.before_mlp = Norm(shape.hidden), Norm(shape.hidden)
        self.qkv = nn.Linear(shape.hidden, (shape.heads + 2 * shape.kv_heads) * shape.head)
        self.out = nn.Linear(shape.heads * shape.head, shape.hidden, bias=False)
        self.gate, self.up = (nn.Linear(shape.hidden, shape.mlp, bias=False) for _ in range(2))
        self.down = nn.Linear(shape.mlp, shape.hidden, bias=False)

    def split(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values of x [batch, length, hidden] as [batch, length, heads, head]; queries and keys are
        rotated."""
        parts = self.qkv(self.before_attention(x)).unflatten(-1, (-1, self.shape.head))
        q, k, v = parts.split((self.shape.heads, self.shape.kv_heads, self.shape.kv_heads), dim=-2)
        return rotate(q, cos, sin), rotate(k, cos, sin), v

    def mix(self, x: Tensor, seen: Tensor) -> Tensor:
        """Add the attention's output and the MLP to x.  seen: the attention's output, [batch, length, heads, head]."""
        x = x + self.out(seen.flatten(2))
        inner = self.before_mlp(x)
        return x + self.down(functional.silu(self.gate(inner)) * self.up(inner))


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    left, right = x.float().chunk(2, dim=-1)
    return torch.cat((left * cos - right * sin, right * cos + left * sin), dim=-1).to(x.dtype)


def attend(q: Tensor, keys: Tensor, values: Tensor, is_hidden: Tensor) -> Tensor:
    """Return the attention of q [batch, length, heads, head] to keys and values [batch, places, kv_heads, head], without the
    places where is_hidden [batch, length, places].

    Heads that share keys are rows of one matrix product.
    """
    batch, length, heads, head = q.shape
    shared = keys.shape[2]
    q = q.view(batch, length, shared, heads // shared, head).permute(0, 2, 3, 1, 4).reshape(batch, shared, -1, head)
    scores = (q @ keys.permute(0, 2, 3, 1)).float().view(batch, shared, -1, length, keys.shape[1]) * head**-0.5
    weights = scores.masked_fill(is_hidden[:, None, None], float("-inf")).softmax(-1).to(q.dtype)
    seen = weights.flatten(2, 3) @ values.transpose(1, 2)
    return seen.view(batch, heads, length, head).transpose(1, 2)


class Model(nn.Module):
    """The decoder.  The tables of the rotary positions, cos and sin, are non-persistent buffers."""

    cos: Tensor
    sin: Tensor

    def __init__(self, shape: Shape, length: int) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = nn.Embedding(shape.vocab, shape.hidden)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = Norm(shape.hidden)
        with torch.device("meta") if shape.is_tied else torch.get_default_device():
            self.head = nn.Linear(shape.hidden, shape.vocab, bias=False)
        if shape.is_tied:
            self.head.weight = self.embedding.weight
        turns = 1e6 ** (-torch.arange(0, shape.head, 2, dtype=torch.float32) / shape.head)
        angles = torch.arange(length, dtype=torch.float32)[:, None] * turns
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def fill(self, seed: int) -> None:
        """Fill the weights at random, the same for the same seed on every GPU of a kind.  Call it under torch.no_grad."""
        generator = torch.Generator(device=self.norm.weight.device).manual_seed(seed)
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(0.0, 0.02, generator=generator)
            elif parameter.dim() > 1:
                parameter.normal_(0.0, parameter.shape[-1] ** -0.5, generator=generator)

    def forward(self, tokens: Tensor, positions: Tensor, kv: Tensor, places: Tensor, pages: Tensor) -> Tensor:
        """Return the output of the last layer for tokens [batch, length] at these positions; `head` makes logits from it.

        kv: of `cache_of`.  places: where the keys and values of these tokens go in it, counted in tokens.  pages: [batch,
        most], the pages of each text; a token attends to places up to its own position only.
        """
        page, parts = kv.shape[3], 2 * len(self.layers)
        cos, sin = self.cos[positions][:, :, None], self.sin[positions][:, :, None]
        is_hidden = torch.arange(pages.shape[1] * page, device=kv.device) > positions[:, :, None]
        each = torch.arange(parts, device=kv.device).view(-1, 2, 1)  # of a page: a part of each layer for keys, one for values
        into = (each + places.flatten() // page * parts) * page + places.flatten() % page
        out_of = each + pages.flatten() * parts
        x = self.embedding(tokens)
        for number, layer in enumerate(self.layers):
            q, k, v = layer.split(x, cos, sin)
            kv.flatten(0, 3).index_copy_(0, into[number].flatten(), torch.stack((k, v)).flatten(0, 2))
            there = kv.flatten(0, 2).index_select(0, out_of[number].flatten()).view(2, pages.shape[0], -1, *kv.shape[-2:])
            x = layer.mix(x, attend(q, there[0], there[1], is_hidden))
        return self.norm(x)


def cache_of(shape: Shape, pages: int, page: int, dtype: torch.dtype) -> Tensor:
    """Return an empty cache on the default device: [pages, layers, 2, page, kv_heads, head].

    A page has the keys and values of all layers, so that a step writes one place for each text, and an image of the arena
    copies few blocks of it.  The cache is zeroed: a hidden NaN would still spoil the attention's product."""
    return torch.zeros(pages, shape.layers, 2, page, shape.kv_heads, shape.head, dtype=dtype)


def be_deterministic() -> None:
    """Make matrix products deterministic.  torch.use_deterministic_algorithms would also sort the places before keys and values
    are written, which only matters for equal places, and those are on page 0, whose contents are never used."""
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_tf32 = False
