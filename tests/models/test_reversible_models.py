"""Reversible bodies as whole models: the Reformer, and the same with any other mechanism."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from longspan.attention import find, names
from longspan.attention.config import AttentionConfig
from longspan.audit.settings import SMALL
from longspan.errors import InvalidInput, InvalidOption, Unsupported
from longspan.models import build, load
from longspan.models.decoder import Decoder
from longspan.models.encoder import Encoder
from longspan.models.transformer import Transformer

TINY = {"vocabulary": 11, "width": 16, "layers": 2, "heads": 2, "hidden": 24, "max_length": 64, "norm_position": "pre"}
CONCAT = {"reversible": True, "tied": False}
MEAN = {"reversible": True, "merge": "mean"}
REFORMER = {
    **TINY,
    **CONCAT,
    "attention": {"name": "reformer", "rounds": 2, "chunk": 4, "buckets": 4},
    "position": "axial",
    "axes": [8, 8],
    "axis_widths": [4, 12],
    "feedforward_chunk": 5,
}


def small(name: str) -> AttentionConfig:
    options = dict(SMALL.get(name, ({},))[0])
    return AttentionConfig(name, **options)


def ids(batch: int = 2, length: int = 13, seed: int = 0) -> Tensor:
    return torch.randint(0, 11, (batch, length), generator=torch.Generator().manual_seed(seed))


def ordinary(model: Decoder, text: Tensor, key_mask: Tensor | None = None) -> Tensor:
    """The two-stream net of the paper for ordinary autograd."""
    body, x1 = model.stack, model.embedding(text)
    x2 = x1
    for mix, change in body.stack.blocks:
        x1 = x1 + mix.dropout(mix.mixer(mix.norm(x2), key_mask=key_mask))
        x2 = x2 + change.dropout(change.feedforward(change.norm(x1)))
    return model.logits(body.norm(torch.cat([x1, x2], -1) if body.merge == "concat" else (x1 + x2) / 2))


def gradients(model: Decoder, run, **options) -> tuple[Tensor, list[Tensor]]:
    torch.manual_seed(3)
    logits = run(ids(), **options)
    loss = logits.logsumexp(-1).sin().sum() + 100 * (model.auxiliary_loss() or 0)
    return logits, torch.autograd.grad(loss, list(model.parameters()), materialize_grads=True)


STREAMING = [name for name in names() if find(name).supports.causal and find(name).supports.streaming]


@pytest.mark.parametrize("name", STREAMING)
def test_gradients_are_the_ordinary_ones_with_dropout(name: str):
    """Routing has a loss of its own as well, which is part of the gradients."""
    options = {**TINY, **MEAN, "layers": 3, "dropout": 0.2, "hidden_dropout": 0.1, "feedforward_chunk": 4}
    model = Decoder.build(**options, attention=small(name)).double()
    mask = torch.ones(2, 13, dtype=torch.bool)
    mask[1, 9:] = False
    given = {"key_mask": mask} if find(name).supports.key_mask else {}
    state = {key: value.clone() for key, value in model.state_dict().items()}
    logits, found = gradients(model, model, **given)
    model.load_state_dict(state)  # some mechanisms learn in a forward pass
    for part in model.modules():
        if isinstance(getattr(part, "auxiliary_loss", None), Tensor):
            part.auxiliary_loss = None
    expected_logits, expected = gradients(model, lambda text, **kw: ordinary(model, text, **kw), **given)
    torch.testing.assert_close(logits, expected_logits, rtol=0, atol=1e-12)
    for (key, _), one, other in zip(model.named_parameters(), found, expected):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9, msg=lambda text, key=key: f"{key}: {text}")


@pytest.mark.parametrize("options", [MEAN, CONCAT])
@pytest.mark.parametrize("name", STREAMING)
def test_decoding_equals_the_parallel_pass(name: str, options: dict):
    model = Decoder.build(**TINY, **options, attention=[small(name), "softmax"]).double().eval()
    whole = model(ids())
    for pieces in ([13], [1] * 13, [4, 1, 6, 2]):
        state, seen = model.start(2), []
        for piece in ids().split(pieces, dim=1):
            logits, state = model.extend(piece, state)
            seen.append(logits)
        torch.testing.assert_close(torch.cat(seen, 1), whole, rtol=0, atol=1e-9)
    assert state.length == 13 and state.bytes > 0


@pytest.mark.parametrize("position", ["sinusoidal", "learned", "rotary", "alibi", "relative", "none"])
def test_a_left_padded_row_equals_the_row_alone(position: str):
    model = Decoder.build(**TINY, **MEAN, position=position).double().eval()
    text = ids(batch=1, length=6)
    padded = torch.cat([torch.zeros(1, 4, dtype=torch.long), text], 1)
    mask, positions = torch.arange(10)[None] >= 4, (torch.arange(10)[None] - 4).clamp_min(0)
    whole = model(padded, key_mask=mask, positions=positions)
    torch.testing.assert_close(whole[:, 4:], model(text), rtol=0, atol=1e-10)
    state, seen = model.start(1), []
    for part in (slice(0, 6), slice(6, 7), slice(7, 10)):
        logits, state = model.extend(padded[:, part], state, key_mask=mask[:, part], positions=positions[:, part])
        seen.append(logits)
    torch.testing.assert_close(torch.cat(seen, 1)[:, 4:], whole[:, 4:], rtol=0, atol=1e-9)


def saved_bytes(model: Decoder) -> int:
    total, own = 0, {parameter.data_ptr() for parameter in model.parameters()}

    def pack(tensor: Tensor) -> Tensor:
        nonlocal total
        total += 0 if tensor.data_ptr() in own else tensor.nbytes
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(ids())
    return total


@pytest.mark.parametrize("name", ["reformer", "softmax", "performer"])
def test_saved_bytes_do_not_grow_with_depth(name: str):
    few, many = (Decoder.build(**{**TINY, **MEAN, "layers": n}, attention=small(name)) for n in (2, 9))
    assert saved_bytes(few) == saved_bytes(many)
    kept = [Decoder.build(**{**TINY, "layers": n}, attention=small(name)) for n in (2, 9)]
    assert saved_bytes(kept[1]) > 3 * saved_bytes(kept[0])


# The Reformer


def test_the_reformer_is_a_decoder():
    """Shared queries and keys, axial positions, chunked feed-forward layers, two streams side by side at the end."""
    model = build("decoder", **REFORMER)
    layer = 3 * (16 * 16 + 16) + (16 * 24 + 24 + 24 * 16 + 16) + 2 * 32
    expected = 11 * 16 + 8 * 4 + 8 * 12 + 2 * layer + 2 * 32 + 11 * 32
    assert sum(parameter.numel() for parameter in model.parameters()) == expected
    assert model.stack.out_width == 32 and model.head.weight.shape == (11, 32)
    text = ids(length=64)
    model.double().eval()
    state, seen = model.start(2), []
    for piece in text.split([40, 1, 23], dim=1):
        logits, state = model.extend(piece, state)
        seen.append(logits)
    torch.testing.assert_close(torch.cat(seen, 1), model(text), rtol=0, atol=1e-9)


def test_the_reformer_learns():
    model = build("decoder", **REFORMER)
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(25):
        loss = torch.nn.functional.cross_entropy(model(ids()).flatten(0, 1), ids(seed=1).flatten())
        losses.append(loss.item())
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
    assert losses[-1] < 0.6 * losses[0]


def test_an_encoder_reads_both_ways_and_its_streams():
    attention = [small("longformer"), "softmax"]
    model = Encoder.build(**TINY, reversible=True, attention=attention).double().eval()
    marks = torch.zeros(2, 13, dtype=torch.bool)
    marks[:, 0] = True
    out, marked = model(ids()), model(ids(), streams={"global_mask": marks})
    assert out.shape == (2, 13, 32) and not torch.equal(out, marked)
    text, mask = ids(batch=1), torch.arange(13)[None] < 8
    torch.testing.assert_close(model(text, key_mask=mask)[:, :8], model(text[:, :8]), rtol=0, atol=1e-10)
    with pytest.raises(InvalidInput, match="no layer reads a stream 'globals'"):
        model(ids(), streams={"globals": marks})


def test_without_gradients_it_is_the_same_model():
    model = Decoder.build(**TINY, **MEAN).double().eval()
    with torch.no_grad():
        quiet = model(ids())
    torch.testing.assert_close(quiet, model(ids()), rtol=0, atol=1e-12)


def test_invalid_input_is_refused():
    with pytest.raises(InvalidOption, match="decoder: reversible blocks have their norms inside each branch; give"):
        Decoder.build(**{**TINY, "norm_position": "post"}, reversible=True)
    with pytest.raises(InvalidOption, match="the embedding is 16 wide and the states 32: they cannot be tied"):
        Decoder.build(**TINY, reversible=True)
    with pytest.raises(Unsupported, match="decoder: reversible blocks cannot read a context"):
        Transformer.build(**TINY, reversible=True)
    with pytest.raises(InvalidOption, match="merge must be one of concat, mean"):
        Decoder.build(**TINY, reversible=True, merge="sum")
    with pytest.raises(InvalidInput, match="reads no source"):
        Decoder.build(**TINY, **MEAN).start(1, source=ids())


def test_smaller_last_layers():
    torch.manual_seed(0)
    plain = Decoder.build(**TINY, **MEAN)
    torch.manual_seed(0)
    smaller = Decoder.build(**TINY, **MEAN, residual_init=True)
    for (mix, change), (small_mix, small_change) in zip(plain.stack.stack.blocks, smaller.stack.stack.blocks):
        torch.testing.assert_close(small_mix.mixer.out.weight, mix.mixer.out.weight / 2)
        torch.testing.assert_close(small_change.feedforward.outer.weight, change.feedforward.outer.weight / 2)


def test_a_folder_stores_the_whole_model(tmp_path: Path):
    model = build("decoder", **REFORMER).eval()
    model.save(tmp_path / "model")
    again = load(tmp_path / "model")
    assert again.options == model.options and torch.equal(again(ids()), model(ids()))
