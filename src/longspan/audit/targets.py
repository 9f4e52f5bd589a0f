"""Resolve the name of a target to the subjects to audit."""

import inspect
import os
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal

import torch
from torch import nn

from longspan.attention import registry
from longspan.attention.base import Attention
from longspan.audit.claims import Claims
from longspan.audit.external import (
    LENGTH,
    LONG_LENGTHS,
    MaskKeyword,
    ModelSubject,
    ModuleSubject,
    OutsideSubject,
    find_causal,
    find_mask,
    takes_batch_first,
)
from longspan.audit.settings import small
from longspan.audit.subjects import AuditSubject, MechanismSubject, forms
from longspan.errors import InvalidInput, InvalidOption, LongspanError, UnknownName, suggest
from longspan.registry import importable_from


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How to call a module from outside longspan, if its signature does not say."""

    kind: Literal["auto", "features", "tokens"] = "auto"
    mask: str | None = None  # the keyword of the padding mask
    mask_keeps: bool | None = None  # whether True in that mask means "may be read"
    width: int | None = None  # of the features
    vocabulary: int | None = None  # number of token ids
    length: int | None = None  # of the samples
    long_length: int | None = None  # of the longer samples, in which leaks are looked for too
    batch_first: bool | None = None  # whether features are (batch, length, width) and not (length, batch, width)
    causal_mask: bool = False  # whether to pass the causal mask that it takes (src_mask, attn_mask, is_causal)
    growth_lengths: tuple[int, ...] | None = None  # between which the order is measured

    def __post_init__(self) -> None:
        least = {"width": 1, "vocabulary": 2, "length": 8, "long_length": 2 + (self.length or LENGTH)}
        for name, low in least.items():
            value = getattr(self, name)
            if value is not None and value < low:
                raise InvalidOption(f"{name} must be at least {low}, not {value}")


def resolve(
    target: str,
    claims: Claims | None = None,
    *,
    options: dict[str, Any] | None = None,
    reading: Reading | None = None,
) -> tuple[AuditSubject, ...]:
    """The subjects behind a name: a registered mechanism in all its forms, or `package.module:factory`.

    The factory is a module, or a class or function that makes one when called without arguments; it is imported from
    the current folder too. `options` build a registered mechanism with those instead of the audit's small ones.
    `claims` are for modules from elsewhere; longspan's mechanisms declare their own.
    """
    if ":" not in target:
        if target not in registry.names():
            hint = suggest(target, registry.names())
            raise UnknownName(f"no attention is called {target!r}: {hint} For your own, write package.module:factory")
        return subjects_of(registry.find(target), claims, name=target, options=options, reading=reading)
    return subjects_of(_load(target), claims, name=target, options=options, reading=reading)


def subjects_of(
    thing: Any,
    claims: Claims | None = None,
    *,
    name: str | None = None,
    options: dict[str, Any] | None = None,
    reading: Reading | None = None,
) -> tuple[AuditSubject, ...]:
    """The subjects in a mechanism's class, a mechanism, or any module."""
    ours = isinstance(thing, Attention) or (isinstance(thing, type) and issubclass(thing, Attention))
    if ours and claims is not None:
        raise InvalidOption(f"{thing.name} is a longspan mechanism, which declares its own claims; leave out claims")
    if isinstance(thing, type) and issubclass(thing, Attention):
        return forms(thing, small(thing.name) if options is None else (options,))
    if options is not None:
        raise InvalidOption("options can be given only with the name or the class of a longspan mechanism")
    if isinstance(thing, Attention):
        return (MechanismSubject(thing),)
    if not isinstance(thing, nn.Module):
        raise InvalidInput(f"{name or 'the target'} must be a torch.nn.Module, not {type(thing).__name__}")
    return (_outside(thing, name or type(thing).__name__, claims or Claims(), reading or Reading()),)


def _load(target: str) -> Any:
    """The module behind `package.module:factory`."""
    path, _, attribute = target.partition(":")
    if not path or not attribute:
        raise InvalidInput(f"a target is written package.module:factory, not {target!r}")
    with importable_from(os.getcwd()):  # noqa: PTH109  # sys.path holds strings
        try:
            target_object: Any = import_module(path)
        except ModuleNotFoundError as error:
            if error.name is not None and (path == error.name or path.startswith(f"{error.name}.")):
                raise UnknownName(f"there is no module {path!r} here or among the installed packages") from error
            raise InvalidInput(f"{path} cannot be imported: {error}") from error
        except Exception as error:
            raise InvalidInput(f"{path} cannot be imported: {type(error).__name__}: {error}") from error
        for name in attribute.split("."):
            if not hasattr(target_object, name):
                public = [public_name for public_name in dir(target_object) if not public_name.startswith("_")]
                raise UnknownName(f"{path} has no {name!r}: {suggest(name, public)}")
            target_object = getattr(target_object, name)
        if isinstance(target_object, nn.Module) or (
            isinstance(target_object, type) and issubclass(target_object, Attention)
        ):
            return target_object
        if not callable(target_object):
            raise InvalidInput(f"{target} must be a torch.nn.Module or make one, not {type(target_object).__name__}")
        try:
            module = target_object()
        except LongspanError:
            raise
        except Exception as error:
            hint = "a class that needs arguments can be wrapped in a function without any"
            raise InvalidInput(
                f"{target} cannot be called without arguments: {type(error).__name__}: {error}; {hint}"
            ) from error
    if not isinstance(module, nn.Module):
        raise InvalidInput(f"{target} must give a torch.nn.Module, not {type(module).__name__}")
    return module


def _outside(module: nn.Module, name: str, claims: Claims, reading: Reading) -> OutsideSubject:
    """The adapter that fits, found by calling the module on a small sample of each kind."""
    mask = find_mask(module, reading.mask, reading.mask_keeps)
    causal = find_causal(module)
    if reading.causal_mask and causal is None:
        raise InvalidOption(f"{name} takes no causal mask that is known (src_mask, attn_mask, is_causal)")
    length = reading.length or LENGTH
    refusals = []
    for kind in _kinds(module, reading):
        try:
            subject = _adapter(kind, module, name, claims, reading, mask)
            subject.growth_lengths = reading.growth_lengths or subject.growth_lengths
            if causal is not None and reading.causal_mask:
                subject.causal = causal
            elif causal is not None:
                subject.causal_hint = f"called without {causal.names}; --causal-mask passes it"
            _try(subject, length)
        except Exception as error:
            cause = "" if isinstance(error, LongspanError) else f"{type(error).__name__}: "
            refusals.append(f"on {kind} it failed: {cause}{' '.join(str(error).split())[:200]}")
            continue
        subject.long_length = _long_length(subject, reading.long_length)
        return subject
    raise InvalidInput(f"{name} cannot be called on samples of length {length}; {'; '.join(refusals)}")


def _try(subject: OutsideSubject, length: int) -> None:
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        subject.fresh().run(subject.sample(2, length, seed=0))


def _long_length(subject: OutsideSubject, wanted: int | None) -> int | None:
    """The length of the longer samples: the given one, or the first that the module accepts."""
    if wanted is not None:
        try:
            _try(subject, wanted)
        except Exception as error:
            raise InvalidInput(f"{subject.name} cannot be called on samples of length {wanted}: {error}") from error
        return wanted
    for length in LONG_LENGTHS:
        if length > subject.length:
            with suppress(Exception):
                _try(subject, length)
                return length
    return None


def _adapter(
    kind: str, module: nn.Module, name: str, claims: Claims, reading: Reading, mask: MaskKeyword | None
) -> OutsideSubject:
    length = reading.length or LENGTH
    if kind == "tokens":
        vocabulary = reading.vocabulary or _vocabulary(module)
        if vocabulary is None:
            raise InvalidOption(f"the vocabulary of {name} is unknown; say how many token ids there are")
        return ModelSubject(name, module, claims, vocabulary=vocabulary, length=length, mask=mask)
    width = reading.width or _width(module)
    if width is None:
        raise InvalidOption(f"the width of {name} is unknown; say how wide its input is (--width)")
    batch_first = takes_batch_first(module) if reading.batch_first is None else reading.batch_first
    return ModuleSubject(name, module, claims, width=width, length=length, mask=mask, batch_first=batch_first)


def _kinds(module: nn.Module, reading: Reading) -> tuple[str, ...]:
    """The kinds of input to try, likelier first: usually only models of tokens have embeddings."""
    if reading.kind != "auto":
        return (reading.kind,)
    return ("tokens", "features") if _vocabulary(module) is not None else ("features",)


def _vocabulary(module: nn.Module) -> int | None:
    finder = getattr(module, "get_input_embeddings", None)
    embedding = finder() if callable(finder) and not inspect.signature(finder).parameters else None
    if not isinstance(embedding, nn.Embedding):
        embedding = next((layer for layer in module.modules() if isinstance(layer, nn.Embedding)), None)
    return None if embedding is None else embedding.num_embeddings


def _width(module: nn.Module) -> int | None:
    for attribute in ("embed_dim", "d_model", "input_size", "hidden_size", "width", "dim"):
        for owner in (module, getattr(module, "config", None)):
            value = getattr(owner, attribute, None)
            if isinstance(value, int):
                return value
    for layer in module.modules():  # the first layer with a known width, in the order of definition
        if isinstance(layer, nn.Linear):
            return layer.in_features
        if isinstance(layer, nn.LayerNorm):
            return layer.normalized_shape[-1]
    return None
