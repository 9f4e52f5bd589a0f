"""BERT and GPT."""

# %% [markdown]
# # BERT and GPT
#
# The same blocks, two ways to learn from text without labels. GPT predicts the *next* word and may see
# only what comes before. BERT sees both sides, so a word must be *hidden* before it can be predicted.

# %%
import torch
from torch.nn.functional import cross_entropy

import longspan
from examples.pictures import grid
from longspan.inspect.visibility import visibility

for sight in visibility()[:2]:
    print(f"{sight.name}: {sight.sentence}")
    title, seen = sight.layers[0]
    grid(f"{sight.name} {title}", seen.float().tolist(), up="state", across="word")

# %% [markdown]
# ## A small language
#
# Sentences such as "the old dogs near the cat sleep": the verb agrees with the *first* noun, not with the
# nearer one.

# %%
torch.manual_seed(0)
NOUNS = [("dog", "dogs"), ("cat", "cats"), ("bird", "birds"), ("child", "children")]
VERBS = [("sleeps", "sleep"), ("sings", "sing"), ("runs", "run")]
WORDS = ["[MASK]", "the", "old", "small", "near", *(w for pair in NOUNS + VERBS for w in pair)]
number = {word: index for index, word in enumerate(WORDS)}


def sentence(draw: torch.Generator) -> list[str]:
    def pick(options):
        return options[int(torch.randint(len(options), (), generator=draw))]

    first, second = pick((0, 1)), pick((0, 1))
    subject, other, verb = pick(NOUNS), pick(NOUNS), pick(VERBS)
    return ["the", pick(("old", "small")), subject[first], "near", "the", other[second], verb[first]]


draw = torch.Generator().manual_seed(0)
texts = torch.tensor([[number[word] for word in sentence(draw)] for _ in range(2000)])
print(" ".join(sentence(draw)))
SIZES = {"vocabulary": len(WORDS), "width": 64, "layers": 2, "heads": 4, "hidden": 128, "max_length": 8, "dropout": 0.0}

# %% [markdown]
# ## GPT: the next word

# %%
gpt = longspan.create_model("decoder", **SIZES, norm_position="pre")
optimiser = torch.optim.AdamW(gpt.parameters(), lr=3e-3)
for _ in range(120):
    rows = texts[torch.randint(len(texts), (64,))]
    loss = cross_entropy(gpt(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
prompt = [number[word] for word in ["the", "old", "dogs", "near", "the", "cat"]]
gpt.eval()
chances = gpt(torch.tensor([prompt]))[0, -1].softmax(-1).tolist()
plural = sum(chances[number[pair[1]]] for pair in VERBS)
print(f"the old dogs near the cat …: a plural verb with probability {plural:.2f}")
assert plural > 0.9

# %% [markdown]
# ## BERT: the hidden word
#
# BERT's paper hides 15 % of the words; of these, 80 % become [MASK], 10 % a random word, and 10 % stay.
# With seven words we hide one, always.

# %%
bert = longspan.create_model("encoder", **SIZES, norm_position="pre", tasks=[{"task": "masked"}])
optimiser = torch.optim.AdamW(bert.parameters(), lr=3e-3)
for _ in range(160):
    rows = texts[torch.randint(len(texts), (64,))]
    hidden = torch.zeros_like(rows, dtype=torch.bool).scatter(1, torch.randint(7, (64, 1)), True)
    logits = bert.outputs(rows.masked_fill(hidden, number["[MASK]"]))["masked"]
    loss = cross_entropy(logits[hidden], rows[hidden])
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
bert.eval()
words = ["the", "old", "[MASK]", "near", "the", "cat", "sleep"]
chances = bert.outputs(torch.tensor([[number[word] for word in words]]))["masked"][0, 2].softmax(-1).tolist()
plural = sum(chances[number[pair[1]]] for pair in NOUNS)
print(f"{' '.join(words)}: a plural noun with probability {plural:.2f}")
assert plural > 0.9

# %% [markdown]
# GPT could not have filled that gap: the verb that decides it stands behind it. BERT cannot write a text:
# it has never learned what comes next.
