"""Translate Hugging Face's `generation_config.json` into options of `decode`.

>>> how = generation.read("bart-large-cnn")
>>> beam_search(model, how.prompts(len(source)), source=source, options=how.search, eos=how.ends)
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from longspan.data.files import read_json
from longspan.decode.options import Beam, Sampling
from longspan.errors import InvalidInput, Unsupported
from longspan.hub import families
from longspan.parsing import refusing

FILE, CONFIG = "generation_config.json", "config.json"
STOPS = {False: "likely", True: "full", "never": "sure"}  # by their `early_stopping`
MOST = 1000  # most beams or sequences that a file may ask for
TOKENS = ("decoder_start_token_id", "bos_token_id", "eos_token_id")
# Settings without a counterpart here, with the values that have no effect.
ABSENT: dict[str, tuple[Any, ...]] = {
    "num_beam_groups": (1,),
    "diversity_penalty": (0.0,),
    "encoder_repetition_penalty": (1.0,),
    "encoder_no_repeat_ngram_size": (0,),
    "bad_words_ids": ([],),
    "force_words_ids": ([],),
    "constraints": ([],),
    "suppress_tokens": ([],),
    "begin_suppress_tokens": ([],),
    "sequence_bias": ([],),
    "exponential_decay_length_penalty": (),
    "typical_p": (1.0,),
    "epsilon_cutoff": (0.0,),
    "eta_cutoff": (0.0,),
    "penalty_alpha": (0.0,),
    "guidance_scale": (1.0,),
    "remove_invalid_values": (False,),
    "renormalize_logits": (False,),
}


@dataclass(frozen=True)
class GenerationSettings:
    """Arguments for `decode.beam_search` or, if `search` is a `Sampling`, for `decode.generate`."""

    search: Beam | Sampling
    begin: tuple[int, ...]  # the tokens that each text starts with; empty: the user gives the prompt
    ends: tuple[int, ...]
    max_new: int | None  # None: the folder does not say

    def prompts(self, count: int) -> list[list[int]]:
        """The same beginning for `count` texts."""
        return [list(self.begin)] * count


def read(folder: Path | str, *, prompt: int = 1) -> GenerationSettings:
    """The settings of a folder; `prompt` is the length of prompts, which Hugging Face's `max_length` includes.

    `generation_config.json` overrides `config.json`, which gives only token ids if both exist.
    """
    folder = Path(folder)
    generation = _record(folder / FILE) if (folder / FILE).is_file() else {}
    return translate(settings(_record(folder / CONFIG), generation), prompt=prompt)


def settings(config: Mapping[str, Any], generation: Mapping[str, Any]) -> dict[str, Any]:
    """The merged settings of `config.json` and `generation_config.json` (empty if there is none)."""
    kind = config.get("model_type")
    base = {**(families.find(str(kind), CONFIG).tokens if kind in families.FAMILIES else {}), **config}
    if not generation:
        return base
    given = {key: value for key, value in generation.items() if value is not None}
    return {**{key: base.get(key) for key in TOKENS}, **given}


def translate(given: Mapping[str, Any], *, prompt: int = 1) -> GenerationSettings:
    """Our settings for a configuration of Hugging Face; unsupported settings are refused by name."""
    with refusing(FILE):
        for key in ("num_beams", "num_return_sequences"):
            if int(given.get(key) or 1) > MOST:
                raise InvalidInput(f"{FILE}: {key} is {given[key]}; at most {MOST} can be")
        return _translate(given, prompt)


def _translate(given: Mapping[str, Any], prompt: int) -> GenerationSettings:
    for key, neutral in ABSENT.items():
        if given.get(key) is not None and given[key] not in neutral:
            raise Unsupported(f"{key} is {given[key]!r}, which is not supported; take it out of {FILE}")
    ends, start, first = (given.get(f"{name}_token_id") for name in ("eos", "decoder_start", "forced_bos"))
    begin = () if start is None else (int(start),)
    most = given.get("max_new_tokens")
    if most is None and given.get("max_length") is not None:
        most = int(given["max_length"]) - prompt
    least = max(int(given.get("min_new_tokens") or 0), int(given.get("min_length") or 0) - prompt, 0)
    search: Beam | Sampling
    if int(given.get("num_beams") or 1) > 1:
        search = replace(_beam(given, first), max_new=most, min_new=least, last_token=_last(given))
    else:
        if first is not None:  # with one beam, a forced first token can be part of the prompt
            begin, most, least = (*begin, int(first)), None if most is None else most - 1, max(least - 1, 0)
        search = replace(_sampling(given), min_new=least, last_token=_last(given))
    several = ends if isinstance(ends, list) else [] if ends is None else [ends]
    return GenerationSettings(search, begin, tuple(int(end) for end in several), most)


def _last(given: Mapping[str, Any]) -> int | None:
    last = given.get("forced_eos_token_id")
    if not isinstance(last, list):
        return last
    if len(last) != 1:
        raise Unsupported(f"forced_eos_token_id is {last!r}; only one token can be forced")
    return int(last[0])


def _beam(given: Mapping[str, Any], first: int | None) -> Beam:
    power = given.get("length_penalty")
    power = 1.0 if power is None else float(power)
    if power < 0:
        raise Unsupported(f"length_penalty is {power:g}; it must be 0 or more, which prefers longer texts")
    if given.get("do_sample"):
        raise Unsupported("do_sample together with num_beams over 1 is not supported; take one of them out")
    if (penalty := given.get("repetition_penalty")) not in (None, 1.0):
        raise Unsupported(f"repetition_penalty is {penalty!r}, which beam search does not support; give num_beams 1")
    early = given.get("early_stopping") or False
    if early not in STOPS:
        raise InvalidInput(f"early_stopping must be false, true or 'never', not {early!r}")
    return Beam(
        beams=int(given["num_beams"]),
        n_best=int(given.get("num_return_sequences") or 1),
        length_penalty="power",
        alpha=power,
        stop=STOPS[early],
        unfinished="ranked",
        no_repeat_ngram=int(given.get("no_repeat_ngram_size") or 0),
        prefix=None if first is None else (int(first),),
        score_prefix=False,
    )


def _sampling(given: Mapping[str, Any]) -> Sampling:
    sampled = bool(given.get("do_sample"))

    def number(name: str, default: float) -> float:
        return default if given.get(name) is None else float(given[name])

    return Sampling(
        temperature=number("temperature", 1.0) if sampled else 0.0,
        top_k=(int(number("top_k", 50)) or None) if sampled else None,  # their default is 50
        top_p=number("top_p", 1.0) if sampled else 1.0,
        min_p=number("min_p", 0.0) if sampled else 0.0,
        repetition_penalty=number("repetition_penalty", 1.0),
        no_repeat_ngram=int(number("no_repeat_ngram_size", 0)),
        samples=int(number("num_return_sequences", 1)),
    )


def _record(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise InvalidInput(f"{path.parent} is no model: it has no {path.name}")
    return read_json(path)


__all__ = ["GenerationSettings", "read", "settings", "translate"]
