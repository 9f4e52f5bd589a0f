"""Words from their bytes."""

import pytest
import torch
from torch.nn.functional import conv1d, linear

from longspan.errors import InvalidInput, InvalidOption
from longspan.nn.characters import FILL, CharacterEncoder, encode_words

FILTERS = (3, 4, 5)


def encoder(characters: int = 12) -> CharacterEncoder:
    torch.manual_seed(0)
    return CharacterEncoder(6, filters=FILTERS, character_width=4, characters=characters).double()


def test_the_characters_of_a_word():
    """The ids of the released model: bytes + 1, 259 and 260 around the word, 261 up to the width, 0 in padding."""
    ids, mask = encode_words([["<S>", "aé", "abcdefgh"], ["</S>"]], characters=6)
    assert ids.tolist() == [
        [[259, 257, 260, 261, 261, 261], [259, 98, 0xC3 + 1, 0xA9 + 1, 260, 261], [259, 98, 99, 100, 101, 260]],
        [[259, 258, 260, 261, 261, 261], [0] * 6, [0] * 6],
    ]
    assert mask.tolist() == [[True, True, True], [True, False, False]]


def test_a_word_by_hand():
    model = encoder()
    ids, _ = encode_words([["cat"]], characters=12)
    x = model.embedding.weight[ids[0, 0]].T[None]
    maps = [conv1d(x, layer.weight, layer.bias).relu().amax(-1) for layer in model.convolutions]
    y = torch.cat(maps, 1)
    for highway in model.highways:
        gate = torch.sigmoid(linear(y, highway.gate.weight, highway.gate.bias))
        y = gate * linear(y, highway.transform.weight, highway.transform.bias).relu() + (1 - gate) * y
    wanted = linear(y, model.projection.weight, model.projection.bias)
    torch.testing.assert_close(model(ids)[0], wanted, rtol=0, atol=1e-12)


def test_fill_that_is_not_computed_changes_nothing():
    """Fill is part of the word (it is read by the convolutions), but of equal windows one is enough."""
    model = encoder()
    words = ["a", "abc", "abcdefg", "abcdefghij"]
    together, _ = encode_words([words], characters=12)
    alone = torch.cat([model(encode_words([[word]], characters=12)[0])[0] for word in words])
    torch.testing.assert_close(model(together)[0], alone, rtol=0, atol=1e-12)
    model.embedding.weight.data[FILL] += 1
    assert not torch.allclose(model(together)[0, 0], alone[0])


def test_equal_words_share_their_gradient():
    model = encoder()
    ids, _ = encode_words([["cat", "sat", "cat"]], characters=12)
    model(ids)[0, 0].sum().backward()
    once = model.projection.weight.grad.clone()
    model.zero_grad()
    model(ids)[0, [0, 2]].sum().backward()
    torch.testing.assert_close(model.projection.weight.grad, 2 * once)


def test_invalid_input_is_refused():
    with pytest.raises(InvalidInput, match="got the text 'a cat' as sentence 0; split it first"):
        encode_words(["a cat"])
    with pytest.raises(InvalidInput, match="at least one sentence with a word"):
        encode_words([[], []])
    with pytest.raises(InvalidOption, match="at least 3"):
        encode_words([["a"]], characters=2)
    with pytest.raises(InvalidOption, match="width 3 does not fit in 2 characters"):
        encoder(2)
    with pytest.raises(InvalidInput, match=r"characters \(batch, length, 12\)"):
        encoder()(torch.zeros(1, 1, 50, dtype=torch.long))
    with pytest.raises(InvalidInput, match=r"in 0\.\.261, got 262"):
        encoder()(torch.full((1, 1, 12), 262))
