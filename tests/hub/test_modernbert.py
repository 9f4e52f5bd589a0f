"""ModernBERT here and there: windows beside full layers, two bases, every head, biases and norms of both kinds."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.hub.encoders import HEADS, assert_same_head, assert_same_states, labels
from tests.hub.parity import assert_close, assert_round_trip, in_double, loaded, padded, random_model
from torch import Tensor
from transformers import ModernBertConfig, modeling_rope_utils
from transformers.models.modernbert import modeling_modernbert

from longspan import hub
from longspan.errors import InvalidInput, Unsupported
from longspan.models import build

SMALL: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 24,
    "num_hidden_layers": 4,
    "num_attention_heads": 3,
    "intermediate_size": 20,
    "max_position_embeddings": 32,
    "local_attention": 4,  # two neighbours on each side: texts of 12 tokens are longer
    "pad_token_id": 0,
    "bos_token_id": 1,
    "cls_token_id": 1,
    "eos_token_id": 2,
    "sep_token_id": 2,
}


@pytest.fixture(autouse=True)
def precise(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "float32" in request.node.name:
        return
    in_double(monkeypatch, modeling_modernbert, modeling_rope_utils)

    def rotate(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1) -> tuple[Tensor, Tensor]:
        """Theirs calls `float()`, which no replaced name undoes."""
        cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
        half = modeling_modernbert.rotate_half
        return q * cos + half(q) * sin, k * cos + half(k) * sin

    def waves(self: Any, x: Tensor, position_ids: Tensor, layer_type: str) -> tuple[Tensor, Tensor]:
        rates = self.compute_default_rope_parameters(self.config, layer_type=layer_type)[0]
        angles = (position_ids[..., None].double() * rates).repeat(1, 1, 2)
        return angles.cos(), angles.sin()

    monkeypatch.setattr(modeling_modernbert, "apply_rotary_pos_emb", rotate)
    monkeypatch.setattr(modeling_modernbert.ModernBertRotaryEmbedding, "forward", waves)


def modernbert(end: str = "Model", dtype: torch.dtype = torch.float64, **given: Any) -> Any:
    config = ModernBertConfig(**{**SMALL, **given})
    return random_model(getattr(modeling_modernbert, f"ModernBert{end}"), config, dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize(
    "given",
    [
        {},
        {"attention_bias": True, "mlp_bias": True, "norm_bias": True, "hidden_activation": "silu"},
        {"layer_types": ["sliding_attention", "full_attention"], "num_hidden_layers": 2, "local_attention": 6},
    ],
    ids=["plain", "biases", "other-order"],
)
def test_states_and_maps_equal_theirs(folder: Path, tmp_path: Path, given: dict[str, Any], dtype: torch.dtype) -> None:
    found = assert_same_states(modernbert(dtype=dtype, **given), folder, tmp_path / "back")
    blocks = found.model.stack.blocks
    assert isinstance(blocks[0].around_mixer.norm, torch.nn.Identity)
    if not given:
        assert [block.mixer.mechanism.name for block in blocks] == ["softmax", "window", "window", "softmax"]
        assert [block.mixer.position.base for block in blocks] == [160000.0, 10000.0, 10000.0, 160000.0]


@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.parametrize("task", HEADS)
def test_heads_equal_theirs_and_go_back_bit_for_bit(folder: Path, tmp_path: Path, task: str, pooling: str) -> None:
    theirs = modernbert(HEADS[task], classifier_pooling=pooling, **labels(task))
    found = loaded(theirs, folder)
    assert_same_head(theirs, found, task)
    assert_round_trip(found, folder, type(theirs), tmp_path / "back")


@pytest.mark.parametrize(
    "given",
    [{"tie_word_embeddings": False}, {"decoder_bias": False, "classifier_bias": True, "classifier_activation": "relu"}],
    ids=["untied", "other-biases"],
)
def test_odd_heads_for_masked_tokens(folder: Path, tmp_path: Path, given: dict[str, Any]) -> None:
    theirs = modernbert("ForMaskedLM", **given)
    found = loaded(theirs, folder)
    assert_same_head(theirs, found, "masked")
    assert_round_trip(found, folder, type(theirs), tmp_path / "back")


def test_a_new_head_keeps_the_hidden_layer_of_the_file(folder: Path) -> None:
    theirs = modernbert("ForMaskedLM")
    found = loaded(theirs, folder, tasks=["classify"])
    assert found.fresh == ["heads.classify.out.weight", "heads.classify.out.bias"]
    assert torch.equal(found.model.heads["classify"].dense.weight, theirs.head.dense.weight)
    assert found.unused == ["decoder.bias"]


def test_old_keys_are_read(folder: Path) -> None:
    theirs = modernbert(rope_parameters=None, global_rope_theta=500.0, local_rope_theta=70.0)
    theirs.save_pretrained(folder)
    path = folder / "config.json"
    record = json.loads(path.read_text())
    assert record["rope_parameters"]["full_attention"]["rope_theta"] == 500.0
    del record["rope_parameters"], record["layer_types"]
    old = {"global_attn_every_n_layers": 3, "global_rope_theta": 500.0, "local_rope_theta": 70.0}
    path.write_text(json.dumps({**record, **old}))
    found = hub.load(folder)
    ids, mask = padded(40, length=12)
    with torch.no_grad():
        assert_close(found.model(ids, key_mask=mask), theirs(ids, attention_mask=mask).last_hidden_state, mask)
    path.write_text(json.dumps({**record, **old, "local_rope_theta": None}))
    assert [each.base for each in hub.load(folder).model.options.rotary_layers] == [500.0] * 4


@pytest.mark.parametrize(
    "given,error,said",
    [
        ({"layer_types": ["chunked_attention"] * 4}, Unsupported, "layer_types has 'chunked_attention'"),
        ({"layer_types": ["full_attention"]}, InvalidInput, "layer_types has 1 entries for 4 layers"),
        ({"hidden_activation": "mish"}, Unsupported, "hidden_activation is 'mish'"),
        (
            {"rope_parameters": {"full_attention": {"rope_type": "yarn", "factor": 2.0, "rope_theta": 1e4}}},
            Unsupported,
            "rope_type of full_attention is 'yarn'",
        ),
        ({"architectures": ["ModernBertForSequenceClassification"], "classifier_pooling": "max"}, Unsupported, "'max'"),
    ],
)
def test_unsupported_settings_are_refused_by_name(
    folder: Path, given: dict[str, Any], error: type[Exception], said: str
) -> None:
    modernbert().save_pretrained(folder)
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **given}))
    with pytest.raises(error, match=said):
        hub.load(folder)


def test_other_encoders_are_not_written_as_modernbert(tmp_path: Path) -> None:
    sizes = {"width": 24, "heads": 3, "layers": 1, "hidden": 20, "activation": "geglu", "norm_position": "pre"}
    own = build("encoder", **sizes, attention="linear", position="rotary")
    with pytest.raises(Unsupported, match="modernbert has layers with full attention and layers with one window"):
        hub.save(own, tmp_path / "no", family="modernbert")
    assert not (tmp_path / "no").exists()
