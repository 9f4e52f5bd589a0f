"""Checks of packing: several texts in one row, with borders that the call names, must not touch each other.

Hugging Face's models have four ways to be told of the borders, and each is a check of its own:

- positions that start again from 0 at each text, without a mask and without a cache: the documented way;
- the same with the model's default cache;
- the same with a padding mask of ones, as most tokenizers and collators give;
- `cu_seq_lens_q` and `cu_seq_lens_k`, the borders themselves, without positions.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch

from longspan.audit.behaviour import NO_EFFECT
from longspan.audit.external import ModelSubject
from longspan.audit.finding import Measurement, NotMeasured, Worst, check, difference, spread
from longspan.audit.subjects import AuditSubject, cut

SHARES = (0.3, 0.75)  # where the first and the second text end


@check("packed texts do not touch each other: position_ids", lambda claims: claims.packing)
def packing_positions(subject: AuditSubject) -> Measurement:
    return _packed(subject, use_cache=False)


@check("packed texts do not touch each other: position_ids and the default cache", lambda claims: claims.packing)
def packing_cached(subject: AuditSubject) -> Measurement:
    if "use_cache" not in _model(subject).forward_parameters:
        raise NotMeasured(f"{subject.name} has no cache")
    return _packed(subject, use_cache=None)


@check("packed texts do not touch each other: position_ids and a mask of ones", lambda claims: claims.packing)
def packing_masked(subject: AuditSubject) -> Measurement:
    return _packed(subject, use_cache=False, ones=True)


@check("packed texts do not touch each other: cu_seq_lens", lambda claims: claims.packing)
def packing_borders(subject: AuditSubject) -> Measurement:
    return _packed(subject, use_cache=False, borders=True)


def _packed(subject: AuditSubject, *, use_cache: bool | None, ones: bool = False, borders: bool = False) -> Measurement:
    """How far texts in one row move when another text of the row changes, and how far they are from being alone."""
    model, worst = _model(subject), Worst()
    length = subject.length
    ends = [0, *(int(share * length) for share in SHARES), length]
    texts = list(pairwise(ends))
    sample = subject.sample(1, length, seed=0)
    keywords = _keywords(model, texts, use_cache, ones, borders)
    with torch.no_grad():
        packed = model.call(sample, keywords)
        scale, moved = spread(packed), 0.0
        for number, (begin, end) in enumerate(texts):
            changed_text = torch.zeros(1, length, dtype=torch.bool)
            changed_text[:, begin:end] = True
            changed = model.call(subject.replace(sample, changed_text, seed=77), keywords)
            worst.see(difference(changed[~changed_text], packed[~changed_text], scale), f"text {number} changed")
            moved = max(moved, difference(changed[changed_text], packed[changed_text], scale))
            if "position_ids" in keywords:  # otherwise positions go on, and a text alone has others
                alone = model.call(
                    cut(sample, begin, end), _keywords(model, [(0, end - begin)], use_cache, ones, False)
                )
                worst.see(difference(alone, packed[:, begin:end], scale), f"text {number} alone")
    if moved <= subject.same:
        raise NotMeasured(NO_EFFECT)
    return worst.against(subject.near)


def _model(subject: AuditSubject) -> ModelSubject:
    if not isinstance(subject, ModelSubject):
        raise NotMeasured(f"{subject.name} reads no token ids: packing is measured for models only")
    return subject


def _keywords(
    model: ModelSubject, texts: Sequence[tuple[int, int]], use_cache: bool | None, ones: bool, borders: bool
) -> dict[str, Any]:
    """How the borders are told in a call of the model."""
    known = model.forward_parameters
    keywords: dict[str, Any] = {}
    if not borders:
        if "position_ids" not in known:
            raise NotMeasured(f"{model.name} takes no position_ids")
        keywords["position_ids"] = torch.cat([torch.arange(end - begin) for begin, end in texts])[None]
    if use_cache is not None and "use_cache" in known:
        keywords["use_cache"] = use_cache
    if ones:
        if model.mask is None:
            raise NotMeasured(f"{model.name} takes no padding mask that is known")
        keywords |= model.mask.arguments(torch.ones(1, texts[-1][1], dtype=torch.bool))
    if borders:
        if not _any_keyword(model):
            raise NotMeasured(f"{model.name} takes no cu_seq_lens")
        ends = torch.tensor([0, *(end for _, end in texts)], dtype=torch.int32)
        longest = max(end - begin for begin, end in texts)
        keywords |= {"cu_seq_lens_q": ends, "cu_seq_lens_k": ends, "max_length_q": longest, "max_length_k": longest}
    return keywords


def _any_keyword(model: ModelSubject) -> bool:
    """Whether `forward` takes further keywords, by which transformers passes cu_seq_lens down."""
    return "kwargs" in model.forward_parameters or "cu_seq_lens_q" in model.forward_parameters


__all__ = ["packing_borders", "packing_cached", "packing_masked", "packing_positions"]
