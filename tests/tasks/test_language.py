"""Language modelling on files: what is read, cut and counted."""

import json
import math
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy

from longspan import models
from longspan.data.text import text_files
from longspan.data.text.corpora import TITLE
from longspan.errors import InvalidInput, InvalidOption, Unsupported
from longspan.tasks import registry
from longspan.tasks.base import DataPaths, Prepared
from longspan.tasks.language import Language, LanguageMetrics, NextToken
from longspan.train.evaluate import evaluate
from longspan.train.processes import Processes

WIKI = (
    "\n = One = \n\n Some words here . \n = not a title = \n\n = = Part = = \n\n More . \n"
    "\n = Two = \n\n Last words . \n"
)


def prepare(folder: Path, **options: object) -> Prepared:
    given = {"tokenizer": {"kind": "characters", "special": False}, "length": 8, "batch": 2, **options}
    return registry.build("language", **given).prepare(DataPaths(None, folder / "work"))


def test_pieces_are_the_text_to_the_letter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_files, "PIECE", 10)
    path = tmp_path / "text"
    for content in ("one\ntwo\n\nthree four five\r\n\n\n\nsix\nseven", "a line without an end " * 20, "\n\n\nab\n\n"):
        path.write_bytes(content.encode())
        pieces = list(text_files.Part(path).pieces())
        assert "".join(pieces) == content
        size = len(content)
        for start, stop in ((0, size // 3), (size // 3, None), (5, 9)):
            assert "".join(text_files.Part(path, start, stop).pieces()) == content[start:stop]
    path.write_bytes(b"one two three\n\nfour five six\n\nseven\n")
    assert len(list(text_files.Part(path).pieces())) == 3


def test_documents_of_wikitext_are_articles(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_text(WIKI, encoding="utf-8")
    pieces = list(text_files.Part(path).pieces(TITLE))
    assert "".join(pieces) == WIKI
    assert [piece.strip().split("\n")[0].strip() for piece in pieces] == ["= One =", "= Two ="]


def test_the_end_of_a_file_is_held_out(tmp_path: Path) -> None:
    path = tmp_path / "text"
    content = "abcde\n\nfgh\n" * 40
    path.write_text(content, encoding="utf-8")
    prepared = prepare(tmp_path, train=str(path), share=0.25)
    assert prepared.facts["train tokens"] == 330 and prepared.facts["held_out tokens"] == 110
    batch = prepared.held_out.load([0], 0)
    assert prepared.tokenizer is not None
    assert prepared.tokenizer.decode(batch["ids"][0].tolist()) == content[330:338]


def test_figures_count_bytes_and_words() -> None:
    figures = LanguageMetrics(nats=10.0, tokens=10, bytes_per_token=2.0, words_per_token=0.5).result()
    assert figures["bits_per_byte"] == pytest.approx(1 / math.log(2) / 2)
    assert figures["perplexity"] == pytest.approx(math.e) and figures["word_perplexity"] == pytest.approx(math.e**2)


def test_words_are_counted_as_wikitext_does(tmp_path: Path) -> None:
    (tmp_path / "text").write_text(WIKI, encoding="utf-8")
    (tmp_path / "other").write_text(" Some words . \n More . \n", encoding="utf-8")
    given = {"train": str(tmp_path / "text"), "held_out": str(tmp_path / "other")}
    prepared = prepare(tmp_path, **given, tokenizer={"kind": "bpe", "size": 260, "special": False})
    objective, tokens = prepared.objective, prepared.facts["held_out tokens"]
    assert objective.words_per_token == pytest.approx(7 / tokens)  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", ["characters", "bytes"])
@pytest.mark.parametrize("special", [False, True])
def test_the_perplexity_of_words_is_not_given_for_characters(tmp_path: Path, kind: str, special: bool) -> None:
    (tmp_path / "text").write_text(WIKI, encoding="utf-8")
    prepared = prepare(tmp_path, train=str(tmp_path / "text"), tokenizer={"kind": kind, "special": special})
    assert prepared.objective.words_per_token is None  # type: ignore[attr-defined]
    assert prepared.objective.bytes_per_token is not None  # type: ignore[attr-defined]


def test_files_with_nothing_in_them(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("", encoding="utf-8")
    with pytest.raises(InvalidInput, match=r"text (is empty|has 0 characters)"):
        prepare(tmp_path, train=str(tmp_path / "text"))
    (tmp_path / "good").write_text("words", encoding="utf-8")
    with pytest.raises(InvalidInput, match="text is empty"):
        prepare(tmp_path, train=str(tmp_path / "good"), held_out=str(tmp_path / "text"))
    assert Language.name == "language"


SMALL = {"vocabulary": 40, "layers": 2, "width": 16, "heads": 2, "hidden": 32, "dropout": 0.0}
MODELS = {
    "softmax": ("decoder", SMALL),
    "learned positions": ("decoder", {**SMALL, "position": "learned", "max_length": 12}),
    "rotary, window": ("decoder", {**SMALL, "position": "rotary", "attention": [{"name": "window", "window": 3}]}),
    "linear": ("decoder", {**SMALL, "position": "none", "attention": ["linear"]}),
    "reformer": ("decoder", {**SMALL, "attention": [{"name": "reformer", "chunk": 2, "buckets": 2}]}),
    "routing": ("decoder", {**SMALL, "attention": [{"name": "routing", "clusters": 2, "window": 4}]}),
    "universal": ("universal_decoder", {**SMALL, "transition": "convolution"}),
    "recurrent": ("recurrent", {"vocabulary": 40, "width": 16, "layers": 1, "dropout": 0.0}),
    "transformer_xl": (
        "transformer_xl",
        {**SMALL, "hidden_dropout": 0.0, "segment": 4, "memory": 4},
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_document_is_read_as_if_it_were_alone(name: str) -> None:
    """The loss and its gradients, against a loop over the documents of each row."""
    kind, options = MODELS[name]
    model = models.build(kind, **options).double().eval()
    ids = torch.randint(40, (2, 12))
    documents = torch.tensor([[0] * 5 + [1] + [2] * 6, [2] * 3 + [3] * 7 + [-1] * 2])
    targets = torch.randint(40, (2, 12))
    targets[documents < 0] = -100
    batch = {"ids": ids, "targets": targets, "documents": documents}
    total = torch.zeros((), dtype=torch.float64)
    for row in range(2):
        for document in documents[row].unique():
            alone = documents[row] == document
            if document < 0:
                continue
            logits = model.text_logits(ids[row : row + 1, alone])
            total = total + cross_entropy(logits[0], targets[row, alone], reduction="sum")
    parameters = [each for each in model.parameters() if each.requires_grad]
    expected = torch.autograd.grad(total, parameters, materialize_grads=True)
    result = NextToken().loss(model, batch).total
    torch.testing.assert_close(result, total, atol=1e-10, rtol=1e-10)
    for one, other in zip(torch.autograd.grad(result, parameters, materialize_grads=True), expected):
        torch.testing.assert_close(one, other, atol=1e-9, rtol=1e-9)


def test_what_cannot_keep_documents_apart_is_refused_by_name(tmp_path: Path) -> None:
    model = models.build("decoder", **SMALL, attention=[{"name": "reformer", "form": "released", "chunk": 2}])
    batch = {name: torch.zeros(1, 4, dtype=torch.long) for name in ("ids", "targets", "documents")}
    with pytest.raises(Unsupported, match=r"separate = true pads documents .* and reformer as released reads padding"):
        NextToken().loss(model, batch)
    for name, value in (("separate", True), ("stride", 4)):
        with pytest.raises(InvalidOption, match=f"streams carry a memory from block to block; leave out {name}"):
            prepare(tmp_path, train="text", streams=True, **{name: value})
    with pytest.raises(InvalidOption, match="tokens are prepared already"):
        prepare(tmp_path, tokens="folder", end_token=True)


def write_documents(folder: Path) -> dict[str, Path]:
    """The same three documents in each form."""
    texts = ["# one\nab", "# two\ncde", "# three\nf"]
    paths = {kind: folder / kind for kind in ("files", "blank", "headings")} | {"rows": folder / "rows.jsonl"}
    (paths["files"] / "inner").mkdir(parents=True)
    for name, text in zip(("a", "b.txt", "inner/c"), texts):
        (paths["files"] / name).write_text(text, encoding="utf-8")
    (paths["files"] / ".hidden").write_text("no", encoding="utf-8")
    paths["blank"].write_text("\n\n\n".join(texts), encoding="utf-8")
    paths["headings"].write_text("\n\n".join(texts), encoding="utf-8")
    paths["rows"].write_text("\n".join(json.dumps({"text": text}) for text in texts), encoding="utf-8")
    return paths


@pytest.mark.parametrize("kind", ["files", "blank", "headings", "rows"])
def test_documents_end_with_a_token(tmp_path: Path, kind: str) -> None:
    path = write_documents(tmp_path)[kind]
    options = {"documents": kind, "end_token": True, "separate": True, "tokenizer": {"kind": "characters"}}
    prepared = prepare(tmp_path, train=str(path), held_out=str(path), length=64, **options)
    tokenizer = prepared.tokenizer
    assert tokenizer is not None and tokenizer.eos is not None
    batch = prepared.held_out.load([0], 0)
    ids, documents = batch["ids"][0].tolist(), batch["documents"][0].tolist()
    text = tokenizer.decode(ids, special=True).replace("</s>", "|").replace("\n\n", "")
    assert text == "# one\nab|# two\ncde|# three\nf"
    ends = [place for place, number in enumerate(ids) if number == tokenizer.eos]
    assert [documents[end : end + 2] for end in ends] == [[0, 1], [1, 2]]
    assert batch["targets"][0, ends].tolist() == [-100, -100]
    assert int(batch["targets"][0, -1]) == tokenizer.eos  # the last document ends too
    assert prepared.facts["held_out documents"] == 3


def test_whole_documents_are_held_out(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_text("\n\n".join(["a part"] * 10), encoding="utf-8")
    prepared = prepare(tmp_path, train=str(path), documents="blank", share=0.3)
    assert (prepared.facts["train documents"], prepared.facts["held_out documents"]) == (7, 3)
    with pytest.raises(InvalidInput, match=r"text has 1 documents, too few to hold some out: say by documents"):
        prepare(tmp_path, train=str(path), separate=True)


def test_mistakes_about_documents(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(InvalidInput, match=r"folder has no file that ends in \.txt"):
        prepare(tmp_path, train=str(tmp_path / "folder"))
    with pytest.raises(InvalidInput, match=r'folder is a folder; give documents = "files"'):
        prepare(tmp_path, train=str(tmp_path / "folder"), documents="blank")
    with pytest.raises(InvalidInput, match="folder has no files"):
        prepare(tmp_path, train=str(tmp_path / "folder"), documents="files")
    (tmp_path / "rows.jsonl").write_text('{"text": "a"}\n{"other": 1}\n', encoding="utf-8")
    with pytest.raises(InvalidInput, match=r"rows\.jsonl, line 2, has no field 'text'"):
        prepare(tmp_path, train=str(tmp_path / "rows.jsonl"), documents="rows")
    (tmp_path / "text").write_text("a\n\nb\n", encoding="utf-8")
    with pytest.raises(InvalidOption, match=r"heading must be a regular expression, not '\('"):
        prepare(tmp_path, train=str(tmp_path / "text"), documents="headings", heading="(")
    with pytest.raises(InvalidOption, match="end_token needs a tokenizer with special tokens"):
        prepare(tmp_path, train=str(tmp_path / "text"), documents="blank", end_token=True)
    with pytest.raises(InvalidOption, match="stride must be at most the length of 8, not 9"):
        prepare(tmp_path, train=str(tmp_path / "text"), stride=9)


@pytest.mark.parametrize("stride", [1, 3, 8])
def test_a_stride_is_the_loop_that_hugging_face_gives(tmp_path: Path, stride: int) -> None:
    """https://huggingface.co/docs/transformers/perplexity, with the same windows and targets."""
    path, length = tmp_path / "text", 8
    path.write_text("abcdefgh ijk lmn\n" * 5, encoding="utf-8")
    prepared = prepare(tmp_path, train=str(path), length=length, stride=stride)
    model = models.build("decoder", **{**SMALL, "vocabulary": prepared.facts["vocabulary"]}).double().eval()
    ids = torch.tensor(prepared.held_out.tokens[:].astype("int64"))[None]  # type: ignore[attr-defined]
    nats, count, scored_until = 0.0, 0, 1  # the first token is never predicted
    with torch.no_grad():
        for begin in range(0, ids.shape[1], stride):
            end = min(begin + length + 1, ids.shape[1])  # a window of `length` inputs, and the last target
            if end <= scored_until:
                break
            logprobs = model(ids[:, begin : end - 1])[0].log_softmax(-1)
            for target in range(scored_until, end):
                nats -= float(logprobs[target - 1 - begin, ids[0, target]])
                count += 1
            scored_until = end
    assert count == ids.shape[1] - 1
    figures = evaluate(model, prepared.held_out, prepared.objective, Processes())
    assert figures["loss"] == pytest.approx(nats / count, rel=1e-12)
