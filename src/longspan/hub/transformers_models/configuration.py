"""`LongspanConfig`: our config.json as a configuration of transformers."""

from collections.abc import Mapping
from typing import Any, ClassVar

from transformers import PreTrainedConfig

from longspan import __version__, config
from longspan.errors import InvalidOption
from longspan.models.base import Model
from longspan.models.folder import MODEL_TYPE
from longspan.models.registry import find
from longspan.nn.heads import Head

# Names that their tools read, and ours.
PLAIN_NAMES = {
    "vocab_size": "vocabulary",
    "hidden_size": "width",
    "num_hidden_layers": "layers",
    "num_attention_heads": "heads",
    "max_position_embeddings": "max_length",
}


class LongspanConfig(PreTrainedConfig):  # type: ignore[misc]
    """The kind of a model, `model`, and its `options`, as in a folder of longspan's."""

    model_type = MODEL_TYPE
    keys_to_ignore_at_inference: ClassVar[list[str]] = ["past_key_values"]

    def __init__(
        self,
        model: str | None = None,
        options: Mapping[str, Any] | None = None,
        longspan: str = __version__,
        plugins: Mapping[str, str] | None = None,
        **given: Any,
    ) -> None:
        self.model, self.options, self.longspan = model, dict(options or {}), longspan
        if plugins:
            self.plugins = dict(plugins)
        for theirs, ours in PLAIN_NAMES.items():
            given.setdefault(theirs, self.options.get(ours))
        given.setdefault("pad_token_id", self.options.get("padding"))
        given.setdefault("tie_word_embeddings", True)  # which of our weights are tied, the options say
        if model is not None:
            given.setdefault("is_encoder_decoder", bool(getattr(find(model), "reads_source", False)))
        head = self.label_head()
        if head is not None and not {"num_labels", "id2label"} & given.keys():
            given["id2label"] = dict(enumerate(head.names or [f"LABEL_{i}" for i in range(head.labels)]))
            given["label2id"] = {name: index for index, name in given["id2label"].items()}
        super().__init__(**given)

    def heads(self) -> list[Head]:
        """The heads of the options."""
        return [Head.read(value) for value in self.options.get("tasks") or ()]

    def label_head(self) -> Head | None:
        """The head whose labels the configuration names."""
        return next((head for head in self.heads() if head.task in ("classify", "regress", "tag")), None)

    def build(self) -> Model:
        """Our model, with new weights."""
        if self.model is None:
            raise InvalidOption(
                "a LongspanConfig needs the kind of model and its options: LongspanConfig(model=…, options=…)"
            )
        kind = find(self.model)
        return kind(config.make(kind.Options, self.options, self.model))

    @classmethod
    def of(cls, model: Model, **given: Any) -> "LongspanConfig":
        """The configuration of a model of ours."""
        return cls(model=model.name, options=config.plain(model.options), **given)


__all__ = ["MODEL_TYPE", "LongspanConfig"]
