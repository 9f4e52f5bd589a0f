"""Shards read as one file would be, and files that are not whole are refused."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from longspan.data.text.blocks import Streams, TokenBlocks
from longspan.data.text.token_files import Shards, TokenFile, open_tokens, write_shards, write_tokens
from longspan.errors import InvalidInput

DOCUMENTS = [range(40), range(40, 41), range(41, 103), range(0), range(103, 150)]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[TokenFile, list[Shards]]:
    folder = tmp_path_factory.mktemp("tokens")
    whole = write_tokens(folder / "whole", DOCUMENTS, vocabulary=200)
    parts = [(document, True) for document in DOCUMENTS]
    shards = [write_shards(folder / f"in.{size}", parts, vocabulary=200, size=size) for size in (1, 7, 40, 150, 1000)]
    return whole, shards


@given(st.integers(-160, 160), st.integers(-160, 160), st.sampled_from([1, 2, -1, -3]), st.integers(0, 4))
def test_slices_are_those_of_one_file(
    both: tuple[TokenFile, list[Shards]], start: int, stop: int, step: int, which: int
) -> None:
    whole, shards = both
    assert shards[which][start:stop:step].tolist() == whole[start:stop:step].tolist()


def test_shards_have_the_length_borders_and_ids_of_one_file(both: tuple[TokenFile, list[Shards]]) -> None:
    whole, shards = both
    assert [len(each.shards) for each in shards] == [150, 22, 4, 1, 1]
    for each in shards:
        assert len(each) == len(whole) and [each[place] for place in (0, 77, -1)] == [0, 77, 149]
        assert each.borders.tolist() == whole.borders.tolist()
        assert each.document_of(0, 150).tolist() == whole.document_of(0, 150).tolist()
        with pytest.raises(IndexError):
            each[150]


def test_blocks_and_streams_of_shards_are_those_of_one_file(both: tuple[TokenFile, list[Shards]]) -> None:
    whole, shards = both
    for make in (
        lambda tokens: TokenBlocks(tokens, 16, 3, seed=5, separate=True),
        lambda tokens: Streams(tokens, 16, 3),
    ):
        one, other = make(whole), make(shards[1])
        for numbers, same in zip(one.batches(1), other.batches(1), strict=True):
            assert list(numbers) == list(same)
            first, second = one.load(numbers, 1), other.load(same, 1)
            assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_name_opens_what_it_is(tmp_path: Path) -> None:
    write_tokens(tmp_path / "wiki.train", [[1, 2]], vocabulary=5, made_with="me")
    write_shards(tmp_path / "wiki.test", [([1, 2], True), ([3], False)], vocabulary=5, size=2, made_with="me")
    assert isinstance(open_tokens(tmp_path / "wiki.train"), TokenFile)
    found = open_tokens(tmp_path / "wiki.test")
    assert isinstance(found, Shards) and found[:].tolist() == [1, 2, 3] and found.borders.tolist() == [0]
    assert found.made_with == "me" and found[:].dtype == np.uint16
    with pytest.raises(InvalidInput, match="describes shards"):
        TokenFile(tmp_path / "wiki.test")
    with pytest.raises(InvalidInput, match="prepare the data first"):
        open_tokens(tmp_path / "wiki")


def test_what_is_not_whole_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a"
    write_tokens(path, [[1, 2, 3]], vocabulary=5)
    (tmp_path / "a.borders").write_bytes(b"1234")
    with pytest.raises(InvalidInput, match=r"a\.borders"):
        TokenFile(path)

    def stops():  # type: ignore[no-untyped-def]
        yield [1]
        raise InvalidInput("a wrong line")

    with pytest.raises(InvalidInput, match="a wrong line"):
        write_tokens(path, stops(), vocabulary=5)
    with pytest.raises(InvalidInput, match="prepare the data first"):  # rather than ids of the text before
        TokenFile(path)
    assert not list(tmp_path.glob("*.part"))


def test_another_shard_in_the_place_of_one_is_noticed(tmp_path: Path) -> None:
    write_shards(tmp_path / "a", [(range(9), True)], vocabulary=10, size=4)
    record = json.loads((tmp_path / "a.json").read_text())
    assert record["shards"] == ["a-00000", "a-00001", "a-00002"] and record["tokens"] == 9
    write_tokens(tmp_path / "a-00001", [[9, 9, 9, 9]], vocabulary=10)
    with pytest.raises(InvalidInput, match="not those that were written"):
        Shards(tmp_path / "a")
