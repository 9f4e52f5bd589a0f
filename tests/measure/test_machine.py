"""What is said of the machine, from files of a made-up one."""

import json
from pathlib import Path

from longspan.measure import machine

CORES = """processor\t: 0
model name\t: Quick Processor 9000
physical id\t: 0
core id\t\t: 0

processor\t: 1
model name\t: Quick Processor 9000
physical id\t: 0
core id\t\t: 0

processor\t: 2
model name\t: Quick Processor 9000
physical id\t: 1
core id\t\t: 0
"""


def made_up(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_the_description_of_this_machine_survives_json():
    found = machine.describe()
    assert json.loads(json.dumps(found)) == found
    assert found["processor"] and found["threads"] >= 1 and found["torch"] and found["longspan"]


def test_a_simulated_machine(tmp_path: Path):
    cache = "sys/devices/system/cpu/cpu0/cache/index"
    root = made_up(
        tmp_path,
        {
            "proc/cpuinfo": CORES,
            "proc/meminfo": "MemTotal:       2048 kB\nMemFree:  1 kB\nMemAvailable:   1024 kB\n",
            f"{cache}0/level": "1\n",
            f"{cache}0/type": "Data\n",
            f"{cache}0/size": "32K\n",
            f"{cache}1/level": "3\n",
            f"{cache}1/type": "Unified\n",
            f"{cache}1/size": "2M\n",
        },
    )
    found = machine.describe(root)
    assert found["processor"] == "Quick Processor 9000"
    assert found["cores"] == 2  # of three threads, two share one
    assert found["memory"] == 2 * 2**20
    assert found["caches"] == {"L1d": 32 * 2**10, "L3": 2 * 2**20}
    assert machine.available(root) == 2**20


def test_a_container_has_its_memory_limit(tmp_path: Path):
    root = made_up(
        tmp_path,
        {
            "proc/meminfo": "MemTotal:       2048 kB\nMemAvailable:   1024 kB\n",
            "sys/fs/cgroup/memory.max": "1000000\n",
            "sys/fs/cgroup/memory.current": "400000\n",
        },
    )
    assert machine.memory(root) == 1_000_000
    assert machine.available(root) == 600_000
    made_up(tmp_path, {"sys/fs/cgroup/memory.max": "max\n"})
    assert machine.available(root) == 2**20


def test_a_system_without_proc_and_sys(tmp_path: Path):
    found = machine.describe(tmp_path)
    assert found["cores"] is None and found["caches"] == {} and found["processor"]
    assert machine.available(tmp_path) is None
