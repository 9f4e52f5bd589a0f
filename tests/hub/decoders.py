"""What the tests of decoders share: theirs in float64 throughout, and one comparison of everything a model gives."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.hub.parity import assert_close, assert_round_trip, loaded, padded
from torch import Tensor
from transformers import modeling_rope_utils

from longspan.errors import Unsupported
from longspan.hub import Pretrained
from longspan.nn.recorder import recording

SMALL: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 36,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 20,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


@contextmanager
def in_double(*modules: Any) -> Iterator[None]:
    """Theirs goes through float32 in norms, softmax and rotations; what it computes is seen in float64 alone."""
    double = {"float32": torch.float64, "float": torch.float64}
    shown = SimpleNamespace(**{name: getattr(torch, name) for name in dir(torch)} | double)
    changed = [*modules, modeling_rope_utils]
    before, cast = [module.torch for module in changed], Tensor.float
    for module in changed:
        module.torch = shown
    Tensor.float = Tensor.double
    try:
        yield
    finally:
        Tensor.float = cast
        for module, original in zip(changed, before):
            module.torch = original


def assert_same(theirs: Any, folder: Path, back: Path, *, length: int = 12) -> Pretrained:
    """Logits, states and maps with padding on both sides, step by step as in parallel, and the folder back."""
    found = loaded(theirs, folder)
    for side in ("right", "left"):
        ids, mask = padded(40, side=side, length=length)
        with torch.no_grad():
            expected = theirs(ids, attention_mask=mask, output_hidden_states=True, output_attentions=True)
            with recording(found.model.stack) as seen:
                logits = found.model(ids, key_mask=mask)
        assert_close(logits, expected.logits, mask)
        assert len(seen.states) == len(expected.hidden_states)
        for own, other in zip(seen.states, expected.hidden_states):
            assert_close(own, other, mask)
        assert len(seen.maps) == len(expected.attentions)
        for own, other in zip(seen.maps, expected.attentions):
            assert_close(own.transpose(1, 2), other.transpose(1, 2).to(own.dtype), mask)
    assert_steps(found, length)
    assert_round_trip(found, folder, type(theirs), back)
    return found


def assert_steps(found: Pretrained, length: int = 12) -> None:
    """One token at a time, and in pieces, gives the logits of the parallel pass."""
    ids, switch = padded(40, length=length)[0], found.model.switch_length
    with torch.no_grad():
        if switch is not None and switch < length:
            _, state = found.model.extend(ids[:, :switch], found.model.start(len(ids)))
            with pytest.raises(Unsupported, match=f"texts above {switch} tokens are rotated otherwise"):
                found.model.extend(ids[:, switch:], state)
            return
        whole = found.model(ids)
        for sizes in ([1] * length, [length // 2, 1, length - length // 2 - 1]):
            state, parts = found.model.start(len(ids)), []
            for piece in ids.split(sizes, 1):
                logits, state = found.model.extend(piece, state)
                parts.append(logits)
            assert_close(torch.cat(parts, 1), whole)


__all__ = ["SMALL", "assert_same", "assert_steps", "in_double"]
