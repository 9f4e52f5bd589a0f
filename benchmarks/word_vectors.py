"""Controls for word vectors: PPMI-SVD (Levy & Goldberg 2014) and random vectors of the words of a run.

    python -m benchmarks.word_vectors RUN TEXT --out FOLDER [--window 5] [--dim 100]

Writes `ppmi.vec` and `random.vec`, which `longspan words` reads. The text is read as the run's was; the last 1 %, which
the recipes hold out, is left out.
"""

import argparse
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from longspan import files, hub
from longspan.data.text.word_windows import WordIds, sentences
from longspan.models.classics.vector_files import write_vectors
from longspan.models.classics.word2vec import Word2Vec


def ppmi_svd(ids: np.ndarray, words: int, *, window: int, dim: int) -> Tensor:
    """U √S of the positive pointwise mutual information of words within a window; contexts are smoothed by ^0.75."""
    pairs = np.concatenate([ids[:-offset] * words + ids[offset:] for offset in range(1, window + 1)])
    pairs, counts = np.unique(pairs, return_counts=True)
    left, right = torch.from_numpy(pairs // words), torch.from_numpy(pairs % words)
    index = torch.stack([torch.cat([left, right]), torch.cat([right, left])])
    values = torch.from_numpy(counts.astype(np.float64)).repeat(2)
    matrix = torch.sparse_coo_tensor(index, values, (words, words)).coalesce()
    (row, column), values = matrix.indices(), matrix.values()
    times = torch.zeros(words, dtype=torch.float64).index_add_(0, row, values)
    smoothed = times**0.75
    information = (values * smoothed.sum() / (times[row] * smoothed[column])).log()
    kept = information > 0
    positive = torch.sparse_coo_tensor(matrix.indices()[:, kept], information[kept].float(), (words, words)).coalesce()
    torch.manual_seed(0)
    u, s, _ = torch.svd_lowrank(positive, q=dim + 10, niter=3)
    return u[:, :dim] * s[:dim].sqrt()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("text", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--window", type=int, default=5)
    parser.add_argument("--dim", type=int, default=100)
    given = parser.parse_args()
    model = hub.load(given.run).model
    assert isinstance(model, Word2Vec) and model.words is not None
    text = WordIds.read(sentences(given.text, model.options.split, model.options.lowercase), model.words)
    ids = text.ids[: round(0.99 * len(text))].astype(np.int64)
    given.out.mkdir(parents=True, exist_ok=True)
    tables = {
        "ppmi": ppmi_svd(ids, len(model.words), window=given.window, dim=given.dim),
        "random": torch.randn(len(model.words), given.dim, generator=torch.Generator().manual_seed(0)),
    }
    for name, vectors in tables.items():
        files.write(given.out / f"{name}.vec", partial(write_vectors, words=model.words.words, vectors=vectors))


if __name__ == "__main__":
    main()
