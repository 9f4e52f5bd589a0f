"""Joules from a made-up folder of counters, and modelled where there is none."""

import json
import os
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch

from longspan.measure import energy
from longspan.measure.energy import ANY_WATTS, Meter, combine, watts_per_core


def counter(folder: Path, name: str, value: int, *, kind: str = "package-0", most: int = 1_000_000_000) -> Path:
    zone = folder / name
    zone.mkdir(parents=True)
    (zone / "name").write_text(f"{kind}\n")
    (zone / "max_energy_range_uj").write_text(f"{most}\n")
    (zone / "energy_uj").write_text(f"{value}\n")
    return zone / "energy_uj"


def test_packages_are_added_and_their_parts_are_not(tmp_path: Path):
    first = counter(tmp_path, "intel-rapl:0", 5_000_000)
    second = counter(tmp_path, "intel-rapl:1", 7_000_000, kind="package-1")
    part = counter(tmp_path, "intel-rapl:0:0", 0, kind="core")
    board = counter(tmp_path, "intel-rapl:2", 0, kind="psys")
    again = counter(tmp_path, "intel-rapl-mmio:0", 0)
    with Meter(powercap=tmp_path) as meter:
        first.write_text("8000000\n")
        second.write_text("7500000\n")
        for other in (part, board, again):
            other.write_text("900000000\n")
    found = meter.energy()
    assert found["joules"] == found["processor_joules"] == 3.5
    assert found["by"].startswith("RAPL")


def test_memory_has_a_counter_of_its_own(tmp_path: Path):
    package = counter(tmp_path, "intel-rapl:0", 0)
    memory = counter(tmp_path, "intel-rapl:0:1", 0, kind="dram")
    with Meter(powercap=tmp_path) as meter:
        package.write_text("2000000\n")
        memory.write_text("500000\n")
    found = meter.energy()
    assert (found["joules"], found["estimated"]) == (2.5, False)


def test_a_counter_that_goes_around(tmp_path: Path):
    file = counter(tmp_path, "intel-rapl:0", 990_000_000, most=1_000_000_000)
    with Meter(powercap=tmp_path) as meter:
        file.write_text("20000000\n")
    assert meter.energy()["joules"] == 30.0


def test_a_counter_is_read_before_it_wraps_around_twice(tmp_path: Path):
    file = counter(tmp_path, "intel-rapl:0", 0, most=1_000_000_000)
    package = energy.Package(file.parent)
    package.start()
    file.write_text("600000000\n")
    assert package.read() == 600
    file.write_text("100000000\n")
    assert package.read() == 1100
    file.write_text("50000000\n")
    assert package.read() == 2050


def test_without_permission_energy_is_modelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = counter(tmp_path, "intel-rapl:0", 0)
    reads = Path.read_text

    def refused(path: Path, *given: object) -> str:  # root, who may run this test, is refused nothing
        if path == file:
            raise PermissionError(13, "Permission denied", str(path))
        return reads(path)

    monkeypatch.setattr(Path, "read_text", refused)
    with Meter(powercap=tmp_path, processor="unheard of") as meter:
        pass
    found = meter.energy()
    assert found["by"].startswith("modelled: ") and "this user may not read" in found["by"]


def test_a_counter_that_is_no_number(tmp_path: Path):
    file = counter(tmp_path, "intel-rapl:0", 0)
    file.write_text("?\n")
    assert "cannot be read" in Meter(powercap=tmp_path).energy()["by"]


def test_modelled_is_the_time_of_cores_times_watts(tmp_path: Path):
    with Meter(powercap=tmp_path, processor="unheard of") as meter:
        sum(range(10_000))
    found = meter.energy()
    assert found["joules"] == meter.worked * ANY_WATTS and found["gpu_joules"] is None
    assert found["estimated"] is True
    assert "has no RAPL" in found["by"] and "12 W" in found["by"]
    assert json.loads(json.dumps(found)) == found


def test_children_that_ended_count(tmp_path: Path):
    before = os.times()
    with Meter(powercap=tmp_path, processor="unheard of") as meter:
        subprocess.run([sys.executable, "-c", "sum(range(2_000_000))"], check=True)
    after = os.times()
    theirs = after.children_user + after.children_system - before.children_user - before.children_system
    assert theirs > 0 and meter.worked >= theirs


def record(joules: float, *, estimated: bool = True, gpu: float | None = None) -> dict[str, Any]:
    return {
        "joules": joules + (gpu or 0.0),
        "by": "modelled: x" if estimated else "RAPL: y",
        "estimated": estimated,
        "processor_joules": joules,
        "gpu_joules": gpu,
        "seconds": joules,
    }


def test_processes_that_are_one_run_are_added():
    found = combine([("a", record(3.0)), ("a", record(4.0)), ("b", record(5.0))])
    assert found is not None and (found["joules"], found["seconds"], found["estimated"]) == (12.0, 5.0, True)
    assert found["by"] == "modelled: 3 processes on 2 machines; the first: x"


def test_counters_of_a_machine_count_once_and_gpus_each():
    measured = [("a", record(10.0, estimated=False, gpu=2.0)), ("a", record(11.0, estimated=False, gpu=3.0))]
    found = combine([*measured, ("b", record(7.0, estimated=False, gpu=1.0))])
    assert found is not None and (found["processor_joules"], found["gpu_joules"]) == (18.0, 6.0)
    assert found["joules"] == 24.0 and found["estimated"] is False


def test_a_process_of_unknown_energy_makes_the_sum_unknown():
    assert combine([("a", record(3.0)), ("a", {**record(4.0), "joules": None})]) is None
    assert combine([]) is None


@pytest.mark.parametrize(
    ("processor", "watts"),
    [
        ("Intel(R) Xeon(R) Gold 6248 CPU @ 2.50GHz", 7.5),
        ("Intel(R) Core(TM) i7-10700 CPU @ 2.90GHz", 8.125),
        ("Intel(R) Core(TM) i7-10700K CPU @ 3.80GHz", ANY_WATTS),  # another processor, of 125 W
        ("Intel(R) Xeon(R) CPU E5-2680 v4 @ 2.40GHz", 120 / 14),
        ("AMD EPYC 7763 64-Core Processor", 280 / 64),
        ("AMD EPYC", ANY_WATTS),
    ],
)
def test_watts_of_a_core_by_the_name_of_the_processor(processor: str, watts: float):
    assert watts_per_core(processor)[0] == watts


def fake_nvml(readings: list[int]) -> types.ModuleType:
    module = types.ModuleType("pynvml")
    module.nvmlInit = lambda: None  # type: ignore[attr-defined]
    module.nvmlDeviceGetHandleByUUID = lambda name: name  # type: ignore[attr-defined]
    module.nvmlDeviceGetTotalEnergyConsumption = lambda handle: readings.pop(0)  # type: ignore[attr-defined]
    return module


def test_a_gpu_is_read_through_nvml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml([0, 1_000, 4_500]))  # tried, begun, ended
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda: types.SimpleNamespace(uuid="1"))
    counter(tmp_path, "intel-rapl:0", 0)
    with Meter(device="cuda", powercap=tmp_path) as meter:
        (tmp_path / "intel-rapl:0" / "energy_uj").write_text("2000000\n")
    found = meter.energy()
    assert (found["joules"], found["gpu_joules"], found["processor_joules"]) == (5.5, 3.5, 2.0)
    assert found["by"].startswith("NVML")


def test_a_gpu_without_a_counter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    found = Meter(device="cuda", powercap=tmp_path).energy()
    assert found["joules"] is None and "nvidia-ml-py" in found["by"]
