"""Looking inside."""

# %% [markdown]
# # Looking inside
#
# A model that learned to copy must look back to where the symbol stood before. Which head does it, and
# what happens without that head?

# %%
import torch

from examples.pictures import grid
from longspan import inspect
from longspan.demo import learning
from longspan.models.decoder import Decoder
from longspan.nn.recorder import recording

# %% [markdown]
# ## Train
#
# Texts are 20 random symbols, a separator, and the same symbols again (the task of `longspan demo`).

# %%
torch.manual_seed(0)
draw = torch.Generator().manual_seed(0)
options = {**learning.SIZES, "vocabulary": learning.SYMBOLS + 1, "position": "rotary", "norm_position": "pre"}
model = Decoder.build(**options)
optimiser = torch.optim.AdamW(model.parameters(), lr=learning.RATE)
for _ in range(120):
    ids = learning.texts(learning.BATCH, draw)
    logits, targets = model(ids[:, :-1])[:, learning.HALF :], ids[:, learning.HALF + 1 :]
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
model.eval()


def copied() -> float:
    """The share of symbols copied right, on new texts."""
    ids = learning.texts(128, torch.Generator().manual_seed(1))
    with torch.no_grad():
        guesses = model(ids[:, :-1])[:, learning.HALF :].argmax(-1)
    return float((guesses == ids[:, learning.HALF + 1 :]).float().mean())


print(f"copied: {copied():.0%}")
assert copied() > 0.95

# %% [markdown]
# ## Which head looks back?
#
# In the second half, the symbol to predict follows the earlier copy of the current one: the key that
# stands 20 back. An *induction head* (Olsson et al. 2022) puts its weight there.

# %%
ids = learning.texts(1, draw)
with torch.no_grad(), recording(model.stack) as seen:
    model(ids)
back = {}
for layer, maps in enumerate(seen.maps):
    for head in range(maps.shape[1]):
        back[layer, head] = float(maps[0, head].diagonal(-learning.HALF)[1:].mean())
best = max(back, key=lambda at: back[at])
for (layer, head), weight in sorted(back.items(), key=lambda item: -item[1])[:4]:
    print(f"layer {layer}, head {head}: {weight:.2f} of its weight stands 20 back")
grid(f"Layer {best[0]} head {best[1]}", seen.maps[best[0]][0, best[1]].tolist())

# %% [markdown]
# ## Without that head
#
# A picture is not a proof. Switch heads off, one at a time, and measure.

# %%
looking = [at for at, weight in back.items() if weight > 0.5]
for layer, head in looking:
    with inspect.masked_heads(model, {layer: [head]}):
        print(f"without layer {layer}, head {head}: {copied():.0%}")
together = {layer: [head for at, head in looking if at == layer] for layer, _ in looking}
with inspect.masked_heads(model, together):
    without = copied()
print(f"without all {len(looking)} of them: {without:.0%}")
assert without < 0.5

# %% [markdown]
# One head alone is hardly missed: others do the same work. Without all of them, nothing is copied. So a
# map shows *where* to look, and only switching off shows what matters (Michel et al. 2019; Jain & Wallace
# 2019). `longspan inspect FOLDER --report` does this for your model, with controls.
