"""A process of its own that trains the toy: `python tests/train/child.py FOLDER '{"steps": 12, …}'`.

Beside the loop's options: `resume`, `inexact`; `kill`, a step after which the process kills itself as `kill -9` does;
`kill_in_save`, which does so while a checkpoint is being written; `terminate`, a step after which `rank` gets SIGTERM.
"""

import json
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from toy import trainer  # a script finds its neighbours

from longspan.cli.main import leave
from longspan.train import processes
from longspan.train.fit import train
from longspan.train.loop import Interrupted, Trainer


def run(folder: Path, given: dict[str, Any]) -> int:
    torch.set_num_threads(1)
    here = processes.start()
    resume, inexact = given.pop("resume", False), given.pop("inexact", False)
    kill, terminate, rank = given.pop("kill", None), given.pop("terminate", None), given.pop("rank", 0)
    in_save, dropout = given.pop("kill_in_save", False), given.pop("dropout", 0.1)
    made = trainer(folder, here, dropout, **given)

    def stop() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def show(made: Trainer, row: Mapping[str, float]) -> None:
        if made.progress.step == kill and in_save:
            made.model.write_files = lambda folder: stop()  # the writer calls it between two files
        elif made.progress.step == kill:
            stop()
        if made.progress.step == terminate and here.rank == rank:
            os.kill(os.getpid(), signal.SIGTERM)

    try:
        train(made, resume=resume, inexact=inexact, show=show)
    except Interrupted as stopped:
        return 128 + stopped.signal
    finally:
        processes.stop(here)
    return 0


if __name__ == "__main__":
    leave(run(Path(sys.argv[1]), json.loads(sys.argv[2])))
