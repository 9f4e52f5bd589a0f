"""ETC: a long input, and a short global one beside it."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from longspan.errors import InvalidInput, InvalidOption, Unsupported
from longspan.models import build, load
from longspan.models.encoder import Encoder
from longspan.models.etc_model import EtcModel
from longspan.models.lift_encoder import lift

SIZES = {"vocabulary": 11, "width": 16, "layers": 2, "heads": 2, "hidden": 24, "dropout": 0.0}
TINY = {**SIZES, "global_tokens": 4, "radius": 3, "labels": 2, "label_vocabulary": 9, "types": 3}
SHARING = ["none", "projections", "all"]


def ids(batch: int = 2, length: int = 13, seed: int = 0) -> Tensor:
    return torch.randint(0, 11, (batch, length), generator=torch.Generator().manual_seed(seed))


def stirred(model: torch.nn.Module) -> torch.nn.Module:
    """Weights that differ between the inputs, where they are not shared, and that are large enough to be seen."""
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model.double().eval()


@pytest.mark.parametrize(
    ("options", "parameters"),
    [
        ({}, 165_823_488),  # the paper's 166M
        ({"sharing": "all"}, 109_108_224),  # the paper's 109M
        ({"sharing": "projections"}, 116_213_760),  # the released configuration
        ({"label_vocabulary": 64}, 165_823_488 + 599_040),  # the paper's 600K
    ],
)
def test_the_papers_sizes(options: dict, parameters: int):
    with torch.device("meta"):
        model = build("etc_model", **options)
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters


@pytest.mark.parametrize("sharing", SHARING)
def test_a_layer_is_the_papers_definition_on_the_concatenation(sharing: str):
    """One layer by the mechanism's oracle, whose masks and labels are literal matrices, and two of all that is two."""
    model = stirred(EtcModel.build(**{**TINY, "layers": 1}, sharing=sharing, hard="g2l"))
    text, short = ids(), ids(length=4, seed=1)
    segment = torch.cat([torch.tensor([[-1, 0, 1, 2]]), torch.arange(13)[None] // 5], 1).expand(2, -1)
    block = model.stack.blocks[0]
    mixer, mechanism = block.mixer, block.mixer.mechanism
    x = model.norm(model.embedding.weight[torch.cat([short, text], 1)] + model.types.weight[0])

    def heads(linear: torch.nn.Linear) -> Tensor:
        return torch.nn.functional.linear(x, linear.weight, linear.bias).unflatten(-1, (2, 8)).transpose(1, 2)

    q, k, v = (heads(mixer.project[name]) for name in "qkv")
    streams = {name: heads(linear) for name, linear in mixer.extra.items()} | {"segment": segment}
    mixed = mechanism.reference(q, k, v, streams=streams).transpose(1, 2).flatten(2)
    rows = []
    for part, name in ((slice(0, 4), "of_global"), (slice(4, None), "of_long")):
        out, norm = (getattr(m, name, m) for m in (mixer.out, block.around_mixer.norm))
        rows.append(norm(x[:, part] + out(mixed[:, part])))
    y = torch.cat(rows, 1)
    y = block.around_feedforward.norm(y + block.feedforward(y))
    long, globals_ = model(text, short, segments=segment[:, 4:], global_segments=segment[:, :4])
    torch.testing.assert_close(torch.cat([globals_, long], 1), y, rtol=0, atol=1e-10)


@pytest.mark.parametrize("sharing", SHARING)
@pytest.mark.parametrize("norm_position", ["post", "pre"])
def test_a_lifted_encoder_is_the_encoder_over_the_concatenation(sharing: str, norm_position: str):
    """No labels, a radius as long as the text and open masks take nothing away (check 2)."""
    same = {**SIZES, "activation": "gelu", "eps": 1e-12, "scale": False, "norm_position": norm_position}
    encoder = stirred(Encoder.build(**same, position="none"))
    options = {"labels": 0, "radius": 20, "global_tokens": 4, "embedding_norm": False, "sharing": sharing}
    model = lift(encoder, EtcModel.build(**SIZES, **options, norm_position=norm_position).double().eval())
    long, short = model(ids(), ids(length=4, seed=1))
    whole = encoder(torch.cat([ids(length=4, seed=1), ids()], 1))
    torch.testing.assert_close(torch.cat([short, long], 1), whole, rtol=0, atol=1e-10)


def test_what_cannot_be_lifted():
    model = EtcModel.build(**TINY)
    with pytest.raises(InvalidInput, match="the encoder has activation relu and etc_model gelu"):
        lift(Encoder.build(**SIZES), model)
    same = {**SIZES, "activation": "gelu", "eps": 1e-12, "scale": False}
    with pytest.raises(InvalidInput, match="build etc_model with embedding_norm=False"):
        lift(Encoder.build(**same), model)
    with pytest.raises(Unsupported, match="reformer has no queries, keys and values of all heads"):
        lift(Encoder.build(**same, attention="reformer"), EtcModel.build(**TINY, embedding_norm=False))


def test_hard_global_tokens_read_their_own_sentence_only():
    """The gradient of a global state after one layer is 0 outside its sentence (check 4)."""
    model = stirred(EtcModel.build(**{**TINY, "layers": 1}, hard="g2l"))
    segments, sentences = torch.arange(13)[None] // 4, torch.tensor([[0, 1, 2, 3]])
    read = []
    hook = model.embedding.register_forward_hook(lambda *call: read.append(call[2].requires_grad_()) or read[-1])
    _, short = model(ids(batch=1), ids(batch=1, length=4), segments=segments, global_segments=sentences)
    for sentence in range(4):
        (gradient,) = torch.autograd.grad(short[0, sentence].sin().sum(), read[0], retain_graph=True)
        touched = gradient[0, 4:].abs().sum(-1) > 0
        assert torch.equal(touched, segments[0] == sentence)
    hook.remove()


@pytest.mark.parametrize("sharing", SHARING)
def test_packed_examples_are_separate_runs(sharing: str):
    model = stirred(EtcModel.build(**TINY, sharing=sharing))
    texts, shorts = (ids(1, 7), ids(1, 6, seed=1)), (ids(1, 2, seed=2), ids(1, 1, seed=3))
    examples = torch.tensor([[0] * 7 + [1] * 6])
    long, short = model(
        torch.cat(texts, 1), torch.cat(shorts, 1), examples=examples, global_examples=torch.tensor([[0, 0, 1]])
    )
    for index, (text, own) in enumerate(zip(texts, shorts)):
        alone, alone_short = model(text, own)
        at = [slice(0, 7), slice(7, 13)][index], [slice(0, 2), slice(2, 3)][index]
        torch.testing.assert_close(long[:, at[0]], alone, rtol=0, atol=1e-10)
        torch.testing.assert_close(short[:, at[1]], alone_short, rtol=0, atol=1e-10)


def test_padding_is_not_there():
    model = stirred(EtcModel.build(**TINY))
    mask, global_mask = torch.arange(13)[None] < 8, torch.tensor([[True, True, True, False]])
    text, short = ids(1), ids(1, 4, seed=1)
    long, globals_ = model(text, short, key_mask=mask, global_mask=global_mask)
    alone, alone_short = model(text[:, :8], short[:, :3])
    torch.testing.assert_close(long[:, :8], alone, rtol=0, atol=1e-10)
    torch.testing.assert_close(globals_[:, :3], alone_short, rtol=0, atol=1e-10)


def test_token_types_are_told_apart():
    model = stirred(EtcModel.build(**TINY))
    types = (torch.arange(13)[None] > 5).long().expand(2, -1)
    assert not torch.equal(model(ids(), ids(length=3), types=types)[0], model(ids(), ids(length=3))[0])


def test_all_that_is_trained_gets_a_gradient():
    model = EtcModel.build(**{**TINY, "label_vocabulary": 7})
    segments, sentences = torch.arange(13).expand(2, -1) // 4, torch.tensor([[0, 1, 2, 3]] * 2)
    long, short = model(ids(), ids(length=4), segments=segments, global_segments=sentences)
    (long.sin().sum() + short.sin().sum()).backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_what_does_not_fit_is_refused():
    model = EtcModel.build(**TINY)
    with pytest.raises(InvalidInput, match="needs a global input of at most 4 tokens, and got 5 global and 13 long"):
        model(ids(), ids(length=5))
    with pytest.raises(InvalidInput, match="give segments and global_segments, or neither"):
        model(ids(), ids(length=3), segments=ids())
    with pytest.raises(InvalidInput, match=r"examples must be \(2, 13\), not \(2, 12\)"):
        model(ids(), ids(length=3), examples=ids(length=12), global_examples=ids(length=3))
    with pytest.raises(InvalidInput, match=r"expected types in 0\.\.2, got 0\.\.10"):
        model(ids(), ids(length=3), types=ids())
    with pytest.raises(InvalidInput, match="etc needs the stream 'segment'"):
        EtcModel.build(**TINY, hard="g2l")(ids(), ids(length=3))
    with pytest.raises(InvalidOption, match=r"option vocabulary must hold 2 · labels \+ 3 = 7, not 5"):
        EtcModel.build(**{**TINY, "label_vocabulary": 5})
    with pytest.raises(InvalidOption, match="position must be one of none"):
        EtcModel.build(**TINY, position="learned")


def test_a_folder_holds_the_whole_model(tmp_path: Path):
    model = EtcModel.build(**TINY).eval()
    model.save(tmp_path / "model")
    again = load(tmp_path / "model")
    assert again.options == model.options
    assert torch.equal(again(ids(), ids(length=3))[0], model(ids(), ids(length=3))[0])
