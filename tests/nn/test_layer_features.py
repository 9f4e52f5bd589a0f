"""Features from several layers, and heads on them."""

import pytest
import torch

from longspan.errors import InvalidInput, InvalidOption
from longspan.models import build
from longspan.nn.heads import Head
from longspan.nn.layer_features import FeatureHead, LayerFeatures
from longspan.nn.recorder import recording

LAYERS = [torch.randn(2, 5, 4, dtype=torch.float64) for _ in range(3)]


def test_the_kinds_of_features():
    def features(kind: str, depth: int = 2) -> torch.Tensor:
        return LayerFeatures(kind, depth, 4, 3).double()(LAYERS).detach()

    assert torch.equal(features("last"), LAYERS[2])
    torch.testing.assert_close(features("sum"), LAYERS[1] + LAYERS[2])
    assert torch.equal(features("concat"), torch.cat(LAYERS[1:], -1))
    torch.testing.assert_close(features("mix"), sum(LAYERS) / 3)
    assert LayerFeatures("concat", 3, 4, 3).width == 12
    with pytest.raises(InvalidInput, match="the last 4 layers need as many; the model has 3"):
        LayerFeatures("sum", 4, 4, 3)


@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_a_head_of_a_model_reads_all_layers(kind: str):
    """The mix starts as the mean of the embeddings and the states after each block."""
    torch.manual_seed(0)
    head = Head(task="tag", labels=3, features="mix", dropout=0.0)
    sizes = {"vocabulary": 20, "width": 8, "layers": 2, "heads": 2, "hidden": 8, "dropout": 0.0, "max_length": 9}
    model = build(kind, **sizes, tasks=(head,)).double().eval()
    ids, mask = torch.randint(0, 20, (2, 7)), torch.tensor([[True] * 7, [True] * 4 + [False] * 3])
    with torch.no_grad(), recording(model.stack, maps=False) as seen:
        model.hidden(ids, key_mask=mask) if kind == "decoder" else model(ids, key_mask=mask)
    assert isinstance(model.heads["tag"], FeatureHead) and len(seen.states) == 3
    wanted = model.heads["tag"].head.out(torch.stack(seen.states).mean(0))
    torch.testing.assert_close(model.outputs(ids, key_mask=mask)["tag"][mask], wanted[mask])


def test_an_lstm_in_a_head_skips_padding():
    torch.manual_seed(0)
    head = Head(task="classify", features="sum", depth=1, recurrent=3, pool="mean", dropout=0.0)
    sizes = {"vocabulary": 20, "width": 8, "layers": 1, "heads": 2, "hidden": 8, "dropout": 0.0, "max_length": 9}
    model = build("encoder", **sizes, tasks=(head,)).double().eval()
    ids = torch.randint(0, 20, (1, 4))
    padded = torch.cat([ids, torch.zeros(1, 3, dtype=torch.long)], 1)
    mask = torch.arange(7)[None] < 4
    torch.testing.assert_close(model.outputs(padded, key_mask=mask)["classify"], model.outputs(ids)["classify"])


def test_what_does_not_fit_is_refused():
    with pytest.raises(InvalidOption, match="the head 'masked' reads the last layer"):
        Head(task="masked", features="mix")
    with pytest.raises(InvalidOption, match="features must be one of last, sum, concat, mix"):
        Head(features="first")
