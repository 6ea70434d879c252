"""torch.randperm on a CPU generator: by PyTorch where it is installed, by NumPy where it is not.

PyTorch's generator is the Mersenne Twister seeded as NumPy's legacy one; ``randperm`` walks forward and swaps place i with
i + (next number modulo what is left). It takes 32-bit numbers below 2^32 / 20 elements, and 64-bit ones from there on.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np

from common import limits
from common.errors import UsageError
from spoke.recipes.model import Int64s
from spoke.recipes.scratch import Scratch

_SHORT_LIMIT = ((1 << 32) - 1) // 20


def torch_permutation(count: int, seed: int, scratch: Scratch) -> Int64s:
    """``torch.randperm(count)`` under ``Generator().manual_seed(seed)``. Raises UsageError where only PyTorch can tell."""
    if count < limits.RECIPE_PERMUTATION_WITHOUT_TORCH:
        return _permutation(count, seed, scratch)
    if importlib.util.find_spec("torch") is None:
        raise UsageError(
            f"shuffling {count} records as PyTorch does needs PyTorch itself: pip install torch (below "
            f"{limits.RECIPE_PERMUTATION_WITHOUT_TORCH} NumPy is enough)"
        )
    import torch

    out = scratch.empty(count, np.int64)
    generator = torch.Generator()
    generator.manual_seed(seed)
    torch.randperm(count, generator=generator, out=torch.from_numpy(out))
    return out


def _permutation(count: int, seed: int, scratch: Scratch) -> Int64s:
    assert count < _SHORT_LIMIT
    twister = np.random.RandomState(seed & 0xFFFFFFFF)
    numbers: Any = twister._bit_generator.random_raw(max(0, count - 1)) if count > 1 else np.empty(0, np.uint64)
    partners = (
        (np.arange(count - 1, dtype=np.int64) + numbers.astype(np.int64) % np.arange(count, 1, -1)) if count > 1 else []
    )
    order = list(range(count))
    for place, partner in enumerate(partners):
        order[place], order[partner] = order[partner], order[place]
    out = scratch.empty(count, np.int64)
    out[:] = order
    return out
