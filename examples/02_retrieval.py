"""Attention as soft retrieval."""

# %% [markdown]
# # Attention as soft retrieval
#
# A database has keys and values. You ask with a query and get the value whose key fits best. Attention
# does the same, but softly: it returns a *mixture* of all values, weighted by how well each key fits.
# Softness is what makes it learnable: the gradient reaches every key.

# %%
import math

import torch

import longspan
from examples.pictures import grid

# %% [markdown]
# ## "I want a blue unicorn"
#
# Five objects in the shop, and how well each fits the query (the scores of the slide).

# %%
objects = ["blue unicorn", "pink unicorn", "red car", "blue horse", "unicorn mug"]
scores = torch.tensor([1.4, 1.1, 0.3, 0.6, 0.7])

hard = objects[int(scores.argmax())]
soft = torch.softmax(scores, 0)
print("hard retrieval returns:", hard)
for name, weight in zip(objects, soft):
    print(f"  {weight:.2f}  {name}")
assert hard == "blue unicorn" and math.isclose(float(soft.sum()), 1.0, abs_tol=1e-6)

# %% [markdown]
# Sharper scores make soft retrieval hard: divide by a small temperature and the best one takes all.

# %%
temperatures = (2.0, 1.0, 0.3, 0.05)
table = [torch.softmax(scores / temperature, 0).tolist() for temperature in temperatures]
grid("Weights by temperature", table, [f"{t:g}" for t in temperatures], objects, up="temperature", across="object")
assert table[-1][0] > 0.99

# %% [markdown]
# ## The same in one call
#
# Keys and the query are vectors, a score is q·k/√d, and the value is what is returned. With scores that
# give the weights .05 .6 .1 .2 .05, the output is that mixture of the values.

# %%
weights = torch.tensor([0.05, 0.6, 0.1, 0.2, 0.05])
values = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [0.5, 0.0], [0.0, 0.5]])
q = torch.tensor([[[[1.0]]]])  # (batch, heads, queries, width): one query of width 1
k = weights.log()[None, None, :, None]  # then q·k/√1 is the logarithm of the weight
out = longspan.attend("softmax", q, k, values[None, None])
print("mixture by hand:  ", (weights @ values).tolist())
print("longspan.attend:  ", out[0, 0, 0].tolist())
assert torch.allclose(out[0, 0, 0], weights @ values, atol=1e-6)

# %% [markdown]
# ## Six ways to score
#
# The lectures list six score functions: cosine (Graves 2014), additive (Bahdanau 2015), location,
# general and dot (Luong 2015), scaled dot (Vaswani 2017). All of them are options of one mechanism.

# %%
torch.manual_seed(0)
x = torch.randn(1, 12, 32)
for score in ("cosine", "additive", "location", "general", "dot", "scaled_dot"):
    layer = longspan.MultiHead(32, heads=1, attention="softmax", score=score, max_length=12)
    sharpest = layer.weights(x)[0, 0].max(-1).values.mean()
    print(f"{score:10} largest weight of a row, on average: {sharpest:.2f}")
