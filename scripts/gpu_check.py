"""What the owner of a GPU runs first: whether every head computes there what it should, and how well.

    python scripts/gpu_check.py                           # about five minutes on a card
    python scripts/gpu_check.py --device cpu --quick      # the same where there is none, in a minute
    python scripts/gpu_check.py --parts numbers           # no timings

Ends with a verdict; the file that --json names belongs to every report of a problem.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from scripts.common.command import json_problems, read_flags, require_device, run_script
from scripts.common.head_steps import Work, bench_head, contenders
from scripts.common.registered import heads_with_variants
from scripts.common.targets import make_targets
from sqrtvocab.atomic import write_json
from sqrtvocab.errors import RunError, UserError
from sqrtvocab.heads.registry import HEADS

# torch is imported where it is used: --help must not wait for it.
if TYPE_CHECKING:
    import torch

    from sqrtvocab import Head

BASELINE = "flat"  # of the speeds
SHAPE, QUICK_SHAPE = (8192, 512, 50257), (256, 16, 1003)
SMALL = (512, 64, 1003)  # for the numbers, whose reference is made in float64
# How far losses and log-probabilities may be from the reference, relative to its size; and gradients, each of
# which is rounded to the format of its parameter, but not the sums on the way.
TOLERANCE = {"float32": 1e-4, "bfloat16": 0.02, "float16": 0.002}
GRADIENT_TOLERANCE = {"float32": 1e-4, "bfloat16": 0.01, "float16": 0.002}
MEMORY_TOLERANCE = 0.1


@dataclass(frozen=True)
class Config:
    """Whether every head computes on this device what it should, and how well."""

    device: Literal["cuda", "cpu"] = "cuda"
    """Where to run."""
    parts: tuple[Literal["numbers", "memory", "speed"], ...] = ("numbers", "memory", "speed")
    """What to look at: losses, gradients and decoding against a dense reference, with the waits of the host;
    peak memory against the simulated one; time against flat, chunked and the peers that are installed."""
    quick: bool = False
    """Small shapes, to see that everything works."""
    json: Path = Path("gpu_check.json")
    """Everything that was found goes into this file."""

    def __post_init__(self) -> None:
        if problems := [*json_problems(self.json), *([] if self.parts else ["--parts: name at least one"])]:
            raise UserError("; ".join(problems))


@dataclass(frozen=True)
class Numbers:
    """A head in one number format against its dense distribution in float64 on the CPU."""

    head: str
    dtype: str
    kernel: str | None
    loss: float
    """Errors, relative to the reference: of the loss, of its gradients, of the best log-probabilities."""
    gradient: float
    topk: float
    training_waits: int | None
    """How often the host waited for the device; None where nobody can tell."""
    decoding_waits: int | None

    @property
    def is_right(self) -> bool:
        numbers_fit = max(self.loss, self.topk) <= TOLERANCE[self.dtype]
        gradients_fit = self.gradient <= GRADIENT_TOLERANCE[self.dtype]
        return numbers_fit and gradients_fit and not self.training_waits and not self.decoding_waits


@dataclass(frozen=True)
class MemoryRow:
    """Bytes of a training step with fused AdamW, and the most that the simulation allows for."""

    head: str
    real: int
    simulated: int

    @property
    def is_right(self) -> bool:
        return self.real <= (1 + MEMORY_TOLERANCE) * self.simulated


@dataclass(frozen=True)
class Speed:
    """Forward and backward."""

    contender: str
    milliseconds: float
    times_flat: float


def check_numbers(device: str) -> Iterator[Numbers]:
    """Every head in every number format."""
    import torch

    for title, (name, options) in heads_with_variants().items():
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            torch.manual_seed(0)
            work = Work(*SMALL, device="cpu")
            head = bench_head(name, options, work)
            head.learn_classes(torch.randn(work.classes, work.width), torch.arange(work.classes))
            head = (head.eval() if head.surrogate else head).to(dtype)  # in training its loss is another one
            hidden = torch.randn(work.tokens, work.width).to(dtype)
            target = make_targets("zipf", work.tokens, work.classes, "cpu")
            yield _numbers(title, head, hidden, target, dtype, device)


def _numbers(
    title: str, head: Head, hidden: torch.Tensor, target: torch.Tensor, dtype: torch.dtype, device: str
) -> Numbers:
    import copy

    import torch.nn.functional as F

    reference, rows = copy.deepcopy(head).double(), hidden.double().requires_grad_()
    log_prob = reference.log_prob(rows)
    F.nll_loss(log_prob, target).backward()
    here, there = head.to(device), hidden.to(device).requires_grad_()
    classes = target.to(device)

    def step() -> torch.Tensor:
        here.zero_grad()
        there.grad = None
        loss = here(there, classes).loss
        loss.backward()
        return loss.detach()

    step()  # kernels are loaded, and memory is found, in the first one
    loss, training_waits = _counting_waits(step, device)
    found, decoding_waits = _counting_waits(lambda: here.topk(there.detach(), 5)[0], device)
    gradients = [(there.grad, rows.grad)]
    gradients += [(a.grad, b.grad) for a, b in zip(here.parameters(), reference.parameters(), strict=True)]
    return Numbers(
        title,
        str(dtype).removeprefix("torch."),
        here.kernel_for(dtype),
        _error(loss, F.nll_loss(log_prob, target)),
        max(_error(ours, theirs) for ours, theirs in gradients if theirs is not None and theirs.any()),
        _error(found, log_prob.topk(5).values),
        training_waits,
        decoding_waits,
    )


def _error(ours: Any, theirs: Any) -> float:
    difference = (ours.detach().cpu().double() - theirs.detach()).norm() / theirs.detach().norm()
    return float(difference) if difference.isfinite() else float("inf")


def _counting_waits(run: Callable[[], torch.Tensor], device: str) -> tuple[torch.Tensor, int | None]:
    """What `run` returns, and how often the host waited meanwhile; nobody can tell on the CPU."""
    import torch

    if device == "cpu":
        return run(), None
    torch.cuda.synchronize()
    with warnings.catch_warnings(record=True) as told, _sync_debug_mode():
        warnings.simplefilter("always")
        result = run()
    return result, sum("synchroniz" in str(warning.message) for warning in told)


@contextmanager
def _sync_debug_mode() -> Iterator[None]:
    import torch

    torch.cuda.set_sync_debug_mode("warn")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def check_memory(work: Work) -> Iterator[MemoryRow]:
    """Every head but those that train on what they draw, which no shapes tell; its weights, Adam's moments
    and two steps."""
    from sqrtvocab.measure import allocated_by
    from sqrtvocab.measure.gpu import ROUNDING
    from sqrtvocab.measure.simulate import simulate

    rounding = ROUNDING if work.device == "cuda" else 1
    for title, (name, options) in heads_with_variants().items():
        if HEADS[name].surrogate:
            continue
        real_steps = partial(_two_steps, name, options, work)
        real_steps()  # what a first call allocates for good is not a step's
        real = allocated_by(real_steps, work.device).peak
        with _rules(work.device):
            simulated = simulate(partial(_training, name, options, work._replace(device="cpu")), rounding)
        yield MemoryRow(title, real, simulated.peak)


def _two_steps(name: str, options: dict[str, Any], work: Work) -> None:
    training = _training(name, options, work)
    training.step()
    training.step()


def _training(name: str, options: dict[str, Any], work: Work) -> Any:
    import torch

    from sqrtvocab.measure.simulate import Training

    head = bench_head(name, options, work)
    hidden = torch.zeros(work.tokens, work.width, device=work.device, requires_grad=True)
    target = torch.arange(work.tokens, device=work.device) % work.classes
    adam = torch.optim.AdamW(head.parameters(), fused=True)
    return Training(head, adam, lambda: head(hidden, target).loss)


@contextmanager
def _rules(device: str) -> Iterator[None]:
    """Those of the card that is here."""
    import torch

    from sqrtvocab.measure.gpu import GPU, gpu_rules

    if device == "cpu":
        yield
        return
    card = torch.cuda.get_device_properties(0)
    with gpu_rules(GPU(card.name, card.total_memory, (card.major, card.minor))):
        yield


def check_speed(work: Work) -> Iterator[Speed]:
    """Everything that can be trained here, side by side."""
    from sqrtvocab.measure.race import race

    preload = ("torch", "sqrtvocab.heads", "scripts.common.head_steps")
    found = race(
        contenders(work), repeats=5, threads=1, device=work.device, title=f"train {work}", preload=preload
    )
    if BASELINE not in found:
        raise RunError(f"{BASELINE}, which all others are compared with, did not run")
    for name, result in found.items():
        yield Speed(name, 1e3 * result.seconds, result.seconds / found[BASELINE].seconds)


def main(config: Config) -> None:
    """Look at everything, then judge.

    Raises:
        RunError: something is not as it should be.
    """
    from sqrtvocab.measure.machine import describe_machine

    require_device(config.device)
    machine = describe_machine(config.device)
    print(machine)
    work = Work(*(QUICK_SHAPE if config.quick else SHAPE), device=config.device)
    numbers: list[Numbers] = []
    memory: list[MemoryRow] = []
    speed: list[Speed] = []
    if "numbers" in config.parts:
        print(f"\n{'against float64':30}{'kernel':>12}{'loss':>9}{'gradient':>9}{'top 5':>9}{'waits':>9}")
        for row in check_numbers(config.device):
            numbers.append(row)
            waits = "-" if row.training_waits is None else f"{row.training_waits} + {row.decoding_waits}"
            errors = "".join(f"{error:9.1e}" for error in (row.loss, row.gradient, row.topk))
            mark = "" if row.is_right else "  WRONG"
            print(f"{f'{row.head}, {row.dtype}':30}{row.kernel or '-':>12}{errors}{waits:>9}{mark}")
    if "memory" in config.parts:
        print(f"\n{f'MB of a step, {work}':42}{'real':>10}{'simulated':>10}")
        for memory_row in check_memory(work):
            memory.append(memory_row)
            mark = "" if memory_row.is_right else "  WRONG"
            print(
                f"{memory_row.head:42}{memory_row.real / 1e6:10.1f}{memory_row.simulated / 1e6:10.1f}{mark}"
            )
    if "speed" in config.parts:
        print(f"\n{f'forward and backward, {work}':42}{'ms':>10}{'x flat':>10}")
        for speed_row in check_speed(work):
            speed.append(speed_row)
            print(f"{speed_row.contender:42}{speed_row.milliseconds:10.2f}{speed_row.times_flat:10.3f}")
    wrong = [f"{row.head} in {row.dtype}" for row in numbers if not row.is_right]
    wrong += [f"the memory of {row.head}" for row in memory if not row.is_right]
    rows: dict[str, list[Any]] = {"numbers": numbers, "memory": memory, "speed": speed}
    figures = {name: [asdict(row) for row in part] for name, part in rows.items()}
    write_json(config.json, {"machine": machine, "shape": work[:3], "wrong": wrong, **figures})
    print(
        f"\n{len(numbers) + len(memory) - len(wrong)} checks passed, {len(wrong)} failed; see {config.json}"
    )
    if wrong:
        raise RunError(f"not as it should be: {', '.join(wrong)}; please report it with {config.json}")


if __name__ == "__main__":
    raise SystemExit(run_script(main, lambda: read_flags(Config, __doc__)))
