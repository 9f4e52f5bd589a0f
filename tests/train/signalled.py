"""The command line in a process that gets signals: `python tests/train/signalled.py '{"step": 4, …}' train …`.

After `step`, the process of `rank` (-1: each of them) gets the signals `send`; `joining` are the seconds that it waits
for other processes to start.
"""

import json
import os
import sys
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import torch

from longspan.cli.main import leave, main
from longspan.train import fit, processes
from longspan.train.loop import Trainer


def run(given: dict[str, Any], arguments: list[str]) -> int:
    torch.set_num_threads(1)
    processes.JOINING = timedelta(seconds=given.get("joining", 60))
    inner = fit.train

    def train(trainer: Trainer, *, show: Any, **options: Any) -> dict[str, float]:
        def at_step(trainer: Trainer, row: Mapping[str, float]) -> None:
            show(trainer, row)
            if trainer.progress.step == given["step"] and given["rank"] in (-1, trainer.processes.rank):
                for number in given["send"]:
                    os.kill(os.getpid(), number)

        return inner(trainer, show=at_step, **options)

    fit.train = train
    return main(arguments)


if __name__ == "__main__":
    leave(run(json.loads(sys.argv[1]), sys.argv[2:]))
