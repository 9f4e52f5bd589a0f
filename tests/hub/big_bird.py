"""What the tests of Big Bird share: small configurations, texts, and the comparison of bodies."""

from pathlib import Path
from typing import Any

import torch
from tests.hub.parity import assert_close, loaded, random_model
from torch import Tensor
from transformers import BigBirdConfig
from transformers.models.big_bird.modeling_big_bird import BigBirdModel

from longspan import hub
from longspan.nn.recorder import recording

PAD, SEPARATOR, HEADS, BLOCK, RANDOM = 0, 2, 4, 4, 2
SMALL: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "intermediate_size": 40,
    "max_position_embeddings": 80,
    "block_size": BLOCK,
    "num_random_blocks": RANDOM,
    "sep_token_id": SEPARATOR,
}
SHORT = (5 + 2 * RANDOM) * BLOCK  # up to here theirs is full attention
FULL = {**SMALL, "attention_type": "original_full"}
PORTED = {**SMALL, "random_plan": "hugging_face"}  # what theirs computes in evaluation
CAUSAL = {**SMALL, "is_decoder": True}


def texts(length: int, side: str = "right", missing: tuple[int, ...] = (0, 3, 17)) -> tuple[Tensor, Tensor]:
    """As many texts as there are numbers of places that are `missing` in them."""
    ids = torch.randint(3, 40, (len(missing), length), generator=torch.Generator().manual_seed(length))
    lengths = length - torch.tensor(missing)[:, None]
    places = torch.arange(length)
    mask = places < lengths if side == "right" else places >= length - lengths
    return ids.masked_fill(~mask, PAD), mask


def body(given: dict[str, Any], folder: Path, dtype: torch.dtype = torch.float64) -> tuple[Any, hub.Pretrained]:
    theirs = random_model(BigBirdModel, BigBirdConfig(**given), dtype)
    return theirs, loaded(theirs, folder)


def compare(theirs: Any, found: hub.Pretrained, ids: Tensor, mask: Tensor) -> tuple[list[Tensor], Any]:
    """States, and the two kinds of maps."""
    segments = torch.arange(ids.shape[1]).expand_as(ids) // 5 % 2
    with torch.no_grad():
        expected = theirs(
            ids,
            attention_mask=mask.to(theirs.dtype),
            token_type_ids=segments,
            output_hidden_states=True,
            output_attentions=True,
        )
        with recording(found.model.stack) as seen:
            found.model(ids, key_mask=mask, segments=segments)
    assert len(seen.states) == len(expected.hidden_states)
    for own, other in zip(seen.states, expected.hidden_states):
        assert_close(own, other[:, : ids.shape[1]], mask)
    return seen.maps, expected.attentions
