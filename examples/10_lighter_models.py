"""Lighter models."""

# %% [markdown]
# # Lighter models
#
# Smaller weights, fewer layers, fewer trained parameters. Each saves something else, and each must be
# measured: size, speed *and* quality.

# %%
import torch
from torch.nn.functional import cross_entropy, kl_div

from longspan.adapt.quantize import quantize
from longspan.demo import learning
from longspan.models.decoder import Decoder

torch.manual_seed(0)
SIZES = {**learning.SIZES, "vocabulary": learning.SYMBOLS + 1, "position": "rotary", "norm_position": "pre"}


def train(model: Decoder, teacher: Decoder | None = None, steps: int = 120) -> Decoder:
    """Train a model to copy; with a teacher, from the teacher's probabilities too."""
    draw = torch.Generator().manual_seed(0)
    optimiser = torch.optim.AdamW(model.parameters(), lr=learning.RATE)
    for _ in range(steps):
        ids = learning.texts(learning.BATCH, draw)
        logits, targets = model(ids[:, :-1])[:, learning.HALF :], ids[:, learning.HALF + 1 :]
        loss = cross_entropy(logits.flatten(0, 1), targets.flatten())
        if teacher is not None:
            with torch.no_grad():
                soft = teacher(ids[:, :-1])[:, learning.HALF :].log_softmax(-1)
            loss = loss + kl_div(logits.log_softmax(-1), soft, log_target=True, reduction="batchmean") / learning.HALF
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return model.eval()


def copied(model: torch.nn.Module) -> float:
    ids = learning.texts(128, torch.Generator().manual_seed(1))
    with torch.no_grad():
        guesses = model(ids[:, :-1])[:, learning.HALF :].argmax(-1)
    return float((guesses == ids[:, learning.HALF + 1 :]).float().mean())


# %% [markdown]
# ## Quantise
#
# Weights of 8 or 4 bits instead of 32. No training; the error is rounding.

# %%
model = train(Decoder.build(**SIZES))
print(f"float32: {copied(model):.1%} copied")
for bits in (8, 4):
    light = quantize(model, bits, group=32)
    size = sum(tensor.nbytes for tensor in light.model.state_dict().values())
    whole = sum(tensor.nbytes for tensor in model.state_dict().values())
    print(f"{bits} bits: {size / whole:.0%} of the size, {copied(light.model):.1%} copied")
    assert copied(light.model) > 0.8

# %% [markdown]
# ## Distil
#
# A student of half the width learns from the teacher's probabilities, which say more than the right
# answer alone (Hinton et al. 2015).

# %%
torch.manual_seed(0)
student = train(Decoder.build(**{**SIZES, "width": 32, "hidden": 64}), teacher=model, steps=150)
counts = [sum(weight.numel() for weight in each.parameters()) for each in (model, student)]
print(f"teacher: {counts[0]:,} parameters, {copied(model):.0%}; student: {counts[1]:,}, {copied(student):.0%}")
assert counts[1] < counts[0] / 2

# %% [markdown]
# `longspan adapt distill`, `quantize`, `lora`, `houlsby`, `prefix`, `share` and `search` do this for real
# models, with a table before and after.
