"""The experiment's job: the orders of its samples, its model, and what it reads."""

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="the experiment's job is PyTorch's")

import torch

from bench.demo.formats import write_megatron
from bench.experiment.model import Decoder, RMSNorm, Sizes, rotary_angles, rotate
from bench.experiment.shards import packed, shard_sizes
from bench.experiment.tokens import TokenFile, find
from bench.experiment.windows import GpuBatches, Order, Windows, document_bounds, megatron_index
from common.errors import UsageError

pytestmark = pytest.mark.torch
SIZES = Sizes(vocabulary=97, dim=16, layers=2, heads=2)


@pytest.fixture
def files(tmp_path: Path) -> list[TokenFile]:
    """1,000 tokens 0..999 in three files, none of which ends where a window does."""
    for name, start, end in (("a.bin", 0, 333), ("b.bin", 333, 700), ("c.bin", 700, 1000)):
        np.arange(start, end, dtype="<u4").tofile(tmp_path / name)
    return find(tmp_path, "uint32")


def test_windows_go_on_across_files_and_overlap_by_one_token(files: list[TokenFile]) -> None:
    windows = Windows(files, 64, "sweep", 1)
    assert len(windows) == 15
    for number in range(15):
        assert windows[number][0].tolist() == list(range(number * 64, number * 64 + 65))


def test_the_megatron_order_joins_shuffled_documents(files: list[TokenFile]) -> None:
    windows = Windows(files, 64, "megatron", 3)
    bounds = document_bounds(1000, 64, 3)
    documents, _, shuffled = megatron_index(bounds, 64, 3)
    joined = np.concatenate([np.arange(bounds[number], bounds[number + 1]) for number in documents])
    assert sorted(joined.tolist()) == list(range(1000))
    assert joined.tolist() != list(range(1000))
    for place, sample in enumerate(shuffled):
        assert windows[place][0].tolist() == joined[sample * 64 : sample * 64 + 65].tolist()


@pytest.mark.parametrize("order", ["sweep", "shuffle", "megatron"])
def test_a_batch_is_what_as_many_processes_would_read(files: list[TokenFile], order: Order) -> None:
    """Four GPUs in one process, two in each of two, one in each of four: the same samples for each GPU."""
    windows = Windows(files, 16, order, 7)
    whole = list(GpuBatches(windows, 4, range(4), 3, order, 7))
    halves = [list(GpuBatches(windows, 4, range(start, start + 2), 3, order, 7)) for start in (0, 2)]
    single = [list(GpuBatches(windows, 4, range(gpu, gpu + 1), 3, order, 7)) for gpu in range(4)]
    assert len(whole) == 5
    for step, batch in enumerate(whole):
        assert batch == [*halves[0][step], *halves[1][step]] == [number for gpu in single for number in gpu[step]]
    seen = [number for batch in whole for number in batch]
    assert len(set(seen)) == 60
    if order != "shuffle":
        assert whole[0] == [0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11]


def test_readers_side_by_side_give_the_same_batch(files: list[TokenFile]) -> None:
    numbers = [9, 1, 5, 3, 14, 0, 2, 7]
    ours = Windows(files, 64, "sweep", 1).__getitems__(numbers)
    theirs = Windows(files, 64, "sweep", 1, readers=4).__getitems__(numbers)
    assert [sample[0].tolist() for sample in ours] == [sample[0].tolist() for sample in theirs]


def test_megatron_takes_the_sequences_of_the_index_for_documents(tmp_path: Path) -> None:
    lengths = [50, 1, 120, 300, 29]
    ends = np.cumsum(lengths)
    write_megatron(
        tmp_path / "text", [np.arange(end - length, end) for end, length in zip(ends, lengths, strict=True)], "uint16"
    )
    windows = Windows(find(tmp_path / "text", None), 32, "megatron", 3)
    documents, _, shuffled = megatron_index(np.concatenate(([0], ends)), 32, 3)
    joined = np.concatenate([np.arange(ends[number] - lengths[number], ends[number]) for number in documents])
    assert len(windows) == 15
    for place, sample in enumerate(shuffled):
        assert windows[place][0].tolist() == joined[sample * 32 : sample * 32 + 33].tolist()


def test_too_few_tokens_are_refused(files: list[TokenFile]) -> None:
    with pytest.raises(UsageError, match="1000 tokens"):
        Windows(files, 1000, "sweep", 1)


def test_rotary_embedding_keeps_lengths_and_knows_distances_only() -> None:
    angles = rotary_angles(9, 8)
    one, other = torch.randn(2, 8, generator=torch.Generator().manual_seed(1))
    ones, others = rotate(one.repeat(9, 1), angles), rotate(other.repeat(9, 1), angles)
    assert torch.allclose(ones.norm(dim=-1), one.norm().repeat(9), atol=1e-5)
    products = ones @ others.T
    assert torch.allclose(products[:-2, 2:].diagonal(), products[0, 2].repeat(7), atol=1e-4)


def test_rms_norm_has_unit_mean_square() -> None:
    assert RMSNorm(64)(torch.randn(5, 64) * 7).pow(2).mean(-1).tolist() == pytest.approx([1] * 5, abs=1e-3)


def test_the_decoder_sees_no_later_token() -> None:
    torch.manual_seed(1)
    model = Decoder(SIZES)
    tokens = torch.randint(0, 97, (1, 12))
    changed = tokens.clone()
    changed[0, 8:] += 1
    ignored = torch.full((1, 12), -100)
    ignored[0, :8] = tokens[0, 1:9]  # the loss of the first eight alone
    assert model(tokens, ignored).item() == model(changed % 97, ignored).item()


@pytest.mark.slow
def test_the_decoder_learns() -> None:
    torch.manual_seed(1)
    model = Decoder(SIZES)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    tokens = torch.randint(0, 97, (2, 33))
    losses = []
    for _ in range(30):
        loss = model(tokens[:, :-1], tokens[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]


def test_sizes_that_do_not_divide_are_refused() -> None:
    with pytest.raises(ValueError, match="multiple"):
        Sizes(vocabulary=10, dim=12, layers=1, heads=4)


def test_shards_hold_all_tokens_and_repeat_documents_in_another_order() -> None:
    assert sum(shard_sizes(1003, 4)) == 1003
    documents = [np.full(3, number, np.uint32) for number in range(20)]
    made = packed(documents, 120, 1)
    assert sorted(made[:60].tolist()) == sorted(made[60:].tolist())
    assert made[:60].tolist() != made[60:].tolist()
