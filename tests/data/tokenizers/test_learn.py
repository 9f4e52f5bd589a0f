"""Tokenizers that are learned: what they learn, that text comes back, and that what users write stays text."""

import string
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longspan.data import Tokenizer, read_tokenizer
from longspan.data.tokenizers.learn import KINDS, TokenizerOptions, learn
from longspan.errors import InvalidInput, InvalidOption

TEXT = (
    "The quick brown fox jumps over the lazy dog. Undo what you do; redo it, unless it was done.\n"
    "Ein Café in Zürich, naïve façade — 東京 and 서울.\n[MASK] is a word, <s> too.\n"
) * 4
HARD = ["", " ", "  leading", "tab\tand\nline\r\n", "émoji 👩‍👩‍👧 naïve", "\u200b\x00", "[MASK] <s> </s>", "שלום"]


@pytest.fixture(scope="module", params=KINDS)
def learned(request: pytest.FixtureRequest) -> Tokenizer:
    return learn(TokenizerOptions(kind=request.param, size=330), [TEXT])


def test_merges_are_those_of_the_most_frequent_pairs() -> None:
    """Spec section 14, check 1; the letter Q stands for the mark of a word's end."""
    words = ["lowQ"] * 5 + ["lowerQ"] * 2 + ["newestQ"] * 6 + ["widestQ"] * 3
    found = learn(TokenizerOptions(kind="bpe", size=256 + 9, special=False), words)

    def pieces(word: str) -> list[str]:
        return [found.token(number) for number in found.encode(word).ids]

    assert found.size == 265
    assert pieces("newestQ") == ["newestQ"] and pieces("lowQ") == ["lowQ"]
    assert pieces("lowestQ") == ["low", "estQ"]


def test_a_known_beginning_and_a_known_end_are_two_pieces() -> None:
    """Check 3."""
    words = ["unfair", "unkind", "unreal", "unlit"] * 9 + ["redo", "outdo", "do"] * 9
    found = learn(TokenizerOptions(kind="bpe", size=256 + 5 + 12), words)
    assert [found.token(number) for number in found.encode("undo").ids] == ["un", "do"]
    found = learn(TokenizerOptions(kind="wordpiece", size=60), words)
    assert [found.token(number) for number in found.encode("undo", special=False).ids] == ["un", "##do"]


@pytest.mark.parametrize("kind", ["bytes", "bpe"])
@given(text=st.text(max_size=30) | st.sampled_from(HARD))
def test_bytes_come_back_whatever_they_are(kind: str, text: str) -> None:
    """Check 2."""
    found = _byte_level(kind)
    assert found.decode(found.encode(text).ids) == text
    assert found.unk is None


_KEPT: dict[str, Tokenizer] = {}


def _byte_level(kind: str) -> Tokenizer:
    if kind not in _KEPT:
        _KEPT[kind] = learn(TokenizerOptions(kind=kind, size=330), [TEXT])
    return _KEPT[kind]


def test_halves_of_characters_do_not_break_it(learned: Tokenizer) -> None:
    """Check 2: a pair of surrogates is its character, and one alone is replaced."""
    assert learned.encode("\ud83d\ude00").ids == learned.encode("😀").ids
    assert learned.encode("a\ud83d").ids == learned.encode("a\ufffd").ids


def test_ids_of_bytes_are_their_values_after_the_special_tokens() -> None:
    found = learn(TokenizerOptions(kind="bytes"), [])
    count = len(found.specials)
    assert count == 4 and found.size == 256 + count
    assert found.encode("Aé\n").ids == [byte + count for byte in "Aé\n".encode()]
    assert learn(TokenizerOptions(kind="bytes", special=False), []).encode("A").ids == [65]


def test_offsets_say_the_characters_of_each_token(learned: Tokenizer) -> None:
    """Check 4."""
    text = "The naïve fox\tdoes [MASK] 東京"
    found = learned.encode(text, special=False)
    assert all(0 <= start < stop <= len(text) for start, stop in found.offsets)
    covered = {place for start, stop in found.offsets for place in range(start, stop)}
    assert {place for place, letter in enumerate(text) if not letter.isspace()} <= covered
    assert list(found.offsets) == sorted(found.offsets)
    place = text.index("fox")
    assert any(place <= start and stop <= place + 3 for start, stop in found.offsets)


def test_names_of_special_tokens_in_a_text_are_text(learned: Tokenizer) -> None:
    """Check 5."""
    hidden = {number for token, number in learned.specials.items() if number != learned.unk}
    for token in learned.specials:
        found = learned.encode(f"see {token} here", special=False)
        assert not hidden & set(found.ids)
        if learned.id(token) != learned.unk:
            assert learned.id(token) in learned.encode(f"see {token} here", special=False, allow=[token]).ids


def test_special_tokens_come_first_and_are_decoded_on_request(learned: Tokenizer) -> None:
    assert sorted(learned.specials.values()) == list(range(len(learned.specials)))
    assert learned.pad == 0 and learned.mask is not None
    assert learned.decode([learned.mask]) == ""
    assert learned.decode([learned.mask], special=True).strip() == learned.special["mask"]


def test_ids_have_no_holes_and_sizes_hold(learned: Tokenizer) -> None:
    assert sorted(learned.inner.get_vocab().values()) == list(range(learned.size))
    assert learned.size <= 330


def test_what_is_saved_is_read_back_equal(learned: Tokenizer, tmp_path: Path) -> None:
    learned.save(tmp_path)
    found = read_tokenizer(tmp_path)
    assert found is not None and found.to_json() == learned.to_json() and found.special == learned.special
    assert found.encode(TEXT) == learned.encode(TEXT)


def test_transformers_reads_what_is_saved(learned: Tokenizer, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    learned.save(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert len(theirs) == learned.size
    assert theirs.pad_token_id == learned.pad and theirs.mask_token_id == learned.mask
    text = TEXT.split("[MASK]")[0]  # theirs takes the names of special tokens for the tokens
    assert theirs(text)["input_ids"] == learned.encode(text).ids
    ids = learned.encode("The quick fox", special=False).ids
    assert theirs.decode(ids, clean_up_tokenization_spaces=False) == learned.decode(ids)


@pytest.mark.parametrize("kind", KINDS)
def test_lower_case_is_learned_and_read(kind: str) -> None:
    found = learn(TokenizerOptions(kind=kind, size=330, lowercase=True), [TEXT])
    assert found.encode("THE CAFÉ İ").ids == found.encode("the cafe i").ids
    pieces = [token for token in found.inner.get_vocab() if token not in found.specials]
    if kind not in ("bytes", "bpe"):  # which have all bytes
        assert not any(letter in string.ascii_uppercase for token in pieces for letter in token)
        assert found.unk not in found.encode("THE LAZY DOG.", special=False).ids or kind == "words"
    if kind == "characters":
        assert found.decode(found.encode("서울").ids) == "서울"


def test_words_are_counted_with_the_ends_of_lines() -> None:
    found = learn(TokenizerOptions(kind="words", frequency=2, special=False), ["a b <unk> \n a rare <unk> \n\n"])
    assert found.inner.get_vocab() == {"<unk>": 0, "\n": 1, "a": 2}
    assert found.encode("a b\n\n <unk>").ids == [2, 0, 1, 1, 0]


def test_pairs_stand_between_marks_as_bert_has_them() -> None:
    found = learn(TokenizerOptions(kind="wordpiece", size=330), [TEXT])
    pair = found.encode("the dog", "a fox")
    first, second = found.encode("the dog", special=False).ids, found.encode("a fox", special=False).ids
    assert pair.ids == [found.cls, *first, found.sep, *second, found.sep]
    assert pair.segments == [0] * (len(first) + 2) + [1] * (len(second) + 1)
    assert found.encode("x" * 101, special=False).ids == [found.unk]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "bytes"])
def test_nothing_to_learn_from_is_said(kind: str) -> None:
    with pytest.raises(InvalidInput, match="empty"):
        learn(TokenizerOptions(kind=kind), ["", " \n"])


@pytest.mark.parametrize("kind", ["bpe", "wordpiece", "unigram", "words"])
def test_too_small_a_size_is_said(kind: str) -> None:
    with pytest.raises(InvalidOption, match=r"5|letters"):
        learn(TokenizerOptions(kind=kind, size=5), [TEXT])


def test_what_a_vocabulary_without_unknown_lacks_is_said() -> None:
    found = learn(TokenizerOptions(kind="characters", special=False), ["abc"])
    assert found.size == 3 and found.encode("cab").ids == [2, 0, 1]
    with pytest.raises(InvalidInput, match="not in the tokenizer's vocabulary"):
        found.encode("abd")
