"""Why n² hurts."""

# %% [markdown]
# # Why n² hurts
#
# Every word reads every word: n words make n² weights. Twice the text takes four times the work. At 512
# words nobody notices; at 100,000 the weights of one head fill 40 GB.

# %%
from examples.pictures import lines
from longspan.attention import build
from longspan.demo.crossover import FUSED, crossover
from longspan.report.charts import ChartAxis

for length in (512, 4096, 32_768, 100_000):
    print(f"{length:7,} tokens: {length**2 * 4 / 2**30:9.3f} GiB for one head's weights")

# %% [markdown]
# ## Counted
#
# Each mechanism knows its own cost. Dense attention grows with the square; a window and linear attention
# grow with the length.

# %%
LENGTHS = (512, 1024, 2048, 4096, 8192, 16_384)
mechanisms = {"softmax": {}, "window": {"window": 127}, "linear": {}, "sparse": {"stride": 64}}
series = {}
for name, options in mechanisms.items():
    mechanism = build(name, heads=8, head_dim=64, causal=True, **options)
    series[name] = [(float(n), mechanism.cost(n, n).flops / 1e9) for n in LENGTHS]
    first, last = series[name][0][1], series[name][-1][1]
    print(f"{name:8} {last:8.1f} GFLOP at 16,384 tokens, {last / first:5.0f} times as much as at 512")
lines("Work by length", series, ChartAxis("tokens", factors=True, halves=True), ChartAxis("GFLOP", factors=True))
assert series["softmax"][-1][1] / series["softmax"][0][1] > 900  # 32 times the length, 1024 times the work
assert series["linear"][-1][1] / series["linear"][0][1] < 40

# %% [markdown]
# ## Measured
#
# Counting is not measuring: a fused kernel is fast, and a clever mechanism has overhead. From which
# length does it pay on this machine? (`longspan profile` does this for all of them.)

# %%
times = crossover(lambda done, total, now: None, lengths=(256, 1024, 2048), repeats=2)
for name in times.seconds:
    if name != FUSED:
        ratio = times.seconds[FUSED][-1] / times.seconds[name][-1]
        print(f"{name:10} {ratio:5.1f} times as fast as fused attention at 2,048 tokens")
