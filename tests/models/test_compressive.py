"""The Compressive Transformer: what is compressed, when, and what learns from it."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from longspan.errors import InvalidInput, InvalidOption
from longspan.models import build, load
from longspan.models.compressive import CompressiveTransformer
from longspan.models.transformer_xl import TransformerXL
from longspan.nn.compression import COMPRESSIONS, Compression

TINY = {"vocabulary": 11, "width": 16, "layers": 2, "heads": 2, "hidden": 24, "init_std": 0.3}
SMALL = {"segment": 4, "memory": 6, "slots": 5, "ratio": 2}


def model(**options: Any) -> CompressiveTransformer:
    return CompressiveTransformer.build(**{**TINY, **SMALL, **options}).double().eval()


def ids(batch: int = 2, length: int = 31, seed: int = 0) -> Tensor:
    return torch.randint(0, 11, (batch, length), generator=torch.Generator().manual_seed(seed))


def close(one: Tensor, other: Tensor) -> None:
    torch.testing.assert_close(one, other, rtol=0, atol=1e-9)


def like(options: dict[str, Any], own: CompressiveTransformer) -> TransformerXL:
    """Transformer-XL with the same weights."""
    other = build("transformer_xl", **TINY, **options).double().eval()
    other.load_state_dict({name: tensor for name, tensor in own.state_dict().items() if "compression" not in name})
    return other


# Against Transformer-XL


@pytest.mark.parametrize("norm_position", ["pre", "post"])
@pytest.mark.parametrize("time", ["slot", "true"])
def test_slots_of_one_memory_are_longer_memory(norm_position: str, time: str):
    """Check 1: c = 1 and f_c the identity (a mean over one)."""
    own = model(norm_position=norm_position, ratio=1, compression="mean", mask_empty=True, time=time)
    close(own(ids())[0], like({"norm_position": norm_position, "segment": 4, "memory": 11}, own)(ids())[0])


def test_without_slots_it_is_transformer_xl():
    """Check 2."""
    own = model(slots=0, mask_empty=True)
    close(own(ids())[0], like({"segment": 4, "memory": 6}, own)(ids())[0])
    assert not any("compression" in name for name, _ in own.named_parameters())


# Step by step


@pytest.mark.parametrize(("time", "mask_empty", "norm_position"), [("slot", False, "post"), ("true", True, "pre")])
@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_decoding_equals_segments_across_compressions(
    compression: str, time: str, mask_empty: bool, norm_position: str
):
    """Check 5; 31 tokens are seven compressions, and the slots have overflown."""
    own = model(compression=compression, time=time, mask_empty=mask_empty, norm_position=norm_position)
    whole, _ = own(ids())
    state, seen = None, []
    for piece in ids().split(4, 1):
        logits, state = own(piece, state)
        seen.append(logits)
    close(torch.cat(seen, 1), whole)
    for pieces in ([31], [1] * 31, [3, 1, 9, 18]):
        state, seen = own.start(2), []
        for piece in ids().split(pieces, 1):
            logits, state = own.extend(piece, state)
            seen.append(logits)
        close(torch.cat(seen, 1), whole)
    assert state.layers[0].k.value.shape[2] == 5 + 6 + 31 % 4
    resumed, _ = own.extend(ids(seed=1), own.start(2, memory=own(ids(length=28))[1]))
    close(resumed, own(ids(seed=1), own(ids(length=28))[1])[0])


def test_the_state_is_flat_and_can_be_reordered():
    own = model(compression="most_used", time="true", mask_empty=True)
    state, sizes = own.start(2), set()
    for begin in range(0, 64, 4):
        _, state = own.extend(ids(length=64)[:, begin : begin + 4], state)
        sizes.add(state.bytes)
    assert len(sizes) == 1
    after, _ = own.extend(ids(length=6, seed=1), state)
    turned, _ = own.extend(ids(length=6, seed=1).flip(0), state.select(torch.tensor([1, 0])))
    close(turned, after.flip(0))


# What is compressed


@pytest.mark.parametrize("mask_empty", [False, True])
def test_the_oldest_memories_are_compressed_before_they_go(mask_empty: bool):
    own = model(compression="mean", mask_empty=mask_empty, layers=1)
    _, memory = own(ids(length=16))
    inputs = own.embedding(ids(length=16))
    (held,) = memory.layers
    close(held.memory, inputs[:, 10:])
    # Memory was padded with two zeros before the first token, and each segment of four compressed the four oldest.
    padded = torch.cat([torch.zeros(2, 6, 16).double(), inputs], 1)[:, :16]
    close(held.slots, padded.unflatten(1, (8, 2)).mean(2)[:, -5:])
    if mask_empty:
        assert held.keep[0].tolist() == [True] * 11
        early = own(ids(length=8))[1].layers[0]
        assert early.keep[0].tolist() == [False] * 4 + [True] * 7
    else:
        assert held.keep is None


def test_what_is_left_over_is_dropped():
    """The paper floors: five memories at ratio 2 are two slots, and nothing is padded."""
    old = torch.randn(2, 5, 16)
    for kind in COMPRESSIONS:
        out = Compression(16, 2, kind)(old, usage=torch.rand(2, 5))
        assert out.value.shape == (2, 2, 16)
    assert Compression(16, 2, "mean")(old).newest.tolist() == [[1, 3]]
    assert Compression(16, 8)(old).value.shape == (2, 0, 16)


def test_a_convolution_can_be_a_mean():
    """Check 4: weights I / c."""
    convolution, mean = Compression(16, 3).double(), Compression(16, 3, "mean")
    with torch.no_grad():
        convolution.convolution.weight.copy_(torch.eye(16).double()[..., None].expand(-1, -1, 3) / 3)
        convolution.convolution.bias.zero_()
    old = torch.randn(2, 10, 16).double()
    close(convolution(old).value, mean(old).value)
    close(Compression(16, 3, "max")(old).value, old[:, :9].unflatten(1, (3, 3)).amax(2))


def test_a_dilated_convolution_looks_back_two_apart():
    dilated = Compression(16, 3, "dilated").double()
    with torch.no_grad():
        dilated.convolution.weight.copy_(torch.eye(16)[..., None] * torch.tensor([1.0, 10.0, 100.0]))
        dilated.convolution.bias.zero_()
    old = torch.randn(2, 9, 16).double()
    sources = [[0, 0, 2], [1, 3, 5], [4, 6, 8]]
    wanted = torch.stack([old[:, a] + 10 * old[:, b] + 100 * old[:, c] for a, b, c in sources], 1)
    close(dilated(old).value, wanted)
    keep = torch.ones(2, 9, dtype=torch.bool)
    keep[:, 3] = False
    assert dilated(old, keep).keep.tolist() == [[True, False, True]] * 2


def test_most_used_keeps_what_was_read_most_in_order():
    old = torch.randn(1, 6, 16)
    out = Compression(16, 2, "most_used")(old, usage=torch.tensor([[0.1, 0.9, 0.2, 0.8, 0.3, 0.7]]))
    assert out.newest.tolist() == [[1, 3, 5]] and torch.equal(out.value, old[:, [1, 3, 5]])
    keep = torch.tensor([[True, False, True, True, True, False]])
    out = Compression(16, 2, "most_used")(old, keep, torch.tensor([[0.1, 0.9, 0.2, 0.8, 0.3, 0.7]]))
    assert out.newest.tolist() == [[2, 3, 4]] and out.keep.all()


def test_true_time_is_that_of_the_newest_token():
    own = model(segment=4, memory=4, slots=4, time="true", compression="mean")
    assert own.begin(1).layers[0].ages.tolist() == [[12, 10, 8, 6]]
    ages = own(ids(length=12))[1].layers[0].ages[0].tolist()
    # 12 tokens were read and the last four are memory; slots are of tokens (0, 1), (2, 3), (4, 5), (6, 7).
    assert ages == [12 - newest for newest in (1, 3, 5, 7)]


# What learns


@pytest.mark.parametrize("norm_position", ["pre", "post"])
@pytest.mark.parametrize("reconstruction", ["attention", "autoencoding"])
@pytest.mark.parametrize("mask_empty", [False, True])
def test_only_the_compression_learns_from_reconstruction(norm_position: str, reconstruction: str, mask_empty: bool):
    """Checks 3 and 6."""
    own = model(norm_position=norm_position, reconstruction=reconstruction, mask_empty=mask_empty).train()
    optimiser = torch.optim.SGD(own.parameters(), lr=1e-3)
    memory = None
    for step in range(2):
        logits, memory = own(ids(length=12, seed=step), memory)
        for loss, learns in ((logits.logsumexp(-1).sum(), False), (own.auxiliary_loss(), True)):
            own.zero_grad()
            loss.backward(retain_graph=True)
            for name, weight in own.named_parameters():
                moved = weight.grad is not None and bool((weight.grad != 0).any())
                assert moved == (learns if "compression" in name else not learns), name
        optimiser.step()
        assert all(weight.requires_grad for weight in own.parameters())


def unrolled(own: CompressiveTransformer, text: Tensor, memories: list[Tensor], slots: list[Tensor]) -> Tensor:
    """The logits, segment by segment: everything is projected again, and nothing is detached."""
    size, logits = own.options, []
    for segment in text.split(size.segment, 1):
        x = own.embedding(segment)
        for index, layer in enumerate(own.layers):
            inputs, attention = x, layer.attention
            past = torch.cat([slots[index], memories[index], inputs], 1)
            pre = layer.around_attention.norm_position == "pre"
            k, v = attention.keys(attention.kv(layer.around_attention.norm(past) if pre else past))
            r = attention.distances(past.shape[1], None)

            def read(y: Tensor, attention: Any = attention, k: Tensor = k, v: Tensor = v, r: Any = r) -> Tensor:
                return attention.merge(attention.read(attention.split(attention.q(y)), k, v, r, None, None, None))

            x = layer.around_feedforward(layer.around_attention(x, read), layer.feedforward)
            new = layer.compression(memories[index][:, : inputs.shape[1]]).value
            slots[index] = torch.cat([slots[index], new], 1)[:, -size.slots :]
            memories[index] = torch.cat([memories[index], inputs], 1)[:, -size.memory :]
        logits.append(own.logits(own.norm(x)))
    return torch.cat(logits, 1)


@pytest.mark.parametrize("place", ["pre", "post"])
@pytest.mark.parametrize("compression", ["convolution", "dilated", "max", "mean"])
@pytest.mark.parametrize("segments", [2, 3])
def test_gradients_pass_through_the_segments_of_a_call(place: str, compression: str, segments: int):
    """`reconstruction="bptt"` against an unrolled loop: logits, and the gradient of every parameter."""
    own = model(place=place, compression=compression, reconstruction="bptt", memory=4)
    _, before = own(ids(length=12))
    text = ids(length=4 * segments, seed=1)
    towards = torch.randn(2, 4 * segments, 11, generator=torch.Generator().manual_seed(2)).double()
    parameters = dict(own.named_parameters())
    logits, after = own(text, before)
    found = torch.autograd.grad((logits * towards).sum(), list(parameters.values()), materialize_grads=True)
    held = before.layers
    loop = unrolled(own, text, [layer.memory for layer in held], [layer.slots for layer in held])
    expected = torch.autograd.grad((loop * towards).sum(), list(parameters.values()), materialize_grads=True)
    close(logits, loop)
    for name, one, other in zip(parameters, found, expected):
        close(one, other)
        if "compression" in name:
            assert one.abs().max() > 0, name
    assert not any(layer.memory.requires_grad or layer.slots.requires_grad for layer in after.layers)
    assert own.train()(text)[0].requires_grad and own.auxiliary_loss() is None


def test_without_bptt_gradients_stop_at_the_segment():
    own = model(reconstruction="none", memory=4)
    logits, _ = own(ids(length=8))
    compression = [tensor for name, tensor in own.named_parameters() if "compression" in name]
    assert all(g is None for g in torch.autograd.grad(logits[:, 4:].sum(), compression, allow_unused=True))
    through = model(reconstruction="bptt", memory=4)
    embedded: list[Tensor] = []
    for each in (own, through):
        each.embedding.register_forward_hook(lambda _, __, out: (out.retain_grad(), embedded.append(out))[0])
        each(ids(length=8))[0][:, 4:].sum().backward()
    assert embedded[0].grad[:, :4].abs().max() == 0 < embedded[1].grad[:, :4].abs().max()


def test_the_reconstruction_loss_is_the_papers():
    """‖attn(h, old) - attn(h, f_c(old))‖₂ by hand: content only, without mask, summed over the layers."""
    own = model(dropout=0.0, hidden_dropout=0.0, segment=4, memory=4).train()
    _, memory = own(ids(length=4))
    own(ids(length=4, seed=1), memory)
    total = torch.zeros(()).double()
    inputs = own(ids(length=4, seed=1), memory)[1]  # what the layers saw is what they remember
    for layer, before, after in zip(own.layers, memory.layers, inputs.layers):
        new = layer.compression(before.memory).value

        def attend(m: Tensor, layer=layer, after=after) -> Tensor:
            q, (k, v) = (
                layer.attention.split(layer.attention.q(after.memory)),
                layer.attention.keys(layer.attention.kv(m)),
            )
            return (q @ k.mT / 8**0.5).softmax(-1) @ v

        total = total + (attend(before.memory) - attend(new)).flatten(1).norm(dim=1).mean()
    close(own.auxiliary_loss(), total)


def test_there_is_no_loss_where_nothing_can_learn():
    for options in ({"compression": "mean"}, {"compression": "most_used"}, {"reconstruction": "none"}):
        own = model(**options).train()
        own(ids())
        assert own.auxiliary_loss() is None
    own = model()
    own(ids())
    assert own.auxiliary_loss() is None  # in evaluation


# Documents, folders, bad input


@pytest.mark.parametrize("mask_empty", [False, True])
def test_a_row_forgets_at_the_border_of_documents(mask_empty: bool):
    own = model(mask_empty=mask_empty)
    _, memory = own(ids(length=24))
    after = own.forget(memory, torch.tensor([False, True]))
    logits = own(ids(seed=1), after)[0]
    close(logits[1:], own(ids(seed=1)[1:])[0])
    close(logits[:1], own(ids(seed=1), memory)[0][:1])


def test_padding_is_not_there():
    own = model(mask_empty=True)
    assert not own.left_padding
    mask = torch.ones(2, 31, dtype=torch.bool)
    mask[1, 9:] = False
    out = own(torch.where(mask, ids(), 3), key_mask=mask)[0]
    close(out[1, :9], own(ids()[1:, :9])[0][0])


@pytest.mark.parametrize("options", [{}, {"compression": "dilated", "reconstruction": "autoencoding", "time": "true"}])
def test_a_folder_holds_the_whole_model(tmp_path: Path, options: dict[str, Any]):
    own = model(**options)
    own.set_reach(slots=7)
    own.save(tmp_path)
    again = load(tmp_path)
    assert again.options == own.options and torch.equal(again(ids())[0], own(ids())[0])


def test_what_does_not_fit_in_is_refused():
    with pytest.raises(InvalidOption, match="give memory at least segment"):
        model(segment=7)
    with pytest.raises(InvalidOption, match="ratio must be at most segment, 4, not 5"):
        model(ratio=5)
    own = model()
    _, memory = own(ids())
    own.set_reach(memory=7)
    with pytest.raises(InvalidInput, match="the memory has 6 rows and 5 slots, and the model keeps 7 and 5"):
        own(ids(), memory)
    with pytest.raises(InvalidOption, match="slots were 5 and cannot be 0"):
        own.set_reach(slots=0)
    with pytest.raises(InvalidInput, match="give usage"):
        Compression(16, 2, "most_used")(torch.randn(1, 4, 16))
