"""Special tokens that a task puts around its texts.

They become part of the tokenizer and of its file, so that every command which reads the model lays texts out in the
same way.
"""

from collections.abc import Mapping, Sequence

import tokenizers
from tokenizers import AddedToken, processors

from longspan.data.tokenizers.tokenizer import Tokenizer

ENDS = ("add_bos_token", "add_eos_token")  # keys of tokenizer_config.json that would replace the template


def with_template(
    tokenizer: Tokenizer,
    tokens: Sequence[str],
    *,
    single: str,
    pair: str | None = None,
    roles: Mapping[str, str] | None = None,
) -> Tokenizer:
    """A copy of a tokenizer with more special tokens, and with templates of a text and of a pair.

    Tokens that the vocabulary lacks get the next ids. `roles` names those that have a role, such as `sep`.

    >>> with_template(tokenizer, ["<sep>"], single="$A <sep>", roles={"sep": "<sep>"})
    """
    inner = tokenizers.Tokenizer.from_str(tokenizer.to_json())
    inner.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in tokens])
    inner.post_processor = processors.TemplateProcessing(
        single=single,
        pair=f"{single} {single.replace('$A', '$B')}" if pair is None else pair,
        special_tokens=[(token, inner.token_to_id(token)) for token in tokens],
    )
    record = {key: value for key, value in tokenizer.record.items() if key not in ENDS}
    return Tokenizer(inner, {**tokenizer.special, **(roles or {})}, record)


__all__ = ["with_template"]
