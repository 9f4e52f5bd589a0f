"""Language models on token files that were prepared before."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from longspan.data.sets import prepare
from longspan.data.text.token_files import Slice, write_tokens
from longspan.data.tokenizers.learn import TokenizerOptions, learn
from longspan.errors import InvalidInput, InvalidOption
from longspan.tasks.base import DataPaths
from longspan.tasks.language import NextToken
from longspan.tasks.registry import build


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DataPaths:
    monkeypatch.setenv("LONGSPAN_CACHE", str(tmp_path / "cache"))
    return DataPaths(None, tmp_path / "work", 0)


def test_shards_are_trained_on(place: DataPaths, tmp_path: Path) -> None:
    counted, out = prepare.obtain("generated", None), tmp_path / "out"
    tokenizer = prepare.tokenise(counted, out, learned=TokenizerOptions(size=300), shard=5000)
    found = build("language", tokens=str(out), length=32, batch=4).prepare(place)
    assert found.facts == {f"{each.split} tokens": each.counts["tokens"] for each in counted} | {"vocabulary": 300}
    assert found.needs == {"vocabulary": 300} and found.test is not None
    assert found.train.load([0, 1], 0)["ids"].shape == (2, 32)
    assert build("language", tokens=str(out)).prepare(place, tokenizer).tokenizer is not None
    with pytest.raises(InvalidInput, match="another tokenizer"):
        build("language", tokens=str(out)).prepare(place, learn(TokenizerOptions(kind="bytes"), []))
    with pytest.raises(InvalidOption, match="one of them"):
        build("language", tokens=str(out), set="generated").prepare(place)
    learn(TokenizerOptions(kind="bytes"), []).save(out)
    with pytest.raises(InvalidInput, match="not made with the tokenizer"):
        build("language", tokens=str(out)).prepare(place)


def test_bytes_and_words_are_those_of_each_split(place: DataPaths, tmp_path: Path) -> None:
    counted, out = prepare.obtain("generated", None), tmp_path / "out"
    tokenizer = prepare.tokenise(counted, out, learned=TokenizerOptions(size=300))
    of_tokens = build("language", tokens=str(out)).prepare(place).objectives
    of_texts = build("language", set="generated").prepare(place, tokenizer).objectives
    for each in counted:
        text = each.path.read_text(encoding="utf-8")
        for found in (of_tokens[each.split], of_texts[each.split]):
            assert isinstance(found, NextToken)
            assert found.bytes_per_token == pytest.approx(len(text.encode()) / each.counts["tokens"])
            assert found.words_per_token == pytest.approx(
                (len(text.split()) + text.count("\n")) / each.counts["tokens"]
            )
    assert of_texts["test"].bytes_per_token != of_texts["held_out"].bytes_per_token


def test_the_end_is_held_out_where_nothing_else_is(place: DataPaths, tmp_path: Path) -> None:
    counted, out = prepare.obtain("generated", None)[:1], tmp_path / "out"
    prepare.tokenise(counted, out, learned=TokenizerOptions(size=300))
    found = build("language", tokens=str(out), share=0.25).prepare(place)
    total = counted[0].counts["tokens"]
    assert found.facts["train tokens"] == round(total * 0.75)
    assert found.facts["train tokens"] + found.facts["held_out tokens"] == total
    with pytest.raises(InvalidInput, match="too few"):
        build("language", tokens=str(out), share=0.0).prepare(place)
    shutil.rmtree(out)
    out.mkdir()
    with pytest.raises(InvalidInput, match="longspan data prepare"):
        build("language", tokens=str(out)).prepare(place)


def test_a_slice_is_a_part_of_its_ids(tmp_path: Path) -> None:
    whole = write_tokens(tmp_path / "a", [range(4), range(4, 10), range(10, 12)], vocabulary=20)
    part = Slice(whole, 2, 11)
    assert part[:].tolist() == list(range(2, 11)) and len(part) == 9 and part[-1] == 10 and part[5:1].size == 0
    assert part[1:8:3].tolist() == [3, 6, 9]
    assert part.document_of(0, 9).tolist() == [0, 0, 1, 1, 1, 1, 1, 1, 2]
    assert Slice(whole, 4, 10).borders.tolist() == [0] and np.array_equal(Slice(whole, 4, 10)[:], whole[4:10])
    assert part.sha256 != Slice(whole, 2, 10).sha256
    with pytest.raises(IndexError):
        part[9]
