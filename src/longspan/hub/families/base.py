"""`Family`: an architecture of Hugging Face: its configuration as our options, its heads, its tensor names."""

import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from longspan import config
from longspan.attention.config import AttentionConfig
from longspan.errors import InvalidInput, Unsupported, suggest
from longspan.hub.tensor_names import Rule
from longspan.models.attention_positions import RotaryLayer
from longspan.models.body import spread
from longspan.nn.heads import Head

Config = Mapping[str, Any]
HeadRequest = Head | str | Mapping[str, Any]  # a head, the name of a task, or a table with one

# Hugging Face's names of activations; several mean the same function.
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "quick_gelu": "gelu_sigmoid",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_python": "gelu",
    "gelu_accurate": "gelu_tanh",
    "swish": "silu",
}
LABELLED = ("classify", "regress", "tag")  # the tasks whose number of labels is the user's


@dataclass(frozen=True)
class Field:
    """An option of ours and its key in config.json; `default` is the meaning of a missing key in that family."""

    ours: str
    theirs: str
    default: Any = None
    values: Mapping[Any, Any] | None = None  # their values to ours, if they differ
    aliases: Sequence[str] = ()  # other keys with the same meaning

    def read(self, given: Config) -> Any:
        value = next((given[key] for key in (self.theirs, *self.aliases) if key in given), self.default)
        if self.values is None:
            return value
        if not isinstance(value, Hashable) or value not in self.values:
            known = [str(name) for name in self.values]
            raise Unsupported(f"config.json: {self.theirs} is {value!r}: {suggest(str(value), known)}")
        return self.values[value]

    def write(self, value: Any) -> Any:
        if self.values is None:
            return value
        for theirs, ours in self.values.items():
            if ours == value:
                return theirs
        raise Unsupported(f"this family's {self.theirs} cannot say {self.ours} = {value!r}")


def _as_given(given: Config, _: Mapping[str, Tensor]) -> Config:
    return given


def _same(values: dict[str, Any], _: Any) -> dict[str, Any]:
    return values


@dataclass(frozen=True, kw_only=True)
class Family:
    """One architecture, as data: `load_checkpoint` and `save_checkpoint` work the same for all."""

    name: str  # its `model_type`
    model: str  # the name in our registry
    base: str  # prefix of the body's tensors in files with heads: "bert."
    bases: Mapping[str, str] = field(default_factory=dict)  # other prefixes, by class
    fields: Sequence[Field]
    fixed: Config = field(default_factory=dict)  # options that are the same for the whole family
    # Keys with few supported values; the first is the meaning of a missing key.
    only: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    architectures: Mapping[str, Sequence[str]]  # the class names there, and the tasks they have heads for
    head: Callable[[str, Config, Config], Head]  # the head for a task, from our options and their configuration
    body: Sequence[Rule]
    heads: Mapping[str, Sequence[Rule]]  # by task
    class_heads: Mapping[str, Mapping[str, Sequence[Rule]]] = field(default_factory=dict)  # of classes with other names
    alone: str | None = None  # the class of the body alone, whose names have no prefix; default: the first
    spare: Sequence[str] = ()  # tasks whose heads other classes have too, unused
    output: Sequence[Rule] = ()  # of an output layer that is not tied
    speakers: Sequence[str] | None = None  # the classes with an output layer; None: all but the body alone
    ties: Mapping[str, str] = field(default_factory=dict)  # their names that may be copies of other tensors
    tied: bool = True  # the meaning of a missing `tie_word_embeddings`
    ignored: Sequence[str] = ()  # patterns of redundant tensors in old files
    # Patterns of names that other versions write, with what replaces them, one after the other.
    spellings: Sequence[tuple[str, str]] = ()
    tokens: Config = field(default_factory=dict)  # defaults for generation
    headed: Config = field(default_factory=dict)  # options of the family's models that have heads for tasks
    labels: int = 2  # default number of labels of a classifier
    untied: Sequence[str] = ()  # of `ties`, those that are separate tensors if `tie_word_embeddings` is false
    # If `tie_word_embeddings` is false: the tensor that is used instead of another, which the file still has.
    instead: Mapping[str, str] = field(default_factory=dict)
    # What fields cannot express: options from a configuration, and back.
    adjust: Callable[[dict[str, Any], Config], dict[str, Any]] = _same
    restore: Callable[[dict[str, Any], Any], dict[str, Any]] = _same
    decoder: "Family | None" = None  # the family if `is_decoder` is true
    encoder: "Family | None" = None  # that of classes, and of heads, that have only the encoder (T5)
    # What the tensors say and the configuration does not: a configuration from both.
    complete: Callable[[Config, Mapping[str, Tensor]], Config] = _as_given

    def options(self, given: Config, tasks: Sequence[HeadRequest] | None = None) -> dict[str, Any]:
        """Our options for their configuration; `tasks` replaces those of its architecture."""
        for key, supported in self.only.items():
            if given.get(key, supported[0]) not in supported:
                raise Unsupported(
                    f"config.json: {key} is {given[key]!r}; for {self.name} it can be {_listed(supported)}"
                )
        options = {**self.fixed, **{field.ours: field.read(given) for field in self.fields}}
        options = self.adjust(options, given)
        if self._lacks_output(self.named(given)):
            options["tied"] = True
        requested = self.tasks(given) if tasks is None else tasks
        heads = [self._requested_head(task, options, given) for task in requested]
        return {**options, **self.headed, "tasks": tuple(heads)} if heads else options

    def _requested_head(self, task: HeadRequest, options: Config, given: Config) -> Head:
        """The requested head; what a table leaves out follows the family."""
        if isinstance(task, Head):
            return task
        if isinstance(task, str):
            return self.read_head(task, options, given)
        named = Head.read(task)
        if named.task != "regress" and named.task not in self.heads:
            return named
        default = self.read_head(named.task, options, given)
        return replace(default, **{key: getattr(named, key) for key in task})

    def named(self, given: Config) -> str:
        """The class that a configuration names; by default the first."""
        return str((given.get("architectures") or list(self.architectures))[0])

    def tasks(self, given: Config) -> Sequence[str]:
        """The tasks that a configuration's architecture has heads for."""
        named = self.named(given)
        if named not in self.architectures:
            raise Unsupported(f"config.json: no {self.name} is called {named!r}: {suggest(named, self.architectures)}")
        tasks = self.architectures[named]
        if "classify" in tasks and self.count(given) == 1:
            return ["regress" if task == "classify" else task for task in tasks]
        return tasks

    def read_head(self, task: str, options: Config, given: Config) -> Head:
        """The head that this family has for a task."""
        if task != "regress" and task not in self.heads:
            raise Unsupported(f"{self.name} has no head for {task!r}; it has them for {', '.join(self.heads)}")
        head = self.head("classify" if task == "regress" else task, options, given)
        return replace(head, task=task, labels=self.count(given, task))

    def count(self, given: Config, task: str = "classify") -> int:
        """The number of labels of a configuration; a regression has one."""
        if task == "regress":
            return 1
        named = given.get("id2label")
        return len(named) if named else int(given.get("num_labels", self.labels))

    def spelling(self, name: str) -> str:
        """The name that rules have for a tensor of a file, which another version may have written."""
        for pattern, replacement in self.spellings:
            name = re.sub(pattern, replacement, name)
        return name

    def has_output(self, architecture: str) -> bool:
        """Whether a class has an output layer."""
        return self.speakers is None or architecture in self.speakers

    def _lacks_output(self, architecture: str) -> bool:
        """Whether a class has heads but no output layer, so that its ties do not matter."""
        tied = any(item.ours == "tied" for item in self.fields)
        return tied and bool(self.output and self.architectures.get(architecture)) and not self.has_output(architecture)

    def prefix(self, architecture: str) -> str:
        """The prefix of the body's tensors in files of a class."""
        alone = next(iter(self.architectures)) if self.alone is None else self.alone
        return "" if architecture == alone else self.bases.get(architecture, self.base)

    def rules(self, task: str, architecture: str | None = None) -> Sequence[Rule]:
        """The rules for a head's tensors in files of a class; none if the family has no such head."""
        heads = {**self.heads, **self.class_heads.get(architecture or "", {})}
        rules = heads.get("classify" if task == "regress" else task, ())
        if task != "regress":
            return rules
        return [
            replace(rule, ours=tuple(name.replace("heads.classify", "heads.regress") for name in rule.ours))
            for rule in rules
        ]

    def config(self, options: Any, labels: Sequence[str] = (), before: str | None = None) -> dict[str, Any]:
        """Their configuration for our options; `check` says if it is complete. `before` is the model's old class."""
        record: dict[str, Any] = {"model_type": self.name, "architectures": [self.architecture(options, before)]}
        plain = {name: getattr(options, name) for name in (item["name"] for item in config.describe(type(options)))}
        for item in self.fields:
            record[item.theirs] = config.plain(item.write(plain[item.ours]))
        heads = options.tasks or ()
        tied = next((head.tied for head in heads if head.task == "masked"), plain.get("tied"))
        if tied is not None:
            record["tie_word_embeddings"] = tied
        count = next((head.labels for head in heads if head.task in LABELLED), None)
        if count is not None:
            names = labels if len(labels) == count else [f"LABEL_{number}" for number in range(count)]
            record["id2label"] = {str(number): name for number, name in enumerate(names)}
            record["label2id"] = {name: number for number, name in enumerate(names)}
            if any(head.task == "regress" for head in heads):
                record["problem_type"] = "regression"
        if self._lacks_output(record["architectures"][0]):
            del record["tie_word_embeddings"]  # keep what the old configuration says of ties
        return self.restore(record, options)

    def check(self, options: Any, given: Config) -> None:
        """Refuses a model that a configuration cannot describe: it would load as another model."""
        read_back = config.make(type(options), self.options(given, options.tasks or ()), self.name)
        ours, theirs = _settled(options), _settled(read_back)
        if self._lacks_output(self.named(given)):
            ours["tied"] = theirs["tied"]
        for name, value in ours.items():
            if value != theirs[name] and not _alike(value, theirs[name], options):
                raise Unsupported(
                    f"a configuration of {self.name} cannot say {name} = {config.plain(value)!r}; "
                    f"it would be read as {config.plain(theirs[name])!r}"
                )
        plain = {item["name"]: getattr(read_back, item["name"]) for item in config.describe(type(options))}
        for head in options.tasks or ():
            described = self.read_head(head.task, plain, given)
            unsaid: dict[str, Any] = {"dropout": head.dropout, "drop_input": head.drop_input, "names": head.names}
            # Dropout matters in training only; the number of labels matters for some tasks only.
            if replace(described, labels=head.labels, **unsaid) != head:
                raise Unsupported(f"the head of a {self.name} there is {described}, and this model's is {head}")

    def architecture(self, options: Any, before: str | None = None) -> str:
        """The class with exactly these heads; if there are several, the model's old class.

        The body alone may lack its pooler.
        """
        tasks_wanted = {"classify" if head.task == "regress" else head.task for head in options.tasks or ()}
        for spare in ((), self.spare):
            named = [
                name
                for name, tasks in self.architectures.items()
                if {*tasks} - {*spare} == tasks_wanted - {*spare} or (tuple(tasks) == ("pool",) and not tasks_wanted)
            ]
            if named:
                return before if before in named else named[0]
        raise Unsupported(f"no {self.name} there has heads for {', '.join(sorted(tasks_wanted)) or 'nothing'} at once")


# Options that do not change the results of a trained model: initialisation, dropout, chunk sizes.
UNSAID = {
    "tasks",
    "init",
    "init_std",
    "residual_init",
    "zero_output",
    "dropout",
    "embedding_dropout",
    "attention_dropout",
    "hidden_dropout",
    "drop_path",
    "feedforward_chunk",
    # What the decoder starts with, and which tokens are global, are arguments there, of `generate` and of the model.
    "start",
    "source_global",
}


def _settled(options: Any) -> dict[str, Any]:
    """Options by name, with defaults resolved, without those that do not change results."""
    values = {item["name"]: getattr(options, item["name"]) for item in config.describe(type(options))}
    width, heads = values.get("width"), values.get("heads")
    defaults = {
        "embedding_width": width,
        "groups": values.get("layers"),
        "kv_heads": heads,
        "head_dim": width // heads if width and heads else None,
        "key_dim": values.get("head_dim") or (width // heads if width and heads else None),
        "query_bias": values.get("bias"),
        "output_bias": values.get("bias"),
        "decoder_layers": values.get("layers"),
        "decoder_heads": heads,
        "decoder_hidden": values.get("hidden"),
        "shared_embedding": values.get("tied"),
    }
    values |= {name: value for name, value in defaults.items() if name in values and values[name] is None}
    if values.get("groups") == values.get("layers"):
        values.pop("share", None)
    if "rotary_layers" in values:  # of each layer, in place of what they have in common
        base, scaling = values.pop("rotary_base"), values.pop("rotary_scaling")
        layers = values["rotary_layers"] or (RotaryLayer(scaling=scaling),)
        values["rotary_layers"] = [
            (layer.base or base, layer.scaling) if layer.rotate else None
            for layer in (layers[index % len(layers)] for index in range(values["layers"]))
        ]
    if "attention" in values:  # of each layer, without what it drops
        settings = spread(values["attention"], values["layers"], "attention")
        values["attention"] = tuple(AttentionConfig(item.name, **item.options) for item in settings)
    return {name: value for name, value in values.items() if name not in UNSAID}


def _alike(ours: Any, there: Any, options: Any) -> bool:
    """Whether attention is the same in every layer; one side may spell out defaults."""
    if not all(isinstance(value, tuple) and value and isinstance(value[0], AttentionConfig) for value in (ours, there)):
        return False
    layers = max(options.layers, len(ours), len(there))
    return all(
        our_layer == their_layer
        for our_layer, their_layer in zip(spread(ours, layers, "ours"), spread(there, layers, "theirs"))
    )


def label_names(given: Config) -> list[str]:
    """The names of the labels, in order; empty if the configuration has none."""
    named = given.get("id2label") or {}
    try:
        return [str(named[key]) for key in sorted(named, key=int)]
    except (TypeError, ValueError):
        raise InvalidInput(f"config.json: id2label must go from numbers to names, not {named!r}") from None


def _listed(values: Sequence[Any]) -> str:
    return " or ".join(repr(value) for value in values)


__all__ = ["ACTIVATIONS", "LABELLED", "Config", "Family", "Field", "HeadRequest", "label_names"]
