"""Big Bird (Zaheer et al. 2020): BERT's encoder with blocks that read their window, global and random blocks."""

from dataclasses import replace
from typing import Any

from longspan.errors import Unsupported
from longspan.hub.families import bert
from longspan.hub.families.base import Config, Family, Field
from longspan.hub.tensor_names import rename
from longspan.nn.heads import Head

_DEFAULTS = {"vocab_size": 50358, "hidden_act": "gelu_new", "max_position_embeddings": 4096}
FIELDS = (
    *(replace(item, default=_DEFAULTS.get(item.theirs, item.default)) for item in bert.FIELDS),
    Field("scale", "rescale_embeddings", False),
)
# Their attention_type, block_size and num_random_blocks with defaults; and our own key for the plan.
FULL, SPARSE, BLOCK, RANDOM, PLAN = "original_full", "block_sparse", 64, 3, "random_plan"


def _kind(given: Config) -> str:
    kind = str(given.get("attention_type", SPARSE))
    if kind not in (FULL, SPARSE):
        raise Unsupported(f"config.json: attention_type is {kind!r}; it can be {FULL!r} or {SPARSE!r}")
    return kind


def adjust(options: dict[str, Any], given: Config) -> dict[str, Any]:
    options["query_bias"] = None if given.get("use_bias", True) else False
    options["attention"] = [{"name": "softmax"}]
    if _kind(given) == SPARSE:
        block, random = given.get("block_size", BLOCK), given.get("num_random_blocks", RANDOM)
        options["attention"] = [
            {"name": "bigbird", "block": block, "random": random, "plan": given.get(PLAN, "uniform")}
        ]
    return options


def restore(record: dict[str, Any], options: Any) -> dict[str, Any]:
    record = {**bert.restore(record, options), "use_bias": options.query_bias is not False, "attention_type": FULL}
    first = options.attention[0]
    if first.name == "bigbird":
        record |= {"attention_type": SPARSE, "block_size": first.options.get("block", BLOCK)}
        record |= {"num_random_blocks": first.options.get("random", RANDOM), PLAN: first.options.get("plan", "uniform")}
    return record


def head(task: str, options: Config, given: Config) -> Head:
    """BERT's heads, with two exceptions: classification skips the pooler, and answers have their own layer."""
    if task == "classify":
        dropout = bert.classifier_dropout(options, given)
        return Head(task=task, activation=options["activation"], dropout=dropout, drop_input=True)
    if task == "span":
        return Head(
            task=task,
            activation=options["activation"],
            hidden=options["hidden"],
            dropout=options["dropout"],
            drop_input=True,
            question=True,
        )
    return bert.head(task, options, given)


def adjust_decoder(options: dict[str, Any], given: Config) -> dict[str, Any]:
    """Always full attention: their sparse attention in a decoder sees future tokens, and is full for short texts."""
    options = {**adjust(options, given), "attention": [{"name": "softmax"}]}
    return {**options, "head_activation": options["activation"], "head_bias": True}


def restore_decoder(record: dict[str, Any], options: Any) -> dict[str, Any]:
    return {**restore(record, options), "is_decoder": True}


_POOLER = (rename("heads.pool.dense", "pooler", inside=True),)
DECODER = Family(
    name="big_bird",
    model="decoder",
    base="bert.",
    fields=(*FIELDS, Field("tied", "tie_word_embeddings", True)),
    fixed=bert.FIXED,
    only={"is_decoder": (True,), "add_cross_attention": (False,)},
    architectures={"BigBirdForCausalLM": ("pool",), "BigBirdModel": ("pool",)},
    alone="BigBirdModel",
    spare=("pool",),
    head=head,
    body=bert.BODY,
    heads={"pool": _POOLER},
    output=(
        rename("head.dense", "cls.predictions.transform.dense"),
        rename("head.norm", "cls.predictions.transform.LayerNorm"),
        rename("head.bias", "cls.predictions.bias"),
        rename("head.weight", "cls.predictions.decoder.weight"),
    ),
    speakers=("BigBirdForCausalLM",),
    ties=bert.BERT.ties,
    untied=bert.BERT.untied,
    instead=bert.BERT.instead,
    ignored=bert.BERT.ignored,
    adjust=adjust_decoder,
    restore=restore_decoder,
)

BIG_BIRD = Family(
    name="big_bird",
    model="encoder",
    base="bert.",
    fields=(*FIELDS, Field("separator", "sep_token_id", 66)),
    fixed=bert.FIXED,
    only={"is_decoder": (False,), "add_cross_attention": (False,)},
    # All classes but that for answers have a pooler, used or not.
    architectures={
        "BigBirdModel": ("pool",),
        "BigBirdForPreTraining": ("masked", "pair"),
        "BigBirdForMaskedLM": ("masked", "pool"),
        "BigBirdForSequenceClassification": ("classify", "pool"),
        "BigBirdForMultipleChoice": ("choose",),
        "BigBirdForTokenClassification": ("tag", "pool"),
        "BigBirdForQuestionAnswering": ("span",),
    },
    spare=("pool",),
    head=head,
    body=bert.BODY,
    heads={
        "pool": _POOLER,
        "masked": bert.BERT.heads["masked"],
        "pair": bert.pooled_head("pair", "cls.seq_relationship", "pooler"),
        "classify": (
            rename("heads.classify.dense", "classifier.dense"),
            rename("heads.classify.out", "classifier.out_proj"),
        ),
        "choose": bert.pooled_head("choose", "classifier", "pooler"),
        "tag": bert.token_head("tag", "classifier"),
        "span": (
            rename("heads.span.feedforward.inner", "qa_classifier.intermediate.dense"),
            rename("heads.span.feedforward.outer", "qa_classifier.output.dense"),
            rename("heads.span.around.norm", "qa_classifier.output.LayerNorm"),
            rename("heads.span.out", "qa_classifier.qa_outputs"),
        ),
    },
    ties=bert.BERT.ties,
    untied=bert.BERT.untied,
    instead=bert.BERT.instead,
    ignored=bert.BERT.ignored,
    adjust=adjust,
    restore=restore,
    decoder=DECODER,
)
