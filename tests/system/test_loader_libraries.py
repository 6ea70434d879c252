"""The libraries that train from files of their own formats, on a cold mount: each gets what it gets from the local directory.

Each job runs in a process of its own. What is not installed is skipped with its name; the extra ``loaders`` has them all.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("numpy", reason="the data of these tests are made with NumPy")

from pair import Pair
from recipe_support import document_lengths, write_litdata, write_mds, write_megatron

pytestmark = pytest.mark.mount

TESTS = Path(__file__).resolve().parent.parent
JOB_TIMEOUT_S = 100.0


def job(script: str, scratch: Path, *arguments: Path | str) -> None:
    """Run a script to its end; its own assertions fail the test. What it writes beside itself goes below ``scratch``."""
    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)],
        capture_output=True, text=True, timeout=JOB_TIMEOUT_S, check=False, cwd=scratch,
        env={**os.environ, "PYTHONPATH": f"{TESTS}:{TESTS.parent}", "HF_HOME": str(scratch / "hf"), "HF_HUB_OFFLINE": "1",
             "TMPDIR": str(scratch), "DO_NOT_TRACK": "1"},
    )  # fmt: skip
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"


def needs(*modules: str) -> pytest.MarkDecorator:
    missing = [module for module in modules if importlib.util.find_spec(module) is None]
    return pytest.mark.skipif(
        bool(missing), reason=f"not installed: {', '.join(missing)} (pip install 'headrace[loaders]')"
    )


def mounted(pair: Pair) -> Path:
    return pair.spoke(pair.hub().address, extra=["--read-timeout", "60s"]).mountpoint


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    (tmp_path / "scratch").mkdir()
    return tmp_path / "scratch"


@needs("torch")
@pytest.mark.torch
def test_nanogpt_draws_batches_from_a_memmap(pair: Pair, scratch: Path) -> None:
    job(
        "import numpy, sys; numpy.random.default_rng(1).integers(0, 50257, 12_000_000).astype('u2').tofile(sys.argv[1])",
        scratch, pair.data / "train.bin",
    )  # fmt: skip
    job(
        """
import sys
import numpy as np
import torch

BLOCK, BATCH = 1024, 12


def get_batch(directory):  # as nanoGPT's train.py: a new memmap for each batch
    data = np.memmap(f"{directory}/train.bin", dtype=np.uint16, mode="r")
    ix = torch.randint(len(data) - BLOCK, (BATCH,))
    x = torch.stack([torch.from_numpy(data[i : i + BLOCK].astype(np.int64)) for i in ix])
    y = torch.stack([torch.from_numpy(data[i + 1 : i + 1 + BLOCK].astype(np.int64)) for i in ix])
    return x, y


def batches(directory):
    torch.manual_seed(1337)
    return [get_batch(directory) for _ in range(20)]


ours, theirs = (batches(path) for path in sys.argv[1:])
assert all(torch.equal(a, b) for left, right in zip(ours, theirs) for a, b in zip(left, right))
""",
        scratch, pair.data, mounted(pair),
    )  # fmt: skip


@needs("torch", "megatron")
@pytest.mark.torch
@pytest.mark.parametrize("mmap", [True, False], ids=["mmap", "file"])
def test_megatron_reads_its_indexed_dataset(pair: Pair, scratch: Path, mmap: bool) -> None:
    write_megatron(pair.data / "text_document", document_lengths(900, 4, mean=2000), code=4)
    job(
        """
import random, sys
import numpy as np
from megatron.core.datasets.indexed_dataset import IndexedDataset

ours, theirs = (IndexedDataset(f"{path}/text_document", mmap=sys.argv[3] == "True") for path in sys.argv[1:3])
assert np.array_equal(ours.sequence_lengths, theirs.sequence_lengths)
assert np.array_equal(ours.document_indices, theirs.document_indices)
places = list(range(len(ours)))
random.Random(5).shuffle(places)
for place in places:
    assert np.array_equal(ours[place], theirs[place]), place
""",
        scratch, pair.data, mounted(pair), str(mmap),
    )  # fmt: skip


@needs("torch", "megatron")
@pytest.mark.torch
def test_megatron_trains_with_its_index_files_elsewhere(pair: Pair, scratch: Path) -> None:
    write_megatron(pair.data / "text_document", document_lengths(300, 6, mean=2000))
    job(
        """
import sys
from pathlib import Path
import numpy as np
from real_loaders import megatron_dataset, one_process

options = {"prefix": "text_document", "seed": 1234, "seq-length": 512, "split": "100,0,0"}
local, mounted, scratch = map(Path, sys.argv[1:])
with one_process(scratch):
    made = []
    for name, seen_as in (("ours", local), ("theirs", mounted)):
        (scratch / name).mkdir()
        made.append(megatron_dataset(options, scratch / name, seen_as=seen_as))  # path_to_cache: scratch / name / cache
    ours, theirs = made
    assert len(ours) == len(theirs) > 50
    for place in range(len(ours)):
        assert np.array_equal(ours[place]["tokens"], theirs[place]["tokens"]), place
""",
        scratch, pair.data, mounted(pair), scratch,
    )  # fmt: skip


@needs("datasets")
def test_hugging_face_datasets_map_arrow_files(pair: Pair, scratch: Path) -> None:
    job(
        """
import sys
import numpy as np
from datasets import Dataset

dice = np.random.default_rng(2)
rows = {"text": [dice.bytes(300).hex() for _ in range(6000)], "ids": [dice.integers(0, 50_000, 64).tolist() for _ in range(6000)]}
Dataset.from_dict(rows).save_to_disk(sys.argv[1], num_shards=3)
""",
        scratch, pair.data / "rows",
    )  # fmt: skip
    job(
        """
import sys
from datasets import load_from_disk

ours, theirs = (load_from_disk(f"{path}/rows", keep_in_memory=False) for path in sys.argv[1:])
assert theirs.cache_files and all(entry["filename"].startswith(sys.argv[2]) for entry in theirs.cache_files)
assert len(ours) == len(theirs) == 6000
# shuffle() would write its indices beside the data: keep_in_memory leaves them out of the read-only mount
ours, theirs = (rows.shuffle(seed=7, keep_in_memory=True) for rows in (ours, theirs))
for place in range(0, 6000, 7):
    assert ours[place] == theirs[place], place
assert ours[:500] == theirs[:500]
try:
    load_from_disk(f"{sys.argv[2]}/rows").shuffle(seed=7)
except OSError as error:
    assert error.errno == 30, error
else:
    raise AssertionError("the mount let shuffle() write")
""",
        scratch, pair.data, mounted(pair),
    )  # fmt: skip


@needs("torch", "webdataset")
@pytest.mark.torch
def test_webdataset_streams_tar_shards(pair: Pair, scratch: Path) -> None:
    job(
        """
import sys
import numpy as np
import webdataset

dice = np.random.default_rng(3)
for shard in range(4):
    with webdataset.TarWriter(f"{sys.argv[1]}/shard-{shard:04d}.tar") as sink:
        for n in range(60):
            sink.write({"__key__": f"{shard:04d}-{n:05d}", "bin": dice.bytes(int(dice.integers(1, 80_000))), "cls": str(n)})
""",
        scratch, pair.data,
    )  # fmt: skip
    job(
        """
import sys
import webdataset
from torch.utils.data import DataLoader


def samples(path):
    shards = path + "/shard-{0000..0003}.tar"
    dataset = webdataset.WebDataset(shards, shardshuffle=100, seed=5, nodesplitter=webdataset.split_by_node)
    return [(one["__key__"], one["bin"], one["cls"]) for one in DataLoader(dataset.shuffle(0), batch_size=None, num_workers=2)]


ours, theirs = (samples(path) for path in sys.argv[1:])
assert len(ours) == 240 and sorted(ours) == sorted(theirs)
""",
        scratch, pair.data, mounted(pair),
    )  # fmt: skip


@needs("torch", "streaming")
@pytest.mark.torch
def test_mosaicml_streaming_reads_a_local_path(pair: Pair, scratch: Path) -> None:
    write_mds(pair.data / "mds", [300] * 6, sample_bytes=4000)
    job(
        """
import sys
import streaming.base.util
from streaming import StreamingDataset
from torch.utils.data import DataLoader

streaming.base.util.clean_stale_shared_memory()


def samples(path):
    dataset = StreamingDataset(local=f"{path}/mds", shuffle=True, shuffle_seed=3, batch_size=8, num_canonical_nodes=1)
    return [bytes(one["x"]) for one in dataset]


ours = samples(sys.argv[1])
streaming.base.util.clean_stale_shared_memory()
assert len(ours) == 1800 and ours == samples(sys.argv[2])
""",
        scratch, pair.data, mounted(pair),
    )  # fmt: skip


@needs("torch", "litdata")
@pytest.mark.torch
def test_litdata_reads_a_local_path(pair: Pair, scratch: Path) -> None:
    write_litdata(pair.data / "lit", [400] * 6, item_bytes=3000)
    job(
        """
import sys
from litdata import StreamingDataset


def items(path):
    return [bytes(one) for one in StreamingDataset(f"{path}/lit", shuffle=True, seed=9, drop_last=False)]


ours = items(sys.argv[1])
assert len(ours) == 2400 and sorted(ours) == sorted(items(sys.argv[2]))
""",
        scratch, pair.data, mounted(pair),
    )  # fmt: skip


@needs("pyarrow")
def test_parquet_by_pyarrow(pair: Pair, scratch: Path) -> None:
    job(
        """
import sys
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

dice = np.random.default_rng(4)
for part in range(3):
    table = pa.table({"id": np.arange(20_000), "x": dice.standard_normal(20_000), "tokens": [dice.bytes(100) for _ in range(20_000)]})
    pq.write_table(table, f"{sys.argv[1]}/part-{part}.parquet", row_group_size=4000)
""",
        scratch, pair.data,
    )  # fmt: skip
    job(
        """
import sys
import pyarrow.dataset
import pyarrow.parquet as pq

local, mounted = sys.argv[1:]
for memory_map in (True, False):
    ours, theirs = (pq.ParquetFile(f"{path}/part-0.parquet", memory_map=memory_map) for path in (local, mounted))
    assert ours.num_row_groups == theirs.num_row_groups == 5
    for group in (3, 0, 4, 1, 2):
        assert ours.read_row_group(group, columns=["tokens"]).equals(theirs.read_row_group(group, columns=["tokens"]))
ours, theirs = (pyarrow.dataset.dataset(path, format="parquet").to_table().sort_by("x") for path in (local, mounted))
assert ours.num_rows == 60_000 and ours.equals(theirs)
""",
        scratch, pair.data, mounted(pair),
    )  # fmt: skip
