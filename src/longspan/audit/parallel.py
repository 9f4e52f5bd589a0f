"""Audit several targets in parallel, each in its own process."""

import os
from collections.abc import Callable, Iterator, Sequence

import torch

from longspan.audit.certificate import Certificate, audit
from longspan.audit.claims import Claims
from longspan.audit.finding import Finding
from longspan.audit.targets import Reading, resolve
from longspan.pools import Pool


def audit_many(
    targets: Sequence[str],
    claims: Claims | None = None,
    *,
    reading: Reading | None = None,
    jobs: int | None = None,
    progress: Callable[[str, Finding], None] | None = None,
) -> Iterator[Certificate]:
    """The certificates of `targets`, in their order, each as soon as it and those before it are complete.

    `jobs` processes run in parallel, by default one for each core. With one job, or one target, everything runs in this
    process, and `progress` gets the target and each finding as it comes.
    """
    for target in targets:
        resolve(target, claims, reading=reading)  # a wrong name is an error before any work is done
    jobs = min(len(targets), jobs or os.cpu_count() or 1)
    if jobs == 1:
        for target in targets:

            def tell(finding: Finding, target: str = target) -> None:
                if progress is not None:
                    progress(target, finding)

            yield audit(target, claims, reading=reading, progress=tell)
        return
    with Pool(jobs, torch.set_num_threads, 1) as pool:
        try:
            for future in [pool.submit(_audit, target, claims, reading) for target in targets]:
                yield future.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _audit(target: str, claims: Claims | None, reading: Reading | None) -> Certificate:
    return audit(target, claims, reading=reading)
