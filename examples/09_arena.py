"""The arena."""

# %% [markdown]
# # The arena
#
# Speed is easy to measure. Does a fast mechanism still *learn*? The arena trains them all on the same
# tasks. This chapter plays one small round: associative recall (MQAR; Arora et al. 2023), the task on
# which attention, windows and sums part ways.

# %%
import numpy as np
import torch
from torch.nn.functional import cross_entropy

import longspan
from longspan.arena.tasks.examples import NO_LABEL
from longspan.arena.tasks.mqar import Mqar

# %% [markdown]
# ## The task
#
# Pairs of a key and a value, then the keys once more, in any order: which value belongs to each?

# %%
task = Mqar(Mqar.Options(length=32, pairs=4, keys=16, values=16, power=1.0))
ids, labels = task.draw(np.random.default_rng(0), 1)
print("pairs:    ", ids[0, :8].reshape(4, 2).tolist())
print("questions:", ids[0, 8:][labels[0, 8:] != NO_LABEL].tolist())
print("answers:  ", labels[0][labels[0] != NO_LABEL].tolist())

# %% [markdown]
# ## Three models, the same sizes and texts
#
# A window of 4 reaches 8 tokens back with two layers. Linear attention adds all pairs up into one matrix.
# Guessing among the values of the text is right in 1 of 4 cases.

# %%
SIZES = {"vocabulary": 33, "width": 64, "layers": 2, "heads": 4, "hidden": 128, "max_length": 32, "dropout": 0.0}


def train(attention, steps: int = 160) -> float:
    torch.manual_seed(0)
    model = longspan.create_model("decoder", **SIZES, position="rotary", norm_position="pre", attention=attention)
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    random = np.random.default_rng(1)
    right = []
    for step in range(steps):
        ids, labels = (torch.from_numpy(array) for array in task.draw(random, 64))  # fresh sequences at every step
        asked = labels != NO_LABEL
        logits = model(ids)[asked][:, 17:]  # the values are ids 17 to 32
        loss = cross_entropy(logits, labels[asked])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if step >= steps - 10:
            right.append((logits.argmax(-1) == labels[asked]).float().mean().item())
    return sum(right) / len(right)


results = {
    "softmax": train("softmax"),
    "window": train({"name": "window", "window": 4}),
    "linear": train("linear"),
}
for name, accuracy in results.items():
    print(f"{name:8} {accuracy:.0%} of the questions answered right")
assert results["softmax"] > results["linear"] and results["softmax"] > results["window"] + 0.2

# %% [markdown]
# `longspan arena` does this properly: three tasks, all mechanisms, trivial predictors, confidence
# intervals, speed and the size of the state, in a quarter of an hour.
