"""A small LLaMA-style decoder: RMSNorm before each part, rotary embedding, causal attention, SwiGLU, no biases.

Real in its parts, small in its sizes: a CPU trains it. Knows nothing of where the tokens come from.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

ROTARY_BASE = 10_000.0
EPSILON = 1e-5


@dataclass(frozen=True)
class Sizes:
    """``dim`` is divided evenly among ``heads``, and a head's share is even. ``hidden``: width inside SwiGLU."""

    vocabulary: int
    dim: int
    layers: int
    heads: int

    def __post_init__(self) -> None:
        if min(self.vocabulary, self.dim, self.layers, self.heads) < 1 or self.dim % (2 * self.heads):
            raise ValueError(f"a model needs sizes >= 1 and a dim that is a multiple of 2 x heads; got {self}")

    @property
    def hidden(self) -> int:
        """Two thirds of 4 x dim, rounded up to a multiple of 16, as LLaMA does with larger multiples."""
        return -(-(8 * self.dim // 3) // 16) * 16


class RMSNorm(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPSILON) * self.weight


def rotary_angles(length: int, head_dim: int) -> tuple[Tensor, Tensor]:
    """(cosines, sines), each ``length`` x ``head_dim`` / 2."""
    speeds = ROTARY_BASE ** (-torch.arange(0, head_dim, 2) / head_dim)
    angles = torch.outer(torch.arange(length), speeds)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
    """Turn each pair (first half, second half) of the last axis by its position's angle; lengths stay as they are."""
    cosines, sines = angles
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cosines - second * sines, first * sines + second * cosines), dim=-1)


class Attention(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.heads = sizes.heads
        self.mixed = nn.Linear(sizes.dim, 3 * sizes.dim, bias=False)
        self.out = nn.Linear(sizes.dim, sizes.dim, bias=False)

    def forward(self, x: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
        batch, length, dim = x.shape
        query, key, value = self.mixed(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        query, key = rotate(query, angles), rotate(key, angles)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        out: Tensor = self.out(seen.transpose(1, 2).reshape(batch, length, dim))
        return out


class SwiGLU(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.gate = nn.Linear(sizes.dim, sizes.hidden, bias=False)
        self.up = nn.Linear(sizes.dim, sizes.hidden, bias=False)
        self.down = nn.Linear(sizes.hidden, sizes.dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down(functional.silu(self.gate(x)) * self.up(x))
        return out


class Layer(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.before_attention, self.attention = RMSNorm(sizes.dim), Attention(sizes)
        self.before_feed, self.feed = RMSNorm(sizes.dim), SwiGLU(sizes)

    def forward(self, x: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
        x = x + self.attention(self.before_attention(x), angles)
        out: Tensor = x + self.feed(self.before_feed(x))
        return out


class Decoder(nn.Module):
    """Token ids (batch x length) to the mean loss of the next token; input and output share one table of embeddings."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.embedding = nn.Embedding(sizes.vocabulary, sizes.dim)
        self.layers = nn.ModuleList(Layer(sizes) for _ in range(sizes.layers))
        self.last = RMSNorm(sizes.dim)
        nn.init.normal_(self.embedding.weight, std=0.02)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.embedding(tokens)
        angles = rotary_angles(tokens.shape[1], self.sizes.dim // self.sizes.heads)
        for layer in self.layers:
            x = layer(x, angles)
        logits = functional.linear(self.last(x), self.embedding.weight)
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
