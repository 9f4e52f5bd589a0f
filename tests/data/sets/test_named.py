"""Named sets: their table, where they are looked for, what is generated, and what is made ready of them."""

import json
import os
import re
from pathlib import Path

import numpy as np
import pytest

from longspan.data.sets import named as named_sets
from longspan.data.sets import prepare
from longspan.data.sets.generated import MAKERS, file_names
from longspan.data.sets.sources import DataSource, sources, terms
from longspan.data.text.pieces import pieces
from longspan.data.text.text_files import whole
from longspan.data.text.token_files import open_tokens
from longspan.data.tokenizers.learn import TokenizerOptions, learn
from longspan.data.tokenizers.statistics import measure
from longspan.errors import InvalidInput, UnknownName


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LONGSPAN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.parametrize("name", named_sets.SETS)
def test_every_set_has_terms_and_checksums(name: str) -> None:
    found = named_sets.find(name)
    assert found.kind and found.what and found.files and "train" in {split.partition(".")[0] for split in found.files}
    for file in found.files.values():
        assert file.partition("/")[0] in terms()
        assert named_sets.is_generated(found) or len(sources()[file].sha256) == 64


def test_sources_toml_is_whole() -> None:
    for path, source in sources().items():
        assert re.fullmatch("[0-9a-f]{64}", source.sha256), path
        assert path.partition("/")[0] in terms()
        assert source.member is None or source.url is not None
    assert len({source.sha256 for source in sources().values()}) == len(sources())  # no file is listed twice


@pytest.mark.parametrize("path", sources())
def test_addresses_are_https(path: str) -> None:
    url = sources()[path].url
    assert url is None or url.startswith("https://")
    assert (sources()[path].member is not None) == (url is not None and url.endswith(".zip"))


@pytest.mark.data
@pytest.mark.parametrize("name", [name for name in named_sets.SETS if not name.startswith("generated")])
def test_files_are_those_that_are_known(name: str) -> None:
    root = os.environ.get("LONGSPAN_DATA")
    if root is None:
        pytest.skip("LONGSPAN_DATA names no folder")
    assert all(each.checked and min(each.counts.values()) > 0 for each in prepare.obtain(name, Path(root)))


@pytest.mark.parametrize("kind", MAKERS)
def test_generated_data_is_the_same_every_time(kind: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = next(
        name for name, found in named_sets.SETS.items() if found.kind == kind and named_sets.is_generated(found)
    )
    first = named_sets.files(name, None)
    assert all(path.is_relative_to(cache) for path in first.values()) and set(first) == set(file_names(kind))
    monkeypatch.setenv("LONGSPAN_CACHE", str(cache.parent / "other"))
    for split, path in named_sets.files(name, cache / "no-such-folder").items():
        assert path.read_bytes() == first[split].read_bytes() and path != first[split]
    assert len({path.read_bytes() for path in first.values()}) == len(first)  # splits differ


def test_generated_data_means_what_it_says() -> None:
    pairs = named_sets.files("generated-pairs", None)
    english, toy = (whole(pairs[f"train.{side}"]).splitlines() for side in ("en", "toy"))
    assert len(english) == len(toy) == 2000
    assert all(len(one.split()) == len(other.split()) for one, other in zip(english, toy))
    answers = json.loads(whole(named_sets.files("generated-answers", None)["test"]))
    for article in answers["data"]:
        for paragraph in article["paragraphs"]:
            for question in paragraph["qas"]:
                (answer,) = question["answers"]
                start = answer["answer_start"]
                assert paragraph["context"][start : start + len(answer["text"])] == answer["text"]
    rows = [line.split("\t") for line in whole(named_sets.files("generated-labels", None)["train"]).splitlines()]
    assert rows[0] == ["label", "text"] and {row[0] for row in rows[1:]} == {"0", "1"}
    tagged = whole(named_sets.files("generated-tags", None)["train"]).split("\n\n")
    assert len(tagged) == 2000 and all("B-person" in sentence for sentence in tagged)
    with np.load(named_sets.files("generated-images", None)["train"]) as arrays:
        assert arrays["x"].shape == (2000, 16, 16, 1) and set(arrays["y"]) == {0, 1, 2, 3}


def test_what_is_missing_is_said_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="did you mean 'wikitext2'"):
        named_sets.files("wikitext", None)
    with pytest.raises(InvalidInput, match=r"longspan data prepare wikitext2.*--data"):
        named_sets.files("wikitext2", None)
    with pytest.raises(InvalidInput, match="imdb is not there: name the folder"):
        named_sets.files("imdb", None)
    with pytest.raises(InvalidInput, match=r"text8_first6\.8M\.gz"):
        prepare.obtain("text8", tmp_path)


def test_what_is_missing_is_fetched_and_what_is_wrong_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def fetch(source: DataSource, target: Path, *, show: object) -> None:
        asked.append(source.url)
        target.parent.mkdir(parents=True)
        target.write_text("To be, or not.\nTo be.\n")

    monkeypatch.setattr("longspan.data.sets.download.fetch", fetch)
    (found,) = prepare.obtain("tinyshakespeare", tmp_path)
    assert asked == [sources()["tinyshakespeare/input.txt"].url]
    assert found.counts == {"lines": 2, "words": 6, "characters": 22}
    with pytest.raises(InvalidInput, match=r"input\.txt is not the file that is known"):
        prepare.obtain("tinyshakespeare", tmp_path)


@pytest.mark.parametrize("kind", ["bytes", "characters", "words", "bpe", "wordpiece", "unigram"])
def test_pieces_are_cut_where_tokens_end(tmp_path: Path, kind: str) -> None:
    text = whole(named_sets.files("generated", None)["held_out"]) + "é" * 300 + "\n\n  indented\ttoo\n"
    (tmp_path / "a.txt").write_text(text)
    found = list(pieces(tmp_path / "a.txt", 1000))
    assert "".join(found) == text and len(found) > 10 and max(map(len, found)) < 2100
    tokenizer = learn(TokenizerOptions(kind=kind, size=400), [text])
    apart = [number for piece in found for number in tokenizer.encode(piece, special=False).ids]
    assert apart == tokenizer.encode(text, special=False).ids


def test_texts_become_shards_with_their_tokenizer(tmp_path: Path) -> None:
    counted = prepare.obtain("generated", None)
    tokenizer = prepare.tokenise(
        counted, tmp_path / "out", learned=TokenizerOptions(kind="bpe", size=300), shard=10_000
    )
    assert [each.split for each in counted] == ["train", "held_out", "test"]
    for each in counted:
        found = open_tokens(tmp_path / "out" / each.split)
        assert len(found) == each.counts["tokens"] and found.vocabulary == tokenizer.size
        assert tokenizer.decode(found[:].tolist()) == whole(each.path)
    assert len(list((tmp_path / "out").glob("train-*.bin"))) > 3


def test_statistics_add_up() -> None:
    tokenizer = learn(TokenizerOptions(kind="words", frequency=1), ["a b c"])
    found = measure(tokenizer, ["a b", "", "c d e f"])
    plain = found.plain()
    assert (plain["lines"], plain["words"], plain["tokens"], plain["longest"]) == (3, 6, 6, 4)
    assert plain["tokens_per_word"] == 1 and plain["unknown_rate"] == 0.5 and plain["lengths"] == {0: 1, 2: 1, 4: 1}
    assert found.histogram(2) == [(0, 2, 2), (3, 5, 1)]
    with pytest.raises(InvalidInput, match="no text"):
        measure(tokenizer, [])
