import pytest
import torch

from longspan.errors import InvalidInput, InvalidOption
from longspan.nn.embedding import FeatureEmbedding, TokenEmbedding
from longspan.nn.positions import LearnedPositions, SinusoidalPositions


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


IDS = torch.tensor([[1, 2, 3, 0], [4, 5, 0, 0]])


def test_scaled_rows_have_unit_variance():
    torch.manual_seed(0)
    embedding = TokenEmbedding(1000, 256)
    assert embedding.weight.std().item() == pytest.approx(256**-0.5, rel=0.01)
    assert embedding(torch.arange(1000)[None]).std().item() == pytest.approx(1.0, rel=0.01)


def test_scale_first_then_position():
    plain, placed = TokenEmbedding(10, 4), TokenEmbedding(10, 4, position=SinusoidalPositions(4))
    placed.load_state_dict(plain.state_dict())
    torch.testing.assert_close(plain(IDS), plain.weight[IDS] * 2)
    torch.testing.assert_close(placed(IDS), placed.position(plain.weight[IDS] * 2))
    torch.testing.assert_close(TokenEmbedding(10, 4, scale=False)(IDS).shape, torch.Size([2, 4, 4]))


def test_start_and_positions_reach_the_position_module():
    embedding = TokenEmbedding(10, 4, position=SinusoidalPositions(4))
    whole = embedding(IDS)
    torch.testing.assert_close(embedding(IDS[:, 2:], start=2), whole[:, 2:])
    order = torch.tensor([[3, 2, 1, 0], [0, 1, 2, 3]])
    torch.testing.assert_close(embedding(IDS.gather(1, order), positions=order)[1], whole[1])
    torch.testing.assert_close(embedding(IDS.gather(1, order), positions=order)[0], whole[0].flip(0))


def test_logits_share_the_storage_and_are_not_scaled():
    embedding = TokenEmbedding(10, 4)
    x = torch.randn(2, 3, 4)
    torch.testing.assert_close(embedding.logits(x), x @ embedding.weight.T)
    assert [name for name, _ in embedding.named_parameters()] == ["weight"]


def test_padding_row_is_zero_and_gets_no_gradient_unless_tied():
    embedding = TokenEmbedding(10, 4, padding=0)
    assert not embedding.weight[0].any()
    embedding(IDS).sum().backward()
    assert not embedding.weight.grad[0].any()
    assert embedding.weight.grad[1].any()
    embedding.logits(torch.ones(1, 4)).sum().backward()
    assert embedding.weight.grad[0].any()


def test_dropout_only_in_training():
    embedding = TokenEmbedding(10, 4, dropout=0.5)
    torch.manual_seed(0)
    assert (embedding(IDS) == 0).any()
    assert not (embedding.eval()(IDS) == 0).any()


@pytest.mark.parametrize("bad", [10, -1])
def test_id_outside_the_vocabulary_names_id_size_and_sample(bad: int):
    ids = IDS.clone()
    ids[1, 2] = bad
    with pytest.raises(InvalidInput, match=rf"0\.\.9 \(a vocabulary of 10\), got {bad} in sample 1 at position 2"):
        TokenEmbedding(10, 4)(ids)


def test_other_refusals():
    with pytest.raises(InvalidInput, match=r"\(batch, length\) of int64 or int32, got \(2, 4\) of torch.float32"):
        TokenEmbedding(10, 4)(IDS.float())
    with pytest.raises(InvalidInput, match=r"got \(4,\) of torch.int64"):
        TokenEmbedding(10, 4)(IDS[0])
    with pytest.raises(InvalidOption, match=r"0\.\.9, got 10"):
        TokenEmbedding(10, 4, padding=10)
    with pytest.raises(InvalidInput, match=r"\(batch, length, 3 features\), got \(2, 5, 4\)"):
        FeatureEmbedding(3, 8)(torch.randn(2, 5, 4))


def test_empty_input():
    assert TokenEmbedding(10, 4, position=LearnedPositions(8, 4))(IDS[:, :0]).shape == (2, 0, 4)


def test_features_are_a_linear_layer_then_the_position():
    embedding = FeatureEmbedding(3, 8, position=SinusoidalPositions(8))
    x = torch.randn(2, 5, 3)
    torch.testing.assert_close(embedding(x), embedding.position(embedding.linear(x)))
    torch.testing.assert_close(embedding(x[:, 2:], start=2), embedding(x)[:, 2:])


def test_compiles_without_the_bounds_check():
    embedding = TokenEmbedding(10, 4, position=SinusoidalPositions(4))
    compiled = torch.compile(embedding, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(IDS), embedding(IDS))


def test_exports_with_any_length():
    embedding = TokenEmbedding(10, 4, position=SinusoidalPositions(4))
    program = torch.export.export(embedding, (IDS,), dynamic_shapes={"ids": {1: torch.export.Dim("length", min=2)}})
    longer = torch.arange(14).reshape(2, 7) % 10
    torch.testing.assert_close(program.module()(longer), embedding(longer))


def test_segments_add_their_row_and_default_to_0() -> None:
    layer = TokenEmbedding(7, 4, scale=False, segments=2)
    ids, segments = torch.tensor([[1, 2, 3]]), torch.tensor([[0, 0, 1]])
    assert layer.segment is not None
    assert torch.equal(layer(ids, segments=segments), layer.weight[ids] + layer.segment[segments])
    assert torch.equal(layer(ids), layer(ids, segments=torch.zeros_like(ids)))
    with pytest.raises(InvalidInput, match=r"segments in 0\.\.1 .* got 2 in sample 0 at position 1"):
        layer(ids, segments=torch.tensor([[0, 2, 1]]))
    with pytest.raises(InvalidInput, match="a segment for each token"):
        layer(ids, segments=torch.tensor([[0, 1]]))
    with pytest.raises(InvalidInput, match="no segment embeddings"):
        TokenEmbedding(7, 4)(ids, segments=segments)


def test_narrow_tables_are_projected_after_norm_and_dropout() -> None:
    layer = TokenEmbedding(7, 4, scale=False, norm=torch.nn.LayerNorm(4), out_width=6)
    ids = torch.tensor([[1, 2, 3]])
    assert layer.project is not None and layer.norm is not None
    torch.testing.assert_close(layer(ids), layer.project(layer.norm(layer.weight[ids])))
    assert sum(parameter.numel() for parameter in layer.parameters()) == 7 * 4 + 8 + 4 * 6 + 6
