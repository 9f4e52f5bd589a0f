"""Vision."""

# %% [markdown]
# # Vision
#
# An image is a text of patches: cut it into squares, project each to a vector, add positions, and the
# same Transformer reads it (Dosovitskiy et al. 2021).

# %%
import torch
from torch.nn.functional import cross_entropy

import longspan
from examples.pictures import grid
from longspan.nn.recorder import recording

torch.manual_seed(0)
SIZE, PATCH = 24, 4

# %% [markdown]
# ## Circles and squares
#
# Outlines of random size and place, with noise. Which is it?


# %%
def shapes(count: int, draw: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Grey images of outlines, and their labels: 0 circle, 1 square."""
    labels = torch.randint(2, (count,), generator=draw)
    middle = torch.rand(count, 2, generator=draw) * 8 + 8
    radius = torch.rand(count, 1, 1, generator=draw) * 3 + 4
    y, x = torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij")
    dy, dx = y - middle[:, 0, None, None], x - middle[:, 1, None, None]
    round_, straight = (dy**2 + dx**2).sqrt(), torch.maximum(dy.abs(), dx.abs())
    distance = torch.where(labels[:, None, None] == 0, round_, straight)
    outline = ((distance - radius).abs() < 0.8).float()
    return (outline + 0.2 * torch.randn(count, SIZE, SIZE, generator=draw))[:, None], labels


draw = torch.Generator().manual_seed(0)
images, labels = shapes(2, draw)
grid("An image", images[0, 0].clamp(0, 1).tolist(), up="row", across="column")

# %% [markdown]
# ## A tiny ViT

# %%
sizes = {"image_size": SIZE, "patch_size": PATCH, "channels": 1, "width": 48, "layers": 2, "heads": 4, "hidden": 96}
model = longspan.create_model("vit", **sizes, dropout=0.0, tasks=[{"task": "classify", "labels": 2}])
optimiser = torch.optim.AdamW(model.parameters(), lr=2e-3)
for _ in range(200):
    images, labels = shapes(64, draw)
    loss = cross_entropy(model.outputs(images)["classify"], labels)
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
model.eval()
images, labels = shapes(500, torch.Generator().manual_seed(1))
with torch.no_grad():
    right = float((model.outputs(images)["classify"].argmax(-1) == labels).float().mean())
print(f"{right:.0%} of 500 new images")
assert right > 0.85

# %% [markdown]
# ## Where it looks
#
# The class token's weights over the patches, in the last layer, mean over heads.

# %%
with torch.no_grad(), recording(model.stack) as seen:
    model(images[:1])
patches = seen.maps[-1][0].mean(0)[0, 1:].view(SIZE // PATCH, SIZE // PATCH)
grid("Class token reads", patches.tolist(), up="patch row", across="patch column")
