"""Collapse, spectra, path lengths, lags and drift: the papers' numbers, and equalities."""

from typing import Any

import pytest
import torch
from tests.inspect.measures.small import subject

from longspan.attention.config import AttentionConfig
from longspan.errors import Unsupported
from longspan.inspect.measures.collapse import (
    VARIANTS,
    capture,
    effective_rank,
    mean_cosine,
    measure_collapse,
    random_attention,
    residual_ratio,
    states,
)
from longspan.inspect.measures.drift import drift, lengths, measure_drift, swapped
from longspan.inspect.measures.lag import gradient_by_lag, measure_lag
from longspan.inspect.measures.paths import measure_paths, mechanism_reach, recurrent_reach
from longspan.inspect.measures.spectrum import baselines, cumulative, measure_spectrum, summary


def test_ratios_that_are_known_by_hand():
    assert residual_ratio(torch.ones(4, 3)) == 0 and residual_ratio(torch.eye(2)) == 1
    assert mean_cosine(torch.ones(4, 3)) == pytest.approx(1) and mean_cosine(torch.eye(3)) == pytest.approx(0)
    assert effective_rank(torch.eye(5)) == pytest.approx(5)


def test_attention_alone_collapses_doubly_exponentially():
    ratios = random_attention(4)
    logs = torch.tensor(ratios).double().log10()
    drops = logs[:-1] - logs[1:]
    assert ratios[0] > 0.9 and 0.3 < ratios[1] < 0.9 and ratios[2] < 0.1 and ratios[3] < 1e-5 and ratios[4] < 1e-12
    assert drops[1] > 2 * drops[0] and drops[2] > 2 * drops[1]
    assert random_attention(12, skips=True)[-1] > 0.1
    assert random_attention(6, feedforward=True)[-1] < 1e-12  # a feed-forward layer without skip does not save it
    assert random_attention(6, skips=True, feedforward=True)[-1] > 0.2


@pytest.mark.parametrize("norm_position", ["pre", "post"])
def test_the_full_variant_is_the_model(norm_position: str):
    asked = subject("encoder", norm_position=norm_position)
    group = asked.groups[0]
    given = capture(asked, group, asked.long)
    found: list[list[torch.Tensor]] = [states(group.body, given, skips, ff) for _, skips, ff in VARIANTS]  # type: ignore[arg-type]
    torch.testing.assert_close(found[0][-1], asked.run(asked.long))
    assert len({float(each[-1][0, 0, 0]) for each in found}) == 4
    assert len(measure_collapse(asked).values["ratio"]["full"]) == 3


def test_baselines_have_their_closed_forms():
    n = 512
    found = {name: summary(values, n // 4) for name, values in baselines(n, 64, causal=False).items()}
    assert found["normal"]["sum"] == pytest.approx(8 / (3 * torch.pi) * n**1.5, rel=0.01)
    assert found["normal"]["c"] == pytest.approx(0.462, abs=0.01)
    assert found["Gram of 128 columns"]["c"] == pytest.approx(1, abs=1e-9)
    assert found["Gram of 128 columns"]["sum"] == pytest.approx(n * 128, rel=0.02)
    assert found["softmax of random q, k"]["c"] == pytest.approx(0.63, abs=0.02)
    assert found["the same, causal"]["c"] == pytest.approx(0.738, abs=0.02)
    assert found["uniform window of 32"]["c"] == pytest.approx(0.783, abs=1e-3)
    assert found["permutation"] == {
        "sum": pytest.approx(n), "c": pytest.approx(0.25), "energy": pytest.approx(0.25),
        "k90": 461, "k95": 487, "effective_rank": pytest.approx(n),
    }  # fmt: skip


def test_the_spectrum_does_not_depend_on_the_order_of_tokens():
    asked = subject("encoder")
    maps = asked.maps(asked.long)["encoder"].double()
    order = torch.randperm(maps.shape[-1], generator=torch.Generator().manual_seed(0))
    one, other = (torch.linalg.svdvals(each) for each in (maps, maps[..., order, :][..., order]))
    torch.testing.assert_close(cumulative(one), cumulative(other))
    found = measure_spectrum(asked).values
    assert found["k"] == 24 and len(found["layers"]) == 2 and "untrained, mean of heads" in found["baselines"]


@pytest.mark.parametrize(("window", "layers"), [(5, 1), (5, 3), (9, 4), (3, 7)])
def test_a_window_of_w_over_l_layers_reaches_l_times_w(window: int, layers: int):
    assert mechanism_reach("window", layers, window=window) == window * layers


def test_reach_of_others():
    assert mechanism_reach("softmax", 1) == mechanism_reach("linear", 1) == recurrent_reach(1) == 63
    assert mechanism_reach("sparse", 1, stride=5) < 63 == mechanism_reach("sparse", 2, stride=5)


def test_paths_of_a_model_with_windows():
    found = measure_paths(subject("decoder", attention={"name": "window", "window": 4}, layers=3))
    assert found.values["model"]["reach"] == [4, 8, 12]
    assert "reaches the last one in none of 3 layers" in found.sentence
    rows = {row["mechanism"]: row for row in found.values["mechanisms"]}
    assert rows["window"]["reach"] == [5, 10, 15] and rows["window"]["layers"] == 13
    assert rows["lstm"]["steps"] == 64 and not any("skipped" in row for row in rows.values())


def test_gradient_by_lag_of_a_window_ends_with_it():
    asked = subject("decoder", attention={"name": "window", "window": 3}, layers=2, position="none")
    curve = gradient_by_lag(asked, asked.passages)
    assert curve[0] == 1 and bool((curve[1:7] > 0).all()) and bool((curve[7:] == 0).all())
    found = measure_lag(asked, subject("recurrent")).values
    assert list(found) == ["this_model", "beside_(recurrent)", "untrained_same_shape", "untrained_LSTM"]
    with pytest.raises(Unsupported, match="lags are counted in one text"):
        measure_lag(subject("transformer"))


def test_drift_of_the_same_mechanism_is_nothing():
    asked = subject("decoder", length=32)
    same = drift(asked, swapped(asked, AttentionConfig("softmax")), asked.long)
    assert max(same["teacher_forced"]) == 0 and max(same["free_running"]) == 0 and min(same["nonsense"]) > 0.1
    wide: dict[str, Any] = drift(asked, swapped(asked, AttentionConfig("window", window=512)), asked.long)
    assert max(wide["teacher_forced"]) < 1e-5
    assert lengths(100) == [32, 64, 100] and lengths(32) == [32]
    found = measure_drift(asked, [AttentionConfig("linear"), AttentionConfig("synthesizer")])
    assert found.values["linear"]["128"]["free_running"][-1] > 0.01
    assert "give max_length" in found.values["synthesizer"]["skipped"]
    with pytest.raises(Unsupported, match="has no single attention that another could replace"):
        measure_drift(subject("transformer"), [AttentionConfig("linear")])
