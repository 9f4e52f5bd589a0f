"""Each family of efficient attention."""

# %% [markdown]
# # Each family of efficient attention
#
# The survey of Tay et al. (2020) sorts seventeen systems by *how* they avoid n². Below is one of each
# class on the same 64 tokens: rows are queries, columns are keys. `longspan gallery` draws all of them.

# %%
import torch

import longspan
from examples.pictures import grid
from longspan.attention import describe
from longspan.inspect.gallery import entry


def draw(name: str) -> None:
    shown = entry(name, dials=False)
    form = next(iter(shown.pictures))
    (picture,) = shown.pictures[form][shown.start]
    grid(f"{name}, {form}", picture.read.tolist())
    facts = describe(name)
    print(f"{name}: {facts['summary']} ({facts['paper']}; time {facts['order']})")


# %% [markdown]
# ## Fixed patterns
#
# Decide beforehand which keys a query reads: neighbours (`window`), every k-th key (`sparse`), a few
# global tokens that everybody reads (`longformer`, `bigbird`). Cheap and exact on what they read, blind
# to the rest; with several layers information travels on.

# %%
draw("window")
draw("bigbird")

# %% [markdown]
# ## Learned patterns
#
# Let the content decide: hash or cluster queries and keys, and read within a bucket (`reformer`,
# `routing`), or sort blocks (`sinkhorn`). What fits is found, wherever it stands.

# %%
draw("routing")

# %% [markdown]
# ## Memory
#
# A few learned vectors read everything, and everybody reads them (`inducing`, the Set Transformer).

# %%
draw("inducing")

# %% [markdown]
# ## Low rank
#
# An n×n map of rank r is the product of two thin matrices. `linformer` projects the keys to r rows,
# `nystrom` picks landmarks.

# %%
draw("linformer")

# %% [markdown]
# ## Kernels
#
# Write the weight as φ(q)·φ(k). Then the sum over keys is computed once and used by every query: O(n),
# and O(1) per token when decoding. Nobody ever computes the map of `linear`, but it exists, and we can
# look at it: `weights()` gives the implied map of any mechanism.

# %%
draw("linear")
torch.manual_seed(0)
q, k, v = (torch.randn(1, 2, 50, 16) for _ in range(3))
layer = longspan.attention.build("linear", heads=2, head_dim=16, causal=True).eval()
same = torch.allclose(layer(q, k, v), layer.weights(q, k) @ v, atol=1e-5)
print("the implied map times the values is the output:", same)
assert same

# %% [markdown]
# ## Recurrence
#
# Cut the text into segments and carry states from one to the next: Transformer-XL (Dai et al. 2019) and
# the Compressive Transformer, models rather than mechanisms: `longspan show transformer_xl`.
