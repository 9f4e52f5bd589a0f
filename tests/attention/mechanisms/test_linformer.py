"""Linformer against its formula: projections of every kind, four ways of sharing, and what it refuses."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from longspan.attention import build
from longspan.attention.kernels import flash
from longspan.attention.mechanisms.linformer import LinformerAttention, Projection, project, share_projection
from longspan.audit.checks import applicable
from longspan.audit.counting import LargestTensor, count_flops, count_kept
from longspan.audit.targets import resolve
from longspan.errors import InvalidInput, InvalidOption, Unsupported
from longspan.nn.multihead import MultiHead

BATCH, HEADS, WIDTH, LONGEST = 2, 3, 4, 24
DOUBLE = torch.float64
KINDS = ("linear", "convolution", "mean", "max")
SHARINGS = ("none", "headwise", "kv", "layerwise")


def make(rank: int | None = 6, projection: str = "linear", max_length: int = LONGEST, **options) -> LinformerAttention:
    sizes = {"heads": HEADS, "head_dim": WIDTH, "max_length": max_length}
    return build("linformer", **sizes, rank=rank, projection=projection, **options).double()


def qkv(length: int, batch: int = BATCH, dtype: torch.dtype = DOUBLE) -> list[Tensor]:
    return [torch.randn(batch, HEADS, length, WIDTH, dtype=dtype) for _ in range(3)]


def everything(length: int) -> Tensor:
    return torch.ones(length, length, dtype=torch.bool)


# The formula


def literal(attention: LinformerAttention, x: Tensor, keep: Tensor, values: bool) -> tuple[Tensor, Tensor]:
    """(batch, heads, rank, width) and which rows may be read, one number at a time."""
    rank, window, kind = attention.rank, attention.window, attention.options.projection
    out = torch.zeros(len(x), HEADS, rank, x.shape[3], dtype=DOUBLE)
    alive = torch.zeros(len(x), rank, dtype=torch.bool)
    for b in range(len(x)):
        for r in range(rank):
            places = range(x.shape[2]) if kind == "linear" else range(r * window, min((r + 1) * window, x.shape[2]))
            places = [j for j in places if keep[b, j]]
            alive[b, r] = bool(places)
            for h in range(HEADS if places else 0):
                rows = x[b, h, places]
                if kind in ("mean", "max"):
                    out[b, h, r] = rows.mean(0) if kind == "mean" else rows.amax(0)
                    continue
                weight = attention.projection.pair[values]
                weight = weight[h if len(weight) > 1 else 0]
                factors = weight[r, places] if kind == "linear" else weight[[j - r * window for j in places]]
                out[b, h, r] = (factors[:, None] * rows).sum(0)
    return out, alive


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("length", [1, 7, 24])
@pytest.mark.parametrize("sharing", ["none", "headwise", "kv"])
@pytest.mark.parametrize("kind", KINDS)
def test_equals_the_formula(dense, agree, kind: str, sharing: str, length: int, masked: bool):
    attention = make(6, kind, sharing=sharing)
    keep = torch.rand(BATCH, length) < 0.6 if masked else torch.ones(BATCH, length, dtype=torch.bool)

    def formula(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys, alive = literal(attention, k, keep, False)
        values, _ = literal(attention, v, keep, True)
        return dense(q, keys, values, alive[:, None, None, :], WIDTH**-0.5)

    mask = keep if masked else None
    agree(formula, lambda q, k, v: attention(q, k, v, key_mask=mask), *qkv(length))
    agree(formula, lambda q, k, v: attention.reference(q, k, v, key_mask=mask), *qkv(length))


def test_identity_at_full_rank_is_dense_attention(dense, agree):
    attention = make(LONGEST, sharing="headwise")
    with torch.no_grad():
        for weight in attention.projection.parameters():
            weight.copy_(torch.eye(LONGEST))
    agree(lambda q, k, v: dense(q, k, v, everything(LONGEST), WIDTH**-0.5), attention, *qkv(LONGEST))


@pytest.mark.parametrize("kind", ["mean", "max"])
@pytest.mark.parametrize("length", [5, LONGEST])
def test_pooling_at_full_rank_is_dense_attention(dense, agree, kind: str, length: int):
    attention = make(LONGEST, kind)
    agree(lambda q, k, v: dense(q, k, v, everything(length), WIDTH**-0.5), attention, *qkv(length))


def test_the_mean_of_one_window_is_the_mean_of_the_values():
    q, k, v = qkv(17)
    keep = torch.rand(BATCH, 17) < 0.5
    mean = torch.stack([row[:, may].mean(1) for row, may in zip(v, keep)])
    torch.testing.assert_close(make(1, "mean")(q, k, v, key_mask=keep), mean[:, :, None].expand_as(q))


@pytest.mark.parametrize("kind", ["linear", "convolution", "mean"])
@pytest.mark.parametrize("rank", [1, 3, 8])
def test_the_map_has_no_higher_rank(kind: str, rank: int):
    q, k, _ = qkv(LONGEST)
    weights = make(rank, kind, sharing="none").weights(q, k)
    assert int(torch.linalg.matrix_rank(weights, rtol=1e-10).max()) <= rank


def test_the_first_row_reads_the_last_key():
    """So it is not causal with any mask on its scores, and causal=True is refused."""
    tensors = [x.requires_grad_() for x in qkv(9)]
    for gradient in torch.autograd.grad(make()(*tensors)[:, :, 0].sum(), tensors[1:]):
        assert bool((gradient[:, :, -1] != 0).all())
    with pytest.raises(Unsupported, match=r"linformer has no causal form; these can: .*softmax"):
        make(causal=True)
    with pytest.raises(Unsupported, match="linformer cannot decode step by step"):
        make().start(1)


@pytest.mark.parametrize("kind", KINDS)
def test_queries_of_another_sequence(kind: str):
    attention = make(6, kind)
    q, k, v = qkv(13)
    longer = torch.cat([q] * 3, dim=2)  # more queries than max_length: only keys are counted
    whole = attention(longer, k, v)
    torch.testing.assert_close(whole[:, :, :13], attention(q, k, v))
    torch.testing.assert_close(attention(q[:, :, :2], k, v), whole[:, :, :2])


# Padding


@pytest.mark.parametrize("kind", KINDS)
def test_padding_is_zeroed_before_the_projection(kind: str):
    """Neither the content nor the amount of padding matters, not even as zeros in a mean."""
    attention = make(6, kind)
    q, k, v = qkv(14)
    expected = attention(q[:, :, :9], k[:, :, :9], v[:, :, :9])
    keep = (torch.arange(14) < 9).expand(BATCH, -1)
    for size in (0.0, 1.0, 1e6):
        noisy = [torch.where(keep[:, None, :, None], x, size * torch.randn_like(x)) for x in (k, v)]
        torch.testing.assert_close(attention(q, *noisy, key_mask=keep)[:, :, :9], expected, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_means_of_long_windows_do_not_overflow(dtype: torch.dtype):
    attention = build("linformer", heads=1, head_dim=8, max_length=4096, rank=1, projection="mean").to(dtype)
    x = torch.full((1, 1, 4096, 8), 100.0, dtype=dtype)
    assert torch.equal(attention(x, x, x), x)


def test_max_has_no_map():
    q, k, _ = qkv(9)
    with pytest.raises(Unsupported, match="linformer transforms its values"):
        make(projection="max").weights(q, k)
    assert make(projection="mean").supports.map and LinformerAttention.supports.map
    weights = make(6, "max").oracle(q, k)  # how much the window of each key is read: of 4, 4 and 1 keys
    assert torch.equal(weights[..., 0:1].expand(-1, -1, -1, 4), weights[..., :4])
    torch.testing.assert_close(weights[..., [0, 4, 8]].sum(-1), torch.ones(BATCH, HEADS, 9, dtype=DOUBLE))


# Sharing


class Network(nn.Module):
    def __init__(self, layers: int, heads: int, sharing: str, **options) -> None:
        super().__init__()
        sizes = {"heads": heads, "head_dim": 2, "max_length": 8}
        self.layers = nn.ModuleList(
            MultiHead(2 * heads, build("linformer", **sizes, rank=4, sharing=sharing, **options)) for _ in range(layers)
        )

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x)
        return x


def projections(model: nn.Module) -> list[Projection]:
    return [module for module in model.modules() if isinstance(module, Projection)]


def places(model: nn.Module) -> set[int]:
    return {weight.data_ptr() for projection in projections(model) for weight in projection.parameters()}


@pytest.mark.parametrize(("projection", "size"), [("linear", 4 * 8), ("convolution", 2)])
@pytest.mark.parametrize(("sharing", "matrices"), [("none", 288), ("headwise", 24), ("kv", 12), ("layerwise", 1)])
def test_matrices_of_twelve_layers_with_twelve_heads(sharing: str, matrices: int, projection: str, size: int):
    network = Network(12, 12, sharing, projection=projection)
    if sharing == "layerwise":
        assert share_projection(network) is network
    assert sum(found.matrices for found in projections(network)) == matrices
    assert sum(weight.numel() for found in projections(network) for weight in found.parameters()) == matrices * size
    assert len(places(network)) == {"none": 24, "headwise": 24, "kv": 12, "layerwise": 1}[sharing]


@pytest.mark.parametrize("sharing", SHARINGS)
def test_deep_copies_share_as_the_network_does(sharing: str):
    network = Network(3, 2, sharing)
    if sharing == "layerwise":
        share_projection(network)
    twin = copy.deepcopy(network)
    assert len(places(twin)) == len(places(network)) and not places(twin) & places(network)
    layers = nn.ModuleList(
        copy.deepcopy(network.layers[0]) for _ in range(3)
    )  # each copied by itself: no longer shared
    if sharing == "layerwise":
        assert len(places(layers)) == 3
        assert len(places(share_projection(layers))) == 1


def test_a_shared_projection_learns_from_every_layer():
    network = share_projection(Network(3, 2, "layerwise"))
    apart = Network(3, 2, "layerwise")
    apart.load_state_dict(network.state_dict())
    x = torch.randn(2, 7, 4)
    torch.testing.assert_close(network(x), apart(x))
    network(x).sum().backward()
    apart(x).sum().backward()
    total = sum(layer.mechanism.projection.keys.grad for layer in apart.layers)
    torch.testing.assert_close(network.layers[2].mechanism.projection.keys.grad, total)


def test_kv_ties_the_projections_and_not_keys_to_values():
    attention = make(sharing="kv")
    assert attention.projection.pair[0] is attention.projection.pair[1]
    q, k, v = qkv(9)
    assert not torch.allclose(attention(q, k, v), attention(q, k, k))


def test_the_rank_may_shrink_with_depth():
    layers = [make(rank, sharing="kv") for rank in (12, 6, 3)]
    q, k, v = qkv(11)
    assert [layer(q, k, v).shape for layer in layers] == [q.shape] * 3
    assert [layer.projection.keys.shape[1] for layer in layers] == [12, 6, 3]


@pytest.mark.parametrize("kind", ["linear", "convolution"])
def test_projected_keys_initially_have_the_variance_of_the_keys(kind: str):
    attention = build("linformer", heads=4, head_dim=64, max_length=4096, rank=64, projection=kind, sharing="none")
    deviation = attention.projection.keys.std().item() * (4096 if kind == "linear" else 64) ** 0.5
    assert 0.8 < deviation < 1.2


def test_layers_that_cannot_share_are_refused_with_the_reason():
    for change, message in (
        ({"rank": 3}, "layers that share one projection need one rank, not 6 and 3"),
        ({"max_length": 12}, "layers that share one projection need one max_length, not 24 and 12"),
        ({"projection": "convolution"}, "layers that share one projection need one projection, not linear and conv"),
    ):
        layers = nn.ModuleList(make(**{"sharing": "layerwise", **options}) for options in ({}, {}, change))
        before = places(layers)
        with pytest.raises(InvalidOption, match=message):
            share_projection(layers)
        assert places(layers) == before
    for model in (nn.Linear(2, 2), make(sharing="kv"), make(projection="mean", sharing="layerwise")):
        with pytest.raises(InvalidOption, match='no linformer in this model has sharing="layerwise"'):
            share_projection(model)


# The fast path


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sharing", ["none", "kv"])
def test_the_plain_path_gives_the_same_result(monkeypatch, agree, kind: str, sharing: str, masked: bool):
    attention = make(6, kind, sharing=sharing)
    keep = torch.rand(BATCH, 15) < 0.6 if masked else None
    weights = list(attention.parameters())
    found = []
    for fused in (True, False):
        monkeypatch.setattr(flash, "_AVAILABLE", fused)
        torch.manual_seed(0)
        tensors = [x.requires_grad_() for x in qkv(15)]
        out = attention(*tensors, key_mask=keep)
        found.append([out, *torch.autograd.grad(out.square().sum(), [*tensors, *weights])])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_inputs_may_be_any_view(kind: str):
    attention, tensors = make(6, kind), qkv(20)
    expected = attention(*tensors)
    for view in (
        [x.mT.contiguous().mT for x in tensors],
        [x.transpose(1, 2).contiguous().transpose(1, 2) for x in tensors],
    ):
        torch.testing.assert_close(attention(*view), expected)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("owners", [1, HEADS])
def test_project_and_its_gradients(agree, owners: int, masked: bool):
    hidden = torch.rand(4, 10) < 0.3 if masked else None
    x = torch.randn(4, HEADS, 10, WIDTH, dtype=DOUBLE)
    weight = torch.randn(owners, 5, 12, dtype=DOUBLE)

    def plain(weight: Tensor, x: Tensor) -> Tensor:
        x = x if hidden is None else x * ~hidden[:, None, :, None]
        return torch.einsum("hrn,bhnd->bhrd", weight[:, :, :10].expand(HEADS, -1, -1), x)

    agree(plain, lambda weight, x: project(weight, x, hidden), weight, x)
    agree(plain, lambda weight, x: project(weight, x.transpose(1, 2).contiguous().transpose(1, 2), hidden), weight, x)


def test_a_shared_matrix_has_no_gradient_for_each_head():
    attention = build("linformer", heads=8, head_dim=4, max_length=512, rank=64)
    tensors = [torch.randn(2, 8, 512, 4, requires_grad=True) for _ in range(3)]
    with LargestTensor() as seen:
        attention(*tensors).sum().backward()
    assert seen.elements == 64 * 512  # the matrix itself, and what the kernel works with


@pytest.mark.parametrize("length", [5, 24])
@pytest.mark.parametrize("kind", KINDS)
def test_the_cost_is_exact(kind: str, length: int):
    attention = make(6, kind, sharing="none").float()
    tensors = [x.requires_grad_() for x in qkv(length, 1, torch.float32)]
    cost = attention.cost(length, length)
    assert count_flops(lambda: attention(*tensors)) == cost.flops
    assert count_kept(lambda: attention(*tensors), [*tensors, *attention.parameters()]) == cost.floats


OTHERS = ({"rank": 16, "projection": "mean"}, {"rank": 8, "sharing": "headwise"}, {"rank": None})
QUICK = {"oracle", "oracle_gradients", "weights", "padding_content", "padding_amount", "dead_rows", "cost", "save_load"}


@pytest.mark.parametrize("options", OTHERS, ids=str)
def test_the_contract_holds_for_options_that_are_not_audited(options: dict):
    (subject,) = resolve("linformer", options=options)
    for check in applicable(subject):
        if check.name in QUICK:
            finding = check(subject)
            assert finding.passed, finding


def test_dropout_in_training_only():
    attention, tensors = make(6, dropout=0.5), qkv(20)
    trained, evaluated = attention.train()(*tensors), attention.eval()(*tensors)
    torch.testing.assert_close(evaluated, attention.reference(*tensors))
    assert not torch.allclose(trained, evaluated)


# Refusals


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"max_length": None}, "linformer has one column per position: give max_length"),
        ({"max_length": 8, "rank": 9}, "option rank must be at most max_length 8, not 9"),
        ({"max_length": 8, "rank": 0}, "option rank must be at least 1, not 0"),
        ({"max_length": 8, "rank": 2.0}, "option rank must be int or none, not 2.0 (float)"),
        (
            {"max_length": 10, "rank": 4, "projection": "mean"},
            "option rank must divide max_length 10 for projection mean, not be 4; try max_length 12",
        ),
        (
            {"max_length": 8, "projection": "pool"},
            "option projection must be one of linear, convolution, mean, max, not 'pool'",
        ),
        (
            {"max_length": 8, "sharing": "all"},
            "option sharing must be one of none, headwise, kv, layerwise, not 'all'",
        ),
        ({"max_length": 8, "k": 4}, "linformer has no option 'k': known: projection, rank, sharing"),
    ],
    ids=str,
)
def test_invalid_options_are_refused(given: dict, message: str):
    with pytest.raises(InvalidOption) as raised:
        build("linformer", heads=HEADS, head_dim=WIDTH, **given)
    assert str(raised.value) == message


def test_the_rank_is_256_or_the_length():
    assert build("linformer", heads=1, head_dim=2, max_length=16).rank == 16
    assert build("linformer", heads=1, head_dim=2, max_length=300).rank == 256


@pytest.mark.parametrize("kind", KINDS)
def test_a_length_over_the_table_is_refused(kind: str):
    attention, (q, k, v) = make(6, kind), qkv(25)
    message = "linformer was built for max_length 24, and there are 25 keys"
    calls = (lambda: attention(q, k, v), lambda: attention.oracle(q, k), lambda: attention.reference(q, k, v))
    for call in calls:
        with pytest.raises(InvalidInput) as raised:
            call()
        assert str(raised.value) == message


def test_abilities_of_one_instance_do_not_change_others():
    make(projection="max")
    assert LinformerAttention.supports == replace(make().supports, map=True)
