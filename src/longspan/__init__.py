"""longspan: every Transformer attention, classic and efficient, behind one contract.

    layer = longspan.MultiHead(512, heads=8, attention="window", causal=True, window=256)
    drop_in = longspan.MultiheadAttention(512, 8, batch_first=True, attention="window")  # torch.nn's signature
    out = longspan.attend("linear", q, k, v, causal=True)
    model = longspan.create_model("gpt2", attention="window")
    bert = longspan.load("FOLDER")
    print(longspan.check("window"))
    longspan.inspect.maps(bert, "Where does each head read?").save("maps.html")

Names are loaded when they are first used, so that `import longspan` does not wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    import longspan.inspect  # noqa: F401
    from longspan.api import (
        advise,
        check,
        create_model,
        generate,
        list_attention,
        list_models,
        load,
        register_arena_task,
        register_attention,
        register_model,
        register_task,
        swap,
    )
    from longspan.attention.functional import attend
    from longspan.nn.multihead import MultiHead
    from longspan.nn.multihead_attention import MultiheadAttention

_HOMES = {
    "MultiHead": "longspan.nn.multihead",
    "MultiheadAttention": "longspan.nn.multihead_attention",
    "advise": "longspan.api",
    "attend": "longspan.attention.functional",
    "check": "longspan.api",
    "create_model": "longspan.api",
    "generate": "longspan.api",
    "list_attention": "longspan.api",
    "list_models": "longspan.api",
    "load": "longspan.api",
    "register_arena_task": "longspan.api",
    "register_attention": "longspan.api",
    "register_model": "longspan.api",
    "register_task": "longspan.api",
    "swap": "longspan.api",
}

__all__ = [
    "MultiHead",
    "MultiheadAttention",
    "__version__",
    "advise",
    "attend",
    "check",
    "create_model",
    "generate",
    "list_attention",
    "list_models",
    "load",
    "register_arena_task",
    "register_attention",
    "register_model",
    "register_task",
    "swap",
]


_PACKAGES = ("inspect",)  # reached as attributes too: longspan.inspect.maps(model, text)


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return import_module(f"longspan.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
