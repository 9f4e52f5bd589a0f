"""Big Bird (Zaheer et al. 2020): BERT's encoder with blocks that read their window, global and random blocks."""

from typing import Any

from longspan.errors import Unsupported
from longspan.hub.families import bert
from longspan.hub.family import Config, Family, Field
from longspan.hub.names import rename
from longspan.models.body import spread
from longspan.nn.heads import Head

_DEFAULTS = {"vocab_size": 50358, "hidden_act": "gelu_new", "max_position_embeddings": 4096}
FIELDS = (
    *(Field(each.ours, each.theirs, _DEFAULTS.get(each.theirs, each.default), each.values) for each in bert.FIELDS),
    Field("query_bias", "use_bias", True),
    Field("scale", "rescale_embeddings", False),
)
# Values and defaults of their attention_type, block_size and num_random_blocks; and a key of our own, `BigBird`'s plan.
FULL, SPARSE, BLOCK, RANDOM, PLAN = "original_full", "block_sparse", 64, 3, "random_plan"


def _kind(given: Config) -> str:
    kind = str(given.get("attention_type", SPARSE))
    if kind not in (FULL, SPARSE):
        raise Unsupported(f"config.json: attention_type is {kind!r}; it can be {FULL!r} or {SPARSE!r}")
    return kind


def adjust(found: dict[str, Any], given: Config) -> dict[str, Any]:
    found["attention"] = [{"name": "softmax"}]
    if _kind(given) == SPARSE:
        block, random = given.get("block_size", BLOCK), given.get("num_random_blocks", RANDOM)
        found["attention"] = [{"name": "bigbird", "block": block, "random": random, "plan": given.get(PLAN, "uniform")}]
    return found


def restore(found: dict[str, Any], options: Any) -> dict[str, Any]:
    """One mechanism for all layers, with a window of three blocks; of biases, those of queries, keys and values."""
    if not options.bias or options.output_bias is False:
        raise Unsupported("big_bird there can be without the biases of queries, keys and values, and no others")
    found["use_bias"] = options.bias if options.query_bias is None else options.query_bias
    first, *others = spread(options.attention, options.layers, "big_bird")
    if any(each != first for each in others):
        raise Unsupported(f"big_bird there has one attention for all layers; this model has {options.attention}")
    if first.name == "softmax" and set(first.options.values()) <= {"scaled_dot"}:
        return {**found, "attention_type": FULL}
    own = first.options
    if first.name != "bigbird" or own.get("form", "itc") != "itc" or own.get("window", 3) != 3:
        raise Unsupported(f"big_bird there has softmax, or bigbird in its itc form with a window of 3, not {first!r}")
    random = own.get("random")
    found |= {"attention_type": SPARSE, "block_size": own.get("block", BLOCK), PLAN: own.get("plan", "uniform")}
    found["num_random_blocks"] = RANDOM if random is None else random
    return found


def head(task: str, options: Config, given: Config) -> Head:
    """BERT's heads, but for two: texts are classified past the pooler, and answers have a layer of their own."""
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


def adjust_decoder(found: dict[str, Any], given: Config) -> dict[str, Any]:
    """Full attention, whatever the file says: theirs is that too for short texts and where it reads an encoder, and
    where it is sparse, it reads the future."""
    _kind(given)
    return {**found, "attention": [{"name": "softmax"}], "head_activation": found["activation"], "head_bias": True}


def restore_decoder(found: dict[str, Any], options: Any) -> dict[str, Any]:
    found = {**restore(found, options), "is_decoder": True}
    if found["attention_type"] != FULL or options.head_activation != options.activation or not options.head_bias:
        raise Unsupported("a big_bird that decodes has softmax, and before its output layer a layer as in its blocks")
    return found


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
    ties=bert.BERT.ties,
    untied=bert.BERT.untied,
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
    # All but answers have a pooler, which some of them do not use.
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
    ignored=bert.BERT.ignored,
    adjust=adjust,
    restore=restore,
    decoder=DECODER,
)
