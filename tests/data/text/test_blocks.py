"""Token files and what is read from them: every id once, in the order that the seed says, borders kept."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan.data.text.blocks import Streams, TokenBlocks, unpack
from longspan.data.text.token_files import TokenFile, write_tokens
from longspan.errors import InvalidInput, InvalidOption


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> TokenFile:
    """103 ids that count up, so that a target is its id and one more."""
    return write_tokens(tmp_path_factory.mktemp("tokens") / "counted", [range(40), range(40, 103)], vocabulary=200)


def test_ids_and_borders_come_back(tmp_path: Path) -> None:
    documents = [[5, 70000, 2], [], [1]]
    found = write_tokens(tmp_path / "a", documents, vocabulary=100_000, made_with="bytes")
    assert found.ids.dtype == np.uint32 and found[:].tolist() == [5, 70000, 2, 1]
    assert found.borders.tolist() == [0, 3, 3] and found.made_with == "bytes"
    assert found.document_of(0, 4).tolist() == [0, 0, 0, 2]
    assert write_tokens(tmp_path / "b", documents[2:], vocabulary=300).ids.dtype == np.uint16


@pytest.mark.parametrize("shuffle", [True, False])
@given(length=st.integers(1, 120), batch=st.integers(1, 9), epoch=st.integers(0, 3))
@settings(max_examples=40)
def test_an_epoch_reads_every_id_once(counted: TokenFile, shuffle: bool, length: int, batch: int, epoch: int) -> None:
    data = TokenBlocks(counted, length, batch, seed=3, shuffle=shuffle)
    seen = []
    for numbers in data.batches(epoch):
        found = data.load(numbers, epoch)
        real = found["targets"] >= 0
        assert torch.equal(found["targets"][real], found["ids"][real] + 1)
        seen += found["ids"][real].tolist()
    assert len(set(seen)) == len(seen)
    # Shuffled, what stands before the drawn beginning and after the last whole block waits for another epoch.
    assert sorted(seen) == list(range(102)) if not shuffle else len(seen) > 102 - 2 * min(length, 102)


def test_the_beginning_is_drawn_anew(counted: TokenFile) -> None:
    data = TokenBlocks(counted, 16, 2, seed=1)
    starts = {int(data.load([0], epoch)["ids"][0, 0]) % 16 for epoch in range(20)}
    assert len(starts) > 8


def test_targets_across_a_border_do_not_count_where_documents_are_separate(counted: TokenFile) -> None:
    data = TokenBlocks(counted, 102, 1, shuffle=False, separate=True)
    found = data.load([0], 0)
    assert found["targets"][0, 39] == -100 and found["targets"][0, 38] == 39 and found["targets"][0, 40] == 41
    assert found["documents"][0].tolist() == [0] * 40 + [1] * 62


@given(length=st.integers(1, 120), stride=st.integers(1, 120), batch=st.integers(1, 9))
@settings(max_examples=60)
def test_with_a_stride_every_target_counts_once_after_enough_context(
    counted: TokenFile, length: int, stride: int, batch: int
) -> None:
    stride = min(stride, length)
    data = TokenBlocks(counted, length, batch, shuffle=False, stride=stride)
    seen = []
    for numbers in data.batches(0):
        rows = data.load(numbers, 0)
        for ids, targets in zip(rows["ids"].tolist(), rows["targets"].tolist()):
            for place, target in enumerate(targets):
                if target >= 0:
                    assert target == ids[place] + 1
                    assert place >= min(length - stride, target - 1)  # ids before the one that is read
                    seen.append(target)
    assert seen == list(range(1, 103))


def test_a_stride_as_long_as_the_blocks_is_none(counted: TokenFile) -> None:
    plain, strided = (TokenBlocks(counted, 16, 3, shuffle=False, stride=stride) for stride in (None, 16))
    assert [list(numbers) for numbers in plain.batches(0)] == [list(numbers) for numbers in strided.batches(0)]
    for numbers in plain.batches(0):
        for name, tensor in plain.load(numbers, 0).items():
            assert torch.equal(tensor, strided.load(numbers, 0)[name])
    assert plain.fingerprint() == strided.fingerprint()
    assert TokenBlocks(counted, 16, 3, shuffle=False, stride=4).fingerprint().endswith("in order, stride 4")
    with pytest.raises(InvalidOption, match="stride must be 1 to the length of 16, of blocks in order, not 17"):
        TokenBlocks(counted, 16, 3, shuffle=False, stride=17)


def test_documents_become_rows(tmp_path: Path) -> None:
    tokens = write_tokens(tmp_path / "a", [[1, 2, 3], [4], [5, 6, 7, 8]], vocabulary=9)
    data = TokenBlocks(tokens, 5, 2, shuffle=False, separate=True)
    rows = unpack(data.load([0, 1], 0))
    assert rows["ids"].tolist() == [[1, 2, 3], [4, 0, 0], [5, 0, 0], [6, 7, 0]]
    assert rows["targets"].tolist() == [[2, 3, -100], [-100] * 3, [6, -100, -100], [7, 8, -100]]
    assert rows["key_mask"].tolist() == [
        [True, True, True],
        [True, False, False],
        [True, False, False],
        [True, True, False],
    ]


@given(length=st.integers(1, 50), rows=st.integers(1, 7))
def test_a_stream_goes_on_where_it_ended(counted: TokenFile, length: int, rows: int) -> None:
    data = Streams(counted, length, rows)
    parts = [data.load(numbers, 0) for numbers in data.batches(0)]
    ids, targets = (torch.cat([part[name] for part in parts], 1) for name in ("ids", "targets"))
    assert ids.shape == (rows, 102 // rows)
    assert torch.equal(ids.diff(dim=1), torch.ones(rows, ids.shape[1] - 1, dtype=torch.long))
    assert torch.equal(targets, ids + 1)


def test_what_is_no_token_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"there is no token file .*a\.json"):
        TokenFile(tmp_path / "a")
    with pytest.raises(InvalidInput, match=r"document 1 has the id 9, and the vocabulary is 0\.\.4"):
        write_tokens(tmp_path / "a", [[1], [2, 9]], vocabulary=5)
    write_tokens(tmp_path / "a", [[1, 2, 3]], vocabulary=5)
    (tmp_path / "a.bin").write_bytes(b"12345")
    with pytest.raises(InvalidInput, match=r"a\.bin has 5 bytes, and 6 were written"):
        TokenFile(tmp_path / "a")
    with pytest.raises(InvalidInput, match="holds 1 ids"):
        TokenBlocks(write_tokens(tmp_path / "b", [[1]], vocabulary=5), 4, 2)
