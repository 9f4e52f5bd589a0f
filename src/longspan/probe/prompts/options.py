"""Which of several options a model prefers, by log-probability, with four normalisations.

raw         Σ log P(token); longer options lose whatever they say
per token   divided by the number of tokens
per character   divided by the number of characters (bytes of UTF-8)
prior       minus the same after a prompt without the question (Holtzman et al. 2021, domain-conditional PMI)

They can choose four different options, so a figure without its normalisation says little.
"""

from collections.abc import Sequence

NORMALISATIONS = ("raw", "per token", "per character", "prior subtracted")


def normalise(
    options: Sequence[str], logprobs: Sequence[Sequence[float]], prior: Sequence[Sequence[float]]
) -> dict[str, list[float]]:
    """The scores of the options, from the log-probabilities of their tokens with and without the question."""
    raw = [sum(tokens) for tokens in logprobs]
    return {
        "raw": raw,
        "per token": [total / len(tokens) for total, tokens in zip(raw, logprobs)],
        "per character": [total / len(option.encode()) for total, option in zip(raw, options)],
        "prior subtracted": [total - sum(tokens) for total, tokens in zip(raw, prior)],
    }


def winner(options: Sequence[str], scores: Sequence[float]) -> str:
    """The option with the highest score, the first of several."""
    return options[max(range(len(options)), key=lambda number: (scores[number], -number))]


__all__ = ["NORMALISATIONS", "normalise", "winner"]
