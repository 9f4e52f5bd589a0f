"""MPNet (Song et al. 2020): RoBERTa with one table of biases by distance, which all layers share."""

from dataclasses import replace

from longspan.hub.families.base import Config
from longspan.hub.families.bert import BODY, FIELDS
from longspan.hub.families.roberta import ROBERTA, adjust, restore
from longspan.hub.families.roberta import head as roberta_head
from longspan.hub.tensor_names import Rule, rename
from longspan.nn.heads import Head

LAYER = "encoder.layer.*.attention"
# Attention is called otherwise than in BERT; the rest is the same.
NAMES = {
    f"{LAYER}.self.query": f"{LAYER}.attn.q",
    f"{LAYER}.self.key": f"{LAYER}.attn.k",
    f"{LAYER}.self.value": f"{LAYER}.attn.v",
    f"{LAYER}.output.dense": f"{LAYER}.attn.o",
    f"{LAYER}.output.LayerNorm": f"{LAYER}.LayerNorm",
}


def _renamed(rule: Rule) -> Rule:
    return replace(rule, theirs=tuple(NAMES.get(name, name) for name in rule.theirs))


def head(task: str, options: Config, given: Config) -> Head:
    """RoBERTa's, all of them with the body's dropout."""
    return roberta_head(task, options, {**given, "classifier_dropout": None})


MPNET = replace(
    ROBERTA,
    name="mpnet",
    base="mpnet.",
    fields=tuple(
        replace(item, default={"vocabulary": 30527, "padding": 1}.get(item.ours, item.default))
        for item in FIELDS
        if item.ours != "segments"
    ),
    fixed={**ROBERTA.fixed, "position": "learned_relative", "segments": 0},
    # The release reads 32 buckets whatever the key says, and counts positions from padding 1.
    only={"relative_attention_num_buckets": (32,), "pad_token_id": (1,)},
    architectures={name.replace("Roberta", "MPNet"): tasks for name, tasks in ROBERTA.architectures.items()},
    head=head,
    body=(
        *(_renamed(rule) for rule in BODY if rule.ours != ("embedding.segment",)),
        rename("stack.blocks.0.mixer.position.weight", "encoder.relative_attention_bias.weight"),
    ),
    adjust=adjust,
    restore=restore,
)
