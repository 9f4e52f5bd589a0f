import copy
import math
import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from longspan.errors import InvalidInput, InvalidOption, UnknownName
from longspan.nn.biases import Alibi, ClippedBias, RelativeBias
from longspan.nn.positions import AxialPositions, LearnedPositions, SinusoidalPositions
from longspan.nn.rotary import Rotary


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def codes(module: torch.nn.Module, length: int, start: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return module(torch.zeros(1, length, module.width, dtype=dtype), start=start)[0]


def shift_matrix(width: int, by: int, layout: str) -> Tensor:
    """R of PE[t + by] = PE[t] Rᵀ, block by block from the angle-sum formula."""
    pairs = width // 2
    spacing = pairs - 1 if layout == "split" else pairs
    matrix = torch.zeros(width, width, dtype=torch.float64)
    for i in range(pairs):
        sine, cosine = (i, i + pairs) if layout == "split" else (2 * i, 2 * i + 1)
        angle = by * 10000.0 ** (-i / spacing)
        matrix[sine, sine] = matrix[cosine, cosine] = math.cos(angle)
        matrix[sine, cosine], matrix[cosine, sine] = math.sin(angle), -math.sin(angle)
    return matrix


class TestSinusoidal:
    def test_golden_values(self):
        table = codes(SinusoidalPositions(512), 511)
        assert table[1, 0].item() == pytest.approx(0.841471, abs=1e-6)
        assert table[1, 1].item() == pytest.approx(0.540302, abs=1e-6)
        assert codes(SinusoidalPositions(512, "shifted_exponent"), 2)[1, 1].item() == pytest.approx(0.555217, abs=1e-6)
        torch.testing.assert_close(table.square().sum(1), torch.full((511,), 256.0))
        for first in (0, 500):
            assert (table[first] @ table[first + 10]).item() == pytest.approx(173.7897, abs=1e-4)

    def test_literal_formula(self):
        width, table = 12, codes(SinusoidalPositions(12), 50, dtype=torch.float64)
        for t in (0, 1, 49):
            for i in range(width // 2):
                angle = t / 10000 ** (2 * i / width)
                assert table[t, 2 * i].item() == pytest.approx(math.sin(angle), abs=1e-12)
                assert table[t, 2 * i + 1].item() == pytest.approx(math.cos(angle), abs=1e-12)

    def test_split_is_tensor2tensor_s(self):
        pairs, t = 6, torch.arange(20.0, dtype=torch.float64)
        frequencies = torch.exp(torch.arange(6.0, dtype=torch.float64) * -(math.log(10000.0) / (pairs - 1)))
        angles = t[:, None] * frequencies
        wanted = torch.cat((angles.sin(), angles.cos()), 1)
        torch.testing.assert_close(codes(SinusoidalPositions(12, "split"), 20, dtype=torch.float64), wanted)

    @pytest.mark.parametrize("layout", ["interleaved", "split"])
    @pytest.mark.parametrize("by", [1, 7, 50])
    def test_shift_property(self, layout: str, by: int):
        table = codes(SinusoidalPositions(64, layout), 550).double()
        shifted = table[:500] @ shift_matrix(64, by, layout).T
        assert (table[by : 500 + by] - shifted).abs().max() < 1e-5

    @pytest.mark.parametrize("width", [8, 64, 512])
    @pytest.mark.parametrize("by", [1, 7, 50])
    def test_shifted_exponent_loses_the_shift_property(self, width: int, by: int):
        def error(layout: str) -> float:
            table = codes(SinusoidalPositions(width, layout), 500 + by, dtype=torch.float64)
            now, later = table[:500], table[by:]
            best = torch.linalg.lstsq(now, later, driver="gelsd").solution
            return (later - now @ best).abs().max().item()

        assert error("shifted_exponent") > 0.5
        assert error("interleaved") < 1e-5

    def test_product_depends_on_the_distance_only_and_has_no_direction(self):
        table = codes(SinusoidalPositions(64), 300, dtype=torch.float64)
        products = table @ table.T
        for by in (1, 10, 100):
            torch.testing.assert_close(products.diagonal(by), products[0, by].expand(300 - by))
        torch.testing.assert_close(products, products.T)

    def test_any_length_and_start(self):
        module = SinusoidalPositions(64)
        far = codes(module, 3, start=10000)
        assert far[0, 0].item() == pytest.approx(math.sin(10000), abs=1e-6)
        assert codes(module, 1, start=10_000_000)[0, 0].item() == pytest.approx(math.sin(10_000_000), abs=1e-6)
        assert sum(len(rows) for rows in module._waves.kept.values()) <= module._waves.KEPT
        torch.testing.assert_close(codes(module, 70, start=30), codes(module, 100)[30:])

    def test_positions_per_token(self):
        module = SinusoidalPositions(8)
        positions = torch.tensor([[0, 0, 1, 2], [0, 1, 2, 3]])
        out = module(torch.zeros(2, 4, 8), positions=positions)
        torch.testing.assert_close(out, codes(module, 4)[positions])

    def test_neither_trained_nor_saved_nor_copied(self):
        module = SinusoidalPositions(8)
        module(torch.zeros(1, 9, 8))
        assert not list(module.parameters())
        assert not module.state_dict()
        for copied in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
            assert not copied._waves.kept
            assert torch.equal(codes(copied, 5), codes(module, 5))

    @pytest.mark.parametrize("layout", ["interleaved", "split", "shifted_exponent"])
    @pytest.mark.parametrize("width", [1, 2, 3, 7])
    def test_odd_width_is_padded_with_one_zero_column(self, layout: str, width: int):
        table = codes(SinusoidalPositions(width, layout), 20)
        if width % 2:
            assert not table[:, -1].any()
        if width > 1:
            torch.testing.assert_close(
                table[:, : width // 2 * 2], codes(SinusoidalPositions(width // 2 * 2, layout), 20)
            )

    def test_half_precision_rounds_the_exact_value_once(self):
        for module in (SinusoidalPositions(8), SinusoidalPositions(8).half()):
            table = codes(module, 3000, dtype=torch.float16)
            assert torch.equal(table, codes(SinusoidalPositions(8), 3000, dtype=torch.float64).half())

    def test_unknown_layout(self):
        with pytest.raises(UnknownName, match=r"'interleave'.*did you mean 'interleaved'"):
            SinusoidalPositions(8, "interleave")


class TestLearned:
    def test_adds_its_rows(self):
        module = LearnedPositions(10, 4)
        x = torch.randn(2, 6, 4)
        torch.testing.assert_close(module(x, start=4), x + module.weight[4:])
        positions = torch.tensor([[0, 0, 0, 1, 2, 3], [9, 8, 7, 6, 5, 4]])
        torch.testing.assert_close(module(x, positions=positions), x + module.weight[positions])

    def test_raises_past_the_table(self):
        module = LearnedPositions(10, 4)
        with pytest.raises(InvalidInput, match=r"0\.\.9 \(a table of 10\), got position 10"):
            module(torch.zeros(1, 11, 4))
        with pytest.raises(InvalidInput, match=r"got position 12"):
            module(torch.zeros(1, 3, 4), start=10)
        with pytest.raises(InvalidInput, match=r"got position 10"):
            module(torch.zeros(1, 2, 4), positions=torch.tensor([[3, 10]]))
        with pytest.raises(InvalidInput, match=r"got position -1"):
            module(torch.zeros(1, 2, 4), positions=torch.tensor([[-1, 0]]))


class TestAxial:
    def test_two_axes(self):
        module = AxialPositions((3, 5), (2, 4))
        first, second = module.tables
        wanted = torch.stack([torch.cat((first[p // 5], second[p % 5])) for p in range(15)])
        torch.testing.assert_close(codes(module, 15), wanted)
        torch.testing.assert_close(codes(module, 4, start=7), wanted[7:11])
        positions = torch.tensor([[14, 0, 6]])
        torch.testing.assert_close(module(torch.zeros(1, 3, 6), positions=positions), wanted[positions])

    def test_three_axes(self):
        module = AxialPositions(shape=(2, 3, 4), widths=(1, 2, 3))
        a, b, c = module.tables
        wanted = torch.stack([torch.cat((a[p // 12], b[p // 4 % 3], c[p % 4])) for p in range(24)])
        torch.testing.assert_close(codes(module, 24), wanted)
        assert sum(p.numel() for p in module.parameters()) == 2 * 1 + 3 * 2 + 4 * 3

    def test_refusals(self):
        with pytest.raises(InvalidOption, match=r"shape \(3, 5\) and widths \(2,\)"):
            AxialPositions((3, 5), (2,))
        with pytest.raises(InvalidInput, match=r"a table of 15\), got position 15"):
            codes(AxialPositions((3, 5), (2, 4)), 16)


@pytest.mark.parametrize(
    "module",
    [SinusoidalPositions(4), LearnedPositions(9, 4), AxialPositions((3, 3), (2, 2))],
    ids=lambda m: type(m).__name__,
)
class TestAbsolute:
    def test_refusals(self, module: torch.nn.Module):
        x = torch.zeros(2, 3, 4)
        with pytest.raises(InvalidInput, match=r"\(batch, length, 4\), got \(2, 3, 5\)"):
            module(torch.zeros(2, 3, 5))
        with pytest.raises(InvalidInput, match=r"start >= 0, got -1"):
            module(x, start=-1)
        with pytest.raises(InvalidInput, match=r"shape \(2, 3\), one per token, got \(3,\) of torch.int64"):
            module(x, positions=torch.arange(3))
        with pytest.raises(InvalidInput, match=r"got \(2, 3\) of torch.float32"):
            module(x, positions=torch.zeros(2, 3))
        with pytest.raises(InvalidInput, match=r"start or positions, got both \(start=1\)"):
            module(x, start=1, positions=torch.zeros(2, 3, dtype=torch.long))

    def test_left_padding_leaves_real_tokens_alone(self, module: torch.nn.Module):
        x = torch.randn(1, 4, 4)
        padded = torch.cat((torch.zeros(1, 3, 4), x), 1)
        mask = torch.tensor([[False] * 3 + [True] * 4])
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        torch.testing.assert_close(module(padded, positions=positions)[:, 3:], module(x))

    def test_keeps_the_type_and_the_gradient(self, module: torch.nn.Module):
        assert module(torch.zeros(1, 2, 4, dtype=torch.bfloat16)).dtype == torch.bfloat16
        x = torch.zeros(1, 2, 4, requires_grad=True)
        module(x).sum().backward()
        assert torch.equal(x.grad, torch.ones_like(x))

    def test_compiled(self, module: torch.nn.Module):
        x = torch.randn(2, 5, 4)
        torch.testing.assert_close(torch.compile(module, backend="eager", fullgraph=True)(x), module(x))


class TestRotaryOnAGrid:
    @pytest.mark.parametrize("layout", ["half", "interleaved"])
    def test_each_axis_turns_its_pairs_by_its_coordinate(self, layout: str):
        """Against the paper's: pair t of an axis turns by coordinate · base^(-t / pairs of the axis)."""
        module, x = Rotary(8, base=100.0, layout=layout, axes=(3, 5)), torch.randn(1, 2, 15, 8, dtype=torch.float64)
        out = module(x)
        for p in range(15):
            angles = [p // 5 * turn for turn in (1.0, 0.1)] + [p % 5 * turn for turn in (1.0, 0.1)]
            for pair, angle in enumerate(angles):
                one, other = (pair, pair + 4) if layout == "half" else (2 * pair, 2 * pair + 1)
                a, b = x[0, :, p, one], x[0, :, p, other]
                torch.testing.assert_close(out[0, :, p, one], a * math.cos(angle) - b * math.sin(angle))
                torch.testing.assert_close(out[0, :, p, other], a * math.sin(angle) + b * math.cos(angle))

    def test_scores_depend_on_the_offset_in_rows_and_columns_alone(self):
        module = Rotary(8, axes=(6, 6))
        q, k = (torch.randn(8, dtype=torch.float64).expand(1, 1, 36, 8) for _ in range(2))
        scores = (module(q) @ module(k).mT)[0, 0].view(6, 6, 6, 6)
        torch.testing.assert_close(scores[0, 0, 1, 2], scores[4, 3, 5, 5])
        torch.testing.assert_close(scores[3, 4, 1, 0], scores[5, 5, 3, 1])

    def test_one_axis_equals_a_text_and_the_first_axis_is_unbounded(self):
        x = torch.randn(2, 1, 9, 4)
        assert torch.equal(Rotary(4, axes=(9,))(x), Rotary(4)(x))
        assert torch.equal(Rotary(4, axes=(2, 3))(x), Rotary(4, axes=(50, 3))(x))  # rows beyond the second
        torch.testing.assert_close(Rotary(4, axes=(3, 3))(x[:, :, 4:], start=4), Rotary(4, axes=(3, 3))(x)[:, :, 4:])

    @pytest.mark.parametrize("axes", [(), (0, 3), (2, 2, 2)])
    def test_refusals(self, axes: tuple[int, ...]):
        with pytest.raises(InvalidOption, match="divide the 8 rotated features into pairs"):
            Rotary(8, axes=axes)


class TestRotary:
    @pytest.mark.parametrize("layout", ["half", "interleaved"])
    @pytest.mark.parametrize("rotated", [None, 4])
    def test_literal_rotation(self, layout: str, rotated: int | None):
        module = Rotary(8, layout=layout, rotated=rotated)
        x = torch.randn(1, 1, 6, 8, dtype=torch.float64)
        out, wanted, turned = module(x), x.clone(), rotated or 8
        for t in range(6):
            for i in range(turned // 2):
                a, b = (i, i + turned // 2) if layout == "half" else (2 * i, 2 * i + 1)
                z = complex(x[0, 0, t, a], x[0, 0, t, b]) * complex(
                    math.cos(t * 10000 ** (-2 * i / turned)), math.sin(t * 10000 ** (-2 * i / turned))
                )
                wanted[0, 0, t, a], wanted[0, 0, t, b] = z.real, z.imag
        torch.testing.assert_close(out, wanted)

    @pytest.mark.parametrize("layout", ["half", "interleaved"])
    @given(st.integers(0, 500), st.integers(0, 500), st.integers(0, 500))
    def test_score_depends_on_the_offset_only(self, layout: str, query: int, key: int, by: int):
        module = Rotary(8, layout=layout)
        q, k = torch.randn(2, 1, 1, 1, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

        def score(first: int, second: int) -> Tensor:
            return (module(q, start=first) * module(k, start=second)).sum()

        torch.testing.assert_close(score(query, key), score(query + by, key + by))

    def test_keeps_lengths_and_position_0(self):
        x = torch.randn(2, 3, 20, 8)
        out = Rotary(8)(x)
        torch.testing.assert_close(out.norm(dim=-1), x.norm(dim=-1))
        assert torch.equal(out[:, :, 0], x[:, :, 0])

    def test_positions_and_start(self):
        module, x = Rotary(8), torch.randn(2, 3, 5, 8)
        torch.testing.assert_close(module(x, start=3), module(torch.cat((x[:, :, :3], x), 2))[:, :, 3:])
        positions = torch.stack((torch.arange(5), torch.arange(4, 9)))
        out = module(x, positions=positions)
        torch.testing.assert_close(out, torch.cat((module(x[:1]), module(x[1:], start=4))))

    def test_half_precision_turns_in_float32(self):
        x = torch.randn(1, 1, 1, 8).bfloat16()
        out = Rotary(8)(x, start=5000)
        assert torch.equal(out, Rotary(8)(x.float(), start=5000).bfloat16())

    def test_table_made_in_inference_mode_serves_training(self):
        module = Rotary(8)
        with torch.inference_mode():
            module(torch.randn(1, 1, 5, 8))
        x = torch.randn(1, 1, 5, 8, requires_grad=True)
        module(x).sum().backward()
        assert x.grad is not None

    def test_refusals(self):
        with pytest.raises(InvalidOption, match=r"at most head_dim=8, got 10"):
            Rotary(8, rotated=10)
        with pytest.raises(InvalidOption, match=r"even.*got 7"):
            Rotary(7)
        with pytest.raises(UnknownName, match=r"'halves'.*did you mean 'half'"):
            Rotary(8, layout="halves")
        with pytest.raises(InvalidInput, match=r"\(batch, heads, length, 8\), got \(1, 2, 3, 4\)"):
            Rotary(8)(torch.zeros(1, 2, 3, 4))


class TestDistanceBiases:
    @pytest.mark.parametrize("reach", [1, 2, 9, 300])
    @pytest.mark.parametrize("module", [Alibi(3), RelativeBias(3), ClippedBias(3, 4)], ids=lambda m: type(m).__name__)
    def test_shape_and_middle(self, module: torch.nn.Module, reach: int):
        table, wide = module.table(reach), module.table(reach + 5)
        assert table.shape == (3, 2 * reach - 1)
        assert torch.equal(table, wide[:, 5:-5])  # the same number for the same offset, whatever the reach
        with pytest.raises(InvalidInput, match="at least 1, got 0"):
            module.table(0)

    def test_alibi_slopes(self):
        assert Alibi(8).slopes.tolist() == [2.0**-k for k in range(1, 9)]
        assert Alibi(16).slopes.tolist() == pytest.approx([2 ** (-k / 2) for k in range(1, 17)])
        # Between powers of two: those of 8 heads, then every other one of 16 heads, as in the authors' code.
        assert Alibi(12).slopes.tolist() == pytest.approx(
            [2.0**-k for k in range(1, 9)] + [2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5]
        )
        assert Alibi(3).slopes.tolist() == pytest.approx([2**-4, 2**-8, 2**-2])
        assert Alibi(1).slopes.tolist() == [2**-8]

    def test_alibi_is_minus_slope_times_distance(self):
        module = Alibi(2)
        torch.testing.assert_close(module.table(3), -module.slopes[:, None] * torch.tensor([2.0, 1, 0, 1, 2]))
        assert not module.state_dict() and not list(module.parameters())
        assert module.bfloat16().table(5000).unique(dim=1).shape[1] == 5000  # distances stay apart

    @pytest.mark.parametrize("bidirectional", [True, False])
    @pytest.mark.parametrize("buckets, max_distance", [(32, 128), (8, 20), (64, 256)])
    def test_t5_buckets(self, bidirectional: bool, buckets: int, max_distance: int):
        def literal(offset: int) -> int:
            count, first, distance = buckets, 0, max(-offset, 0)
            if bidirectional:
                count, distance = buckets // 2, abs(offset)
                first = count if offset > 0 else 0
            single = count // 2
            if distance < single:
                return first + distance
            share = torch.tensor(distance / single).log().item() / math.log(max_distance / single)
            return first + min(single + int(torch.tensor(share * (count - single))), count - 1)

        module = RelativeBias(2, buckets, max_distance, bidirectional)
        offsets = torch.arange(-300, 301)
        assert module.bucket(offsets).tolist() == [literal(offset) for offset in offsets.tolist()]
        torch.testing.assert_close(module.table(301), module.weight[module.bucket(offsets)].T)

    def test_t5_default_buckets_at_the_edges(self):
        bucket = RelativeBias(1).bucket(torch.tensor([0, -1, -7, -8, -15, -16, -127, -128, -999, 1, 8, 999]))
        assert bucket.tolist() == [0, 1, 7, 8, 9, 10, 15, 15, 15, 17, 24, 31]

    def test_clipped(self):
        module = ClippedBias(2, 3)
        assert torch.equal(module.table(3), module.weight)
        wanted = module.weight[:, [0, 0, 0, 1, 2, 3, 4, 4, 4]]
        assert torch.equal(module.table(5), wanted)

    @pytest.mark.parametrize("module", [RelativeBias(2), ClippedBias(2, 3)], ids=lambda m: type(m).__name__)
    def test_learned_ones_get_gradients(self, module: torch.nn.Module):
        module.table(200).sum().backward()
        assert module.weight.grad.any()

    def test_refusals(self):
        with pytest.raises(InvalidOption, match="heads must be at least 1, got 0"):
            Alibi(0)
        with pytest.raises(InvalidOption, match="even and at least 4, got 2"):
            RelativeBias(2, buckets=2)
        with pytest.raises(
            InvalidOption, match="max_distance must be above 8, up to which 32 buckets have one distance each, got 8"
        ):
            RelativeBias(2, max_distance=8)
        with pytest.raises(InvalidOption, match="reach must be at least 1, got 0"):
            ClippedBias(2, 0)


def test_rows_before_position_0_belong_to_negative_positions() -> None:
    table = LearnedPositions(5, 4, offset=2)
    x = torch.zeros(1, 3, 4)
    assert table.weight.shape == (7, 4)
    assert torch.equal(table(x)[0], table.weight[2:5])
    assert torch.equal(table(x, positions=torch.tensor([[-1, 0, 4]]))[0], table.weight[[1, 2, 6]])
    for wrong in (-3, 5):
        with pytest.raises(InvalidInput, match=rf"positions in -2\.\.4 .* got position {wrong}"):
            table(x, positions=torch.tensor([[0, 0, wrong]]))
