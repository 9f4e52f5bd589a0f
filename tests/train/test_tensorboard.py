"""TensorBoard reads what metrics.jsonl has, also of a run that was stopped and went on."""

import sys
from pathlib import Path

import pytest
from tests.train.test_fit import stop_at
from tests.train.toy import trainer

from longspan.errors import Unsupported
from longspan.train.fit import train
from longspan.train.loop import Interrupted
from longspan.train.tensorboard import FOLDER


def curve(run: Path, name: str) -> dict[int, float]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(run / FOLDER)).Reload()
    return {event.step: event.value for event in found.Scalars(name)}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # raised inside tensorboard
def test_its_curves_are_the_metrics(tmp_path: Path) -> None:
    options = {"steps": 12, "log_every": 1, "evaluate_every": 4, "tensorboard": True}
    with pytest.raises(Interrupted):
        train(trainer(tmp_path, **options), show=stop_at(7))
    made = trainer(tmp_path, **options)
    train(made, resume=True)
    rows = made.run.rows()
    losses = {row["step"]: row["loss"] for row in rows if "loss" in row}
    assert curve(tmp_path, "train/loss") == pytest.approx(losses) and list(losses) == list(range(1, 13))
    looked = {row["step"]: row["held_out"]["loss"] for row in rows if "held_out" in row}
    assert curve(tmp_path, "held_out/loss") == pytest.approx(looked) and list(looked) == [4, 8, 12]


def test_without_its_package_it_is_said_before_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    made = trainer(tmp_path, tensorboard=True)
    with pytest.raises(Unsupported, match=r"pip install longspan\[tensorboard\]"):
        train(made)
    assert made.progress.step == 0
