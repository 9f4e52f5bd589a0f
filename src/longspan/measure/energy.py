"""Energy of a computation in joules: measured if the machine can, otherwise modelled; the result says which.

Processors are measured by RAPL, whose counters Linux has under /sys/class/powercap (since 2020 only root may read them,
by default), with the memory if it has a counter, and GPUs by NVML. Both measure the whole device, including other
programs. The model is the CPU time of this process and of children that have ended, times the power of a core: the
thermal design power divided by the cores if the processor is known by name, otherwise 12 W, as Green Algorithms
(Lannelongue et al. 2021) assumes. It leaves out memory, and neither way includes fans and the building.
"""

import os
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch

from longspan.measure import machine

POWERCAP = Path("/sys/class/powercap")
ANY_WATTS = 12.0
POWER: dict[str, tuple[float, int]] = {  # thermal design power in watts and cores, as their makers give them
    "EPYC 7542": (225, 32),
    "EPYC 7742": (225, 64),
    "EPYC 7763": (280, 64),
    "EPYC 9654": (360, 96),
    "Ryzen 5 3600": (65, 6),
    "Ryzen 7 3700X": (65, 8),
    "Ryzen 7 5800X": (105, 8),
    "Ryzen 9 3950X": (105, 16),
    "Ryzen 9 5950X": (105, 16),
    "Ryzen 9 7950X": (170, 16),
    "Ryzen Threadripper 3990X": (280, 64),
    "Xeon E5-2680 v3": (120, 12),
    "Xeon E5-2680 v4": (120, 14),
    "Xeon E5-2690 v3": (135, 12),
    "Xeon E5-2699 v4": (145, 22),
    "Xeon Gold 6148": (150, 20),
    "Xeon Gold 6248": (150, 20),
    "Xeon Platinum 8280": (205, 28),
    "Xeon Platinum 8380": (270, 40),
    "Core i5-10400": (65, 6),
    "Core i7-8700K": (95, 6),
    "Core i7-9700K": (95, 8),
    "Core i7-10700": (65, 8),
    "Core i9-9900K": (95, 8),
    "Core i9-12900K": (125, 16),
    "Core i9-13900K": (125, 24),
}
EVERY = 60.0  # seconds between readings: a counter may wrap around within minutes


class Meter:
    """Measures the energy of its `with` block.

    >>> with Meter() as meter:
    ...     found = sum(range(1000))
    >>> sorted(meter.energy())
    ['by', 'estimated', 'gpu_joules', 'joules', 'processor_joules', 'seconds']
    """

    def __init__(self, *, device: str = "cpu", powercap: Path = POWERCAP, processor: str | None = None) -> None:
        self.processor = machine.processor() if processor is None else processor
        self.packages, self.refusal = _packages(powercap)
        self.gpu = _gpu() if device.startswith("cuda") else None
        self.device, self.used, self.worked, self.seconds, self.gpu_used = device, 0.0, 0.0, 0.0, 0.0

    def __enter__(self) -> Self:
        self.used, self.closing = 0.0, threading.Event()
        self.began, self.cpu_began = time.perf_counter(), _cpu_seconds()
        self.gpu_began = self.gpu() if self.gpu is not None else 0.0
        for package in self.packages:
            package.start()
        if self.packages:
            self.reader = threading.Thread(target=self._read_on, daemon=True)
            self.reader.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.seconds, self.worked = time.perf_counter() - self.began, _cpu_seconds() - self.cpu_began
        if self.gpu is not None:
            self.gpu_used = self.gpu() - self.gpu_began
        if self.packages:
            self.closing.set()
            self.reader.join()
            self.used = sum(package.read() for package in self.packages)

    def _read_on(self) -> None:
        while not self.closing.wait(EVERY):
            for package in self.packages:
                package.read()

    def energy(self) -> dict[str, Any]:
        """`joules`, and `by` which method; None for a GPU without a counter, since the processor alone is not all.

        `estimated` is whether any part of it was modelled.
        """
        if self.packages:
            spent, by = self.used, "RAPL: the whole processor, including other programs"
        else:
            watts, why = watts_per_core(self.processor)
            spent = self.worked * watts
            by = f"modelled: {self.worked:.3g} s of one core at {watts:.3g} W ({why}); {self.refusal}"
        joules: float | None = spent
        if self.gpu is not None:
            joules, by = spent + self.gpu_used, f"NVML: the whole GPU; processor {by}"
        elif self.device.startswith("cuda"):
            joules, by = None, "unknown: reading a GPU's energy needs NVML (package nvidia-ml-py)"
        return {
            "joules": joules,
            "by": by,
            "estimated": not self.packages,
            "processor_joules": spent,
            "gpu_joules": None if self.gpu is None else self.gpu_used,
            "seconds": self.seconds,
        }


def combine(records: Sequence[tuple[str, Mapping[str, Any]]]) -> dict[str, Any] | None:
    """The energy of processes that were one run, from (host, energy) of each; None if one of them is unknown.

    Each process measures its own GPU and its own CPU time, which are added. RAPL counts the whole machine, so it counts
    once for each host.
    """
    if not records or any(record.get("joules") is None for _, record in records):
        return None
    processor = sum(record["processor_joules"] for _, record in records if record["estimated"])
    for host in {host for host, record in records if not record["estimated"]}:
        processor += max(r["processor_joules"] for name, r in records if name == host and not r["estimated"])
    gpus = [record["gpu_joules"] for _, record in records if record["gpu_joules"] is not None]
    way, _, rest = str(records[0][1]["by"]).partition(":")
    return {
        "joules": processor + sum(gpus),
        "by": f"{way}: {len(records)} processes on {len({host for host, _ in records})} machines; the first:{rest}",
        "estimated": any(record["estimated"] for _, record in records),
        "processor_joules": processor,
        "gpu_joules": sum(gpus) if gpus else None,
        "seconds": max(record["seconds"] for _, record in records),
    }


def _cpu_seconds() -> float:
    """CPU time of this process and of children that have ended."""
    times = os.times()
    return time.process_time() + times.children_user + times.children_system


def watts_per_core(processor: str) -> tuple[float, str]:
    """The assumed watts of a busy core, and the reason."""
    name = re.sub(r"\((R|TM|r|tm)\)|\bCPU\b", " ", processor)
    name = " ".join(name.split())
    for known, (watts, cores) in POWER.items():
        if re.search(rf"(?<![\w-]){re.escape(known)}(?![\w+-]| v\d)", name):
            return watts / cores, f"{known}: {watts:g} W, {cores} cores"
    return ANY_WATTS, "assumed, since this processor's power is unknown"


class Package:
    """One RAPL counter, which wraps around to 0."""

    def __init__(self, folder: Path) -> None:
        self.file, self.total, self.last = folder / "energy_uj", 0, 0
        self.range = int((folder / "max_energy_range_uj").read_text())
        self._now()

    def _now(self) -> int:
        return int(self.file.read_text())

    def start(self) -> None:
        self.total, self.last = 0, self._now()

    def read(self) -> float:
        """Joules since the start; must be read before the counter wraps around twice."""
        now = self._now()
        self.total += now - self.last if now >= self.last else now + self.range - self.last
        self.last = now
        return self.total / 1e6


def _packages(powercap: Path) -> tuple[list[Package], str]:
    """The counters of all processors, or none and why: some of them would be mistaken for all."""
    packages = []
    for folder in sorted(powercap.glob("intel-rapl*:*")):  # AMD's too; intel-rapl-mmio counts the same once more
        # Zones within a package, such as its cores, are parts of it, except for the memory; psys is the whole board.
        zone = re.fullmatch(r"intel-rapl:\d+(:\d+)?", folder.name)
        if zone is None:
            continue
        try:
            if (folder / "name").read_text().strip().startswith("dram" if zone[1] else "package"):
                packages.append(Package(folder))
        except PermissionError:
            return [], f"RAPL exists, but this user may not read {folder}/energy_uj"
        except (OSError, ValueError) as error:
            return [], f"RAPL exists, but cannot be read: {error}"
    return packages, "" if packages else "this machine has no RAPL"


def _gpu() -> Callable[[], float] | None:
    """A function that reads the GPU's energy counter through NVML, if there is one."""
    try:
        pynvml = import_module("pynvml")
        pynvml.nvmlInit()
        # By UUID: CUDA numbers the visible GPUs, NVML all of them.
        handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties().uuid}")
        pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)
    except Exception:  # errors differ by version; without a counter, nothing is measured
        return None
    return lambda: float(pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)) / 1e3


__all__ = ["ANY_WATTS", "POWER", "Meter", "Package", "combine", "watts_per_core"]
