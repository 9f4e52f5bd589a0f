"""The Transformer translates."""

# %% [markdown]
# # The Transformer translates
#
# An encoder reads the source, a decoder writes the target word by word and looks back at the source
# through cross-attention (Vaswani et al. 2017). We train a tiny one to translate number names from
# English to German. German turns tens and units around: *forty two* is *zwei und vierzig*.

# %%
import torch
from torch.nn.functional import cross_entropy

import longspan
from examples.pictures import grid
from longspan.decode import generate
from longspan.nn.recorder import recording

ENGLISH = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen"
ENGLISH = [*ENGLISH.split(), "seventeen", "eighteen", "nineteen"]
GERMAN = "null ein zwei drei vier fünf sechs sieben acht neun zehn elf zwölf dreizehn vierzehn fünfzehn sechzehn"
GERMAN = [*GERMAN.split(), "siebzehn", "achtzehn", "neunzehn"]
TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
ZEHNER = ["zwanzig", "dreißig", "vierzig", "fünfzig", "sechzig", "siebzig", "achtzig", "neunzig"]


def english(n: int) -> list[str]:
    if n >= 100:
        return [ENGLISH[n // 100], "hundred", *(english(n % 100) if n % 100 else [])]
    if n < 20:
        return [ENGLISH[n]]
    return [TENS[n // 10 - 2], *([ENGLISH[n % 10]] if n % 10 else [])]


def german(n: int) -> list[str]:
    if n >= 100:
        return [GERMAN[n // 100], "hundert", *(german(n % 100) if n % 100 else [])]
    if n < 20:
        return [GERMAN[n]]
    return [*([GERMAN[n % 10], "und"] if n % 10 else []), ZEHNER[n // 10 - 2]]


print(" ".join(english(742)), "→", " ".join(german(742)))

# %% [markdown]
# ## Train on most numbers, test on numbers never seen

# %%
torch.manual_seed(0)
PAD, BEGIN, END = 0, 1, 2
words = sorted({word for n in range(1000) for word in english(n) + german(n)})
number = {word: index + 3 for index, word in enumerate(words)}


def padded(rows: list[list[int]]) -> torch.Tensor:
    longest = max(map(len, rows))
    return torch.tensor([row + [PAD] * (longest - len(row)) for row in rows])


sources = padded([[number[word] for word in english(n)] for n in range(1000)])
targets = padded([[BEGIN, *(number[word] for word in german(n)), END] for n in range(1000)])
order = torch.randperm(1000)
train, test = order[:900], order[900:]

sizes = {"vocabulary": len(words) + 3, "width": 64, "layers": 2, "heads": 4, "hidden": 128, "max_length": 16}
model = longspan.create_model("transformer", **sizes, dropout=0.0, norm_position="pre", padding=PAD)
optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
for step in range(150):
    rows = train[torch.randint(len(train), (64,))]
    source, target = sources[rows], targets[rows]
    logits = model(source, target[:, :-1], source_mask=source != PAD)
    loss = cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten(), ignore_index=PAD)
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    if step % 50 == 49:
        print(f"step {step + 1}: loss {loss.item():.3f}")

# %%
model.eval()
source = sources[test]
written = generate(model, source=source, source_mask=source != PAD, bos=BEGIN, eos=END, max_new=8).tokens
name = {index: word for word, index in number.items()}
translations = [" ".join(name[int(token)] for token in row if int(token) > END) for row in written]
right = sum(text == " ".join(german(int(n))) for n, text in zip(test, translations))
print(f"{right} of 100 new numbers translated without a mistake")
for n, text in list(zip(test, translations))[:4]:
    print(f"  {' '.join(english(int(n)))} → {text}")
assert right >= 90

# %% [markdown]
# ## Where the decoder looks
#
# Cross-attention of one example. To write *zwei* the decoder must look at *two*, which comes last in
# English: the map crosses over. Nobody told the model about the order.

# %%
n = 742
source = torch.tensor([[number[word] for word in english(n)]])
target = torch.tensor([[BEGIN, *(number[word] for word in german(n))]])
with torch.no_grad(), recording(model.decoder) as seen:
    model(source, target)
cross = torch.stack(seen.cross_maps).mean((0, 2))[0]  # the mean over layers and heads
written_words = [*german(n), "(end)"]
grid("Cross-attention", cross.tolist(), written_words, english(n), up="writes", across="reads")
