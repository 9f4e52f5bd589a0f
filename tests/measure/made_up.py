"""Measured values that follow a law exactly."""

from dataclasses import replace

from longspan.measure.case import Case, Kind, Measured

GEMM = 1e11


def measured(
    mechanism: str,
    length: int,
    seconds: float,
    memory: int,
    *,
    kind: Kind = "forward",
    exponent: float = 1.0,
    gemm: float = GEMM,
) -> Measured:
    return Measured(
        case=Case(mechanism=mechanism, length=length, kind=kind),
        state="done",
        seconds=(1.5 * seconds, seconds, 1.25 * seconds),
        memory=memory,
        flops=int(0.5 * seconds * gemm),
        gemm=gemm,
        exponent=exponent,
        began="2026-11-16T00:00:00+00:00",
    )


def law(case: Case) -> Measured:
    """naive n² in both, sdpa n² in time alone, everything else linear: faster than sdpa from 4096 on."""
    n = case.length
    seconds = {"naive": 2e-8 * n**2, "sdpa": 1e-8 * n**2}.get(case.mechanism, 1e-8 * 4096 * n)
    memory = {"naive": 32 * n**2}.get(case.mechanism, 4096 * n)
    exponent = 2.0 if case.mechanism in ("naive", "sdpa") else 1.0
    return replace(measured(case.mechanism, n, seconds, memory, exponent=exponent), case=case)
