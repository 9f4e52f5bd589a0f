"""The Transformer in its three forms."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from longspan.attention import find, names
from longspan.attention.config import AttentionConfig
from longspan.audit.settings import SMALL
from longspan.errors import InvalidInput, InvalidOption, Unsupported
from longspan.models import build, load
from longspan.models.base import CausalModel
from longspan.models.decoder import Decoder
from longspan.models.encoder import Encoder
from longspan.models.transformer import Transformer
from longspan.nn.heads import Masked

TINY = {"vocabulary": 11, "width": 16, "layers": 2, "heads": 2, "hidden": 24, "max_length": 64}


def unique_parameters(model: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("sizes", "parameters"),
    [
        ({"width": 512, "heads": 8, "hidden": 2048}, 63_082_496),
        ({"width": 1024, "heads": 16, "hidden": 4096}, 214_245_376),
    ],
)
def test_parameter_counts_of_the_paper(sizes: dict[str, int], parameters: int):
    with torch.device("meta"):
        assert unique_parameters(build("transformer", vocabulary=37000, **sizes)) == parameters


def small(name: str) -> AttentionConfig:
    return AttentionConfig(name, **SMALL.get(name, ({},))[0])


def causal_models() -> list[str]:
    return [name for name in names() if find(name).supports.causal and find(name).supports.streaming]


def ids(batch: int = 2, length: int = 13, seed: int = 0) -> Tensor:
    return torch.randint(0, 11, (batch, length), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", causal_models())
@pytest.mark.parametrize("norm_position", ["pre", "post"])
def test_decoding_in_pieces_equals_the_parallel_pass(name: str, norm_position: str):
    model = Decoder.build(**TINY, norm_position=norm_position, attention=[small(name), "softmax"]).double().eval()
    text = ids()
    whole = model(text)
    for pieces in ([13], [1] * 13, [4, 1, 6, 2]):
        state, seen = model.start(2), []
        for piece in text.split(pieces, dim=1):
            logits, state = model.extend(piece, state)
            seen.append(logits)
        torch.testing.assert_close(torch.cat(seen, 1), whole, rtol=0, atol=1e-9)
    assert state.length == 13 and state.bytes > 0


@pytest.mark.parametrize("name", [name for name in names() if find(name).supports.causal])
def test_the_future_changes_nothing(name: str):
    model = Decoder.build(**TINY, attention=small(name)).double().eval()
    text = ids()
    other = torch.cat([text[:, :7], ids(seed=1)[:, 7:]], 1)
    # Up to the last bits: where later tokens fall may change in what order a product is summed.
    torch.testing.assert_close(model(text)[:, :7], model(other)[:, :7], rtol=0, atol=1e-13)


@pytest.mark.parametrize("name", [name for name in names() if find(name).supports.bidirectional])
def test_an_encoder_of_every_mechanism(name: str):
    model = Encoder.build(**TINY, attention=small(name)).double().eval()
    out = model(ids())
    assert out.shape == (2, 13, 16) and out.isfinite().all()


READERS = [name for name in names() if find(name).supports.cross and find(name).supports.cross_rows]


@pytest.mark.parametrize("cross", READERS)
def test_a_decoder_reads_its_encoder_by_any_mechanism_that_can(cross: str):
    model = Transformer.build(**TINY, encoder_attention="window", cross_attention=small(cross)).double().eval()
    source, target = ids(length=9), ids(seed=1)
    whole = model(source, target)
    state, seen = model.start(2, source=source), []
    for piece in target.split([5, 1, 7], dim=1):
        logits, state = model.extend(piece, state)
        seen.append(logits)
    torch.testing.assert_close(torch.cat(seen, 1), whole, rtol=0, atol=1e-9)


@pytest.mark.parametrize("cross", ["softmax", "linear"])
def test_few_key_heads_are_read_step_by_step_too(cross: str):
    model = Transformer.build(**TINY, kv_heads=1, cross_attention=cross).double().eval()
    logits, _ = model.extend(ids(seed=1), model.start(2, source=ids(length=9)))
    torch.testing.assert_close(logits, model(ids(length=9), ids(seed=1)), rtol=0, atol=1e-9)


def test_source_padding_changes_nothing():
    model = Transformer.build(**TINY).double().eval()
    source, target = ids(length=9), ids(seed=1)
    mask = torch.ones(2, 9, dtype=torch.bool)
    mask[1, 5:] = False
    alone = model(source[1:, :5], target[1:])
    torch.testing.assert_close(model(source, target, source_mask=mask)[1:], alone, rtol=0, atol=1e-10)


def test_alignments_are_rows_of_weights():
    model = Transformer.build(**TINY).double().eval()
    mask = torch.ones(2, 9, dtype=torch.bool)
    mask[1, 5:] = False
    state = model.start(2, source=ids(length=9), source_mask=mask, align=True)
    _, state = model.extend(ids(length=3), state)
    assert state.alignment.shape == (2, 3, 9)
    torch.testing.assert_close(state.alignment.sum(-1), torch.ones(2, 3).double())
    assert (state.alignment[1, :, 5:] == 0).all()
    _, state = model.extend(ids(length=1), state)
    assert state.alignment.shape == (2, 1, 9)


@pytest.mark.parametrize("position", ["sinusoidal", "learned", "rotary", "alibi", "relative", "none"])
def test_a_left_padded_row_equals_the_row_alone(position: str):
    model = Decoder.build(**TINY, position=position).double().eval()
    assert model.left_padding
    text = ids(batch=1, length=6)
    padded = torch.cat([torch.zeros(1, 4, dtype=torch.long), text], 1)
    mask = torch.arange(10)[None] >= 4
    positions = (torch.arange(10)[None] - 4).clamp_min(0)
    out = model(padded, key_mask=mask, positions=positions)
    torch.testing.assert_close(out[:, 4:], model(text), rtol=0, atol=1e-10)


def test_one_setting_per_layer():
    settings = ["softmax", {"name": "window", "window": 4}]
    model = build("decoder", **{**TINY, "layers": 5}, attention=settings)
    mechanisms = [block.mixer.mechanism.name for block in model.stack.blocks]
    assert mechanisms == ["softmax", "window", "softmax", "window", "softmax"]
    assert model.stack.blocks[3].mixer.mechanism.options.window == 4
    with pytest.raises(InvalidOption, match="has 3 settings for 2 layers"):
        Decoder.build(**TINY, attention=["softmax"] * 3)


def test_streams_go_to_the_layers_that_read_them():
    model = Encoder.build(**TINY, attention=[small("longformer"), "softmax"]).double().eval()
    globals_ = torch.zeros(2, 13, dtype=torch.bool)
    globals_[:, 0] = True
    assert not torch.equal(model(ids(), streams={"global_mask": globals_}), model(ids()))
    with pytest.raises(InvalidInput, match=r"no layer reads a stream 'globals'; they read: .*global_mask"):
        model(ids(), streams={"globals": globals_})


def test_mechanisms_that_cannot_fill_a_role_are_refused():
    with pytest.raises(Unsupported, match=r"^decoder self-attention, layer 1: linformer has no causal form"):
        Decoder.build(**TINY, attention=["softmax", "linformer"])
    with pytest.raises(Unsupported, match=r"^decoder cross-attention, layer 0: window cannot read a context"):
        Transformer.build(**TINY, cross_attention="window")
    with pytest.raises(Unsupported, match="cosformer compares positions of two sequences"):
        Transformer.build(**TINY, cross_attention="cosformer")
    with pytest.raises(Unsupported, match="layer 0: linear takes no bias on its scores, which alibi positions need"):
        Decoder.build(**TINY, attention="linear", position="alibi")
    with pytest.raises(InvalidOption, match="3 heads do not divide the width 16; give head_dim"):
        Decoder.build(**{**TINY, "heads": 3})


def test_invalid_input_is_refused():
    model = Decoder.build(**TINY)
    with pytest.raises(InvalidInput, match="holds at most 64 tokens, and 65 were given"):
        model(ids(length=65))
    _, state = model.extend(ids(length=60), model.start(2))
    with pytest.raises(InvalidInput, match="holds at most 64 tokens, and 65 were given"):
        model.extend(ids(length=5), state)
    with pytest.raises(InvalidInput, match="got 11 in sample 0 at position 0"):
        model(torch.tensor([[11]]))
    with pytest.raises(InvalidInput, match="reads no source"):
        model.start(1, source=ids())
    with pytest.raises(InvalidInput, match="reads a source"):
        Transformer.build(**TINY).start(1)


@pytest.mark.parametrize("kind", ["encoder", "decoder", "transformer"])
def test_a_folder_stores_the_whole_model(tmp_path: Path, kind: str):
    where = "encoder_attention" if kind == "transformer" else "attention"
    setting = {"name": "window", "window": 3, "dilation": (1, 2)}
    model = build(kind, **TINY, **{where: [setting, "softmax"]}).double().eval()
    model.save(tmp_path / "model")
    again = load(tmp_path / "model")
    assert type(again) is type(model) and again.options == model.options and not again.training
    inputs = (ids(), ids(seed=1)) if kind == "transformer" else (ids(),)
    assert torch.equal(again(*inputs), model(*inputs))


def test_ties_are_kept(tmp_path: Path):
    model = Transformer.build(**TINY)
    model.save(tmp_path)
    again = load(tmp_path)
    assert again.head is None and again.source is None
    assert unique_parameters(again) == unique_parameters(model)


def test_a_layerwise_projection_stays_shared(tmp_path: Path):
    setting = {"name": "linformer", "rank": 4, "sharing": "layerwise"}
    model = Encoder.build(**TINY, attention=setting)
    model.save(tmp_path)
    again = load(tmp_path)
    first, second = (block.mixer.mechanism.projection for block in again.stack.blocks)
    assert first is second
    assert torch.equal(again(ids()), model.eval()(ids()))


@pytest.mark.parametrize("options", [{}, {"tied": False, "head_bias": True}, {"embedding_width": 6}], ids=str)
def test_a_layer_before_the_output_layer_is_read_step_by_step_too(options: dict):
    """BERT's: dense, activation, norm, then the table, which may be narrower than the states."""
    model = Decoder.build(**TINY, head_activation="gelu", **options).double().eval()
    ids = torch.randint(0, 11, (2, 9))
    whole = model(ids)
    logits, state = model.extend(ids[:, :5], model.start(2))
    rest, _ = model.extend(ids[:, 5:], state)
    torch.testing.assert_close(torch.cat([logits, rest], dim=1), whole)
    head, x = model.head, model.hidden(ids)
    assert isinstance(head, Masked) and head.dense is not None and (head.bias is None) == ("head_bias" not in options)
    table = model.table if head.weight is None else head.weight
    expected = head.norm(torch.nn.functional.gelu(head.dense(x))) @ table.T
    torch.testing.assert_close(whole, expected if head.bias is None else expected + head.bias)


class NextTokenOnly(CausalModel):
    """A causal model that writes neither its hooks nor `start` and `extend`."""

    name = "next_token_only"
    paper = "this test"
    vocabulary = 11


def test_a_causal_model_without_its_methods_says_which_are_missing():
    model = NextTokenOnly(NextTokenOnly.Options())
    with pytest.raises(NotImplementedError, match="NextTokenOnly has neither initial_state nor start"):
        model.start(2)
    with pytest.raises(NotImplementedError, match="NextTokenOnly has neither extend_hidden nor extend"):
        model.extend(torch.zeros(1, 1, dtype=torch.long), None)
    with pytest.raises(InvalidInput, match="next_token_only reads no source; leave out source and align"):
        model.start(2, align=True)
