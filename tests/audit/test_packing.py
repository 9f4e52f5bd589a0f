"""Packing: which ways to name the borders of texts in one row keep them apart."""

import math

import pytest
import torch
from torch import Tensor, nn
from transformers import BertConfig, BertModel, LlamaConfig, LlamaForCausalLM

from longspan.audit import Claims, audit

SIZES = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
WAYS = ("packing_positions", "packing_cached", "packing_masked", "packing_borders")


def verdicts(module: nn.Module) -> dict[str, str]:
    torch.manual_seed(0)
    certificate = audit(module, Claims(packing=True))
    return {finding.check: finding.verdict for finding in certificate.findings if finding.check in WAYS}


def test_llama_keeps_texts_apart_by_positions_alone_and_without_a_cache():
    model = LlamaForCausalLM(LlamaConfig(**SIZES, attn_implementation="sdpa"))
    assert verdicts(model) == dict(zip(WAYS, ("pass", "fail", "fail", "fail")))


def test_bert_reads_across_the_borders():
    found = verdicts(BertModel(BertConfig(**SIZES)))
    assert found["packing_positions"] == found["packing_masked"] == "fail"


class Apart(nn.Module):
    """Sums the embeddings of each text, whose borders are where positions start again."""

    def __init__(self, leak: float = 0.0) -> None:
        super().__init__()
        self.embedding, self.leak = nn.Embedding(20, 8), leak

    def forward(self, ids: Tensor, position_ids: Tensor | None = None) -> Tensor:
        x = self.embedding(ids)
        text = torch.zeros_like(ids) if position_ids is None else (position_ids == 0).cumsum(1)
        same = (text[:, :, None] == text[:, None]).to(x.dtype)
        return x + (same + self.leak * (1 - same)) @ x


@pytest.mark.parametrize(("leak", "verdict"), [(0.0, "pass"), (1e-3, "fail")])
def test_a_planted_leak_is_found(leak: float, verdict: str):
    found = verdicts(Apart(leak))
    assert found == {
        "packing_positions": verdict,
        "packing_cached": "not measured",
        "packing_masked": "not measured",
        "packing_borders": "not measured",
    }


def test_a_layer_has_no_packing():
    certificate = audit(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), Claims(packing=True))
    (finding,) = [finding for finding in certificate.findings if finding.check == "packing_positions"]
    assert finding.verdict == "not measured" and math.isnan(finding.measured)
    assert finding.detail.endswith("reads no token ids: packing is measured for models only")
