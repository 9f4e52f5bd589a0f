"""Chat templates: turn a conversation into the text or token ids that a model was trained on.

The template comes with the tokenizer. It is a Jinja program and runs in a sandbox (`template_sandbox`). Special tokens
that a user writes in a message stay plain text.
"""

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from longspan.data.tokenizers import template_sandbox
from longspan.data.tokenizers.tokenizer import Tokenizer
from longspan.errors import InvalidInput, Unsupported

Message = Mapping[str, str]  # {"role": "user", "content": "…"}


def template(tokenizer: Tokenizer) -> str:
    """The tokenizer's template; if it has several, the one called default."""
    source: Any = tokenizer.record.get("chat_template")
    if isinstance(source, list):
        by_name = {entry.get("name"): entry.get("template") for entry in source if isinstance(entry, Mapping)}
        source = by_name.get("default")
    if not isinstance(source, str):
        raise Unsupported("this tokenizer has no template for chats; give the prompt as text")
    return source


def render(tokenizer: Tokenizer, messages: Sequence[Message], *, answer: bool = True) -> str:
    """The text of a conversation; with `answer`, up to the point where the model's answer begins."""
    special = {f"{role}_token": token for role, token in tokenizer.special.items()}
    names = {"messages": [dict(message) for message in messages], "add_generation_prompt": answer, **special}
    return template_sandbox.render(template(tokenizer), names)


def encode_chat(tokenizer: Tokenizer, messages: Sequence[Message], *, answer: bool = True) -> list[int]:
    """The token ids of a conversation: special tokens count in the template only; in messages they are text.

    >>> encode_chat(tokenizer, [{"role": "user", "content": "What is the capital of France?"}])
    """
    names = tokenizer.specials
    risky = [any(name in message["content"] for name in names) for message in messages]
    if not any(risky):
        return tokenizer.encode(render(tokenizer, messages, answer=answer), special=False, allow="all").ids
    # Messages that contain a special token are rendered as placeholders, and encoded separately as plain text.
    placeholders = {f"\ufdd0{secrets.token_hex(8)}": m["content"] for m, unsafe in zip(messages, risky) if unsafe}
    unused = iter(placeholders)
    safe = [{**m, "content": next(unused)} if unsafe else m for m, unsafe in zip(messages, risky)]
    text, ids = render(tokenizer, safe, answer=answer), []
    for placeholder, content in placeholders.items():
        before, present, text = text.partition(placeholder)
        if not present:
            raise InvalidInput("a message has the name of a special token in it, and the template changes what it says")
        ids += tokenizer.encode(before, special=False, allow="all").ids
        ids += tokenizer.encode(content, special=False).ids
    return [*ids, *tokenizer.encode(text, special=False, allow="all").ids]


__all__ = ["Message", "encode_chat", "render", "template"]
