"""RoBERTa of fairseq: its names, its old and new forms, what is refused, and one that was trained on antibodies."""

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from transformers import RobertaForMaskedLM

from longspan import hub
from longspan.errors import InvalidInput, Unsupported
from longspan.hub.formats import fairseq, safetensors_files
from longspan.hub.formats.readers import convert
from longspan.models.base import Model

ARGUMENTS = {
    "encoder_layers": 2,
    "encoder_attention_heads": 2,
    "encoder_ffn_embed_dim": 12,
    "activation_fn": "gelu",
    "dropout": 0.2,
}


def checkpoint(prefix: str = "decoder.sentence_encoder.", norm: str = "emb_layer_norm") -> dict[str, Tensor]:
    """A small model with the names of fairseq, every number drawn."""
    generator = torch.Generator().manual_seed(1)

    def drawn(*size: int) -> Tensor:
        return torch.randn(size, generator=generator, dtype=torch.float64) * 0.3

    words = drawn(11, 8)
    found = {f"{prefix}embed_tokens.weight": words, f"{prefix}embed_positions.weight": drawn(12, 8)}
    for module, size in {
        norm: (8,),
        **{f"layers.{layer}.{end}": size for layer in range(2) for end, size in LAYER},
    }.items():
        found |= {f"{prefix}{module}.weight": drawn(*size), f"{prefix}{module}.bias": drawn(size[0])}
    head = f"{prefix.partition('.')[0]}.lm_head"
    found |= {f"{head}.weight": words, f"{head}.bias": drawn(11)}
    for module, size in (("dense", (8, 8)), ("layer_norm", (8,))):
        found |= {f"{head}.{module}.weight": drawn(*size), f"{head}.{module}.bias": drawn(size[0])}
    return found


LAYER: list[tuple[str, tuple[int, ...]]] = [
    *((f"self_attn.{part}_proj", (8, 8)) for part in ("q", "k", "v", "out")),
    ("self_attn_layer_norm", (8,)),
    ("fc1", (12, 8)),
    ("fc2", (8, 12)),
    ("final_layer_norm", (8,)),
]


def reference(held: Mapping[str, Tensor], heads: int, ids: Tensor, mask: Tensor) -> Tensor:
    """The logits of Liu et al. 2019 from fairseq's own names, in plain torch."""
    body, head = "decoder.sentence_encoder.", "decoder.lm_head."

    def norm(x: Tensor, name: str) -> Tensor:
        return functional.layer_norm(x, x.shape[-1:], held[f"{name}.weight"], held[f"{name}.bias"], 1e-5)

    def linear(x: Tensor, name: str) -> Tensor:
        return functional.linear(x, held[f"{name}.weight"], held[f"{name}.bias"])

    places = 1 + mask.cumsum(1) * mask  # padding is at 1, the first token at 2
    x = norm(
        held[f"{body}embed_tokens.weight"][ids] + held[f"{body}embed_positions.weight"][places], f"{body}emb_layer_norm"
    )
    layers = 1 + max(int(name.split(".")[3]) for name in held if ".layers." in name)
    for layer in (f"{body}layers.{number}." for number in range(layers)):
        q, k, v = (
            linear(x, f"{layer}self_attn.{part}_proj").unflatten(-1, (heads, -1)).transpose(1, 2) for part in "qkv"
        )
        scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~mask[:, None, None], -torch.inf)
        mixed = (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
        x = norm(x + linear(mixed, f"{layer}self_attn.out_proj"), f"{layer}self_attn_layer_norm")
        x = norm(x + linear(functional.gelu(linear(x, f"{layer}fc1")), f"{layer}fc2"), f"{layer}final_layer_norm")
    x = norm(functional.gelu(linear(x, f"{head}dense")), f"{head}layer_norm")
    return functional.linear(x, held[f"{head}weight"], held[f"{head}bias"])


def converted(path: Path, folder: Path) -> hub.Pretrained:
    config, found = fairseq.read(path)
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    safetensors_files.write(folder, found)
    return hub.load(folder)


def logits(model: Model, ids: Tensor, mask: Tensor) -> Tensor:
    with torch.no_grad():
        return model.outputs(ids, key_mask=mask)["masked"]


IDS = torch.tensor([[0, 5, 6, 7, 8, 2], [0, 9, 10, 2, 1, 1]])


def save(path: Path, held: Mapping[str, Any], **more: Any) -> Path:
    torch.save({"args": argparse.Namespace(**ARGUMENTS), "model": held, **more}, path)
    return path


def test_it_equals_fairseq(tmp_path: Path) -> None:
    held = checkpoint()
    found = converted(save(tmp_path / "model.pt", held), tmp_path / "new")
    mask = IDS != 1
    torch.testing.assert_close(
        logits(found.model, IDS, mask)[mask], reference(held, 2, IDS, mask)[mask], rtol=0, atol=1e-10
    )
    assert found.unused == [] and found.model.options.dropout == 0.2 and found.model.options.max_length == 10
    theirs, report = RobertaForMaskedLM.from_pretrained(tmp_path / "new", output_loading_info=True)
    assert not report["missing_keys"]
    with torch.no_grad():
        expected = theirs.eval()(IDS, attention_mask=mask).logits
    torch.testing.assert_close(logits(found.model, IDS, mask)[mask], expected[mask], rtol=0, atol=1e-10)


def test_the_names_of_other_releases(tmp_path: Path) -> None:
    config, expected = fairseq.read(save(tmp_path / "model.pt", checkpoint()))
    new = checkpoint("encoder.sentence_encoder.", "layernorm_embedding")
    torch.save({"args": None, "cfg": {"model": argparse.Namespace(**ARGUMENTS)}, "model": new}, tmp_path / "new.pt")
    old = checkpoint()
    for layer in range(2):
        start = f"decoder.sentence_encoder.layers.{layer}.self_attn."
        for leaf in ("weight", "bias"):
            old[f"{start}in_proj_{leaf}"] = torch.cat([old.pop(f"{start}{part}_proj.{leaf}") for part in "qkv"])
    old["decoder.sentence_encoder.embed_positions._float_tensor"] = torch.zeros(1)
    save(tmp_path / "old.pt", old)
    for file in ("new.pt", "old.pt"):
        other, found = fairseq.read(tmp_path / file)
        assert other == config and set(found) == set(expected)
        assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


def test_it_is_converted_with_its_dictionary(tmp_path: Path) -> None:
    source = tmp_path / "old"
    source.mkdir()
    save(source / "model.pt", checkpoint())
    (source / "dict.txt").write_text("".join(f"{letter} 1\n" for letter in "ABCDEF"))
    convert(source / "model.pt", tmp_path / "new")
    mask = IDS != 1
    own = logits(hub.load(tmp_path / "new", tokenizer=False).model, IDS, mask)
    torch.testing.assert_close(own[mask], reference(checkpoint(), 2, IDS, mask)[mask], rtol=0, atol=1e-10)
    assert fairseq.vocabulary(tmp_path / "new/dict.txt")[4:] == [*"ABCDEF", "<mask>"]
    (source / "dict.txt").write_text("".join(f"{letter} 1\n" for letter in "ABCDEFG"))
    with pytest.raises(InvalidInput, match="has 11 tokens and the dictionary beside it 12"):
        convert(source / "model.pt", tmp_path / "newer")


class Planted:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, tuple[Path]]:
        return Path.touch, (self.mark,)


def test_a_checkpoint_with_code_is_not_run(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    path = save(tmp_path / "model.pt", checkpoint(), extra_state=Planted(mark))
    with pytest.raises(
        InvalidInput, match=r"model.pt holds more than tensors and arguments, and is not opened: "
    ) as caught:
        fairseq.read(path)
    assert not mark.exists() and "\n" not in str(caught.value)


def test_what_is_no_roberta_of_fairseq(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    with pytest.raises(InvalidInput, match="is no file"):
        fairseq.read(path)
    save(path, {**checkpoint(), "decoder.classification_heads.mnli.dense.weight": torch.zeros(8, 8)})
    with pytest.raises(Unsupported, match=r"has no decoder\.classification_heads\.mnli\.dense\.weight"):
        fairseq.read(path)
    save(path, {name: tensor for name, tensor in checkpoint().items() if "embed_tokens" not in name})
    with pytest.raises(InvalidInput, match="has no tables of tokens and positions"):
        fairseq.read(path)
    for saved, said in (
        ({"model": checkpoint()}, "has no 'args'"),
        ([1, 2], "has no 'args'"),
        ({"args": argparse.Namespace(**ARGUMENTS)}, "has no 'model' of tensors"),
        ({"args": argparse.Namespace(), "model": checkpoint()}, "its arguments do not say encoder_layers"),
    ):
        torch.save(saved, path)
        with pytest.raises(InvalidInput, match=said):
            fairseq.read(path)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(InvalidInput, match=r"model\.pt "):
        fairseq.read(path)
    (tmp_path / "dict.txt").write_text("A 1\nB\n")
    with pytest.raises(InvalidInput, match=r"dict\.txt is no dictionary of fairseq"):
        fairseq.vocabulary(tmp_path / "dict.txt")


# Sapiens: RoBERTas that were trained on the heavy and the light chains of human antibodies

# The variable regions of trastuzumab and adalimumab, and how many residues of each were found when they were masked.
CHAINS = {
    "vh": {
        "EVQLVESGGGLVQPGGSLRLSCAASGFNIKDTYIHWVRQAPGKGLEWVARIYPTNGYTRYADSVKGRFTISADTSKNTAYLQMNSLR"
        "AEDTAVYYCSRWGGDGFYAMDYWGQGTLVTVSS": 92,
        "EVQLVESGGGLVQPGRSLRLSCAASGFTFDDYAMHWVRQAPGKGLEWVSAITWNSGHIDYADSVEGRFTISRDNAKNSLYLQMNSLR"
        "AEDTAVYYCAKVSYLSTASSLDYWGQGTLVTVSS": 105,
    },
    "vl": {
        "DIQMTQSPSSLSASVGDRVTITCRASQDVNTAVAWYQQKPGKAPKLLIYSASFLYSGVPSRFSGSRSGTDFTLTISSLQPEDFATYY"
        "CQQHYTTPPTFGQGTKVEIK": 91,
        "DIQMTQSPSSLSASVGDRVTITCRASQGIRNYLAWYQQKPGKAPKLLIYAASTLQSGVPSRFSGSGSGTDFTLTISSLQPEDVATYY"
        "CQRYNRAPYTFGQGTKVEIK": 101,
    },
}


@pytest.mark.weights
@pytest.mark.parametrize("chain", ["vh", "vl"])
def test_residues_of_antibodies_that_were_masked(sapiens: Path, tmp_path: Path, chain: str) -> None:
    words = fairseq.vocabulary(sapiens / "dict.txt")
    assert len(words) == 25 and words[24] == "<mask>" and "".join(words[4:24]) == "ACDEFGHIKLMNPQRSTVWY"
    path = sapiens / f"checkpoint_{chain}.pt"
    found = converted(path, tmp_path / "new")
    with torch.serialization.safe_globals([argparse.Namespace]):
        held = torch.load(path, map_location="cpu", weights_only=True)["model"]
    right = residues = 0
    for sequence, hits in CHAINS[chain].items():
        ids = torch.tensor([0, *(words.index(residue) for residue in sequence), 2])
        places = torch.arange(1, len(ids) - 1)
        rows = ids.repeat(len(places), 1)
        rows[torch.arange(len(places)), places] = words.index("<mask>")
        rows = functional.pad(rows, (0, 2), value=1)
        mask = rows != 1
        out = logits(found.model, rows, mask)
        few = slice(None, None, 20)
        expected = reference(held, 8, rows[few], mask[few])
        torch.testing.assert_close(out[few][mask[few]], expected[mask[few]], rtol=0, atol=1e-4)
        hit = int((out[torch.arange(len(places)), places].argmax(-1) == ids[places]).sum())
        assert abs(hit - hits) <= 2
        right, residues = right + hit, residues + len(places)
    # The most frequent residue is one in seven; 197 of 241 and 192 of 214 were seen.
    assert right / residues > 0.78
