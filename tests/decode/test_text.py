"""Text as it comes."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from longspan.decode import Detokeniser, StopStrings
from longspan.decode.text import Writer
from longspan.errors import InvalidOption


def byte_tokenizer() -> Tokenizer:
    """One token per byte, so that characters are split as often as they can be."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({symbol: index for index, symbol in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel()
    return tokenizer


def word_tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(
        models.WordPiece({"[UNK]": 0, "un": 1, "##able": 2, "to": 3, ",": 4, "go": 5}, unk_token="[UNK]")
    )
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens(["[UNK]"])
    return tokenizer


def pieces(detokeniser: Detokeniser, ids: list[int]) -> list[str]:
    return [*(detokeniser.push(token) for token in ids), detokeniser.finish()]


@given(st.text(max_size=12))
def test_whole_characters_only(text: str):
    tokenizer = byte_tokenizer()
    for decode, ids in ((tokenizer, tokenizer.encode(text).ids), (bytes, list(text.encode()))):
        shown = pieces(Detokeniser(decode), ids)
        assert "".join(shown) == text
        if "\ufffd" not in text:
            assert not any("\ufffd" in piece for piece in shown)


def test_a_character_comes_with_its_last_byte():
    assert pieces(Detokeniser(bytes), list("a€b".encode())) == ["a", "", "", "€", "b", ""]


@given(st.binary(max_size=8))
def test_bytes_that_are_no_text_are_replaced_as_python_does(data: bytes):
    assert "".join(pieces(Detokeniser(bytes), list(data))) == data.decode(errors="replace")


def test_half_a_character_at_the_end():
    assert pieces(Detokeniser(bytes), list("€".encode())[:2]) == ["", "", "\ufffd"]
    tokenizer = byte_tokenizer()
    ids = tokenizer.encode("€").ids[:2]
    assert "".join(pieces(Detokeniser(tokenizer), ids)) == tokenizer.decode(ids)


@given(st.lists(st.integers(1, 5), max_size=8))
def test_spaces_and_joined_words_are_those_of_the_whole_text(ids: list[int]):
    tokenizer = word_tokenizer()
    assert "".join(pieces(Detokeniser(tokenizer), ids)) == tokenizer.decode(ids)


def test_a_function_that_gives_text():
    assert pieces(Detokeniser(lambda ids: "".join("abc"[i] for i in ids)), [2, 0, 1]) == ["c", "a", "b", ""]


def run(stops: list[str], parts: list[str]) -> tuple[str, bool]:
    filter, shown = StopStrings(stops), ""
    for part in parts:
        text, stopped = filter.push(part)
        shown += text
        if stopped:
            return shown, True
    return shown + filter.finish(), False


def test_a_stop_string_split_over_tokens():
    filter = StopStrings(["STOP"])
    assert [filter.push(part) for part in ("go S", "T", "ay S", "TOP on")] == [
        ("go ", False),
        ("", False),
        ("STay ", False),
        ("", True),
    ]


AB = st.text("ab", max_size=10)


@given(AB, st.lists(st.text("ab", min_size=1, max_size=3), max_size=3), st.lists(st.integers(0, 10), max_size=4))
def test_where_tokens_end_makes_no_difference(text: str, stops: list[str], cuts: list[int]):
    borders = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    shown, stopped = run(stops, [text[a:b] for a, b in pairwise(borders)])
    assert (shown, stopped) == run(stops, list(text))
    assert text.startswith(shown) and stopped == any(stop in text for stop in stops)
    assert not any(stop in shown for stop in stops)


@given(AB, st.lists(st.text("ab", min_size=1, max_size=3), max_size=3))
def test_what_is_shown_is_never_taken_back(text: str, stops: list[str]):
    filter, shown = StopStrings(stops), ""
    final, _ = run(stops, list(text))
    for character in text:
        new, stopped = filter.push(character)
        shown += new
        assert final.startswith(shown)
        if stopped:
            break


def test_a_stop_string_in_the_middle_of_a_character_split_over_tokens():
    writer = Writer(bytes, ["€"])
    assert [writer.push(byte) for byte in "a€".encode()] == [("a", False), ("", False), ("", False), ("", True)]


@pytest.mark.parametrize("stops", ["STOP", [""]])
def test_stops_that_are_none(stops: object):
    with pytest.raises(InvalidOption, match="stop must be a list of non-empty strings"):
        StopStrings(stops)
