"""Recurrence and its limits."""

# %% [markdown]
# # Recurrence and its limits
#
# A recurrent network reads a text word by word. Everything it knows about the past must fit into one
# vector, h. So two things go wrong with long texts: the gradient to early words fades, and nothing can be
# computed in parallel. Attention reads every word directly.

# %%
import torch
from torch import nn

import longspan
from examples.pictures import lines
from longspan.report.charts import ChartAxis

torch.manual_seed(0)
WIDTH, LENGTH = 32, 96

# %% [markdown]
# ## How far back does the gradient reach?
#
# We differentiate the last output by every input and look at the size of the gradient by distance.
# An Elman network multiplies by the same matrix at every step, so the gradient shrinks by a factor each
# time (Bengio et al. 1994). An LSTM (Hochreiter & Schmidhuber 1997) opens a gate for it: slower decay.
# Attention has a direct path of length 1 to every input.

# %%
x = torch.randn(1, LENGTH, WIDTH)
elman = nn.RNN(WIDTH, WIDTH, batch_first=True)
lstm = nn.LSTM(WIDTH, WIDTH, batch_first=True)
nn.init.constant_(lstm.bias_ih_l0[WIDTH : 2 * WIDTH], 3.0)  # a forget gate that starts open
attention = longspan.MultiHead(WIDTH, heads=4, attention="softmax", causal=True)


def gradient_by_distance(last_output):
    """The norm of the gradient of the last output with respect to the input so many steps before it."""
    inputs = x.clone().requires_grad_()
    last_output(inputs).sum().backward()
    return [float(norm) for norm in inputs.grad[0].norm(dim=-1).flip(0)]


sizes = {
    "Elman": gradient_by_distance(lambda inputs: elman(inputs)[0][:, -1]),
    "LSTM": gradient_by_distance(lambda inputs: lstm(inputs)[0][:, -1]),
    "attention": gradient_by_distance(lambda inputs: attention(inputs)[:, -1]),
}
for name, by_distance in sizes.items():
    print(f"{name:10} at distance 1: {by_distance[1]:.1e}   at distance 90: {by_distance[90]:.1e}")
assert sizes["Elman"][90] < 1e-9 < 1e-4 < sizes["attention"][90]

# %%
lines(
    "Gradient by distance",
    {name: [(float(at), max(size, 1e-12)) for at, size in enumerate(by)][1:] for name, by in sizes.items()},
    ChartAxis("steps back"),
    ChartAxis("size", factors=True, number=lambda value: f"{value:.0e}", left=60),
)

# %% [markdown]
# ## One step after another
#
# The recurrent network needs 96 steps, each waiting for the one before. Attention is two products of
# matrices. This is why Transformers train faster, and why the rest of the tour is about them.

# %%
state = torch.zeros(1, 1, WIDTH)
with torch.no_grad():
    for position in range(LENGTH):  # no step can begin before the last one ends
        _, state = elman(x[:, position : position + 1], state)
    together = elman(x)[1]
print("step by step equals all at once:", torch.allclose(state, together, atol=1e-6))
