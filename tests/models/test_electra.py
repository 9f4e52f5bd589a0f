"""ELECTRA's pair (Clark et al. 2020)."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch.nn import functional

from longspan.errors import InvalidInput, InvalidOption
from longspan.models import build, load
from longspan.models.electra import Electra

MASK, VOCABULARY = 3, 30
SMALL = {
    "vocabulary": VOCABULARY,
    "width": 16,
    "embedding_width": 12,
    "layers": 2,
    "heads": 2,
    "hidden": 24,
    "max_length": 40,
    "mask": MASK,
    "generator_fraction": 0.5,
    "dropout": 0.0,
    "attention_dropout": 0.0,
}


def pair(**options: Any) -> Electra:
    found = build("electra", **{**SMALL, **options}).double()
    assert isinstance(found, Electra)
    return found


def text(batch: int = 4, length: int = 40) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Ids, the chosen 15 %, and what is not padding: the last row is half as long."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(5, VOCABULARY, (batch, length), generator=generator)
    chosen = torch.rand(batch, length, generator=generator) < 0.15
    real = torch.ones(batch, length, dtype=torch.bool)
    real[-1, length // 2 :] = False
    return ids, chosen, real


def test_the_discriminators_loss_moves_no_generator_but_the_shared_tables() -> None:
    model = pair()
    ids, chosen, real = text()
    found = model(ids, ids.masked_fill(chosen, MASK), chosen, key_mask=real)
    model.loss(found).detection.backward()
    shared = {id(parameter) for parameter in model.discriminator.parameters()}
    own = [name for name, each in model.generator.named_parameters() if id(each) not in shared]
    moved = [name for name in own if model.generator.get_parameter(name).grad is not None]
    assert own and not moved
    tables = [name for name, each in model.generator.named_parameters() if id(each) in shared]
    assert set(tables) == {"embedding.weight", "embedding.segment", "embedding.position.weight"} | {
        f"embedding.norm.{leaf}" for leaf in ("weight", "bias")
    }
    assert all(model.generator.get_parameter(name).grad.any() for name in tables)


def test_the_generators_loss_moves_no_discriminator_but_the_shared_tables() -> None:
    model = pair()
    ids, chosen, real = text()
    model.loss(model(ids, ids.masked_fill(chosen, MASK), chosen, key_mask=real)).masked.backward()
    assert all(each.grad is None for each in model.discriminator.stack.parameters())
    assert all(each.grad is None for each in model.discriminator.heads.parameters())


def test_an_oracle_replaces_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model = pair()
    ids, chosen, real = text()
    monkeypatch.setattr(model, "propose", lambda masked, places, **_: 1e3 * functional.one_hot(ids[places], VOCABULARY))
    found = model(ids, ids.masked_fill(chosen, MASK), chosen, key_mask=real)
    assert not found.labels.any() and torch.equal(found.ids, ids)


def test_uniform_draws_replace_about_what_was_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    model = pair()
    monkeypatch.setattr(model, "propose", lambda masked, places, **_: torch.zeros(int(places.sum()), VOCABULARY))
    ids, chosen, _ = text(batch=200)
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        found = model(ids, ids.masked_fill(chosen, MASK), chosen, generator=draw)
    assert found.labels.double().mean() == pytest.approx(0.15 * (VOCABULARY - 2) / (VOCABULARY - 1), abs=0.01)
    assert torch.equal(found.labels, found.ids != ids)
    inside = chosen.clone()
    inside[:, 0] = False
    same = inside & ~found.labels  # drawn as it had been: an original
    assert same.any() and torch.equal(found.ids[same], ids[same])
    assert not (found.ids == MASK).any()  # of 1160 draws from 30 ids, about 39 would have been


def test_draws_follow_the_softmax() -> None:
    model = pair(mask=None)
    logits = torch.linspace(-1, 2, VOCABULARY, dtype=torch.float64).repeat(20000, 1)
    drawn = model.draw(logits, torch.Generator().manual_seed(3))
    shares = torch.bincount(drawn, minlength=VOCABULARY).double() / len(drawn)
    torch.testing.assert_close(shares, logits[0].softmax(0), rtol=0, atol=0.01)
    assert torch.equal(drawn, model.draw(logits, torch.Generator().manual_seed(3)))


@pytest.mark.parametrize("side", ["right", "left"])
def test_neither_padding_nor_the_first_token_is_replaced(side: str) -> None:
    model = pair()
    ids, _, real = text()
    ids, real = (ids, real) if side == "right" else (ids.flip(1), real.flip(1))
    chosen = torch.ones_like(real)
    found = model(ids, torch.full_like(ids, MASK), chosen, key_mask=real)
    first = torch.zeros_like(real)
    first[torch.arange(4), real.int().argmax(1)] = True
    assert torch.equal(found.ids[first | ~real], ids[first | ~real])
    assert not (found.ids == MASK).any()
    assert len(found.proposals) == len(found.targets) == int((real & ~first).sum())


def test_the_losses_are_over_chosen_and_real_tokens() -> None:
    model = pair(detection_weight=7.0)
    ids, chosen, real = text()
    masked = ids.masked_fill(chosen, MASK)
    found = model(ids, masked, chosen, key_mask=real)
    chosen[:, 0] = False
    chosen &= real
    loss = model.loss(found)
    logits = model.generator.outputs(masked, key_mask=real)["masked"]
    said = model.discriminator.outputs(found.ids, key_mask=real)["detect"]
    guessed = -logits.log_softmax(-1)[chosen].gather(-1, ids[chosen][:, None]).mean()
    right = torch.where(found.labels, said.sigmoid(), 1 - said.sigmoid())
    torch.testing.assert_close(loss.masked, guessed)
    torch.testing.assert_close(loss.detection, -right[real].log().mean())
    torch.testing.assert_close(loss.total, guessed + 7 * loss.detection)
    nothing = model.loss(model(ids, ids, torch.zeros_like(chosen), key_mask=real))
    assert nothing.masked == 0 and nothing.detection > 0


def test_a_saved_pair_stores_shared_tables_once(tmp_path: Path) -> None:
    model = pair().eval()
    model.save(tmp_path)
    again = load(tmp_path)
    assert isinstance(again, Electra)
    assert again.generator.embedding.weight is again.discriminator.embedding.weight
    assert again.generator.embedding.position is again.discriminator.embedding.position
    names = set(load_file(tmp_path / "model.safetensors"))
    assert "generator.embedding.project.weight" in names
    assert not any(name.startswith("generator.embedding.") and ".project." not in name for name in names)
    ids, chosen, real = text()
    seeds = (torch.Generator().manual_seed(5) for _ in range(2))
    first, second = (each(ids, ids, chosen, key_mask=real, generator=seed) for each, seed in zip((model, again), seeds))
    assert torch.equal(first.ids, second.ids) and torch.equal(first.detections, second.detections)


def test_sizes_of_the_generator() -> None:
    assert pair(width=192, heads=3, generator_fraction=1 / 3).generator.options.heads == 1
    large = pair(width=1024, heads=16, layers=1, embedding_width=None, generator_fraction=0.25).generator.options
    assert (large.width, large.heads, large.hidden, large.embedding_width) == (256, 4, 1024, 1024)
    assert pair(generator_layers=5).generator.options.layers == 5
    equal = pair(generator_fraction=0.75).generator  # as wide as the tables
    assert equal.embedding.project is None and equal.options.width == 12


def test_training_lowers_both_losses() -> None:
    model = pair()
    ids, chosen, real = text()
    masked = ids.masked_fill(chosen, MASK)
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
    seen = []
    for _ in range(12):
        loss = model.loss(model(ids, masked, chosen, key_mask=real, generator=torch.Generator().manual_seed(2)))
        optimiser.zero_grad()
        loss.total.backward()
        optimiser.step()
        seen.append((loss.masked.item(), loss.detection.item()))
    assert seen[-1][0] < seen[0][0] - 0.3 and seen[-1][1] < seen[0][1] - 0.05


def test_wrong_input_is_named() -> None:
    model = pair()
    ids, chosen, _ = text()
    with pytest.raises(InvalidInput, match="text 0 differs at token 0, which was not chosen"):
        model(ids, torch.full_like(ids, MASK), torch.zeros_like(chosen))
    with pytest.raises(InvalidInput, match=r"expected chosen of the text's shape \(4, 40\), got \(4, 39\)"):
        model(ids, ids, chosen[:, 1:])
    with pytest.raises(InvalidOption, match=r"mask must be a token id in 0..29, not 30"):
        pair(mask=30)
    with pytest.raises(InvalidOption, match="3 heads do not divide the generator's width 200; give generator_heads"):
        pair(width=400, heads=4, generator_fraction=0.5)
