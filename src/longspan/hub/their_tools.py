"""The way into transformers: our attention in its models, our models in its tools. It is imported on the first call."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from longspan.errors import Unsupported
from longspan.models.base import Model

if TYPE_CHECKING:
    from longspan.hub.pretrained import Pretrained


def register(mechanism: str | None = None, **options: Any) -> str | list[str]:
    """Makes longspan known to transformers; the names of attention implementations that it may now be given.

    >>> longspan.hub.register()
    >>> model = AutoModel.from_pretrained(FOLDER, attn_implementation="longspan:window?window=256")
    >>> model.set_attn_implementation(longspan.hub.register("performer", features=128))

    Call it once before transformers loads a model that longspan wrote. `longspan show NAME` lists the options of a
    mechanism. There are four more: `layers` are the layers that get it (the others stay exact), `max_length` is for
    mechanisms with a table of positions if the model does not say its longest text, `packing=False` reads texts that
    are packed into one row as one, and `global_first` is the number of global tokens at the front (longformer).
    """
    _need_transformers()
    from longspan.hub.transformers_interface.registration import register
    from longspan.hub.transformers_interface.subclasses import register_families
    from longspan.hub.transformers_models.auto import register_models

    register_families()
    register_models()
    return register(mechanism, **options)


def use_attention(model: Any, mechanism: str, **options: Any) -> Any:
    """Gives a model of transformers another attention, by a mechanism that may have weights of its own.

    >>> model = longspan.hub.use_attention(model, "linformer", rank=128)

    The model keeps its weights; those of the mechanism are new. It is saved and loaded like any other, where
    `longspan.hub.register()` was called.
    """
    _need_transformers()
    from longspan.hub.transformers_interface.subclasses import use_attention

    register()
    return use_attention(model, mechanism, options)


def to_transformers(model: "Model | Pretrained | Path | str", task: str | None = None) -> Any:
    """A model that longspan loads or trained, as a model of transformers; the weights are shared, not copied.

    >>> model = longspan.hub.to_transformers("runs/char/model")
    >>> model.generate(ids, max_new_tokens=20)

    Without `task`, the class follows from the model: its first head, or the next token. Tasks are masked, classify,
    regress, tag, span, choose, next (token), target (of an encoder–decoder) and states.
    """
    _need_transformers()
    from longspan.hub.transformers_models.wrap import wrap

    return wrap(model, task)


def _need_transformers() -> None:
    try:
        import transformers
    except ImportError:
        raise Unsupported("this needs transformers, version 5 or later: pip install 'longspan[hf]'") from None
    if int(transformers.__version__.partition(".")[0]) < 5:
        raise Unsupported(f"this needs transformers 5 or later, not {transformers.__version__}")


__all__ = ["register", "to_transformers", "use_attention"]
