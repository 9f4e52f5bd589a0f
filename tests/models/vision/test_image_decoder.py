"""Images pixel by pixel: what each pixel may depend on, exact likelihoods, and sampling that equals the likelihood."""

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from longspan.errors import InvalidInput, InvalidOption
from longspan.models import build
from longspan.models.pixel_base import ImageSampling
from longspan.models.vision.image_decoder import ImageDecoder
from longspan.nn import logistic_mixture

TINY: dict[str, Any] = {
    "image_size": (4, 6),
    "channels": 3,
    "levels": 8,
    "width": 16,
    "heads": 2,
    "hidden": 32,
    "layers": 2,
    "dropout": 0.0,
}
BLOCKS = {
    "block": (2, 3),
    "output": "mixture",
    "attention": {"name": "image_local", "query_block": (2, 3), "memory": (2, 2), "width": 6, "height": 4},
}
FORMS = {
    "rows": {},
    "mixture": {"output": "mixture"},
    "blocks": BLOCKS,
    "labels": {"classes": 3, "attention": "linear"},
    "source": {"source_size": (2, 3)},
}


def model_of(form: str, **options: Any) -> ImageDecoder:
    torch.manual_seed(0)
    model = build("image_decoder", **{**TINY, **FORMS[form], **options}).double().eval()
    assert isinstance(model, ImageDecoder)
    return model


def images(count: int = 2) -> Tensor:
    return torch.randint(0, 8, (count, 4, 6, 3), generator=torch.Generator().manual_seed(1))


def given(model: ImageDecoder) -> dict[str, Tensor]:
    labels = {"labels": torch.tensor([0, 2])} if model.classes else {}
    small = torch.randint(0, 8, (2, 2, 3, 3), generator=torch.Generator().manual_seed(2))
    return labels | ({} if model.source_size is None else {"source": small})


@pytest.mark.parametrize("form", FORMS)
def test_an_output_depends_on_the_tokens_before_it_only(form: str):
    model, x = model_of(form), images()
    before = model(x, **given(model))
    for step in (1, 7, 20):
        sequence = model._sequence(x).clone()
        sequence[:, step:] = (sequence[:, step:] + 3) % 8
        after = model(model._images(sequence), **given(model))
        torch.testing.assert_close(after[:, : step + 1], before[:, : step + 1], rtol=0, atol=1e-12)
        assert not torch.allclose(after[:, step + 1], before[:, step + 1])


@pytest.mark.parametrize(
    "form", [{}, {"output": "mixture"}, {"output": "mixture", "block": (2, 3), "attention": "softmax"}], ids=str
)
def test_with_full_attention_an_output_depends_on_every_token_before_it(form: dict[str, Any]):
    """In both directions, for every pair of tokens, row by row and block by block."""
    model = model_of("rows", **{"attention": "softmax", **form})
    x = images(1)
    before, sequence = model(x), model._sequence(x)
    for step in range(0, model.tokens, 5):
        changed = sequence.clone()
        changed[:, step] = (changed[:, step] + 3) % 8
        gap = (model(model._images(changed)) - before)[0].abs().amax(-1)
        assert (gap > 1e-9).tolist() == [later > step for later in range(model.tokens)]


def test_the_likelihood_sums_to_one_over_all_images():
    torch.manual_seed(0)
    sizes = {**TINY, "image_size": (1, 2), "channels": 1, "levels": 4}
    every = torch.tensor(list(itertools.product(range(4), repeat=2))).view(-1, 1, 2, 1)
    for output in ("categorical", "mixture"):
        model = build("image_decoder", **sizes, output=output).double().eval()
        assert (-model.nats(every)).exp().sum().item() == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("form", [form for form in FORMS if form not in ("mixture", "blocks")])
def test_sampling_step_by_step_is_the_parallel_pass(form: str):
    """The likeliest value at each step, from the cache, is the likeliest one of the pass over the whole image."""
    model = model_of(form)
    drawn = model.sample(ImageSampling(2, temperature=0, **given(model)))
    out = model(drawn, **given(model))
    assert torch.equal(out.argmax(-1), model._sequence(drawn))


@pytest.mark.parametrize("form", ["mixture", "blocks"])
def test_mixtures_are_sampled_from_the_outputs_of_the_parallel_pass(form: str):
    """Without temperature, a value is the mean of the likeliest component, rounded; so it follows from the outputs."""
    model = model_of(form)
    drawn = model.sample(ImageSampling(2, temperature=0))
    expected = logistic_mixture.sample(model(drawn), 3, 8, temperature=0)
    assert torch.equal(model._sequence(drawn), expected)


def test_a_seed_repeats_its_images():
    model = model_of("blocks")
    first, again, other = (
        model.sample(ImageSampling(2, generator=torch.Generator().manual_seed(seed))) for seed in (1, 1, 2)
    )
    assert torch.equal(first, again) and not torch.equal(first, other)


def test_known_rows_are_kept_and_the_rest_follows_from_them():
    model, known = model_of("rows"), images(1)
    drawn = model.sample(ImageSampling(3, known=known, rows=2, temperature=0))
    assert torch.equal(drawn[:, :2], known[:, :2].expand(3, -1, -1, -1))
    other = model.sample(ImageSampling(3, known=(known + 1) % 8, rows=2, temperature=0))
    assert not torch.equal(drawn[:, 2:], other[:, 2:])


def test_sequences_and_images_are_inverse_in_every_order():
    for form in FORMS:
        model = model_of(form)
        assert torch.equal(model._images(model._sequence(images())), images())


def test_progress_counts_every_token():
    model, seen = model_of("mixture"), []
    model.sample(ImageSampling(3, progress=seen.append))
    assert sum(seen) == 3 * 4 * 6


def test_wrong_options_and_input_are_refused():
    with pytest.raises(InvalidOption, match="a mixture of logistics has 1 or 3 channels, not 2"):
        build("image_decoder", **{**TINY, "channels": 2, "output": "mixture"})
    with pytest.raises(InvalidInput, match=r"expected images \(batch, 4, 6, 3\), got \(1, 4, 6, 1\)"):
        model_of("rows")(torch.zeros(1, 4, 6, 1, dtype=torch.long))
    with pytest.raises(InvalidInput, match="expected values from 0 to 7, got 8 to 8"):
        model_of("rows")(torch.full((1, 4, 6, 3), 8))
    with pytest.raises(InvalidInput, match="this model needs a label from 0 to 2 for each image"):
        model_of("labels")(images())
    with pytest.raises(InvalidInput, match="trained without labels; leave them out"):
        model_of("rows")(images(), torch.tensor([0, 1]))
    with pytest.raises(InvalidInput, match=r"this model enlarges images of \(2, 3\); give them as source"):
        model_of("source")(images())
    with pytest.raises(InvalidOption, match="rows must be 0 to 4, not 5"):
        model_of("rows").sample(ImageSampling(1, known=images(1), rows=5))
