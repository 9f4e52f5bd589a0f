"""Tokenizers here and in transformers: the same ids, segments and texts from the same files; and what is refused."""

import json
import os
import shutil
import struct
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer as Inner
from tokenizers import models, pre_tokenizers, trainers
from transformers import (
    AlbertTokenizer,
    AutoTokenizer,
    BertTokenizer,
    CamembertTokenizer,
    GPT2Tokenizer,
    LlamaTokenizer,
    OpenAIGPTTokenizer,
    RobertaTokenizer,
    XLMRobertaTokenizer,
)

from longspan.data import Tokenizer, read_tokenizer
from longspan.errors import InvalidInput, InvalidOption, LongspanError, Unsupported

CORPUS = ["the quick brown fox jumps over the lazy dog", "low lower newest widest", "don't panic, it's only 42!"] * 3
TEXTS = ["the lower fox", "", "don't jump!  over", "zebra 42 café", "The QUICK fox's 北京", "tab\there\nline 😀"]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
BERT_WORDS = [*SPECIAL, "the", "quick", "brown", "fox", "jump", "##s", "low", "##er", "##est", "'", "!", "**", "zebra"]
BERT_WORDS += ["42", "cafe", "北", "京"]


def words(folder: Path, listed: list[str], **record: object) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join(listed) + "\n", encoding="utf-8")
    if record:
        (folder / "tokenizer_config.json").write_text(json.dumps(record))
    return folder


def same(ours: Tokenizer, theirs: object, texts: list[str] = TEXTS) -> None:
    for text in texts:
        for pair in (None, "over the fox"):
            own, other = ours.encode(text, pair), theirs(text, pair, return_token_type_ids=True)
            assert own.ids == other["input_ids"], (text, pair)
            assert own.segments == other["token_type_ids"]
            assert len(own.offsets) == len(own.ids) == len(own.added)
        plain = ours.encode(text, special=False).ids
        assert plain == theirs(text, add_special_tokens=False)["input_ids"]
        assert ours.decode(ours.encode(text).ids) == theirs.decode(plain, skip_special_tokens=True)


# WordPiece


@pytest.mark.parametrize("lower", [True, False])
def test_words_equal_theirs(tmp_path: Path, lower: bool) -> None:
    folder = words(tmp_path, BERT_WORDS, do_lower_case=lower, tokenizer_class="BertTokenizer")
    ours = read_tokenizer(folder)
    same(ours, BertTokenizer.from_pretrained(folder))
    assert (ours.pad, ours.unk, ours.cls, ours.sep, ours.mask, ours.bos) == (0, 1, 2, 3, 4, None)
    assert ours.size == len(BERT_WORDS)


def test_capitals_in_the_vocabulary_say_that_case_counts(tmp_path: Path) -> None:
    cased = read_tokenizer(words(tmp_path, [*BERT_WORDS, "Fox"]))
    assert [cased.token(number) for number in cased.encode("Fox fox", special=False).ids] == ["Fox", "fox"]


def test_a_vocabulary_of_whole_tokens_is_matched_longest_first(tmp_path: Path) -> None:
    ours = read_tokenizer(words(tmp_path, [*SPECIAL, "C", "Cl", "(", ")", "[C@H]", ">>"]))
    found = ours.encode("CCl([C@H])>>Q[MASK]", allow=["[MASK]"])
    assert [ours.token(number) for number in found.ids] == (
        ["[CLS]", "C", "Cl", "(", "[C@H]", ")", ">>", "[UNK]", "[MASK]", "[SEP]"]
    )


@pytest.mark.data
def test_the_vocabulary_of_bert_equals_theirs() -> None:
    folder = real("bert-base-uncased")
    same(read_tokenizer(folder), BertTokenizer.from_pretrained(folder))


# BPE


def trained(folder: Path, special: list[str], prefix: bool = False) -> Path:
    """Byte-level BPE as GPT-2 and RoBERTa keep it."""
    inner = Inner(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    inner.train_from_iterator(
        CORPUS, trainers.BpeTrainer(vocab_size=330, special_tokens=special, initial_alphabet=alphabet)
    )
    folder.mkdir(exist_ok=True)
    inner.model.save(str(folder))
    return folder


def test_bytes_equal_gpt2s_and_come_back(tmp_path: Path) -> None:
    folder = trained(tmp_path, ["<|endoftext|>"])
    ours = read_tokenizer(folder)
    same(ours, GPT2Tokenizer.from_pretrained(folder))
    assert ours.eos == ours.bos == 0 and ours.pad is None
    for text in [*TEXTS, " leading", "e\u0301 \u200d", "\ta"]:
        assert ours.decode(ours.encode(text).ids) == text
    (folder / "vocab.json").rename(folder / "encoder.json")
    (folder / "merges.txt").rename(folder / "vocab.bpe")
    assert read_tokenizer(folder).encode("the fox").ids == ours.encode("the fox").ids


@pytest.mark.parametrize("kind", ["roberta", "bart", "longformer"])
def test_bytes_equal_robertas(tmp_path: Path, kind: str) -> None:
    folder = trained(tmp_path, ["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    (folder / "config.json").write_text(json.dumps({"model_type": kind}))
    ours = read_tokenizer(folder)
    same(ours, RobertaTokenizer.from_pretrained(folder))
    # The space belongs to the mask, as in fairseq; transformers 5 has it only where tokenizer.json says so.
    tokens = [ours.token(number) for number in ours.encode("the <mask> fox", allow="all", special=False).ids]
    assert tokens[:2] == ["the", "<mask>"] and "<mask>" not in map(ours.token, ours.encode("the <mask>").ids)


def test_gpts_words_equal_theirs(tmp_path: Path) -> None:
    inner = Inner(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.BpeTrainer(vocab_size=120, special_tokens=["<unk>"], end_of_word_suffix="</w>")
    inner.train_from_iterator(CORPUS, trainer)
    inner.model.save(str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "openai-gpt"}))
    same(read_tokenizer(tmp_path), OpenAIGPTTokenizer.from_pretrained(tmp_path))


@pytest.mark.data
def test_the_vocabulary_of_gpt2_equals_theirs(tmp_path: Path) -> None:
    folder = real("gpt2")
    shutil.copy(folder / "encoder.json", tmp_path / "vocab.json")
    shutil.copy(folder / "vocab.bpe", tmp_path / "merges.txt")
    ours = read_tokenizer(folder)
    same(ours, GPT2Tokenizer.from_pretrained(tmp_path))
    assert ours.eos == 50256 and ours.size == 50257


def real(name: str) -> Path:
    folder = Path(os.environ.get("LONGSPAN_DATA", "")) / "tokenizers" / name
    if not os.environ.get("LONGSPAN_DATA") or not folder.is_dir():
        pytest.skip(f"LONGSPAN_DATA names no folder with tokenizers/{name}")
    return folder


# SentencePiece: files written by hand, in the wire format of protocol buffers


def varint(number: int) -> bytes:
    low, rest = number & 127, number >> 7
    return bytes([low | 128]) + varint(rest) if rest else bytes([low])


def entry(number: int, value: bytes | int | float) -> bytes:
    if isinstance(value, bytes):
        return varint(number << 3 | 2) + varint(len(value)) + value
    if isinstance(value, float):
        return varint(number << 3 | 5) + struct.pack("<f", value)
    return varint(number << 3) + varint(value)


def sentencepiece(
    path: Path, pieces: list[tuple[str, float, int]], *, trainer: bytes = b"", normaliser: bytes = b""
) -> Path:
    path.parent.mkdir(exist_ok=True)
    rows = [entry(1, entry(1, text.encode()) + entry(2, score) + entry(3, kind)) for text, score, kind in pieces]
    path.write_bytes(b"".join(rows) + entry(2, trainer) + entry(3, normaliser) + entry(4, entry(1, b"self test")))
    return path.parent


UNIGRAM = [("▁", -2.0), ("▁the", -3.0), ("▁low", -4.5), ("er", -3.5), ("▁fox", -5.0), ("▁jump", -5.5), ("!", -4.0)]
UNIGRAM += [(letter, -6.0 - place / 8) for place, letter in enumerate("abcdefghijklmnopqrstuvwxyzQ'42,")]
CONTROLS = [("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("</s>", 0.0, 3)]


def normal(rows: list[tuple[str, float]]) -> list[tuple[str, float, int]]:
    return [(text, score, 1) for text, score in rows]


def config(folder: Path, **record: object) -> Path:
    (folder / "config.json").write_text(json.dumps(record))
    return folder


def test_pieces_equal_alberts(tmp_path: Path) -> None:
    first = [("<pad>", 0.0, 3), ("<unk>", 0.0, 2), ("[CLS]", 0.0, 3), ("[SEP]", 0.0, 3), ("[MASK]", 0.0, 3)]
    pieces = [*first, *normal(UNIGRAM)]
    folder = sentencepiece(tmp_path / "spiece.model", pieces, trainer=entry(3, 1) + entry(40, 1))
    theirs = AlbertTokenizer(vocab=[(text, score) for text, score, _ in pieces])
    ours = read_tokenizer(config(folder, model_type="albert"))
    same(ours, theirs)
    assert (ours.pad, ours.unk, ours.cls, ours.sep, ours.mask) == (0, 1, 2, 3, 4)


@pytest.mark.parametrize(
    "kind,cls,first", [("camembert", CamembertTokenizer, 5), ("xlm-roberta", XLMRobertaTokenizer, 0)]
)
def test_pieces_equal_those_of_fairseqs_models(tmp_path: Path, kind: str, cls: type, first: int) -> None:
    pieces = [*CONTROLS, *normal(UNIGRAM)]
    folder = sentencepiece(tmp_path / "sentencepiece.bpe.model", pieces)
    scored = [(text, score) for text, score, _ in pieces]
    own = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    if kind == "camembert":
        own = [("<s>NOTUSED", 0.0), ("<pad>", 0.0), ("</s>NOTUSED", 0.0), ("<unk>", 0.0), ("<unk>NOTUSED", -100.0)]
    theirs = cls(vocab=[*own, *scored[1 if kind == "camembert" else 3 :], ("<mask>", 0.0)])
    ours = read_tokenizer(config(folder, model_type=kind))
    same(ours, theirs)
    assert ours.bos == first and ours.mask == theirs.mask_token_id == ours.size - 1


def bpe_pieces() -> tuple[list[tuple[str, float, int]], list[tuple[str, str]]]:
    """Pieces whose scores are the ranks of their merges, as SentencePiece writes them, after bytes."""
    merges = [("t", "h"), ("th", "e"), ("▁", "the"), ("o", "w"), ("l", "ow"), ("▁", "low"), ("e", "r"), ("▁", "▁")]
    joined = [left + right for left, right in merges]
    letters = ["▁", *"abcdefghijklmnopqrstuvwxyz!'"]
    bytes_ = [(f"<0x{byte:02X}>", 0.0, 6) for byte in range(256)]
    ranked = [(text, -float(rank), 1) for rank, text in enumerate([*joined, *letters])]
    return [*CONTROLS, *bytes_, *ranked], merges


@pytest.mark.parametrize("name", ["tokenizer.model", "spiece.model"])
def test_pieces_equal_llamas(tmp_path: Path, name: str) -> None:
    pieces, merges = bpe_pieces()
    trainer, normaliser = entry(3, 2) + entry(35, 1), entry(3, 1) + entry(4, 0)
    folder = sentencepiece(tmp_path / name, pieces, trainer=trainer, normaliser=normaliser)
    vocabulary = {text: number for number, (text, _, _) in enumerate(pieces)}
    theirs = LlamaTokenizer(vocab=vocabulary, merges=merges, add_bos_token=True)
    ours = read_tokenizer(config(folder, model_type="llama"))
    same(ours, theirs)
    assert ours.encode("the").ids[0] == ours.bos == 1
    for text in [*TEXTS, "a  b   c "]:
        assert ours.decode(ours.encode(text).ids) == text


def test_characters_are_mapped_as_the_file_says(tmp_path: Path) -> None:
    """A map of NFKC's kind in its compiled form: a double array of one key, Q, and what stands for it."""
    units = charsmap("Q", "q")
    folder = sentencepiece(tmp_path / "spiece.model", [*CONTROLS, *normal(UNIGRAM)], normaliser=entry(2, units))
    ours = read_tokenizer(folder)
    assert ours.encode("fQx").ids == ours.encode("fqx").ids != ours.encode("fax").ids


def charsmap(key: str, value: str) -> bytes:
    """The trie of Darts for a key of one byte: offset, label and leaf are packed into 32 bits."""
    byte = ord(key)
    size = 512
    trie = [0] * size
    base = 256
    trie[0] = base << 10  # the root: its children are at base ^ label
    child = base ^ byte
    leaf = child ^ 0 ^ 1  # where the value stands: the child's offset is 1
    trie[child] = 1 << 10 | 1 << 8 | byte
    trie[leaf] = 1 << 31  # value 0: the text begins at byte 0
    packed = struct.pack(f"<{size}I", *trie)
    return struct.pack("<I", len(packed)) + packed + value.encode() + b"\0"


# tokenizer.json


def test_tokenizer_json_is_read_and_written_with_its_roles(tmp_path: Path) -> None:
    folder = words(tmp_path / "first", BERT_WORDS, do_lower_case=True, tokenizer_class="BertTokenizer")
    ours = read_tokenizer(folder)
    ours.save(tmp_path / "second")
    back = read_tokenizer(tmp_path / "second")
    assert back.special == ours.special and back.size == ours.size
    config(tmp_path / "second", model_type="bert")
    same(back, AutoTokenizer.from_pretrained(tmp_path / "second"))
    (tmp_path / "second" / "tokenizer_config.json").unlink()
    assert read_tokenizer(tmp_path / "second").special == ours.special  # from what they are usually called


def test_how_the_authors_cut_and_padded_is_left_aside(tmp_path: Path) -> None:
    folder = words(tmp_path / "first", BERT_WORDS)
    inner = read_tokenizer(folder).inner
    inner.enable_truncation(4)
    inner.enable_padding(length=9)
    inner.save(str(folder / "tokenizer.json"))
    assert len(read_tokenizer(folder).encode("the the the the the")) == 7


def test_a_beginning_that_the_configuration_asks_for(tmp_path: Path) -> None:
    folder = trained(tmp_path, ["<s>", "</s>"])
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": True, "add_eos_token": True})
    )
    ours = read_tokenizer(folder)
    assert ours.encode("a", "b").segments == [0, 0, 0, 1, 1, 1]
    assert ours.encode("a").ids[0] == 0 and ours.encode("a").ids[-1] == 1


def test_added_tokens_keep_their_ids(tmp_path: Path) -> None:
    folder = words(tmp_path, BERT_WORDS)
    (folder / "added_tokens.json").write_text(json.dumps({"<drug>": len(BERT_WORDS)}))
    assert read_tokenizer(folder).encode("the<drug>fox", special=False).ids == [5, len(BERT_WORDS), 8]
    (folder / "added_tokens.json").write_text(json.dumps({"<drug>": 99}))
    with pytest.raises(InvalidInput, match=r"'<drug>' is said to have the id 99, and has 22"):
        read_tokenizer(folder)


# What a user writes is text


def whole_words(folder: Path) -> Tokenizer:
    """A model that would find [MASK] among its words, whatever the added tokens say."""
    inner = Inner(models.WordLevel({word: number for number, word in enumerate(BERT_WORDS)}, unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    folder.mkdir(exist_ok=True)
    inner.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text('{"model_type": "bert"}')
    return read_tokenizer(folder)


def unigram(folder: Path) -> Tokenizer:
    first = [("<pad>", 0.0, 3), ("<unk>", 0.0, 2), ("[CLS]", 0.0, 3), ("[SEP]", 0.0, 3), ("[MASK]", 0.0, 3)]
    sentencepiece(folder / "spiece.model", [*first, *normal(UNIGRAM)], trainer=entry(40, 1))
    return read_tokenizer(config(folder, model_type="albert"))


@pytest.mark.parametrize("make", [whole_words, unigram, lambda folder: read_tokenizer(words(folder, BERT_WORDS))])
def test_special_tokens_in_a_text_are_text_unless_allowed(tmp_path: Path, make) -> None:
    ours = make(tmp_path)
    text = "the [MASK] fox [SEP] [CLS]"
    plain = ours.encode(text, special=False).ids
    assert not set(plain) & {ours.mask, ours.sep, ours.cls}
    one = ours.encode(text, special=False, allow=["[MASK]"]).ids
    assert one.count(ours.mask) == 1 and not set(one) & {ours.sep, ours.cls}
    every = ours.encode(text, special=False, allow="all").ids
    assert {ours.mask, ours.sep, ours.cls} <= set(every)
    assert ours.decode([ours.mask, *ours.encode("the").ids]).strip() == "the"
    assert "[MASK]" in ours.decode([ours.mask], special=True)
    with pytest.raises(InvalidOption, match=r"'\[MASQ\]' is no special token: did you mean '\[MASK\]'"):
        ours.encode("the", allow=["[MASQ]"])
    with pytest.raises(InvalidOption, match="a list of special tokens or 'all', not"):
        ours.encode("the", allow="[MASK]")


# Batches


def test_batches_are_filled_up_on_either_side(tmp_path: Path) -> None:
    ours = read_tokenizer(words(tmp_path, BERT_WORDS))
    right = ours.encode_batch(["the fox", "the"], ["low", "low low"])
    assert right.ids.tolist() == [[2, 5, 8, 3, 11, 3], [2, 5, 3, 11, 11, 3]] and right.mask.all()
    assert right.segments.tolist() == [[0, 0, 0, 0, 1, 1], [0, 0, 0, 1, 1, 1]]
    left = ours.encode_batch(["the fox", "the"], side="left")
    assert left.ids.tolist() == [[2, 5, 8, 3], [0, 2, 5, 3]]
    assert left.mask.tolist() == [[True] * 4, [False, True, True, True]]
    assert ours.encode_batch(["the fox", "the"], padding=9).ids[1].tolist() == [2, 5, 3, 9]
    empty = ours.encode_batch([])
    assert empty.ids.shape == (0, 0) and empty.ids.dtype == torch.long


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("longest", [4, 5, 6, 9])
@pytest.mark.parametrize("pair", [None, "low low low", "low low low low low low low"])
def test_too_long_is_refused_or_cut_as_theirs_is(tmp_path: Path, side: str, longest: int, pair: str | None) -> None:
    folder = words(tmp_path, BERT_WORDS, truncation_side=side, tokenizer_class="BertTokenizer")
    ours, theirs = read_tokenizer(folder), BertTokenizer.from_pretrained(folder, truncation_side=side)
    text = "the quick brown fox jump 42"
    pairs = None if pair is None else [pair]
    (found,) = ours.encode_many([text], pairs, longest=longest, truncate=side)
    expected = theirs(text, pair, truncation="longest_first", max_length=longest)
    assert len(found) <= longest and found.segments == expected["token_type_ids"]
    assert found.ids == expected["input_ids"]
    with pytest.raises(InvalidInput, match=rf"text 0 has \d+ tokens, and at most {longest} can be read"):
        ours.encode_many([text], pairs or [text], longest=longest)


def test_offsets_lead_back_to_the_text(tmp_path: Path) -> None:
    ours = read_tokenizer(words(tmp_path, BERT_WORDS))
    text = "The 北京 jumps"
    found = ours.encode(text)
    spans = [text[a:b] for (a, b), added in zip(found.offsets, found.added) if not added]
    assert spans == ["The", "北", "京", "jump", "s"]


def test_halves_of_characters_are_replaced(tmp_path: Path) -> None:
    ours = read_tokenizer(trained(tmp_path, ["<|endoftext|>"]))
    assert ours.decode(ours.encode("a\ud83d\ude00b").ids) == "a😀b"
    assert ours.decode(ours.encode("a\ud800b").ids) == "a\ufffdb"


# What cannot be read


def write(folder: Path, name: str, data: bytes | str) -> Path:
    (folder / name).write_bytes(data if isinstance(data, bytes) else data.encode())
    return folder


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"tokenizer.json": b"\xff\xfe{}"}, ["tokenizer.json is not UTF-8", "byte 0"]),
        ({"tokenizer.json": "{"}, ["tokenizer.json is no tokenizer"]),
        ({"tokenizer_config.json": "[1]"}, ["tokenizer_config.json must be a table, not list"]),
        ({"tokenizer_config.json": "{"}, ["tokenizer_config.json is not JSON"]),
        ({"vocab.txt": "[UNK]\na\nb\na\n"}, ["vocab.txt, line 4", "'a' is already on line 2"]),
        ({"vocab.txt": "a\nb\n"}, ["vocab.txt has no [UNK]"]),
        ({"vocab.txt": ""}, ["vocab.txt is empty"]),
        ({"vocab.txt": b"[UNK]\n\xc3\n"}, ["vocab.txt is not UTF-8"]),
        ({"vocab.json": '{"a": 0}'}, ["has vocab.json and no merges.txt"]),
        ({"vocab.json": '{"a": "x"}', "merges.txt": ""}, ["vocab.json: 'a' must have an id, not 'x'"]),
        ({"vocab.json": '{"a": 0}', "merges.txt": "#version: 0.2\na b c\n"}, ["merges.txt, line 2", "'a b c'"]),
        ({"vocab.json": '{"a": 0, "b": 1}', "merges.txt": "a b\n"}, ["merges.txt, line 1: 'ab' is not in vocab.json"]),
        ({"spiece.model": b"\x0a\x7fabc"}, ["spiece.model is no file of SentencePiece, at piece 0", "127 bytes"]),
        ({"spiece.model": b""}, ["it has no pieces"]),
        ({"tokenizer.model": b"IQ== 0\nIg== 1\n"}, ["tiktoken", "tokenizer.json"]),
        ({"tokenizer.pkl": b"\x80\x04."}, ["tokenizer.pkl is a pickle", "never read"]),
        (
            {"tokenizer_config.json": '{"mask_token": 3}', "vocab.txt": "[UNK]\n##a\n"},
            ["a special token must be a text or have a content, not 3"],
        ),
    ],
)
def test_a_broken_file_is_named(tmp_path: Path, files: dict[str, bytes | str], said: list[str]) -> None:
    for name, data in files.items():
        write(tmp_path, name, data)
    with pytest.raises(LongspanError) as caught:
        read_tokenizer(tmp_path)
    assert all(words in str(caught.value) for words in said) and "\n" not in str(caught.value)


def test_sentencepiece_that_cannot_be_done(tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match="model_type is 3"):
        read_tokenizer(sentencepiece(tmp_path / "spiece.model", CONTROLS, trainer=entry(3, 3)))
    with pytest.raises(InvalidInput, match="unk_id is 9, and there are 3 pieces"):
        read_tokenizer(sentencepiece(tmp_path / "spiece.model", CONTROLS, trainer=entry(40, 9)))
    with pytest.raises(InvalidInput, match="pieces 0 and 3 are both '<unk>'"):
        read_tokenizer(sentencepiece(tmp_path / "spiece.model", [*CONTROLS, ("<unk>", 0.0, 1)]))
    with pytest.raises(InvalidInput, match="precompiled_charsmap cannot be read"):
        read_tokenizer(sentencepiece(tmp_path / "spiece.model", CONTROLS, normaliser=entry(2, b"\x01")))


def test_a_folder_without_a_tokenizer_has_none(tmp_path: Path) -> None:
    assert read_tokenizer(tmp_path) is None
    with pytest.raises(InvalidInput, match="is no folder"):
        read_tokenizer(tmp_path / "missing")
    ours = read_tokenizer(words(tmp_path, BERT_WORDS))
    with pytest.raises(InvalidInput, match="expected a text, got int"):
        ours.encode(3)
    with pytest.raises(InvalidInput, match="put it in a list"):
        ours.encode_batch("the fox")
    with pytest.raises(InvalidInput, match="2 texts and 1 seconds"):
        ours.encode_batch(["a", "b"], ["c"])
    with pytest.raises(InvalidInput, match="no token has the id 99"):
        ours.token(99)
