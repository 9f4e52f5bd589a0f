"""Losses and what they lose: ablation against editing weights, gates against finite differences."""

import math

import pytest
import torch
from tests.inspect.measures.small import PIECES, TEXT, subject

from longspan.errors import InvalidInput, InvalidOption, UnknownName, Unsupported
from longspan.hub import Pretrained
from longspan.hub.sentence_pooling import SentencePooling
from longspan.inspect.head_masks import gated
from longspan.inspect.measures.importance import (
    ablation,
    gate_gradients,
    measure_importance,
    one_head_alone,
    random_slices,
)
from longspan.inspect.measures.losses import row_losses
from longspan.inspect.measures.run import MEASURES, Request, measure
from longspan.inspect.measures.subject import Subject


def test_ablation_is_the_loss_without_the_weights():
    asked = subject("decoder")
    asked.model.double()
    group, losses = asked.groups[0], row_losses(asked)
    rises = ablation(asked, group, losses)
    before = losses.mean()
    out = group.layers[1].out
    with torch.no_grad():
        out.weight[:, 8:] = 0  # type: ignore[index, operator]
    assert float(rises[1, 1]) == pytest.approx(losses.mean() - before, abs=1e-12)
    assert "forward" not in vars(asked.model.stack.blocks[0])  # blocks are as they were
    assert random_slices(asked, group, losses).shape == (2, 2)


@pytest.mark.parametrize("kind", ["decoder", "encoder", "transformer"])
def test_gradients_of_gates_are_finite_differences(kind: str):
    asked = subject(kind)
    asked.model.double()
    losses = row_losses(asked)
    for group in asked.groups:
        gradients = gate_gradients(group, losses)

        def loss(gate: float, group=group) -> torch.Tensor:  # type: ignore[no-untyped-def]
            scale = torch.ones(16, dtype=torch.float64)
            scale[8:] = gate
            with torch.no_grad(), gated(group, lambda layer, x: x * scale if layer == 0 else x):
                return losses.compute()

        slope = (loss(1 + 1e-5) - loss(1 - 1e-5)) / 2e-5
        assert float(gradients[0, 1]) == pytest.approx(float(slope.abs().mean()), rel=1e-5)


def test_one_head_alone_and_the_whole_measure():
    asked = subject("encoder")
    found = measure_importance(asked)
    group = found.values["groups"]["encoder"]
    assert found.values["loss_name"] == "loss of masked tokens"
    assert found.values["chance"] == pytest.approx(math.log(PIECES.size))
    assert "so rankings mean little" in found.sentence  # the model is untrained
    assert [len(row) for row in group["rise"]] == [2, 2] and -1 <= group["rank_correlation"] <= 1
    # With two heads, one alone is the other switched off.
    rows = one_head_alone(asked, asked.groups[0], row_losses(asked), torch.tensor(group["gradient"]))
    for layer, row in enumerate(rows):
        assert row["best_alone"] == pytest.approx(group["rise"][layer][1 - int(row["head"])], abs=1e-6)


def test_a_model_of_sentence_vectors_finds_continuations():
    plain = subject("encoder", tasks=None)
    with pytest.raises(Unsupported, match="this encoder has no loss: no head for next or masked tokens"):
        row_losses(plain)
    pooling = SentencePooling({"pooling_mode_mean_tokens": True})
    pretrained = Pretrained(plain.model, tokenizer=PIECES, sentence=pooling)
    losses = row_losses(Subject(pretrained, TEXT, length=24, texts=4))
    assert losses.name == "loss of finding the continuation among 4 passages" and losses.chance == math.log(4)
    assert losses.compute().shape == (4,)


def test_what_does_not_apply_is_said():
    asked = subject("encoder", tasks=None)
    findings = {each.name: each for each in measure(Request(asked), ["heads", "importance"])}
    assert findings["importance"].skipped.startswith("this encoder has no loss")
    assert findings["importance"].plain() == {
        "title": MEASURES["importance"][0], "skipped": findings["importance"].skipped,
    }  # fmt: skip
    with pytest.raises(Unsupported, match="importance: this encoder has no loss"):
        measure(Request(asked), ["importance"])
    with pytest.raises(UnknownName, match=r"no measure is called 'head'; did you mean 'heads'\?"):
        measure(Request(asked), ["head"])
    with pytest.raises(Unsupported, match="'recurrent' has no attention layers, so there are no heads to measure"):
        measure(Request(subject("recurrent")))


def test_texts_that_are_refused():
    model = subject("encoder").pretrained
    for text, message in (
        ("", "the text is empty"),
        ("the mud", r"the text has \d tokens, and measures need at least 32"),
    ):
        with pytest.raises(InvalidInput, match=message):
            Subject(model, text)
    with pytest.raises(InvalidOption, match="texts must be at least 2"):
        Subject(model, TEXT, texts=1)
    with pytest.raises(InvalidOption, match="a target text is for an encoder–decoder, and this is 'encoder'"):
        Subject(model, TEXT, pair=TEXT)
    with pytest.raises(Unsupported, match="measures read texts with an encoder, a decoder"):
        subject("electra")


def test_a_target_text():
    model = subject("transformer").pretrained
    both = Subject(model, TEXT, pair=TEXT[:400], length=24, texts=4).passages
    assert both.targets is not None and both.ids.shape == (4, 24) and both.targets.shape == (4, 24)
    with pytest.raises(InvalidInput, match=r"the target text has \d+ tokens for 4 passages"):
        Subject(model, TEXT, pair=TEXT[:20], length=24, texts=4)
