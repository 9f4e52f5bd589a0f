"""Communication between the processes that `torchrun` started; a single process needs none."""

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from longspan.errors import LongspanError

T = TypeVar("T")
JOINING = timedelta(seconds=60)  # how long a process waits for the others to start
WORKING = timedelta(minutes=30)  # timeout of each exchange: the first process may learn a tokenizer meanwhile


class Elsewhere(LongspanError):
    """Another process failed and reports the reason."""


class Lost(LongspanError):
    """Another process ended without a reason."""


@dataclass(frozen=True)
class Processes:
    """This process and its communication with the others. With a single process, every operation is the identity."""

    rank: int = 0
    world: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @property
    def first(self) -> bool:
        """Whether this is the process that writes files and prints."""
        return self.rank == 0

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """The sum over all processes, in float64, so that counts are exact."""
        total = values.to(self.device, torch.float64)
        if self.world > 1:
            total = total.clone()
            dist.all_reduce(total)
        return total

    def any(self, flag: bool) -> bool:
        """Whether the flag is set in any process."""
        return flag if self.world == 1 else bool(self.sum(torch.tensor([float(flag)]))[0] > 0)

    def same(self, value: T) -> T:
        """The value of the first process."""
        if self.world == 1:
            return value
        values: list[T] = [value]
        dist.broadcast_object_list(values, src=0)
        return values[0]

    def spread(self, tensors: Iterable[torch.Tensor]) -> None:
        """Overwrite tensors with those of the first process."""
        for tensor in tensors:
            dist.broadcast(tensor, src=0)

    def gather(self, value: T) -> list[T]:
        """The values of all processes, by rank."""
        if self.world == 1:
            return [value]
        values: list[Any] = [None] * self.world
        dist.all_gather_object(values, value)
        return values

    def together(self, action: Callable[[], T]) -> T:
        """Run an action in all processes. If it fails in one, raise in all, so that none waits for another."""
        if self.world == 1:
            return action()
        failed: LongspanError | None = None
        results: list[T] = []
        try:
            results.append(action())
        except LongspanError as error:
            failed = error
        errors = self.gather(None if failed is None else str(failed))
        for rank, line in enumerate(errors):
            if line is not None:
                raise failed if failed is not None and rank == self.rank else Elsewhere(line)
        return results[0]

    def wait(self) -> None:
        """Wait until all processes have called this."""
        if self.world > 1:
            dist.barrier()

    def share(self, numbers: Sequence[int]) -> Sequence[int]:
        """This process's share of a batch."""
        return numbers[self.rank :: self.world]


def start() -> Processes:
    """Join the other processes, if `torchrun` started this one."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1:
        return Processes(device=torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    local = int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    try:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=JOINING)
    except RuntimeError as error:  # subclasses differ by what it waited for
        raise Lost(
            f"process {os.environ.get('RANK')} of {world} could not reach the others within "
            f"{JOINING.total_seconds():g} seconds: has one of them ended? ({_first_line(error)})"
        ) from None
    dist.distributed_c10d._set_pg_timeout(WORKING)
    return Processes(dist.get_rank(), world, device)


def is_lost(error: RuntimeError) -> bool:
    """Whether an exchange failed because another process has ended."""
    return isinstance(error, dist.DistError) or "gloo" in str(error) or "Connection closed by peer" in str(error)


def _first_line(error: RuntimeError) -> str:
    return str(error).partition("\n")[0]


def stop(processes: Processes) -> None:
    """Leave the process group."""
    if processes.world > 1 and dist.is_initialized():
        dist.destroy_process_group()


__all__ = ["Elsewhere", "Lost", "Processes", "is_lost", "start", "stop"]
