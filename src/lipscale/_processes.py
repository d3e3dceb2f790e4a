"""The one place where a training touches its fellow processes, by torch.distributed.

Whatever is split over, summed over or gathered from processes passes through here. A process that trains alone talks to
nobody: every function is then as good as absent.
"""

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import lru_cache
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lipscale.errors import LostProcessError, UserError

T = TypeVar("T")
# numbers of a message up to which gloo is faster at telling everyone everything: its ring takes a turn for every piece
SMALL = 65_536
AWAKE = 0.02  # seconds
PATIENCE = timedelta(days=7)  # one process may evaluate or write for long; its death is noticed at once all the same

_alone = False


def count() -> int:
    """The processes that train together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() and not _alone else 1


@contextmanager
def alone() -> Iterator[None]:
    """Within, this process works by itself: nothing is shared, and nothing is sent."""
    global _alone
    before, _alone = _alone, True
    try:
        yield
    finally:
        _alone = before


def number() -> int:
    """Which of them this one is, from 0; known wherever torchrun has started it."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank()
    return int(os.environ["RANK"]) if started_by_torchrun() else 0


def started_by_torchrun() -> bool:
    """Whether torchrun has started this process, with others or alone."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def is_first() -> bool:
    """Whether this process is the one that writes and speaks."""
    return number() == 0


def own_stream() -> tuple[str, ...]:
    """What to add to a random stream's purpose where fellow processes must not draw the same numbers."""
    return () if count() == 1 else (f"process {number()} of {count()}",)


def shard(rows: Tensor) -> Tensor:
    """This process's share of the rows: consecutive ones, as many as any other's, give or take one."""
    return rows if count() == 1 else rows.tensor_split(count())[number()]


def total(value: Tensor) -> Tensor:
    """The sum of a value over processes."""
    if count() == 1:
        return value
    if value.device.type == "cpu" and value.numel() * count() <= 2 * SMALL:
        return torch.stack(_of_all(value)).sum(0, dtype=value.dtype)
    summed = value.clone()
    with _noticing_losses():
        dist.all_reduce(summed)
    return summed


def average(value: Tensor, weight: float) -> Tensor:
    """The mean of a value over processes, each with its weight; in float32 at least."""
    if count() == 1:
        return value
    wide = value.to(torch.promote_types(value.dtype, torch.float32)).flatten()
    sums = total(torch.cat((wide * weight, wide.new_tensor([weight]))))
    return (sums[:-1] / sums[-1]).view_as(value)


def backward(loss: Tensor, weight: float | Tensor, parameters: Iterable[nn.Parameter]) -> Tensor:
    """Give every process the gradient of the whole batch's mean loss, and return that loss.

    `loss` is the mean over this process's share, `weight` what the share weighs. The share's sum goes through the
    network, since centering mixes gradients on the way: to weigh them afterwards would be wrong.
    """
    if count() == 1:
        loss.backward()
        return loss
    (loss * weight).backward()
    gradients = [p.grad for p in parameters if p.grad is not None]
    ends = torch.stack((loss.detach() * weight, torch.as_tensor(weight).to(loss)))
    sums = total(torch.cat([*(g.flatten() for g in gradients), ends]))
    sums /= sums[-1].clone()
    for gradient, mean in zip(gradients, sums[:-2].split([g.numel() for g in gradients]), strict=True):
        gradient.copy_(mean.view_as(gradient))
    return sums[-2].to(loss.dtype)


def gather(rows: Tensor) -> Tensor:
    """The rows of every process, in the order of the processes; they need not be equally many."""
    if count() == 1:
        return rows
    sizes = torch.zeros(count(), dtype=torch.long, device=rows.device)
    sizes[number()] = len(rows)
    sizes = total(sizes)
    padded = rows.new_zeros(int(sizes.max()), *rows.shape[1:])
    padded[: len(rows)] = rows
    return torch.cat([part[:size] for part, size in zip(_of_all(padded), sizes.tolist(), strict=True)])


def whole(rows: Tensor, weight: float | Tensor) -> Tensor:
    """The rows of every process, of which this one's have a gradient, for a loss that is no mean over samples.

    Every process then has the whole batch's loss, and `backward` weighs each by its share: the gradient is divided by
    that share here, so that their sum is the gradient of the one loss.
    """
    if count() == 1:
        return rows
    sizes = gather(torch.tensor([len(rows)], device=rows.device)).tolist()
    parts = list(gather(rows.detach()).split(sizes))
    own = rows.detach()
    parts[number()] = own + (rows - own) * (total(torch.as_tensor(weight).to(own)) / weight)
    return torch.cat(parts)


def _of_all(value: Tensor) -> list[Tensor]:
    """A tensor of every process, all of one shape, in their order."""
    sent = value.contiguous()
    parts = [torch.empty_like(sent) for _ in range(count())]
    with _noticing_losses():
        message = dist.all_gather(parts, sent, async_op=True)
        # to sleep and be woken takes longer than a small message: look out for it first, while others may run
        patience = time.perf_counter() + AWAKE
        while sent.device.type == "cpu" and not message.is_completed() and time.perf_counter() < patience:
            time.sleep(0)
        message.wait()
    return parts


def in_any(flag: bool) -> bool:
    """Whether it is so in any process."""
    if count() == 1:
        return flag
    found = torch.tensor(int(flag))
    with _noticing_losses():
        dist.all_reduce(found, dist.ReduceOp.MAX, group=_words())
    return bool(found)


def in_all(work: Callable[[], T]) -> T:
    """Do something in every process; what fails in one fails in all, before anyone waits for it in vain."""
    if count() == 1:
        return work()
    error = None
    try:
        result = work()
    except (ValueError, OSError, RuntimeError) as found:
        error = found
    for place, failed in enumerate(_exchange(error)):
        if failed is not None:
            raise failed if place == 0 else UserError(f"process {place}: {failed}")
    return result


def by_first(work: Callable[[], T]) -> T:
    """Do something in the first process alone; the others wait for what comes of it, a result or an error."""
    if count() == 1:
        return work()
    told: list[Any] = [None, None]
    if is_first():
        try:
            told[0] = work()
        except (ValueError, OSError, RuntimeError) as error:
            told[1] = error
    with _noticing_losses():
        dist.broadcast_object_list(told, group=_words(), device=torch.device("cpu"))
    if told[1] is not None:
        raise told[1]
    return told[0]


def clock() -> float:
    """Seconds by the first one's clock: what is decided by it is decided alike."""
    return by_first(time.perf_counter)


def require_same(what: str, value: Any) -> None:
    """Refuse to go on where processes differ in what they must share."""
    if count() == 1:
        return
    values = _exchange(value)
    for place, found in enumerate(values):
        if found != values[0]:
            raise UserError(f"process {place} has other {what} than process 0: give every process the same")


def spread(net: nn.Module) -> None:
    """Give every process the first one's parameters and buffers."""
    if count() > 1:
        with _noticing_losses():
            for tensor in (*net.parameters(), *net.buffers()):
                sent = tensor.detach().contiguous()
                dist.broadcast(sent, 0)
                tensor.detach().copy_(sent)


def _exchange(value: Any) -> list[Any]:
    """The value of every process, in their order."""
    values: list[Any] = [None] * count()
    with _noticing_losses():
        dist.all_gather_object(values, value, group=_words())
    return values


def _words() -> Any:
    """The group for plain values: on the CPU, whatever the tensors are on, and with patience."""
    return _patient_group(dist.group.WORLD)


@lru_cache(1)
def _patient_group(world: Any) -> Any:
    return dist.new_group(backend="gloo", timeout=PATIENCE)


@contextmanager
def _noticing_losses() -> Iterator[None]:
    """A process that is gone closes its connections: the others hear of it at once."""
    try:
        yield
    except RuntimeError as error:
        raise LostProcessError(
            "another process of this training has ended or no longer answers; what was saved last is intact"
        ) from error
