"""Files of llama2.c: the story that stories260K tells, and its words as the C program would cut them."""

import struct
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from transformers import LlamaForCausalLM

from longspan import hub
from longspan.decode import generate
from longspan.errors import InvalidInput, Unsupported
from longspan.hub.formats import llama2c

STORY = (
    "Once upon a time, there was a little girl named Lily. She loved to play outside in the park. "
    "One day, she saw a big, red ball."
)
SIZES = (8, 12, 2, 4, 2, 20, 16)  # width, hidden, layers, heads, kv_heads, vocabulary, longest


def written(path: Path, sizes: tuple[int, ...] = SIZES) -> Path:
    width, hidden, layers, heads, kv_heads, vocabulary, longest = sizes
    narrow = width // heads * kv_heads
    layer = 2 * width + 2 * width * width + 2 * narrow * width + 3 * hidden * width
    count = abs(vocabulary) * width * (2 if vocabulary < 0 else 1)
    count += layers * layer + width + longest * (width // heads // 2) * 2
    numbers = torch.randn(count, generator=torch.Generator().manual_seed(0))
    path.write_bytes(struct.pack("<7i", *sizes) + numbers.numpy().tobytes())
    return path


@pytest.mark.data
def test_the_story_begins_as_the_readme_has_it(stories: Path) -> None:
    found = hub.load(stories / "stories260K.bin")
    words = llama2c.tokenizer(stories / "tok512.bin")
    text = generate(found.model, [[1]], max_new=60, tokenizer=words).texts
    assert text is not None and text[0].startswith(STORY)


@pytest.mark.data
def test_theirs_tells_the_same_story(stories: Path, tmp_path: Path) -> None:
    found = hub.load(stories / "stories260K.bin")
    hub.save(found, tmp_path)
    theirs = LlamaForCausalLM.from_pretrained(tmp_path).eval()
    expected = theirs.generate(torch.tensor([[1]]), max_new_tokens=40, do_sample=False, pad_token_id=0)
    assert [1, *generate(found.model, [[1]], max_new=40).tokens[0]] == expected[0].tolist()


@pytest.mark.data
@pytest.mark.parametrize("text", [STORY, "  Two  spaces,\ntabs\tand Ünïcödé 😀!", "", "aaaaaaaaa the the"])
def test_words_are_cut_as_the_program_cuts_them(stories: Path, text: str) -> None:
    words = llama2c.tokenizer(stories / "tok512.bin")
    ids = words.encode(text).ids
    assert ids == by_definition(stories / "tok512.bin", text)
    assert words.decode(ids) == text


def by_definition(path: Path, text: str) -> list[int]:
    """run.c's `encode`: characters, or their bytes, of which the two that make the best piece are joined again and
    again."""
    data, at, pieces, scores = path.read_bytes(), 4, [], []
    while at < len(data):
        score, length = struct.unpack_from("<fi", data, at)
        pieces.append(data[at + 8 : at + 8 + length])
        scores.append(score)
        at += 8 + length
    number = {piece: token for token, piece in enumerate(pieces)}
    ids = []
    for character in f" {text}" if text else "":
        spelled = character.encode()
        ids.extend([number[spelled]] if spelled in number else [byte + 3 for byte in spelled])
    while True:
        joined = [(number.get(pieces[a] + pieces[b]), at) for at, (a, b) in enumerate(pairwise(ids))]
        best = max(((scores[token], -at, token) for token, at in joined if token is not None), default=None)
        if best is None:
            return ids
        ids[-best[1] : 2 - best[1]] = [best[2]]


@pytest.mark.parametrize("vocabulary", [20, -20])
def test_a_negative_vocabulary_has_an_output_layer_of_its_own(tmp_path: Path, vocabulary: int) -> None:
    found = hub.load(written(tmp_path / "a.bin", (*SIZES[:5], vocabulary, 16)))
    assert found.model.options.tied == (vocabulary > 0)
    assert found.model.options.vocabulary == 20
    assert found.model(torch.arange(6)[None]).shape == (1, 6, 20)


def test_files_that_are_something_else_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "a.bin")
    data = path.read_bytes()
    cases = {
        data[:-4]: (InvalidInput, f"has {len(data) - 4} bytes, and a model of llama2.c with its sizes {len(data)}"),
        data[:20]: (InvalidInput, "has 20 bytes"),
        b"PK\x03\x04" + data[4:]: (InvalidInput, "is a pickle"),
        struct.pack("<7i", 8, 12, 2, 3, 2, 20, 16) + data[28:]: (InvalidInput, "its sizes are"),
        struct.pack("<2i", 0x616B3432, 2) + data[8:]: (Unsupported, "version 2"),
    }
    for content, (error, said) in cases.items():
        path.write_bytes(content)
        with pytest.raises(error, match=said):
            hub.load(path)
    with pytest.raises(InvalidInput, match="there is no"):
        hub.load(tmp_path / "b.bin")
