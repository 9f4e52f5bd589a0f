"""Which layer gets which attention: read from text, and checked against the model before anything is built."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

from torch import nn

from longspan.adapt.swap.start import NEEDS_FORCE
from longspan.attention.config import AttentionConfig
from longspan.attention.registry import find, names
from longspan.errors import InvalidInput, InvalidOption, Unsupported
from longspan.models.base import Model
from longspan.models.body import spread
from longspan.models.decoder import Decoder
from longspan.models.encoder import Encoder
from longspan.models.transformer import Transformer
from longspan.models.vision.vit import VisionTransformer
from longspan.nn.multihead import MultiHead
from longspan.nn.stack import Stack
from longspan.parsing import toml_value

KINDS = (Encoder, Decoder, Transformer, VisionTransformer)
STACKS = ("encoder", "decoder")
Attentions = str | Mapping[str, object] | AttentionConfig
# Options of dense attention that belong to the trained model: another mechanism must have them too.
TRAINED = ("scale", "softcap", "learned_sink")
SINKS = "sink_positions"
_RANGE = re.compile(r"(\d+)(-)?(\d+)?")


@dataclass(frozen=True)
class LayerRange:
    """Layers `first` to `last` (None: the top one), and the attention that they get."""

    first: int
    last: int | None
    attention: AttentionConfig


@dataclass(frozen=True)
class Plan:
    """The attention of each layer of a stack, before and after."""

    option: str  # the model's option that holds it: "attention", "encoder_attention" or "decoder_attention"
    stack_name: str  # "encoder" or "decoder"
    before: tuple[AttentionConfig, ...]
    after: tuple[AttentionConfig, ...]

    @property
    def causal(self) -> bool:
        return self.stack_name == "decoder"

    @property
    def swapped(self) -> list[int]:
        """The layers that get another attention."""
        return [layer for layer, (old, new) in enumerate(zip(self.before, self.after)) if old != new]

    def keeping(self, layers: Sequence[int]) -> "Plan":
        """The same plan, except that these layers keep their attention."""
        after = tuple(self.before[layer] if layer in layers else new for layer, new in enumerate(self.after))
        return Plan(self.option, self.stack_name, self.before, after)

    def options(self) -> dict[str, list[object]]:
        """The changed option of the model."""
        return {self.option: [setting.plain() for setting in self.after]}


def read_attention(value: Attentions) -> AttentionConfig:
    """An attention from its name with options, `window:window=256,sinks=4`, a table, or an `AttentionConfig`."""
    if isinstance(value, AttentionConfig):
        return value
    if not isinstance(value, str) or ":" not in value or value in names():
        return AttentionConfig.read(value)
    name, _, rest = value.rpartition(":") if _is_path(value) else value.partition(":")
    options = {}
    for part in _split_options(rest):
        key, equals, text = part.partition("=")
        if not equals or not key.strip():
            raise InvalidOption(f"{value!r}: options are written {name}:key=value,key=value; {part!r} is no key=value")
        options[key.strip()] = toml_value(text)
    return AttentionConfig.read({"name": name, **options})


def _is_path(text: str) -> bool:
    """Whether a text names a class outside the package, `package.module:Name`, with or without options."""
    before = text.partition(":")[0]
    return "." in before and text.count(":") > 1


def _split_options(text: str) -> list[str]:
    """Parts between commas that are outside brackets."""
    return [part for part in re.split(r",(?![^\[]*\])", text) if part.strip()]


def read_layers(text: str, attention: AttentionConfig | None) -> list[LayerRange]:
    """Layers and their attention: `0-5=window:window=256,6=softmax`, or `3-` for those that get `attention`."""
    parts: list[str] = []
    for part in _split_options(text):
        if _RANGE.fullmatch(part.partition("=")[0].strip()):
            parts.append(part)
        elif parts and "=" in parts[-1]:
            parts[-1] += f",{part}"  # one more option of the mechanism before
        else:
            raise InvalidOption(f"layers are written 0-5=window,6=softmax or 3-, not {text!r}: {part!r} names no layer")
    ranges = []
    for part in parts:
        numbers, equals, name = part.partition("=")
        match = _RANGE.fullmatch(numbers.strip())
        assert match is not None
        first, last = int(match[1]), int(match[3]) if match[3] else None if match[2] else int(match[1])
        if last is not None and last < first:
            raise InvalidOption(f"layers {numbers.strip()} end before they begin; give {last}-{first}")
        if not equals and attention is None:
            raise InvalidOption(f"layers {numbers.strip()} have no attention; write {numbers.strip()}=NAME")
        chosen = read_attention(name) if equals else attention
        assert chosen is not None
        ranges.append(LayerRange(first, last, chosen))
    if not ranges:
        raise InvalidOption("no layers are named; leave out layers to swap all of them")
    if attention is not None and all("=" in part for part in parts):
        raise InvalidOption(f"no layer gets the attention {attention.name}; name its layers too, such as 3-")
    return ranges


def read_choice(attention: Attentions | None, layers: str | None) -> list[LayerRange]:
    """What a caller asks for; every name and option is checked here, before a model is loaded."""
    setting = None if attention is None else read_attention(attention)
    if layers is not None:
        return read_layers(layers, setting)
    if setting is None:
        raise InvalidOption("say what to swap: an attention for all layers, or layers such as 0-5=window,6=softmax")
    return [LayerRange(0, None, setting)]


def make_plan(
    model: Model,
    ranges: Sequence[LayerRange],
    *,
    stack: str | None = None,
    length: int | None = None,
    force: bool = False,
) -> Plan:
    """The attention of each layer, for texts of `length`; refuses whatever cannot stand in its place."""
    if not isinstance(model, KINDS) or not isinstance(stack_of(model, _stack_name(model, stack)), Stack):
        raise Unsupported(
            f"the attention of a model {model.name!r} cannot be swapped: it must be an encoder, a decoder, an "
            "encoder–decoder or a vision transformer with ordinary blocks"
        )
    stack_name = _stack_name(model, stack)
    if isinstance(model, Transformer):
        option = f"{stack_name}_attention"
        layers = (model.options.decoder_layers if stack_name == "decoder" else None) or model.options.layers
    else:
        option, layers = "attention", model.options.layers
    before = spread(getattr(model.options, option), layers, stack_name)
    after = list(before)
    for chosen in ranges:
        last = layers - 1 if chosen.last is None else chosen.last
        if max(chosen.first, last) >= layers:
            raise InvalidInput(f"there is no layer {max(chosen.first, last)}: the {stack_name} has 0 to {layers - 1}")
        for layer in range(chosen.first, last + 1):
            new = _inherit(before[layer], chosen.attention, f"{stack_name} layer {layer}")
            after[layer] = _place_sinks(before[layer], new) if _reads_farther(model, length) else new
    plan = Plan(option, stack_name, tuple(before), tuple(after))
    for layer in plan.swapped:
        _check(model, plan, layer, force)
    return plan


def _stack_name(model: Model, stack: str | None) -> str:
    if stack is not None and stack not in STACKS:
        raise InvalidOption(f"stack must be encoder or decoder, not {stack!r}")
    if isinstance(model, Transformer):
        return stack or "encoder"
    name = "decoder" if isinstance(model, Decoder) else "encoder"
    if stack is not None and stack != name:
        raise InvalidOption(f"this model is {_article(name)}; leave out the stack {stack!r}")
    return name


def _article(name: str) -> str:
    return f"an {name}" if name[0] in "aeiou" else f"a {name}"


def stack_of(model: nn.Module, stack_name: str) -> nn.Module:
    """The stack of blocks that a plan is about."""
    stack: nn.Module = model.get_submodule(stack_name if isinstance(model, Transformer) else "stack")
    return stack


def mixers(model: nn.Module, stack_name: str) -> list[MultiHead]:
    """The self-attention of each layer, bottom up."""
    stack = stack_of(model, stack_name)
    assert isinstance(stack, Stack)
    return [block.mixer for block in stack.layers()]


def _inherit(before: AttentionConfig, after: AttentionConfig, where: str) -> AttentionConfig:
    """The new attention with those options of the old one that the weights were trained with."""
    if before.name == after.name and before.options == after.options:
        return before
    given, kind = dict(after.options), {field.name for field in fields(find(after.name).Options)}
    for key in TRAINED:
        value = getattr(before.all_options, key, None)
        if value in (None, False) or key in given:
            continue
        if key not in kind:
            able = [name for name in names() if key in {field.name for field in fields(find(name).Options)}]
            raise Unsupported(
                f"{where}: the model was trained with {key}={value}, which {after.name} has not; "
                f"these have: {', '.join(able)}"
            )
        given[key] = value
    dropout = before.dropout if after.dropout is None else after.dropout
    return AttentionConfig(after.name, dropout=dropout, **given)


def _reads_farther(model: Model, length: int | None) -> bool:
    """Whether a query at the end of a text would be farther from its first token than any was in training."""
    trained = getattr(model.options, "max_length", None)
    rotary = getattr(model.options, "position", None) == "rotary"
    return rotary and length is not None and trained is not None and length > trained


def _place_sinks(before: AttentionConfig, after: AttentionConfig) -> AttentionConfig:
    """First tokens at positions of the cache, unless said otherwise: no query reads farther than it was trained to."""
    if after is before or after.name != "window" or not after.options.get("sinks") or SINKS in after.options:
        return after
    had = before.name == "window" and before.all_options.sinks
    chosen = before.all_options.sink_positions if had else "cache"
    return AttentionConfig(after.name, dropout=after.dropout, **{**after.options, SINKS: chosen})


def _check(model: Model, plan: Plan, layer: int, force: bool) -> None:
    options, name = model.options, plan.after[layer].name
    mechanism, where = find(name), f"{plan.stack_name} layer {layer}"

    def able(ability: str) -> str:
        found = [other for other in names() if getattr(find(other).supports, ability) and other not in NEEDS_FORCE]
        return f"these can: {', '.join(found)}"

    if name in NEEDS_FORCE and not force:
        raise Unsupported(f"{where}: {name} {NEEDS_FORCE[name]}; force it, or choose another attention")
    if plan.causal and not mechanism.supports.causal:
        raise Unsupported(f"{where}: {name} has no causal form; {able('causal')}")
    if not plan.causal and not mechanism.supports.bidirectional:
        raise Unsupported(f"{where}: {name} is causal only, and this layer reads both ways; {able('bidirectional')}")
    position = options.position if hasattr(options, "position") else "none"
    if position in ("alibi", "relative", "learned_relative") and not mechanism.supports.bias:
        raise Unsupported(
            f"{where}: {name} takes no bias on its scores, which {position} positions need; {able('bias')}"
        )
    grouped = getattr(options, "kv_heads", None) not in (None, options.heads)
    shares = "k" not in mechanism.projects or (name == "routing" and plan.causal)
    if shares and "v" in mechanism.projects:
        what = f"{where}: {name} has one projection for queries and keys"
        if position.startswith("rotary"):
            raise Unsupported(
                f"{what}, which cannot stand for two in a model with rotary positions; {_separate(plan.causal)}"
            )
        if grouped:
            raise Unsupported(f"{what}, and this model groups its queries; {_separate(plan.causal)}")
        if getattr(options, "qk_norm", "none") != "none":
            raise Unsupported(f"{what}, and this model normalises both; {_separate(plan.causal)}")
    if grouped and not mechanism.supports.grouped:
        reason = f": {mechanism.one_head_each}" if mechanism.one_head_each else ""
        raise Unsupported(
            f"{where}: {name} needs a head of keys and values for each query head{reason}; this model groups its "
            f"queries, {options.kv_heads} key heads for {options.heads}; {able('grouped')}"
        )


def _separate(causal: bool) -> str:
    """The mechanisms with two projections that can stand in the same place."""
    separate = [
        name
        for name in names()
        if find(name).projects == ("q", "k", "v")
        and name not in NEEDS_FORCE
        and (find(name).supports.causal and name != "routing" if causal else find(name).supports.bidirectional)
    ]
    return f"these have two: {', '.join(separate)}"


__all__ = ["KINDS", "LayerRange", "Plan", "make_plan", "mixers", "read_attention", "read_choice", "read_layers"]
