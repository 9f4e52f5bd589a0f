"""ETC on texts: a global token for each sentence, task heads, and the way from BERT."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.hub.folders import WORDS, bert
from torch import Tensor
from transformers import RobertaConfig
from transformers.models.roberta.modeling_roberta import RobertaForMaskedLM

from longspan import hub
from longspan.cli.main import main
from longspan.data import Tokenizer
from longspan.data.text.sentence_tokens import sentence_options
from longspan.data.tokenizers.tokenizer_files import read_tokenizer
from longspan.errors import InvalidInput, Unsupported
from longspan.models.etc_model import EtcModel

TINY: dict[str, Any] = {
    "vocabulary": 20, "width": 16, "layers": 2, "heads": 2, "hidden": 24, "dropout": 0.0, "global_tokens": 6,
    "radius": 3, "labels": 2, "label_vocabulary": 9, "types": 3, "init_std": 0.3,
}  # fmt: skip
STOP, QUOTE, END = 9, 8, 7


def model_of(**options: Any) -> Any:
    torch.manual_seed(0)
    ends = {"sentence_ends": [STOP], "sentence_closers": [QUOTE, END], "global_id": 1}
    return EtcModel.build(**{**TINY, **ends, **options}).double().eval()


def test_sentences_end_after_a_stop_and_what_closes_it() -> None:
    ids = torch.tensor(
        [[1, 3, STOP, 4, STOP, QUOTE, 5, QUOTE, 6, STOP, END], [1, STOP, STOP, QUOTE, 3, END, 3, 3, 3, 3, 3]]
    )
    assert model_of()._sentences(ids).tolist() == [
        [0, 0, 0, 1, 1, 1, 2, 2, 2, 2, 2],
        [0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1],
    ]
    segments = model_of(sentence_ends=None, segment_length=4)._sentences(ids)
    assert segments[0].tolist() == [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2]


def test_a_text_is_read_with_a_global_token_for_itself_and_each_sentence() -> None:
    model, ids = model_of(), torch.tensor([[1, 3, STOP, 4, 5, STOP, END]])
    states = model.read_sentences(ids)
    segments = torch.tensor([[0, 0, 0, 1, 1, 1, 1]])
    long, short = model(ids, torch.full((1, 3), 1), segments=segments, global_segments=torch.tensor([[-1, 0, 1]]))
    torch.testing.assert_close(states.tokens, long)
    torch.testing.assert_close(torch.cat([states.whole[:, None], states.sentences], 1), short)
    given = model.read_sentences(ids, sentences=segments)
    torch.testing.assert_close(given.sentences, states.sentences)


def test_sentences_without_room_share_the_last_global_token() -> None:
    model, ids = model_of(), torch.tensor([[3, STOP] * 9])
    states = model.read_sentences(ids)
    assert states.sentences.shape[1] == 5  # of 6 global tokens, one is the whole text's
    clipped = model.read_sentences(ids, sentences=(torch.arange(18) // 2).clamp_max(4)[None])
    torch.testing.assert_close(states.tokens, clipped.tokens)


HEADS: list[Any] = [
    "masked",
    {"task": "classify", "labels": 3},
    {"task": "regress", "labels": 1, "pool": "mean"},
    {"task": "tag", "labels": 4},
    "span",
]


def test_heads_of_texts_read_global_tokens_and_padding_changes_nothing() -> None:
    model = model_of(tasks=HEADS)
    text = torch.tensor([[1, 3, STOP, 4, 5, STOP, END]])
    other = torch.tensor([[1, 3, STOP, 4, STOP, 4, 4, STOP, 5, 5, END]])
    padded = torch.nn.functional.pad(text, (0, 4), value=3)
    mask = torch.arange(11)[None] < torch.tensor([[7], [11]])
    alone, both = model.outputs(text), model.outputs(torch.cat([padded, other]), key_mask=mask)
    assert {name: tuple(tensor.shape) for name, tensor in alone.items()} == {
        "masked": (1, 7, 20), "classify": (1, 3), "regress": (1, 1), "tag": (1, 7, 4), "span": (1, 7, 2),
    }  # fmt: skip
    for name, tensor in alone.items():
        rows = both[name][:1, :7] if tensor.dim() == 3 else both[name][:1]
        torch.testing.assert_close(rows, tensor, rtol=0, atol=1e-10)
    states = model.read_sentences(text)
    torch.testing.assert_close(alone["classify"], model.heads["classify"].out(states.whole))
    means = torch.cat([states.whole[:, None], states.sentences], 1).mean(1)
    torch.testing.assert_close(alone["regress"], model.heads["regress"].out(means))
    chosen = torch.zeros_like(text, dtype=torch.bool)
    chosen[0, [1, 4]] = True
    torch.testing.assert_close(model.outputs(text, chosen=chosen)["masked"], alone["masked"][0, [1, 4]])


def ids(length: int = 9) -> Tensor:
    return torch.randint(5, len(WORDS), (2, length), generator=torch.Generator().manual_seed(0))


def roberta(folder: Path) -> Path:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    RobertaForMaskedLM(RobertaConfig(vocab_size=30, max_position_embeddings=20, **sizes)).save_pretrained(folder)
    tokenizer = read_tokenizer(bert(folder.parent / "words"))
    assert isinstance(tokenizer, Tokenizer)
    tokenizer.save(folder)
    return folder


@pytest.mark.parametrize("source", [bert, roberta])
def test_a_lifted_folder_without_positions_and_labels_is_the_encoder(tmp_path: Path, source: Any) -> None:
    """What differs from BERT is known: no absolute positions, new labels, and a radius."""
    folder = source(tmp_path / "source")
    hub.convert(folder, tmp_path / "etc", to="etc")
    loaded, encoder = hub.load(tmp_path / "etc", dtype=torch.float64), hub.load(folder, dtype=torch.float64).model
    model: Any = loaded.model
    room = model.options.global_tokens
    with torch.no_grad():
        encoder.embedding.position.weight.zero_()
        for name, parameter in model.named_parameters():
            if ".mechanism.labels." in name:
                parameter.zero_()
        text, short = ids(), ids(3)
        long, first = model(text, short)
        whole = encoder(torch.cat([short, text], 1), positions=torch.zeros(2, 12, dtype=torch.long))
    assert room == 256 and model.options.radius == 84
    torch.testing.assert_close(torch.cat([first, long], 1), whole, rtol=0, atol=1e-10)
    with torch.no_grad():
        torch.testing.assert_close(
            model.heads["masked"](long, model.table), encoder.heads["masked"](long, encoder.table), rtol=0, atol=1e-10
        )


def test_the_command_says_what_is_new_and_what_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bert(tmp_path / "bert", "BertForPreTraining", num_hidden_layers=1)
    assert main(["convert", str(tmp_path / "bert"), str(tmp_path / "etc"), "--to", "etc"]) == 0
    lines = capsys.readouterr().out.splitlines()
    labels = [f"stack.blocks.0.mixer.mechanism.labels.{name}" for name in ("long_vectors", "long_numbers")]
    labels.append("stack.blocks.0.mixer.mechanism.labels.global_vectors")
    assert lines[0] == f"wrote {tmp_path / 'etc'}: etc_model, torch.float32"
    assert lines[1].startswith("not written, as the architecture has no such absolute positions or head: ")
    assert "embedding.position.weight, heads.pair." in lines[1]
    assert lines[2] == f"new, to be trained: {', '.join(['types.weight[2:]', *labels])} and 1 more"
    loaded = hub.load(tmp_path / "etc")
    ((guesses,),) = hub.fill(loaded, ["the cat [MASK] on the mat ."], top=3)
    assert len(guesses) == 3
    assert list(loaded.model.heads) == ["masked"] and loaded.model.options.sentence_ends == (WORDS.index("."),)


def test_what_cannot_be_lifted_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from tests.hub.folders import decoder

    decoder(tmp_path / "gpt")
    assert main(["convert", str(tmp_path / "gpt"), str(tmp_path / "etc"), "--to", "etc"]) == 2
    assert "an ETC is made from an encoder such as BERT or RoBERTa, and this is decoder" in capsys.readouterr().err
    assert not (tmp_path / "etc").exists()
    (bert(tmp_path / "bert") / "vocab.txt").unlink()
    with pytest.raises(InvalidInput, match="an ETC needs to know the tokens that end sentences"):
        hub.convert(tmp_path / "bert", tmp_path / "etc", to="etc")
    bert(tmp_path / "again")
    hub.convert(tmp_path / "again", tmp_path / "etc", to="etc")
    with pytest.raises(Unsupported, match="and this is etc_model"):
        hub.convert(tmp_path / "etc", tmp_path / "other", to="etc")


def test_ends_of_sentences_in_a_vocabulary(tmp_path: Path) -> None:
    tokenizer = read_tokenizer(bert(tmp_path / "bert"))
    options = sentence_options(tokenizer)
    assert options == {"global_id": 2, "sentence_ends": [WORDS.index(".")], "sentence_closers": [0, 3]}
