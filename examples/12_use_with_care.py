"""Use with care."""

# %% [markdown]
# # Use with care
#
# Before you use a model, ask what it costs, whether it does what it claims, and what it cannot do.

# %%
import torch
from torch import nn

import longspan
from longspan.audit import Claims, Reading

torch.manual_seed(0)

# %% [markdown]
# ## Does it do what it claims?
#
# This "causal" layer subtracts the mean of the whole text, so every output knows the future. Its training loss
# would look wonderful, and its generation would fail. An audit finds it in a second.


# %%
class Leaky(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = longspan.MultiHead(32, heads=4, attention="softmax", causal=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.attention(x - x.mean(dim=1, keepdim=True))  # over positions: later ones too


certificate = longspan.check(Leaky(), Claims(causal=True), reading=Reading(width=32))
for finding in certificate.findings:
    if finding.verdict == "fail":
        print("FAIL", finding.check)
assert certificate.verdict == "fail"

# %% [markdown]
# ## What it cannot do
#
# Attention averages. Whether a bit string has an odd number of ones depends on *every* bit, and an
# average moves by 1/n when one bit changes. Hahn (2020) proves that soft attention loses parity as texts
# grow. Here: how much can one bit move the output of one layer?

# %%
layer = longspan.MultiHead(32, heads=4, attention="softmax").eval()
embedding = torch.randn(2, 32)
for length in (10, 100, 1000):
    bits = torch.randint(2, (1, length))
    flipped = bits.clone()
    flipped[0, length // 2] ^= 1
    with torch.no_grad():
        change = (layer(embedding[bits]) - layer(embedding[flipped]))[0, 0].norm()
    print(f"{length:5} bits: one flipped bit moves the first output by {float(change):.4f}")
assert change < 0.02

# %% [markdown]
# `longspan probe` measures bias, prompt injection and prompting of trained models, with intervals and
# controls; `longspan energy RUN` says what a training run cost, and `longspan card RUN` writes the model
# card. What a model says about itself is text, not a measurement.
