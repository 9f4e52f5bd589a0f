"""ELMo (Peters et al. 2018): layers, losses, heads on a frozen model, and texts as bytes."""

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from longspan.errors import InvalidInput, InvalidOption
from longspan.hub.finetune import freeze
from longspan.models import build, load
from longspan.models.classics.elmo import Elmo
from longspan.models.word_base import DirectionLosses
from longspan.nn.characters import encode_words, spell_bytes
from longspan.nn.heads import Head
from longspan.nn.layer_features import LayerMix

TINY = {"cells": 12, "projection": 8, "filters": (4, 4, 6), "character_width": 4, "characters": 12, "dropout": 0.0}
RIVER = ["he", "sat", "on", "the", "bank", "of", "the", "river"]
MONEY = ["the", "bank", "lent", "her", "money"]


def tiny(**options: object) -> Elmo:
    torch.manual_seed(0)
    return Elmo.build(**{**TINY, **options}).double().eval()


def encode(*sentences: list[str]) -> tuple[Tensor, Tensor]:
    return encode_words(sentences, characters=12)


def test_the_papers_size():
    """93.6 million in the release: 4 LSTMs of 18,890,752, and 18,037,856 in the token encoder."""
    with torch.device("meta"):
        model = build("elmo")
    lstm = 4 * 4096 * (512 + 512 + 1) + 4096 * 512
    convolutions = 16 * sum(width * maps for width, maps in enumerate((32, 32, 64, 128, 256, 512, 1024), 1))
    tokens = 262 * 16 + convolutions + 2048 + 2 * 2 * (2048 * 2048 + 2048) + 2048 * 512 + 512
    learned = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    assert learned == 4 * lstm + tokens == 93_600_864


@pytest.mark.parametrize("clip", [None, 3.0])
def test_each_direction_reads_its_own_side(clip: float | None):
    """Check 1: forward features at k ignore words after k, backward ones words before k; both have read word k."""
    model = tiny(clip=clip)
    base = model(encode(RIVER)[0])
    for place in range(len(RIVER)):
        changed = [*RIVER]
        changed[place] = "other"
        difference = (model(encode(changed)[0]) - base)[0, 1:].abs()
        forward, backward = (half.amax(-1) for half in difference.chunk(2, dim=-1))
        assert (forward[:, :place] < 1e-12).all() and (forward[:, place:] > 1e-9).all()
        assert (backward[:, place + 1 :] < 1e-12).all() and (backward[:, : place + 1] > 1e-9).all()


def test_layers_by_hand():
    """The token layer twice over; the first LSTM layer as it is; the second plus what it read."""
    model = tiny(clip=None)
    characters, _ = encode(RIVER)
    layers = model(characters)
    tokens = model.tokens(characters)
    assert torch.equal(layers[:, 0], torch.cat([tokens, tokens], -1))
    for half, lm, turn in ((slice(0, 8), model.forward_lm, False), (slice(8, 16), model.backward_lm, True)):
        x = tokens.flip(1) if turn else tokens
        first, _ = lm.layers[0].lstm(x)
        second = lm.layers[1].lstm(first)[0] + first
        for layer, wanted in ((1, first), (2, second)):
            wanted = wanted.flip(1) if turn else wanted
            torch.testing.assert_close(layers[:, layer, :, half], wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("clip", [None, 3.0])
@pytest.mark.parametrize("side", ["right", "left", "inside"])
def test_padding_is_not_there(clip: float | None, side: str):
    model = tiny(clip=clip, vocabulary=9)
    characters, _ = encode(RIVER)
    places = {"right": range(5), "left": range(3, 8), "inside": [0, 2, 3, 6, 7]}[side]
    mask = torch.zeros(2, 8, dtype=torch.bool)
    mask[0, list(places)], mask[1] = True, True
    both = characters.expand(2, -1, -1)
    ids = torch.arange(8).expand(2, -1)
    alone = characters[:, list(places)]
    layers, state = model.read(both, key_mask=mask)
    wanted, after = model.read(alone)
    torch.testing.assert_close(layers[:1, :, list(places)], wanted, rtol=0, atol=1e-12)
    assert (layers[0].transpose(0, 1)[~mask[0]] == 0).all()
    torch.testing.assert_close(state.select(torch.tensor([0])).forward, after.forward, rtol=0, atol=1e-12)
    torch.testing.assert_close(state.select(torch.tensor([0])).backward, after.backward, rtol=0, atol=1e-12)
    together = model.loss(both, ids, key_mask=mask)
    apart = model.loss(alone, ids[:1, list(places)]) + model.loss(characters, ids[:1])
    assert together.targets == apart.targets == 4 + 7
    torch.testing.assert_close(together.forward, apart.forward)
    torch.testing.assert_close(together.backward, apart.backward)


def test_a_row_of_nothing_but_padding():
    model = tiny(vocabulary=9)
    characters, mask = encode(MONEY, [])
    layers, state = model.read(characters, key_mask=mask)
    assert (layers[1] == 0).all() and (state.forward[0][1][1] == 0).all()
    ids = torch.zeros(2, 5, dtype=torch.long)
    assert model.loss(characters, ids, key_mask=mask).targets == 4


@torch.no_grad()
def test_the_losses_by_hand():
    """No word is predicted from features that have read it: forward k gives word k + 1, backward k gives word k - 1."""
    model = tiny(vocabulary=9)
    characters, _ = encode(RIVER)
    ids = torch.tensor([[3, 1, 4, 1, 5, 2, 6, 8]])
    top = model(characters)[0, -1]
    forward = sum(-model.head(top[k, :8]).log_softmax(-1)[ids[0, k + 1]] for k in range(7))
    backward = sum(-model.head(top[k, 8:]).log_softmax(-1)[ids[0, k - 1]] for k in range(1, 8))
    both = model.loss(characters, ids)
    torch.testing.assert_close(torch.stack([both.forward, both.backward]), torch.stack([forward, backward]))
    assert both.targets == 7 and float(both.loss) == pytest.approx(float(forward + backward) / 14)
    assert both.forward_perplexity == pytest.approx(math.exp(float(forward) / 7))
    assert both.backward_perplexity == pytest.approx(math.exp(float(backward) / 7))


def test_a_bank_is_a_bank_only_in_layer_0():
    """Check 4."""
    model = tiny()
    characters, mask = encode(RIVER, MONEY)
    layers = model(characters, key_mask=mask)
    river, money = layers[0, :, RIVER.index("bank")], layers[1, :, MONEY.index("bank")]
    assert torch.equal(river[0], money[0])
    assert all(not torch.allclose(river[layer], money[layer], atol=1e-3) for layer in (1, 2))


def test_state_is_carried_only_if_passed_on():
    model = tiny()
    (river, _), (money, _) = encode(RIVER), encode(MONEY)
    _, state = model.read(river)
    assert torch.equal(model(money), model(money))
    carried, _ = model.read(money, state=state)
    assert torch.equal(carried[:, 0], model(money)[:, 0])
    assert ((carried - model(money))[:, 1:].abs().amax(-1) > 0).all()
    together = model(encode([*RIVER, *MONEY])[0])  # forward, carried state is one long text
    torch.testing.assert_close(carried[..., :8], together[:, :, len(RIVER) :, :8], rtol=0, atol=1e-12)
    loose = state.detach()
    assert state.forward[0][0].requires_grad and not loose.forward[0][0].requires_grad
    assert state.bytes == loose.bytes == 2 * 2 * (8 + 12) * 8
    with pytest.raises(InvalidInput, match="the state is of 1 rows, and the batch has 2"):
        model.read(encode(RIVER, MONEY)[0], state=state)


@torch.no_grad()
def test_the_mix_of_layers():
    """Check 2: the weights sum to 1; at w = 0 it is gamma times the mean."""
    layers = torch.randn(2, 3, 5, 16, dtype=torch.float64)
    mix = LayerMix(3, penalty=0.5).double()
    assert float(mix.weight.softmax(0).sum()) == pytest.approx(1)
    mix.gamma.data.fill_(2.5)
    torch.testing.assert_close(mix(layers), 2.5 * layers.mean(1))
    assert mix.auxiliary_loss == 0
    mix.weight.data = torch.tensor([1.0, 0.0, -2.0], dtype=torch.float64)
    share = torch.tensor([math.e, 1, math.exp(-2)], dtype=torch.float64)
    share /= share.sum()
    torch.testing.assert_close(mix(layers), 2.5 * (share[:, None, None] * layers).sum(1))
    assert float(mix.auxiliary_loss) == pytest.approx(2.5)
    normed = LayerMix(3, norm=True).double()(layers)
    wanted = (layers - layers.mean(-1, keepdim=True)) / (layers.var(-1, keepdim=True, correction=0) + 1e-5).sqrt()
    torch.testing.assert_close(normed, wanted.mean(1))
    with pytest.raises(InvalidInput, match="this mixes 3 layers, and 2 were given"):
        mix(layers[:, :2])


def as_bytes(*texts: str) -> tuple[Tensor, Tensor]:
    rows = [list(text.encode()) for text in texts]
    ids = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.long)
    for number, row in enumerate(rows):
        ids[number, : len(row)] = torch.tensor(row)
    return ids, torch.arange(ids.shape[1]) < torch.tensor([[len(row)] for row in rows])


def test_bytes_spell_the_words_of_a_text():
    """The same characters as `encode_words` on the split text, between the marks of a sentence."""
    texts = ["he sat  on the bank", " über\tall\n", "a-very-very-long-word x", "  "]
    words = spell_bytes(*as_bytes(*texts), 12)
    wanted, real = encode(*(["<S>", *text.split(), "</S>"] for text in texts))
    assert torch.equal(words.characters, wanted) and torch.equal(words.inside, real)
    assert words.mask.sum(1).tolist() == [5, 2, 2, 0]
    assert words.word[0].tolist()[:19] == [0, 0, 0, 1, 1, 1, 1, 1, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4]


def test_heads_read_the_words_of_a_text():
    """A text head pools words, whatever their lengths; a token head gives each byte its word's output."""
    torch.manual_seed(0)
    tasks = (Head(task="classify", pool="mean", dropout=0.0), Head(task="tag", labels=3, features="mix", dropout=0.0))
    model = tiny(tasks=tasks)
    ids, mask = as_bytes(" ".join(RIVER), " ".join(MONEY))
    outputs = model.outputs(ids, key_mask=mask)
    for row, sentence in enumerate((RIVER, MONEY)):
        layers = model(encode(["<S>", *sentence, "</S>"])[0])[:, :, 1:-1]
        classify, tag = model.heads["classify"], model.heads["tag"]
        torch.testing.assert_close(outputs["classify"][row], classify.out(layers[0, -1].mean(0)))
        tags = tag.head.out(layers[0].mean(0))  # the mix starts as the mean
        places = [len(" ".join(sentence[:word])) + (word > 0) for word in range(len(sentence))]
        torch.testing.assert_close(outputs["tag"][row, places], tags)
    assert model.token_rows == 256
    with pytest.raises(InvalidOption, match="leave out the head 'masked'"):
        tiny(tasks=(Head(task="masked"),))


def test_frozen_features_train_the_mix_and_the_head_only():
    """Section 3.2. The biLM stays in evaluation mode too: its dropout never runs."""
    model = tiny(dropout=0.5, tasks=(Head(task="tag", labels=2, features="mix", recurrent=3),))
    freeze(model, "head")
    model.train()
    assert model.heads.training and not model.forward_lm.training and not model.tokens.training
    before = {name: value.clone() for name, value in model.state_dict().items()}
    optimiser = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.5)
    loss = model.outputs(as_bytes(" ".join(RIVER))[0])["tag"].square().sum() + model.auxiliary_loss()
    loss.backward()
    optimiser.step()
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert {"heads.tag.features.mix.weight", "heads.tag.features.mix.gamma", "heads.tag.head.out.weight"} <= changed
    assert all(name.startswith("heads.tag.") for name in changed)
    assert model.eval().heads.training is False


def test_it_learns_both_ways():
    """Check 5: each of eight words is followed by one of two, so 8 words say little and their neighbours much."""
    generator = torch.Generator().manual_seed(0)
    words = [f"word{number}" for number in range(8)]
    steps = torch.randint(1, 3, (32, 16), generator=generator)
    ids = (torch.randint(0, 8, (32, 1), generator=generator) + steps.cumsum(1)) % 8
    characters, _ = encode(*([words[i] for i in row] for row in ids.tolist()))
    share = ids.flatten().bincount(minlength=8) / ids.numel()
    unigram = float((-(share * share.log()).sum()).exp())
    torch.manual_seed(0)
    model = Elmo.build(**{**TINY, "cells": 24, "clip": None}, vocabulary=8, layers=2)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(60):
        optimiser.zero_grad()
        model.loss(characters, ids).loss.backward()
        optimiser.step()
    both = model.eval().loss(characters, ids)
    assert unigram > 7.5 and both.forward_perplexity < 2.6 and both.backward_perplexity < 2.6


def test_sampled_softmax_is_for_training():
    model = tiny(vocabulary=40, sampled=40)
    characters, _ = encode(RIVER)
    ids = torch.arange(8)[None]
    full = model.loss(characters, ids)
    torch.testing.assert_close(model.train().loss(characters, ids).forward, full.forward)  # all were sampled
    model = tiny(vocabulary=40, sampled=5)
    drawn = [model.train().loss(characters, ids, generator=torch.Generator().manual_seed(s)).loss for s in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert model.eval().loss(characters, ids).loss == full.loss
    with pytest.raises(InvalidOption, match="sampled is for the output layer, and there is none"):
        tiny(sampled=5)


def test_a_folder_holds_the_whole_model(tmp_path: Path):
    model = tiny(vocabulary=9)
    model.save(tmp_path / "elmo")
    again = load(tmp_path / "elmo")
    assert again.options == model.options
    assert torch.equal(again(encode(RIVER)[0]), model(encode(RIVER)[0]))


def test_what_does_not_fit_is_refused():
    characters, _ = encode(RIVER)
    ids = torch.arange(8)[None]
    with pytest.raises(InvalidInput, match="has no output layer; build it with vocabulary"):
        tiny().loss(characters, ids)
    with pytest.raises(InvalidInput, match="got 7 in sentence 0 at place 7"):
        tiny(vocabulary=7).loss(characters, ids)
    with pytest.raises(InvalidInput, match=r"one id per word, \(1, 8\), got \(1, 5\)"):
        tiny(vocabulary=9).loss(characters, ids[:, :5])
    with pytest.raises(InvalidInput, match=r"key_mask \(1, 8\) of torch.bool"):
        tiny()(characters, key_mask=torch.ones(1, 8))
    with pytest.raises(InvalidOption, match=r"the projection \(8\) must not be wider than the 4 cells"):
        tiny(cells=4)
    assert DirectionLosses(torch.zeros(()), torch.zeros(()), 0).forward_perplexity == 1
