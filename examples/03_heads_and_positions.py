"""Heads and positions."""

# %% [markdown]
# # Heads and positions
#
# One layer has several heads, each with its own queries, keys and values. And because a weighted sum
# does not know the order of its terms, positions must be told.

# %%
import torch

import longspan
from examples.pictures import grid, lines
from longspan.nn.positions import SinusoidalPositions
from longspan.report.charts import ChartAxis

torch.manual_seed(0)

# %% [markdown]
# ## A sum loses the order
#
# Shuffle the words: without positions, the outputs are the same vectors, shuffled. "Dog bites man" is
# "man bites dog".

# %%
layer = longspan.MultiHead(64, heads=4, attention="softmax").eval()
x = torch.randn(1, 10, 64)
order = torch.randperm(10)
with torch.no_grad():
    same = torch.allclose(layer(x)[:, order], layer(x[:, order]), atol=1e-5)
print("shuffled inputs give shuffled outputs:", same)
assert same

# %% [markdown]
# ## Sines and cosines
#
# Vaswani et al. (2017) add a vector of sines and cosines to each word, with wavelengths from 2π to
# 10,000·2π. Each column below is one wavelength.

# %%
table = SinusoidalPositions(64).code(torch.zeros(1, 64, 64), 0, None)
grid(
    "Sinusoidal positions", [[abs(v) for v in row] for row in table[:32, ::2].tolist()], up="position", across="column"
)

# %% [markdown]
# The dot product of two positions depends on their distance only, and falls with it. So a head *can*
# learn to look "three words back", anywhere in the text.

# %%
products = table @ table.T
by_distance = [float(products.diagonal(distance).mean()) for distance in range(40)]
spread = max(float(products.diagonal(distance).std()) for distance in range(40))
lines(
    "Similarity by distance",
    {"p·p'": list(enumerate(map(float, by_distance)))},
    ChartAxis("distance"),
    ChartAxis("p·p'"),
)
print(f"largest deviation among pairs of one distance: {spread:.1e}")
assert spread < 1e-3 and by_distance[0] > by_distance[5]

# %% [markdown]
# ## Each head looks elsewhere
#
# Four heads of an untrained layer on the same ten words. Training makes them specialise: one may follow
# the previous word, another the verb (Clark et al. 2019). Chapter 6 shows heads that learned something.

# %%
maps = layer.weights(x)[0]
for head in range(2):
    grid(f"Head {head}", maps[head].tolist())
assert torch.allclose(maps.sum(-1), torch.ones(4, 10), atol=1e-5)
