"""Real weights out of a pickle: rxnmapper's ALBERT, which knows what stands in a chemical reaction."""

import re
from pathlib import Path

import pytest
import torch
from tests.hub.parity import assert_close
from torch import Tensor
from transformers import AlbertForMaskedLM

from longspan import hub
from longspan.hub.formats.readers import convert
from longspan.nn.recorder import recording

# Reactants, reagents and product as SMILES; the first two are those of rxnmapper's README.
REACTIONS = (
    "CC(C)S.CN(C)C=O.Fc1cccnc1F.O=C([O-])[O-].[K+].[K+]>>CC(C)Sc1ncccc1F",
    "C1COCCO1.CC(C)(C)OC(=O)CONC(=O)NCc1cccc2ccccc12.Cl>>O=C(O)CONC(=O)NCc1cccc2ccccc12",
    "CC(=O)OC(C)=O.O=C(O)c1ccccc1O>>CC(=O)Oc1ccccc1C(=O)O",  # aspirin
    "CC(=O)O.CCO>>CCOC(C)=O",  # ethyl acetate
    "OB(O)c1ccccc1.Brc1ccncc1>>c1ccc(-c2ccncc2)cc1",  # a Suzuki coupling
)
# Atoms in brackets, elements of two letters, an arrow and numbers of rings are one token each; the rest are letters.
TOKEN = re.compile(r"\[[^\]]+\]|Br|Cl|>>|%\d\d|.")


def hidden_one_by_one(folder: Path, reaction: str) -> tuple[Tensor, Tensor]:
    """The reaction once for each of its tokens, with that one masked; and the tokens."""
    words = (folder / "vocab.txt").read_text().split("\n")
    tokens = torch.tensor([words.index(word) for word in TOKEN.findall(reaction)])
    ends = [words.index("[CLS]")], [words.index("[SEP]")]
    whole = torch.cat([torch.tensor(ends[0]), tokens, torch.tensor(ends[1])])
    rows = whole.repeat(len(tokens), 1)
    rows[torch.arange(len(tokens)), torch.arange(1, len(tokens) + 1)] = words.index("[MASK]")
    return rows, tokens


def right(found: hub.Pretrained, theirs: torch.nn.Module, folder: Path) -> list[tuple[int, int]]:
    """Of each reaction, how many tokens were found and how many there are; logits are held to theirs on the way."""
    scores = []
    for reaction in REACTIONS:
        rows, tokens = hidden_one_by_one(folder, reaction)
        with torch.no_grad():
            logits = found.model.outputs(rows)["masked"]
            assert_close(logits[::16], theirs(rows[::16]).logits)
        places = torch.arange(len(tokens))
        scores.append((int((logits[places, places + 1].argmax(-1) == tokens).sum()), len(tokens)))
    return scores


@pytest.mark.weights
def test_rxnmappers_albert(rxnmapper: Path, tmp_path: Path) -> None:
    convert(rxnmapper, tmp_path / "new")
    assert not any(path.name == "training_args.bin" for path in (tmp_path / "new").iterdir())
    found = hub.load(tmp_path / "new")
    assert found.family == "albert" and set(found.unused) == {"albert.pooler.weight", "albert.pooler.bias"}
    assert len(found.model.stack.blocks) == 1 and found.model.options.layers == 12
    theirs = AlbertForMaskedLM.from_pretrained(rxnmapper, attn_implementation="eager").eval()
    scores = right(found, theirs, tmp_path / "new")
    assert scores[0][0] >= 52 and scores[0][1] == 54  # seen: 53
    assert sum(count for count, _ in scores) >= 242 and sum(whole for _, whole in scores) == 249  # seen: 246

    ids = hidden_one_by_one(tmp_path / "new", REACTIONS[0])[0][:1]
    with torch.no_grad(), recording(found.model.stack) as seen:
        found.model(ids)
        expected = theirs(ids, output_attentions=True).attentions
    for own, other in zip(seen.maps, expected, strict=True):
        assert_close(own, other)
