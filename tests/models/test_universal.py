"""The Universal Transformer: one block, applied until it is enough."""

from itertools import pairwise
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
from longspan.models.universal import UniversalDecoder, UniversalEncoder, UniversalTransformer

TINY = {"vocabulary": 11, "width": 16, "layers": 3, "heads": 2, "hidden": 24, "max_length": 64}
HALTING = [
    {"combine": combine, "halted": halted, "force_remainder": force}
    for combine, halted, force in [
        ("listing", "evolve", False),
        ("accumulate", "copy", True),
        ("listing", "copy", False),
    ]
]


def ids(batch: int = 2, length: int = 13, seed: int = 0) -> Tensor:
    return torch.randint(0, 11, (batch, length), generator=torch.Generator().manual_seed(seed))


def varied(model: torch.nn.Module) -> torch.nn.Module:
    """Halting units that stop positions after very different numbers of steps."""
    for stack in (module for module in model.modules() if hasattr(module, "halting")):
        torch.nn.init.normal_(stack.halting.unit.weight, std=0.7)
        torch.nn.init.constant_(stack.halting.unit.bias, -0.5)
    return model


def small(name: str) -> AttentionConfig:
    return AttentionConfig(name, **SMALL.get(name, ({},))[0])


def decode(model, text: Tensor, pieces: list[int], **start) -> tuple[Tensor, object]:
    state, seen = model.start(len(text), **start), []
    for piece in text.split(pieces, dim=1):
        logits, state = model.extend(piece, state)
        seen.append(logits)
    return torch.cat(seen, 1), state


def unique_parameters(model: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def sinusoid(position: int, width: int = 16) -> Tensor:
    pairs = [(position / 10000 ** (2 * j / width)) for j in range(width // 2)]
    angles = torch.tensor(pairs, dtype=torch.float64)
    return torch.stack([angles.sin(), angles.cos()], -1).flatten()


def test_fixed_steps_are_tied_layers_with_an_offset_each():
    """H^t = Block(H^{t-1} + P^t), P^t the sum of the sinusoids of position and step, both counted from 1."""
    model = UniversalDecoder.build(**TINY).double().eval()
    plain = Decoder.build(**TINY, position="none").double().eval()
    for block in plain.stack.blocks:
        block.load_state_dict(model.stack.block.state_dict())
    text = ids()
    x = model.embedding.weight[text] * 4
    positions = torch.stack([sinusoid(position) for position in range(1, 14)])
    for step, block in enumerate(plain.stack.blocks, start=1):
        x = block(x + positions + sinusoid(step))
    torch.testing.assert_close(model(text), x @ model.embedding.weight.T, rtol=0, atol=1e-12)


def test_more_steps_are_no_more_parameters():
    few, many = (UniversalTransformer.build(**{**TINY, "layers": layers}) for layers in (1, 9))
    assert unique_parameters(few) == unique_parameters(many)
    learned = UniversalTransformer.build(**TINY, step_signal="learned")
    assert unique_parameters(learned) - unique_parameters(few) == 2 * 3 * 16


def test_parameter_count_of_the_paper():
    """One encoder block and one decoder block of width 1024, and the embedding."""
    with torch.device("meta"):
        model = build("universal", vocabulary=37000, width=1024, heads=16, hidden=4096)
    attention, feedforward, norm = 4 * 1024 * 1025, 4096 * 1025 + 1024 * 4097, 2048
    blocks = (attention + feedforward + 2 * norm) + (2 * attention + feedforward + 3 * norm)
    assert unique_parameters(model) == 37000 * 1024 + blocks


@pytest.mark.parametrize("name", [n for n in names() if find(n).supports.causal and find(n).supports.streaming])
def test_any_mechanism_decodes_in_pieces(name: str):
    model = varied(UniversalDecoder.build(**TINY, attention=small(name), halting=True, max_steps=4).double().eval())
    whole = model(ids())
    for pieces in ([1] * 13, [4, 1, 6, 2]):
        torch.testing.assert_close(decode(model, ids(), pieces)[0], whole, rtol=0, atol=1e-9)


@pytest.mark.parametrize("transition", ["feedforward", "convolution"])
@pytest.mark.parametrize("norm_position", ["pre", "post"])
@pytest.mark.parametrize("options", [{"halting": False}, *({"halting": True, **each} for each in HALTING)])
def test_decoding_equals_the_parallel_pass(options: dict, norm_position: str, transition: str):
    model = (
        UniversalDecoder.build(**TINY, **options, norm_position=norm_position, transition=transition).double().eval()
    )
    if options["halting"]:
        varied(model)
    whole = model(ids())
    for pieces in ([13], [1] * 13, [4, 1, 6, 2]):
        seen, state = decode(model, ids(), pieces)
        torch.testing.assert_close(seen, whole, rtol=0, atol=1e-9)
        assert state.length == 13 and state.bytes > 0


@pytest.mark.parametrize("position", ["sinusoidal", "learned", "rotary", "none"])
def test_halted_tokens_wait_until_a_later_token_reaches_their_step(position: str):
    """A step is computed only when some token takes it; tokens that waited before it are then processed in order."""
    model = varied(UniversalDecoder.build(**TINY, position=position, halting=True, max_steps=9).double().eval())
    with torch.no_grad():
        model.stack.halting.unit.weight.mul_(2)
        model.stack.halting.unit.bias.fill_(1.0)
    text, whole = ids(batch=1, length=20), model(ids(batch=1, length=20))
    state, taken = model.start(1), []
    for index in range(20):
        logits, state = model.extend(text[:, index : index + 1], state)
        torch.testing.assert_close(logits, whole[:, index : index + 1], rtol=0, atol=1e-9)
        taken.append(tuple(step.mixer.length for step in state.steps))
        waiting = [0 if tokens is None else len(tokens.x) for tokens in state.waiting]
        # Each token was read by all steps below, and waits before one, or has taken all.
        assert taken[-1][0] == index + 1 and list(taken[-1]) == sorted(taken[-1], reverse=True)
        assert sum(waiting) + taken[-1][-1] == index + 1
    # Some steps were taken by several tokens at once, after all but the last of them had waited.
    assert any(now - then > 1 for one, two in pairwise(taken) for then, now in zip(one, two))


def test_a_state_with_waiting_tokens_can_be_continued_several_times():
    model = varied(UniversalDecoder.build(**TINY, halting=True, max_steps=6).double().eval())
    text = ids(length=9)
    _, state = model.extend(text[:, :6], model.start(2))
    swapped = state.select(torch.tensor([1, 0, 1]))
    for rows, chosen in ((torch.tensor([0, 1]), state), (torch.tensor([1, 0, 1]), swapped)):
        logits, _ = model.extend(text[rows, 6:], chosen)
        torch.testing.assert_close(logits, model(text)[rows, 6:], rtol=0, atol=1e-9)


@pytest.mark.parametrize("options", HALTING)
def test_a_row_does_not_depend_on_slower_rows_of_its_batch(options: dict):
    model = varied(UniversalDecoder.build(**TINY, halting=True, max_steps=12, **options).double().eval())
    alone = [model(text[None]) for text in ids(batch=6)]
    torch.testing.assert_close(model(ids(batch=6)), torch.cat(alone), rtol=0, atol=1e-10)


@pytest.mark.parametrize("transition", ["feedforward", "convolution"])
def test_padding_changes_nothing(transition: str):
    options = {"halting": True, "ponder": 1.0, "dropout": 0.0, "transition": transition}
    model = varied(UniversalEncoder.build(**TINY, **options).double())
    text, mask = ids(batch=1), torch.arange(13)[None] < 8
    out, cost = model(text, key_mask=mask), model.auxiliary_loss()
    torch.testing.assert_close(out[:, :8], model(text[:, :8]), rtol=0, atol=1e-10)
    torch.testing.assert_close(cost, model.auxiliary_loss())
    assert (out[:, 8:] == 0).all()


def test_padding_does_not_prolong_the_steps():
    model = UniversalDecoder.build(**TINY, halting=True, max_steps=8).eval()
    steps = []
    model.stack.block.register_forward_hook(lambda *_: steps.append(1))
    torch.nn.init.zeros_(model.stack.halting.unit.weight)
    torch.nn.init.constant_(model.stack.halting.unit.bias, 10.0)
    model(ids(), key_mask=torch.zeros(2, 13, dtype=torch.bool))
    assert len(steps) == 0
    model(ids())
    assert len(steps) == 1


@pytest.mark.parametrize("transition", ["feedforward", "convolution"])
def test_a_left_padded_row_equals_the_row_alone(transition: str):
    model = varied(UniversalDecoder.build(**TINY, halting=True, transition=transition).double().eval())
    assert model.left_padding
    text = ids(batch=1, length=6)
    padded = torch.cat([torch.zeros(1, 4, dtype=torch.long), text], 1)
    mask, positions = torch.arange(10)[None] >= 4, (torch.arange(10)[None] - 4).clamp_min(0)
    whole = model(padded, key_mask=mask, positions=positions)
    torch.testing.assert_close(whole[:, 4:], model(text), rtol=0, atol=1e-10)
    state, seen = model.start(1), []
    for at in range(10):
        here = slice(at, at + 1)
        logits, state = model.extend(padded[:, here], state, key_mask=mask[:, here], positions=positions[:, here])
        seen.append(logits)
    torch.testing.assert_close(torch.cat(seen[4:], 1), model(text), rtol=0, atol=1e-9)


@pytest.mark.parametrize("halting", [False, True])
@pytest.mark.parametrize("norm_position", ["pre", "post"])
def test_the_future_changes_nothing(halting: bool, norm_position: str):
    model = (
        UniversalDecoder.build(**TINY, halting=halting, norm_position=norm_position, transition="convolution")
        .double()
        .eval()
    )
    other = torch.cat([ids()[:, :7], ids(seed=1)[:, 7:]], 1)
    torch.testing.assert_close(model(ids())[:, :7], model(other)[:, :7], rtol=0, atol=1e-12)


# Encoder and decoder


@pytest.mark.parametrize("options", [{"halting": False}, {"halting": True}, {"halting": True, "halted": "copy"}])
def test_a_decoder_reads_its_encoder_step_by_step(options: dict):
    model = UniversalTransformer.build(**TINY, **options, encoder_attention="window", decoder_layers=2).double().eval()
    if options["halting"]:
        varied(model)
    source, target = ids(length=9), ids(seed=1)
    mask = torch.ones(2, 9, dtype=torch.bool)
    mask[1, 5:] = False
    whole = model(source, target, source_mask=mask)
    seen, state = decode(model, target, [5, 1, 7], source=source, source_mask=mask, align=True)
    torch.testing.assert_close(seen, whole, rtol=0, atol=1e-9)
    assert state.alignment.shape == (2, 7, 9) and (state.alignment[1, :, 5:] == 0).all()
    torch.testing.assert_close(state.alignment.sum(-1), torch.ones(2, 7).double())
    alone = model(source[1:, :5], target[1:])
    torch.testing.assert_close(whole[1:], alone, rtol=0, atol=1e-10)


def test_the_source_is_projected_once_for_all_steps():
    """Weights are shared over the steps, and so are the keys and values of the other sequence."""
    states = [
        UniversalTransformer.build(**{**TINY, "layers": layers}).start(2, source=ids(length=9)) for layers in (1, 5)
    ]
    assert states[0].bytes == states[1].bytes == 2 * 2 * 9 * 16 * 4


# Training


def test_the_ponder_loss_reaches_the_halting_unit():
    model = UniversalTransformer.build(**TINY, halting=True)
    assert model.auxiliary_loss() is None
    model(ids(), ids(seed=1))
    model.auxiliary_loss().backward()
    for stack in (model.encoder, model.decoder):
        assert stack.halting.unit.weight.grad.abs().sum() > 0 and stack.halting.unit.bias.grad.abs() > 0


def test_the_losses_of_a_mechanism_are_those_of_all_steps():
    """Routing leaves its commitment at each step; with one cluster for all heads each has a gradient."""
    model = UniversalDecoder.build(**TINY, attention=small("routing"), dropout=0.0)
    seen = []
    mechanism = model.stack.block.mixer.mechanism
    mechanism.register_forward_hook(lambda *_: seen.append(mechanism.auxiliary_loss))
    model(ids())
    assert len(seen) == 3
    torch.testing.assert_close(model.auxiliary_loss(), torch.stack(seen).sum())
    assert model.eval()(ids()).isfinite().all()


def test_normal_weights_leave_the_halting_bias():
    model = UniversalDecoder.build(**TINY, halting=True, init="normal", residual_init=True)
    assert model.stack.halting.unit.bias.item() == 1


# Bad input, folders


def test_invalid_input_is_refused():
    with pytest.raises(InvalidOption, match="decoder self-attention has 2 settings for 1 layers"):
        UniversalDecoder.build(**TINY, attention=["softmax", "window"])
    with pytest.raises(Unsupported, match=r"^decoder self-attention: linformer has no causal form"):
        UniversalDecoder.build(**TINY, attention="linformer")
    with pytest.raises(Unsupported, match="leave out reversible"):
        UniversalDecoder.build(**TINY, norm_position="pre", reversible=True)
    with pytest.raises(InvalidOption, match="combine must be one of listing, accumulate"):
        UniversalDecoder.build(**TINY, combine="mean")
    with pytest.raises(InvalidInput, match="no layer reads a stream 'globals'"):
        UniversalEncoder.build(**TINY)(ids(), streams={"globals": ids()})
    with pytest.raises(InvalidInput, match="reads a source"):
        UniversalTransformer.build(**TINY).start(1)


@pytest.mark.parametrize("kind", ["universal", "universal_decoder", "universal_encoder"])
def test_a_folder_stores_the_whole_model(tmp_path: Path, kind: str):
    options = {"halting": True, "halted": "copy", "step_signal": "learned", "transition": "convolution"}
    model = varied(build(kind, **TINY, **options).eval())
    model.save(tmp_path / "model")
    again = load(tmp_path / "model")
    assert type(again) is type(model) and again.options == model.options
    inputs = (ids(), ids(seed=1)) if kind == "universal" else (ids(),)
    assert torch.equal(again(*inputs), model(*inputs))
