"""Adapters: they start at the base, leave it unchanged, decode as they read, and travel in small files."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import longspan
from longspan.adapt.adapters.lora import Lora
from longspan.errors import InvalidInput, InvalidOption, Unsupported
from longspan.hub.adapter_files import attach
from longspan.models import adapters, folder
from longspan.models.base import CausalModel

KINDS: dict[str, dict[str, Any]] = {
    "lora": {"rank": 2, "targets": ["q", "k", "v", "out", "feedforward"]},
    "houlsby": {"inner": 4},
    "prefix": {"tokens": 3, "inner": 8},
}


def model(**options: Any) -> CausalModel:
    torch.manual_seed(0)
    wanted = {"vocabulary": 30, "width": 16, "layers": 2, "heads": 2, "max_length": 32, "dropout": 0.0, **options}
    found = longspan.create_model("decoder", **wanted).eval().double()
    assert isinstance(found, CausalModel)
    return found


IDS = torch.randint(0, 30, (2, 12), generator=torch.Generator().manual_seed(3))


def train(found: CausalModel) -> None:
    found.adapter.freeze(found)  # type: ignore[union-attr]
    trained = [parameter for parameter in found.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=0.5)
    for _ in range(3):
        torch.autograd.backward(found(IDS).logsumexp(-1).pow(2).mean())
        optimizer.step()
        optimizer.zero_grad()


@torch.no_grad()
def decoded(found: CausalModel) -> Tensor:
    state, rows = found.start(len(IDS)), []
    for index in range(IDS.shape[1]):
        logits, state = found.extend(IDS[:, index : index + 1], state)
        rows.append(logits)
    return torch.cat(rows, 1)


@pytest.mark.parametrize("attention", ["softmax", "window", "linear", "retention"])
@pytest.mark.parametrize("kind", KINDS)
def test_an_adapter_on_a_frozen_base(kind: str, attention: str, tmp_path: Path) -> None:
    found = model(attention=attention)
    base, adapter = found(IDS).detach(), adapters.build(kind, **KINDS[kind])
    adapter.attach(found)
    if kind != "prefix" or attention in ("linear", "retention"):
        assert torch.equal(found(IDS), base)
    before = adapters.base_digest(found)
    train(found)
    assert adapters.base_digest(found) == before
    changed = found(IDS).detach()
    assert float((changed - base).abs().max()) > 1e-3
    torch.testing.assert_close(decoded(found), changed, rtol=0, atol=1e-10)
    assert torch.equal(copy.deepcopy(found)(IDS), changed)
    folder.save(found, tmp_path / "whole")
    assert torch.equal(folder.load(tmp_path / "whole")(IDS), changed)
    adapters.save(found, tmp_path / "small")
    adapter.detach(found)
    assert torch.equal(found(IDS), base)
    assert found.state_dict().keys() == model(attention=attention).state_dict().keys()
    again = attach(found, tmp_path / "small")
    torch.testing.assert_close(again(IDS), changed, rtol=0, atol=1e-12)


def test_counts_of_the_papers() -> None:
    def counts(name: str, kind: str, **options: Any) -> int:
        with torch.device("meta"):
            found = longspan.create_model(name)
        adapter = adapters.build(kind, **options)
        adapter.check(found)
        with torch.device("meta"):
            adapter.insert(found)
        return sum(parameter.numel() for key, parameter in found.named_parameters() if adapter.owns(key))

    assert counts("bert-base", "lora", rank=8) == 294_912
    assert counts("bert-base", "houlsby", inner=64) == 2_379_264
    assert counts("gpt2-medium", "prefix", tokens=10, inner=0) == 491_520


def test_merged_lora_is_a_plain_model() -> None:
    found = model()
    adapter = adapters.build("lora", **KINDS["lora"])
    adapter.attach(found)
    assert isinstance(adapter, Lora)
    train(found)
    before = found(IDS).detach()
    adapter.merge(found)
    assert found.adapter is None
    torch.testing.assert_close(found(IDS), before, rtol=0, atol=1e-6)
    torch.testing.assert_close(decoded(found), before, rtol=0, atol=1e-6)
    assert found.state_dict().keys() == model().state_dict().keys()


def test_a_prefix_is_keys_and_values_before_the_text() -> None:
    found = model(layers=1)
    adapter = adapters.build("prefix", tokens=3, inner=0)
    adapter.attach(found)
    mixer = found.stack.blocks[0].mixer
    x = torch.randn(1, 5, 16, dtype=torch.float64)
    q, k, v = (mixer.project[name](x).unflatten(-1, (2, 8)).transpose(1, 2) for name in "qkv")
    keys, values = (part[None] for part in mixer.mechanism.persistent.vectors(q))
    mask = torch.cat([torch.ones(5, 3, dtype=torch.bool), torch.ones(5, 5, dtype=torch.bool).tril()], 1)
    expected = torch.nn.functional.scaled_dot_product_attention(
        q, torch.cat([keys, k], 2), torch.cat([values, v], 2), attn_mask=mask
    )
    torch.testing.assert_close(mixer(x), mixer.out(expected.transpose(1, 2).flatten(2)), rtol=0, atol=1e-12)


def test_a_learned_initial_state_is_added_to_the_sums() -> None:
    found = model(layers=1, attention="linear")
    adapters.build("prefix").attach(found)
    mechanism = found.stack.blocks[0].mixer.mechanism
    torch.nn.init.uniform_(mechanism.initial.sums, 0.1, 1.0)
    q, k, v = torch.randn(3, 1, 2, 5, 8, dtype=torch.float64)
    f = torch.nn.functional.elu
    sums, z = mechanism.initial.sums[..., :-1], mechanism.initial.sums[..., -1]
    for row in range(5):
        past = f(k[0, :, : row + 1]) + 1
        S = sums + torch.einsum("hjf,hjd->hfd", past, v[0, :, : row + 1])
        total = z + past.sum(1)
        fq = f(q[0, :, row]) + 1
        expected = torch.einsum("hf,hfd->hd", fq, S) / ((fq * total).sum(-1, True) + 1e-6)
        torch.testing.assert_close(mechanism(q, k, v)[0, :, row], expected, rtol=0, atol=1e-10)


def test_refusals(tmp_path: Path) -> None:
    found = model()
    with pytest.raises(InvalidOption, match=r"targets are some of q, k, v, out, feedforward, not w"):
        adapters.build("lora", targets=["w"])
    other = longspan.create_model("encoder", vocabulary=30, width=16, layers=1, heads=2, attention="linear")
    with pytest.raises(Unsupported, match=r"linear has an initial state to learn only if it is causal"):
        adapters.build("prefix").attach(other)
    assert other.adapter is None
    with pytest.raises(Unsupported, match=r"nystrom keeps neither single keys .* use lora or houlsby"):
        adapters.build("prefix").attach(
            longspan.create_model("encoder", vocabulary=30, width=16, layers=1, heads=2, attention="nystrom")
        )
    adapters.build("lora").attach(found)
    with pytest.raises(InvalidInput, match=r"this decoder has an adapter already .lora.; detach it first"):
        adapters.build("houlsby").attach(found)
    adapters.save(found, tmp_path / "small")
    with pytest.raises(InvalidInput, match=r"was trained on other weights than these"):
        attach(model(init="xavier" if found.options.init == "normal" else "normal"), tmp_path / "small")
    with pytest.raises(InvalidInput, match=r"is no adapter: it has no adapter.json"):
        attach(model(), tmp_path)
