"""Recording a stack: the records are the states and maps of the forward pass."""

import torch

from longspan.models import build
from longspan.nn.recorder import recording

IDS = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]])
SMALL = {"width": 16, "layers": 3, "heads": 2, "hidden": 16, "dropout": 0.0, "vocabulary": 11}


def test_states_begin_with_the_embedding_and_end_with_the_output() -> None:
    model = build("encoder", **SMALL, norm_position="pre").eval()
    with recording(model.stack) as seen:
        out = model(IDS)
    assert len(seen.states) == 4 and len(seen.maps) == 3
    assert torch.equal(seen.states[0], model.embedding(IDS))
    assert torch.equal(seen.states[-1], out)
    block = next(model.stack.layers())
    assert torch.equal(seen.states[1], block(seen.states[0]))


def test_maps_are_weights_and_give_the_output() -> None:
    model = build("decoder", **SMALL, position="rotary").double().eval()
    with recording(model.stack) as seen:
        model(IDS)
    mixer = model.stack.blocks[0].mixer
    torch.testing.assert_close(seen.maps[0].sum(-1), torch.ones(2, 2, 4, dtype=torch.float64))
    assert not seen.maps[0].triu(1).any()
    values = mixer.project["v"](seen.states[0]).unflatten(-1, (2, 8)).transpose(1, 2)
    mixed = mixer.out((seen.maps[0] @ values).transpose(1, 2).flatten(2))
    torch.testing.assert_close(mixed, mixer(seen.states[0]))


def test_cross_attention_maps_of_a_decoder_are_recorded() -> None:
    model = build("transformer", **SMALL).eval()
    with recording(model.decoder) as seen:
        model(IDS, IDS[:, :2])
    assert [each.shape for each in seen.cross_maps] == [(2, 2, 2, 4)] * 3


def test_shared_layers_are_recorded_each_time() -> None:
    model = build("encoder", **SMALL, groups=1).eval()
    with recording(model.stack) as seen:
        model(IDS)
    assert len(model.stack.blocks) == 1 and len(seen.states) == 4 and len(seen.maps) == 3


def test_a_shared_attention_is_recorded_once_per_block() -> None:
    model = build("encoder", **SMALL, groups=1, share="attention").eval()
    with recording(model.stack) as seen:
        model(IDS)
    assert len(model.stack.blocks) == 3 and len(seen.states) == 4 and len(seen.maps) == 3


def test_hooks_are_removed_afterwards() -> None:
    model = build("encoder", **SMALL).eval()
    with recording(model.stack, maps=False) as seen:
        model(IDS)
    assert seen.maps == []
    states = list(seen.states)
    model(IDS[:1])
    assert all(before is after for before, after in zip(states, seen.states))


def test_reversible_layers_show_both_streams() -> None:
    model = build("encoder", **SMALL, norm_position="pre", reversible=True).double().eval()
    with recording(model.stack) as seen:
        out = model(IDS)
    assert len(seen.streams) == len(seen.states) == 4 and len(seen.maps) == 3
    x1 = x2 = model.embedding(IDS)
    for layer, (mix, change) in enumerate(model.stack.pairs()):
        torch.testing.assert_close(seen.maps[layer], mix.mixer.weights(mix.norm(x2)))
        x1 = x1 + mix(x2, None, None)
        x2 = x2 + change(x1)
        assert torch.equal(seen.streams[layer + 1][0], x1) and torch.equal(seen.streams[layer + 1][1], x2)
    assert all(torch.equal(state, second) for state, (_, second) in zip(seen.states[:-1], seen.streams))
    assert torch.equal(seen.states[-1], out)


def test_the_second_run_of_reversible_layers_is_not_recorded() -> None:
    attention = {"name": "reformer", "rounds": 2, "chunk": 2, "buckets": 2}
    model = build("decoder", **SMALL, norm_position="pre", reversible=True, merge="mean", attention=attention)
    plain = torch.autograd.grad(model(IDS).logsumexp(-1).sum(), list(model.parameters()))
    with recording(model.stack) as seen:
        found = torch.autograd.grad(model(IDS).logsumexp(-1).sum(), list(model.parameters()))
    assert len(seen.maps) == 3 and len(seen.states) == len(seen.streams) == 4
    assert all(torch.equal(one, other) for one, other in zip(plain, found))
