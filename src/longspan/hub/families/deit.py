"""DeiT (Touvron et al. 2020): ViT with a second token, which learns from a teacher.

One class has a head on the class token only, the other one on each of the two tokens and takes the mean of their
logits. A DeiT without the second token is a `vit` there.
"""

from dataclasses import replace
from typing import Any

from longspan.hub.families.base import Config
from longspan.hub.families.vit import BODY, VIT
from longspan.hub.families.vit import restore as restore_vit
from longspan.hub.tensor_names import rename

ONE_HEAD, TWO_HEADS = "DeiTForImageClassification", "DeiTForImageClassificationWithTeacher"


def adjust(options: dict[str, Any], given: Config) -> dict[str, Any]:
    """How the heads are joined follows from the class."""
    options["fusion"] = "logits" if TWO_HEADS in (given.get("architectures") or ()) else "label"
    return options


def restore(record: dict[str, Any], options: Any) -> dict[str, Any]:
    """The class follows from how the heads are joined."""
    if record["architectures"] == [ONE_HEAD] and options.fusion != "label":
        record["architectures"] = [TWO_HEADS]
    return restore_vit(record, options)


DEIT = replace(
    VIT,
    name="deit",
    base="deit.",
    fixed={**VIT.fixed, "distillation": True},
    architectures={"DeiTModel": ("pool",), ONE_HEAD: ("classify",), TWO_HEADS: ("classify",)},
    body=(
        rename(
            "embedding.distillation",
            "embeddings.distillation_token",
            shape=lambda options, ours: (1, 1, options.width),
        ),
        *BODY,
    ),
    class_heads={
        TWO_HEADS: {
            "classify": (
                rename("heads.classify.out", "cls_classifier"),
                rename("teacher_head", "distillation_classifier"),
            )
        }
    },
    adjust=adjust,
    restore=restore,
)
