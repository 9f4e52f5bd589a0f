"""Autocast and dtypes, for operations that choose their precision themselves."""

import subprocess
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from itertools import chain
from pathlib import Path
from time import perf_counter

import torch
from torch import Tensor, nn

CPU_FLAGS = Path("/proc/cpuinfo")
BFLOAT16_FLAGS = ("avx512_bf16", "amx_bf16")
TRIAL = 0.05  # seconds for both precisions together
PRODUCT = "import torch; torch.nn.functional.linear(*torch.ones(2, 64, 64, dtype=torch.bfloat16))"
WITHOUT_AMX = ("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")  # environment variable that keeps oneDNN from using AMX


def autocast_type(device: torch.device) -> torch.dtype | None:
    """The dtype that autocast rounds to on this device; None if it is off, or if the device has none (`meta`)."""
    kind = device.type
    if kind == "meta" or not torch.is_autocast_enabled(kind):
        return None
    return torch.get_autocast_dtype(kind)


def state_type(
    module: nn.Module, dtype: torch.dtype | None, device: torch.device | str | None
) -> tuple[torch.dtype, torch.device]:
    """The dtype and device of a new decoding state: the requested ones, or those of the module's parameters."""
    like = next((x for x in chain(module.parameters(), module.buffers()) if x.is_floating_point()), None)
    like = torch.empty(0) if like is None else like
    return like.dtype if dtype is None else dtype, like.device if device is None else torch.device(device)


def full_precision(like: Tensor) -> AbstractContextManager[object]:
    """Switch autocast off: it would round inside operations that choose their precision themselves."""
    kind = like.device.type
    return nullcontext() if autocast_type(like.device) is None else torch.autocast(kind, enabled=False)


def unify_dtypes(
    q: Tensor, k: Tensor, v: Tensor, streams: Mapping[str, Tensor] | None
) -> tuple[Tensor, Tensor, Tensor, Mapping[str, Tensor] | None]:
    """Heads and streams in one dtype under autocast, which rounds some and not others; unchanged without autocast.

    It is autocast's dtype if any of q, k, v has it. Mechanisms cast their weights to the dtype of the heads.
    """
    half = autocast_type(q.device)
    if half is None:
        return q, k, v, streams
    dtype = half if half in (q.dtype, k.dtype, v.dtype) else q.dtype
    inputs = {id(x): x for x in (q, k, v, *(streams or {}).values())}  # the same tensor may be passed several times
    cast = {key: x.to(dtype) if x.is_floating_point() else x for key, x in inputs.items()}
    cast_streams = None if streams is None else {name: cast[id(x)] for name, x in streams.items()}
    return cast[id(q)], cast[id(k)], cast[id(v)], cast_streams


@lru_cache(maxsize=1)
def _onednn_has_bfloat16() -> bool:
    """Whether torch's recurrent layers run in bfloat16 on this CPU; on one with AVX2 only, oneDNN raises an error.

    Not asked at import: from then on oneDNN ignores the environment variable of `WITHOUT_AMX`.
    """
    asks = getattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", None)
    return asks is None or bool(asks())


def no_recurrent_half(like: Tensor) -> bool:
    """Whether torch's recurrent layers lack the dtype of autocast on this CPU: float16 always, bfloat16 on some."""
    half = autocast_type(like.device) if like.is_cpu else None
    return half == torch.float16 or (half == torch.bfloat16 and not _onednn_has_bfloat16())


def rounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    """x cast as autocast casts inputs: float64 and tensors that are not floating-point stay unchanged."""
    return x.to(dtype) if x.is_floating_point() and x.dtype != torch.float64 else x


@lru_cache(maxsize=1)
def _cpu_flags() -> frozenset[str]:
    try:
        lines = CPU_FLAGS.read_text().splitlines()
    except OSError:  # no Linux
        return frozenset()
    return frozenset(next((line.split(":", 1)[1].split() for line in lines if line.startswith("flags")), []))


def has_bfloat16() -> bool:
    """Whether the processor has bfloat16 products, by its flags; elsewhere torch emulates them."""
    return not _cpu_flags().isdisjoint(BFLOAT16_FLAGS)


@lru_cache(maxsize=1)
def bfloat16_runs() -> bool:
    """Whether a bfloat16 product survives here: some virtual machines announce AMX and kill a process that uses it.

    Tried once, in a process of its own, and only on processors that announce AMX.
    """
    if "amx_bf16" not in _cpu_flags():
        return True
    return subprocess.run([sys.executable, "-c", PRODUCT], capture_output=True).returncode >= 0  # < 0: by a signal


def choose_precision(device: torch.device | str = "cpu") -> tuple[str, str]:
    """The precision "auto" stands for, "float32" or "bfloat16", and the reason.

    On a CPU it is bfloat16 only if the processor has its products and a short trial of them is faster.
    """
    kind = torch.device(device).type
    if kind == "cuda":
        fits = torch.cuda.is_bf16_supported()
        return ("bfloat16", "this GPU has bfloat16") if fits else ("float32", "this GPU has no bfloat16")
    if kind != "cpu":
        return "float32", f"bfloat16 is not tried on {kind}"
    if not has_bfloat16():
        return "float32", f"the processor has neither {' nor '.join(BFLOAT16_FLAGS)}"
    if not bfloat16_runs():
        name, value = WITHOUT_AMX
        return "float32", f"bfloat16 crashes on this machine, whose AMX does not work; {name}={value} avoids it"
    plain, half = _trial()
    text = f"a product took {half * 1000:.2g} ms in bfloat16 and {plain * 1000:.2g} ms in float32"
    return "bfloat16" if half < plain else "float32", text


@torch.inference_mode()
def _trial() -> tuple[float, float]:
    """The least seconds of a product in float32 and in bfloat16, in turns, within `TRIAL` seconds."""
    rows, weights = torch.ones(128, 512), torch.ones(512, 512)
    cases = [(rows.to(dtype), weights.to(dtype)) for dtype in (torch.float32, torch.bfloat16)]
    least, end = [float("inf")] * 2, perf_counter() + TRIAL
    for turn in range(10**6):
        for index, (x, weight) in enumerate(cases):
            began = perf_counter()
            torch.nn.functional.linear(x, weight)
            if turn:  # the first turn warms up
                least[index] = min(least[index], perf_counter() - began)
        if turn > 1 and perf_counter() > end:
            break
    return least[0], least[1]


__all__ = [
    "WITHOUT_AMX",
    "autocast_type",
    "bfloat16_runs",
    "choose_precision",
    "full_precision",
    "has_bfloat16",
    "no_recurrent_half",
    "rounded",
    "state_type",
    "unify_dtypes",
]
