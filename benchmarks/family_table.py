"""The table of families in docs/families.md: what works for each, tried on a small random model of Hugging Face's.

    python -m benchmarks.family_table > docs/families.md

Rows come from the registry, so a new family appears by itself. Sizes that differ from `SIZES` are in `OTHERS`.
"""

import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file
from torch import Tensor

from longspan import decode, hub
from longspan.audit import Claims, Reading
from longspan.audit.behaviour import causal_perturbation, padding_content
from longspan.audit.external import ModelSubject
from longspan.audit.targets import subjects_of
from longspan.errors import LongspanError
from longspan.hub import Pretrained, families
from longspan.hub.export import check
from longspan.hub.export.graphs import Values, main_graph
from longspan.hub.export.trace import trace
from longspan.models.base import CausalModel, EncoderDecoder
from longspan.models.image_base import ImageHeads

COLUMNS = ("load", "save", "logits", "generate", "audit", "swap", "export")
LENGTH, NEW = 12, 4
CLOSE = 1e-5  # some of theirs compute norms, softmax or rotations in float32
SINGLE = ("gpt_oss",)  # their experts take no float64
SIZES: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 160,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 39,
}
GROUPED = {"num_key_value_heads": 1, "head_dim": 8}
LOCAL = {**GROUPED, "sliding_window": 6, "layer_types": ["sliding_attention", "full_attention"]}
BART = {
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_start_token_id": 1,
}
BART |= {"decoder_attention_heads": 2, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "forced_eos_token_id": None}
T5 = {"d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2, "decoder_start_token_id": 0}
IMAGES = {"image_size": 8, "patch_size": 4, "num_labels": 3}
OTHERS: dict[str, dict[str, Any]] = {
    "gpt2": {"n_inner": 24},
    "opt": {"ffn_dim": 24, "word_embed_proj_dim": 16},
    "llama": GROUPED,
    "mistral": {**GROUPED, "sliding_window": 6},
    "qwen2": {**LOCAL, "use_sliding_window": True},
    "qwen3": {**LOCAL, "use_sliding_window": True},
    "gemma2": {**LOCAL, "query_pre_attn_scalar": 8},
    "gemma3_text": {**LOCAL, "query_pre_attn_scalar": 8},
    "phi3": {"num_key_value_heads": 1, "sliding_window": 6},
    "smollm3": {"num_key_value_heads": 1, "no_rope_layers": [1, 0]},
    "olmo2": {"num_key_value_heads": 1},
    "gpt_oss": {**LOCAL, "num_local_experts": 2, "num_experts_per_tok": 1},
    "roberta": {"pad_token_id": 1},
    "camembert": {"pad_token_id": 1},
    "xlm-roberta": {"pad_token_id": 1},
    "mpnet": {"pad_token_id": 1},
    "longformer": {"pad_token_id": 1, "attention_window": 4},
    "big_bird": {"attention_type": "original_full"},
    "distilbert": {"hidden_dim": 24},
    "electra": {"embedding_size": 16},
    "albert": {"embedding_size": 8},
    "modernbert": {"local_attention": 8, "global_attn_every_n_layers": 2, "cls_token_id": 1, "sep_token_id": 39},
    "nystromformer": {"num_landmarks": 4, "segment_means_seq_len": LENGTH},
    "reformer": {
        "is_decoder": False,
        "attn_layers": ["local", "local"],  # hashes are drawn anew at each of their calls
        "attention_head_size": 8,
        "axial_pos_embds": False,
        "feed_forward_size": 24,
        "local_attn_chunk_length": 4,
        "lsh_attn_chunk_length": 4,
        "num_buckets": 2,
        "hash_seed": 0,
    },
    "bart": BART,
    "mbart": BART,
    "led": {
        **BART,
        "attention_window": 4,
        "max_encoder_position_embeddings": 160,
        "max_decoder_position_embeddings": 160,
    },
    "t5": T5,
    "longt5": {**T5, "local_radius": 3},
    "vit": IMAGES,
    "deit": IMAGES,
}
# The class that is tried: with an output where the family has one.
PREFERRED = ("ForCausalLM", "LMHeadModel", "ModelWithLMHead", "ForConditionalGeneration", "ForMaskedLM")
PREFERRED += ("ForImageClassification",)
SWAPS = ("window", "linear")


class Trial:
    """One family: a model of theirs, and ours of the same weights."""

    def __init__(self, name: str, folder: Path) -> None:
        config = transformers.AutoConfig.for_model(name, **{**SIZES, **OTHERS.get(name, {})})
        family = families.find(name, name)
        classes = [cls for end in PREFERRED for cls in family.architectures if cls.endswith(end)]
        cls = getattr(transformers, (classes or list(family.architectures))[0])
        self.name, self.folder = name, folder
        self.theirs = _random(cls, config)
        self.theirs.save_pretrained(folder)
        self.ours: Pretrained = hub.load(folder)
        self.model = self.ours.model
        self.ids = torch.randint(3, 38, (2, LENGTH), generator=torch.Generator().manual_seed(0))
        self.pixels = torch.randn(2, 3, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def load(self) -> str:
        return "yes" if not self.ours.fresh and not self.ours.unused else "no"

    def save(self) -> str:
        back = self.folder / "back"
        hub.save(self.ours, back)
        first, second = (load_file(folder / "model.safetensors") for folder in (self.folder, back))
        same = set(first) == set(second) and all(torch.equal(tensor, second[name]) for name, tensor in first.items())
        return "yes" if same else "no"

    def logits(self) -> str:
        return "yes" if self._gap(self.ids) < CLOSE else "no"

    @torch.no_grad()
    def _gap(self, ids: Tensor) -> float:
        """The largest difference of the logits, relative to the largest of theirs."""
        if isinstance(self.model, ImageHeads):
            ours, theirs = self.model.outputs(self.pixels)["classify"], self.theirs(self.pixels).logits
        elif isinstance(self.model, EncoderDecoder):
            ours = self.model(ids, ids[:, :5])
            first = (torch.arange(ids.shape[1]) == 0).long().expand_as(ids)  # the default here, not there
            marks = {"global_attention_mask": first} if self.name == "led" else {}
            theirs = self.theirs(input_ids=ids, decoder_input_ids=ids[:, :5], **marks).logits
        elif isinstance(self.model, CausalModel):
            ours, theirs = self.model(ids), self.theirs(ids).logits
        else:
            ours, theirs = self.model.outputs(ids)["masked"], self.theirs(ids).logits
        return (ours - theirs).abs().max().item() / max(1.0, theirs.abs().max().item())

    @torch.no_grad()
    def generate(self) -> str:
        if not isinstance(self.model, CausalModel):
            return "–"
        rows = self.ids.tolist()
        self.theirs.generation_config.eos_token_id = None  # both go on to the last token
        fixed = {"max_new_tokens": NEW, "do_sample": False, "num_beams": 1}
        theirs = self.theirs.generate(self.ids, attention_mask=torch.ones_like(self.ids), **fixed)[:, -NEW:].tolist()
        if isinstance(self.model, EncoderDecoder):
            begin = self.theirs.config.decoder_start_token_id
            ours = decode.generate(self.model, [[begin]] * 2, source=rows, max_new=NEW).tokens
        else:
            ours = decode.generate(self.model, rows, max_new=NEW).tokens
        return "yes" if ours == theirs else "no"

    def audit(self) -> str:
        if isinstance(self.model, ImageHeads | EncoderDecoder):
            return "–"
        causal = isinstance(self.model, CausalModel)
        reading = Reading(length=16, kind="tokens", mask="key_mask", vocabulary=38)
        (subject,) = subjects_of(self.model, Claims(causal=causal, padding=True), name=self.name, reading=reading)
        assert isinstance(subject, ModelSubject)
        subject.long_length = None
        padding = getattr(self.model.options, "padding", None)
        if padding is not None:  # no text has this token
            subject.tokens = subject.tokens[subject.tokens != padding]
        found = {"padding": padding_content(subject).verdict}
        if causal:
            found = {"causal": causal_perturbation(subject).verdict, **found}
        return ", ".join(name if verdict == "pass" else f"{name}: {verdict}" for name, verdict in found.items())

    @torch.no_grad()
    def swap(self) -> str:
        """Other attention under the same weights."""
        key = "encoder_attention" if isinstance(self.model, EncoderDecoder) else "attention"
        works = []
        for name in SWAPS:
            try:
                changed = hub.load(self.folder, options={key: {"name": name}}).model
                if isinstance(changed, ImageHeads):
                    out = changed.outputs(self.pixels)["classify"]
                elif isinstance(changed, EncoderDecoder):
                    out = changed(self.ids, self.ids)
                else:
                    out = changed(self.ids)
            except LongspanError:
                continue
            works += [name] if bool(out.isfinite().all()) else []
        return ", ".join(works) or "no"

    def export(self) -> str:
        for parameter in self.model.parameters():
            parameter.requires_grad_(False)
        graph = main_graph(self.model)
        limits = {"batch": 64, "length": 140, "target": 140, "source": 140}
        try:
            program = trace(graph, graph.sample(3, 100, seed=0), {}, limits).module()

            def run(inputs: Values) -> Values:
                with torch.no_grad():
                    return tuple(program(*inputs))

            check.compare(graph, run, ((1, 5), (2, 131)), 1e-4)
        except LongspanError:
            return "no"
        return "yes"

    def row(self) -> list[str]:
        """The cells of the table."""
        tried: list[Callable[[], str]] = [getattr(self, column) for column in COLUMNS]
        return [attempt() for attempt in tried]


def _random(cls: Any, config: Any) -> Any:
    """A model of theirs in float64 whose every parameter is drawn: initial gains of 1 and biases of 0 hide mistakes."""
    torch.manual_seed(0)
    config._attn_implementation = "eager"
    model = cls(config).to(torch.float32 if config.model_type in SINGLE else torch.float64).eval()
    for parameter in model.parameters():
        parameter.data.normal_(std=0.2).add_(1.0 if parameter.dim() == 1 else 0.0)
    model.tie_weights()
    return model


def row(name: str) -> str:
    """The row of a family."""
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
        warnings.simplefilter("ignore")
        transformers.logging.set_verbosity_error()
        trial = Trial(name, Path(folder))
        return f"| `{name}` | `{trial.model.name}` | {' | '.join(trial.row())} |"


def table(report: Callable[[str], None] = lambda text: None) -> str:
    """The page."""
    rows = []
    for name in families.names():
        rows.append(row(name))
        report(rows[-1])
    return PAGE.replace("ROWS", "\n".join(rows))


PAGE = """# Families

What works for each family of Hugging Face, tried on small random models. This page is written by
`python -m benchmarks.family_table > docs/families.md`; a test measures every third row again.

- **load**: every tensor of their file is used, and none is missing.
- **save**: the file that we write has their names and bits.
- **logits**: equal to theirs to 1e-5, with windows that are shorter than the text. Where it says
  no, [hugging-face](hugging-face.md) has the reason: their Reformer leaves out the output layer's
  bias, their Nyströmformer starts its pseudo-inverse from a maximum over the batch.
- **generate**: the same tokens as their `generate`, greedy; – has no generation.
- **audit**: what `longspan.audit` measured on the loaded model: no leak from later tokens (causal),
  none from masked ones (padding).
- **swap**: attention that the same weights take, `longspan.load(FOLDER, options={"attention": …})`
  (of an encoder–decoder, in its encoder).
- **export**: torch.export of the whole model with dynamic batch and length, equal at other shapes
  with padding; see [export](export.md).

| `model_type` | our model | load | save | logits | generate | audit | swap | export |
|---|---|---|---|---|---|---|---|---|
ROWS
"""

if __name__ == "__main__":
    sys.stdout.write(table(lambda text: print(text, file=sys.stderr, flush=True)))
