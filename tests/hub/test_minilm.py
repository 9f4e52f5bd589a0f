"""all-MiniLM-L6-v2, a real BERT: the states of its reference, and the similarities that it was trained for."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor
from transformers import BertModel

from longspan import hub
from longspan.nn.heads import pool

pytestmark = pytest.mark.weights

SENTENCES = [
    "How do I reset my password?",
    "What should I do when I forgot my login details?",
    "The new movie is awesome",
    "The new movie is so great",
    "The stock market fell sharply on Monday.",
]


@pytest.fixture(scope="module")
def batch(minilm: Path) -> tuple[Tensor, Tensor]:
    """Ids and mask of sentences of unequal lengths."""
    tokenizer = Tokenizer.from_file(str(minilm / "tokenizer.json"))
    tokenizer.enable_padding()
    read = tokenizer.encode_batch(SENTENCES)
    mask = torch.tensor([each.attention_mask for each in read], dtype=torch.bool)
    assert not mask.all()
    return torch.tensor([each.ids for each in read]), mask


def vectors(states: Tensor, mask: Tensor) -> Tensor:
    return torch.nn.functional.normalize(pool(states, mask, "mean"), dim=-1)


def test_states_and_similarities(minilm: Path, batch: tuple[Tensor, Tensor], tmp_path: Path) -> None:
    ids, mask = batch
    found = hub.load(minilm)
    assert found.unused == found.fresh == []
    assert sum(parameter.numel() for parameter in found.model.parameters()) == 22_713_216
    theirs = BertModel.from_pretrained(minilm, attn_implementation="eager").eval()
    with torch.no_grad():
        own, expected = found.model(ids, key_mask=mask), theirs(ids, attention_mask=mask).last_hidden_state
        pooled = found.model.outputs(ids, key_mask=mask)["pool"]
        torch.testing.assert_close(pooled, theirs(ids, attention_mask=mask).pooler_output, rtol=0, atol=1e-4)
    torch.testing.assert_close(own[mask], expected[mask], rtol=0, atol=1e-4)
    cosine, reference = (v @ v.T for v in (vectors(own, mask), vectors(expected, mask)))
    torch.testing.assert_close(cosine, reference, rtol=0, atol=1e-5)
    assert cosine[0, 1].item() == pytest.approx(0.614, abs=0.002)  # no word in common but "my", "do" and "I"
    assert cosine[2, 3].item() == pytest.approx(0.894, abs=0.002)
    assert cosine[2, 4].item() == pytest.approx(-0.084, abs=0.002)
    hub.save(found, tmp_path)
    first, second = load_file(minilm / "model.safetensors"), load_file(tmp_path / "model.safetensors")
    assert {*first} - {*second} == {"embeddings.position_ids"} and not {*second} - {*first}
    assert all(torch.equal(first[name], tensor) for name, tensor in second.items())


def test_padding_does_not_reach_a_sentence(minilm: Path, batch: tuple[Tensor, Tensor]) -> None:
    ids, mask = batch
    model = hub.load(minilm).model
    with torch.no_grad():
        together = vectors(model(ids, key_mask=mask), mask)
        alone = [vectors(model(row[real][None]), real[real][None]) for row, real in zip(ids, mask)]
    torch.testing.assert_close(together, torch.cat(alone), rtol=0, atol=1e-5)
