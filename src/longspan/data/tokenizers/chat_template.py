"""Conversations as the text that a model was trained on, by the template that its tokenizer carries.

A template is a small program of Jinja's. It is run in a sandbox with limits. What users say is not part of it: names of
special tokens there stay text.
"""

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from longspan.data.tokenizers import template_sandbox
from longspan.data.tokenizers.tokenizer import Tokenizer
from longspan.errors import InvalidInput, Unsupported

Message = Mapping[str, str]  # {"role": "user", "content": "…"}


def template(tokenizer: Tokenizer) -> str:
    """The tokenizer's template; of several the one called default."""
    found: Any = tokenizer.record.get("chat_template")
    if isinstance(found, list):
        named = {each.get("name"): each.get("template") for each in found if isinstance(each, Mapping)}
        found = named.get("default")
    if not isinstance(found, str):
        raise Unsupported("this tokenizer has no template for chats; give the prompt as text")
    return found


def render(tokenizer: Tokenizer, messages: Sequence[Message], *, answer: bool = True) -> str:
    """The text of a conversation; with `answer`, up to where the model's answer begins."""
    special = {f"{role}_token": token for role, token in tokenizer.special.items()}
    said = {"messages": [dict(each) for each in messages], "add_generation_prompt": answer, **special}
    return template_sandbox.render(template(tokenizer), said)


def encode_chat(tokenizer: Tokenizer, messages: Sequence[Message], *, answer: bool = True) -> list[int]:
    """The ids of a conversation: special tokens of the template are tokens, those in messages are text.

    >>> encode_chat(tokenizer, [{"role": "user", "content": "What is the capital of France?"}])
    """
    names = tokenizer.specials
    risky = [any(name in each["content"] for name in names) for each in messages]
    if not any(risky):
        return tokenizer.encode(render(tokenizer, messages, answer=answer), special=False, allow="all").ids
    # What could be taken for a token goes in afterwards, by itself.
    marks = {f"\ufdd0{secrets.token_hex(8)}": each["content"] for each, unsafe in zip(messages, risky) if unsafe}
    places = iter(marks)
    safe = [{**each, "content": next(places)} if unsafe else each for each, unsafe in zip(messages, risky)]
    text, ids = render(tokenizer, safe, answer=answer), []
    for mark, content in marks.items():
        before, found, text = text.partition(mark)
        if not found:
            raise InvalidInput("a message has the name of a special token in it, and the template changes what it says")
        ids += tokenizer.encode(before, special=False, allow="all").ids
        ids += tokenizer.encode(content, special=False).ids
    return [*ids, *tokenizer.encode(text, special=False, allow="all").ids]


__all__ = ["Message", "encode_chat", "render", "template"]
