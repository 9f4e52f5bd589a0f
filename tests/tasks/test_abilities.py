"""Tasks take any model that has the ability they need, one from outside the package too."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.tasks.small import run
from torch import Tensor, nn

from longspan.attention.state import State
from longspan.config import option
from longspan.errors import Unsupported
from longspan.models import build
from longspan.models.base import CausalModel, Model, TextHeads
from longspan.models.registry import MODELS
from longspan.nn.heads import Head
from longspan.tasks.denoise import WholeText
from longspan.tasks.detect import ReplacedTokens
from longspan.tasks.language import NextToken
from longspan.tasks.masked import HiddenTokens
from longspan.tasks.text_inputs import read
from longspan.tasks.translate import Translation


@dataclass(frozen=True)
class LastToken(State):
    length: int


class Bigram(CausalModel):
    """The next token from the last one alone: a table."""

    name = "bigram"
    paper = "this test"

    @dataclass(frozen=True, kw_only=True)
    class Options(CausalModel.Options):
        vocabulary: int = option(256, "number of token ids", low=1)

    options: Options

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self.vocabulary = options.vocabulary
        self.rows = nn.Embedding(options.vocabulary, options.vocabulary)

    def forward(self, ids: Tensor) -> Tensor:
        logits: Tensor = self.rows(ids)
        return logits

    def start(self, batch: int, **_: Any) -> LastToken:
        return LastToken(0)

    def extend(self, ids: Tensor, state: LastToken, *, last: bool = False, **_: Any) -> tuple[Tensor, LastToken]:
        return self(ids[:, -1:] if last else ids), LastToken(state.length + ids.shape[1])


def test_a_model_without_a_key_mask_cannot_read_documents_apart() -> None:
    batch = {name: torch.zeros(1, 4, dtype=torch.long) for name in ("ids", "targets", "documents")}
    with pytest.raises(Unsupported, match="bigram takes no key_mask, so it cannot read padded texts"):
        NextToken().loss(Bigram.build(vocabulary=4), batch)


class BagOfWords(TextHeads):
    """Labels from the mean of word vectors."""

    name = "bag_of_words"
    paper = "this test"

    @dataclass(frozen=True, kw_only=True)
    class Options(TextHeads.Options):
        vocabulary: int = option(256, "number of token ids", low=1)
        tasks: tuple[Head, ...] | None = option(None, "the tasks that it has heads for")

    options: Options

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self.vectors = nn.Embedding(options.vocabulary, 16)
        self.heads = nn.ModuleDict({head.task: nn.Linear(16, head.labels) for head in options.tasks or ()})

    def outputs(
        self,
        ids: Tensor,
        *,
        key_mask: Tensor | None = None,
        segments: Tensor | None = None,
        chosen: Tensor | None = None,
    ) -> dict[str, Tensor]:
        weight = torch.ones_like(ids, dtype=torch.bool) if key_mask is None else key_mask
        mean = (self.vectors(ids) * weight[..., None]).sum(1) / weight.sum(1, keepdim=True)
        return {task: head(mean) for task, head in self.heads.items()}


@pytest.fixture(autouse=True)
def plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MODELS, "registered", {cls.name: cls for cls in (Bigram, BagOfWords)})


@pytest.mark.parametrize("streams", [False, True])
def test_a_model_from_outside_trains_as_a_language_model(tmp_path: Path, streams: bool) -> None:
    (tmp_path / "text").write_text("abcabd" * 200)
    task = {
        "name": "language", "train": str(tmp_path / "text"), "length": 16, "batch": 4, "streams": streams,
        "tokenizer": {"kind": "characters", "special": False},
    }  # fmt: skip
    metrics = run(tmp_path / "run", task, {"name": "bigram"}, steps=100, schedule={"kind": "constant", "rate": 0.1})
    # After b, c and d are equally likely; every other letter decides the next: ln 2 for one letter of three.
    assert metrics["loss"] == pytest.approx(0.6931 / 3, abs=0.03)


def test_a_model_from_outside_trains_as_a_classifier(tmp_path: Path) -> None:
    lines = [f"{word} film\t{label}" for word, label in (("good", "yes"), ("bad", "no"))] * 20
    (tmp_path / "a.tsv").write_text("text\tlabel\n" + "\n".join(lines) + "\n")
    task = {"name": "classify", "train": str(tmp_path / "a.tsv"), "batch": 8}
    tokens = {"kind": "wordpiece", "size": 60, "frequency": 1}
    metrics = run(
        tmp_path / "run", {**task, "tokenizer": tokens}, {"name": "bag_of_words"},
        schedule={"kind": "constant", "rate": 0.05},
    )  # fmt: skip
    assert metrics["accuracy"] == 1.0


def small(name: str) -> Model:
    sizes = {"vocabulary": 11, "width": 8, "layers": 1}
    return build(name, **(sizes if name == "recurrent" else {**sizes, "heads": 2, "hidden": 8}))


IDS = torch.ones(1, 4, dtype=torch.long)
BATCH = {"ids": IDS, "targets": IDS, "labels": IDS, "mask": IDS > 0, "real": IDS > 0, "segments": IDS * 0,
         "source": IDS, "source_mask": IDS > 0, "number": IDS[:, 0]}  # fmt: skip


@pytest.mark.parametrize(
    ("objective", "model", "message"),
    [
        (NextToken(), "encoder", "the task 'language' needs a model that predicts the next token, and 'encoder'"),
        (NextToken(), "transformer", "the task 'language' gives no source, which 'transformer' needs"),
        (WholeText(), "decoder", "the task 'denoise' needs an encoder–decoder, .*choose from: transformer, seq2seq"),
        (Translation(None), "decoder", "the task 'translate' needs an encoder–decoder"),  # type: ignore[arg-type]
        (ReplacedTokens(0.15), "encoder", "the task 'detect' needs a generator and a .*choose from: electra$"),
        (HiddenTokens(1.0), "recurrent", "the task 'masked' needs a model of text with task heads, .*bag_of_words$"),
        (HiddenTokens(1.0), "decoder", "the task 'masked' needs a model that reads both ways"),
        (HiddenTokens(1.0), "encoder", "this encoder has no head for 'masked'; it has none"),
    ],
)
def test_a_model_without_the_ability_is_refused(objective: Any, model: str, message: str) -> None:
    with pytest.raises(Unsupported, match=message):
        objective.measure(small(model), BATCH)


def test_a_head_that_is_missing_is_named() -> None:
    model = build("encoder", vocabulary=11, width=8, layers=1, heads=2, tasks=[{"task": "tag", "labels": 3}])
    with pytest.raises(Unsupported, match="this encoder has no head for 'classify'; it has tag"):
        read(model, BATCH, "classify")
