"""PipeMare: asynchronous training that keeps no old weights (Yang et al. 2019, arXiv 1910.05124).

Stage s of n applies a gradient whose forward ran tau updates ago. Three techniques deal with that
(their formulas are remembered, not read off the paper):

    T1  a smaller learning rate at first, the smaller the later the gradients:
        alpha_k = alpha_base,k / tau^p,  p = 1 - min(k / K, 1)  for update k of K
    T2  a backward that corrects the newest weights towards those that its forward took:
        u = w - tau delta,  delta(t+1) = gamma delta(t) + (1 - gamma)(w(t+1) - w(t)),
        gamma = D^(1/tau),  D = exp(-2)
    T3  synchronous mini-batches to begin with: `Pipeline.step`, which drains the pipeline, and from
        then on `Pipeline.train`, which does not

    def optimizer(parameters):
        return PipeMare(torch.optim.SGD(parameters, lr=0.1), annealing=500)

    pipeline = Pipeline(model, balance, schedule='pipemare', chunks=4, loss_fn=loss, optimizer=optimizer)
"""

import contextlib
import math
from collections.abc import Iterator
from statistics import fmean
from typing import Any

import torch

from fewgpu.schedule import Schedule, staleness
from fewgpu.schedule.plans import Plans

DECAY = math.exp(-2)


class PipeMare:
    """The optimizer of one stage whose gradients may be late.

    Arguments:
        optimizer: the stage's own; learning-rate schedulers are given this one.
        annealing: K of T1, the late updates until the learning rate is the optimizer's own; 0: no T1.
        decay: D of T2; 1 keeps delta at zero, so that nothing is corrected.

    The Pipeline says how late (`of_stage`). A delay below 1, as the last stages have it, leaves the
    learning rate as it is, and so does an update whose gradient is not late (T3).
    """

    def __init__(self, optimizer: torch.optim.Optimizer, *, annealing: int = 0, decay: float = DECAY) -> None:
        if not hasattr(optimizer, 'step') or not hasattr(optimizer, 'param_groups'):
            raise TypeError(f'PipeMare is given the optimizer of a stage, as PipeMare(torch.optim.SGD(parameters, '
                            f'lr=0.1)), not {optimizer!r}')
        if not annealing >= 0 or not 0.0 < decay <= 1.0:
            raise ValueError(f'annealing is a number of updates, and decay is above 0 and at most 1, not '
                             f'{annealing} and {decay}')
        self.optimizer, self.annealing, self.decay = optimizer, annealing, decay
        self.delay, self.corrects = 0.0, False
        self._is_late = False
        self._delta: dict[torch.Tensor, torch.Tensor] = {}
        for group in self.param_groups:   # an option like any other: it is saved and loaded as they are
            group.setdefault('late_updates', 0)

    def of_stage(self, delay: float, *, corrects: bool) -> None:
        """Its stage has so many updates of delay (tau); `corrects` says whether T2 is wanted."""
        self.delay, self.corrects = delay, corrects and delay > 0

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return self.optimizer.param_groups

    @property
    def late_updates(self) -> int:
        """k of T1."""
        return self.param_groups[0]['late_updates']

    @property
    def state(self) -> dict[torch.Tensor, dict[str, Any]]:
        """What is remembered of each parameter: by the optimizer, and the 'delta' of T2."""
        own, deltas = self.optimizer.state, {each: {'delta': delta} for each, delta in self._delta.items()}
        return {parameter: {**own.get(parameter, {}), **deltas.get(parameter, {})}
                for parameter in self._parameters() if parameter in own or parameter in deltas}

    @torch.no_grad()
    def step(self) -> None:
        """Let the optimizer update the weights: at the rate of T1, and T2 learns from the change."""
        weights = self._weights() if self.corrects else []
        before = [weight.clone() for weight in weights]
        rate = rescheduled(self.delay, self.late_updates, self.annealing) if self._is_late else 1.0
        with self._scaled(rate):
            self.optimizer.step()
        if weights:
            gamma = self.decay ** (1.0 / self.delay)
            for parameter in self._parameters():
                self._delta.setdefault(parameter, torch.zeros_like(parameter.data))
            torch._foreach_mul_(self._deltas(), gamma)
            torch._foreach_add_(self._deltas(), torch._foreach_sub(weights, before), alpha=1.0 - gamma)
        for group in self.param_groups:
            group['late_updates'] += self._is_late
        self._is_late = False

    def zero_grad(self) -> None:
        self.optimizer.zero_grad()

    @contextlib.contextmanager
    def corrected(self, late: int) -> Iterator[None]:
        """Inside, for the backward of a micro-batch whose forward ran `late` updates ago, T2's u is in
        the weights' place; afterwards it is w again, bit by bit.

        `late` is what T2's tau is the mean of: it differs between micro-batches of one update, and is
        0 for the first ones of a pipeline that was empty.
        """
        self._is_late |= late > 0
        if not (late and self.corrects and self._delta):
            yield
            return
        weights = self._weights()
        kept = [weight.clone() for weight in weights]
        try:
            torch._foreach_sub_(weights, torch._foreach_mul(self._deltas(), late))
            yield
        finally:
            torch._foreach_copy_(weights, kept)

    def state_dict(self) -> dict[str, Any]:
        """The optimizer's, with the 'delta' of each parameter beside what it remembers."""
        saved = self.optimizer.state_dict()
        numbers = [number for group in saved['param_groups'] for number in group['params']]
        state = self.state
        return {**saved, 'state': {number: state[parameter] for number, parameter in
                                   zip(numbers, self._parameters(), strict=True) if parameter in state}}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """What `state_dict` gave, or what that of the optimizer alone gave: then T1 and T2 begin anew. A stage that
        does not correct (the last one, say) leaves each 'delta' out.

        Raises ValueError, before anything is changed, for a 'delta' of another shape than its parameter."""
        state = {number: dict(values) for number, values in saved['state'].items()}
        deltas = {number: values.pop('delta') for number, values in state.items() if 'delta' in values}
        deltas = deltas if self.corrects else {}
        for number, parameter in enumerate(self._parameters()):
            if number in deltas and deltas[number].shape != parameter.shape:
                raise ValueError(f"parameter {number} is of shape {tuple(parameter.shape)}, and the 'delta' that was "
                                 f"saved "
                                 f'for it of {tuple(deltas[number].shape)}: load what was saved of the same model')
        self.optimizer.load_state_dict(
            {**saved, 'state': {number: values for number, values in state.items() if values}})
        for group in self.param_groups:
            group.setdefault('late_updates', 0)
        numbers = [number for group in saved['param_groups'] for number in group['params']]
        self._delta = {parameter: deltas[number].to(parameter.device, copy=True)
                       for number, parameter in zip(numbers, self._parameters(), strict=True) if number in deltas}
        if self._delta:   # T2 corrects all weights of a stage
            for parameter in self._parameters():
                self._delta.setdefault(parameter, torch.zeros_like(parameter.data))

    def _parameters(self) -> list[torch.Tensor]:
        return [parameter for group in self.param_groups for parameter in group['params']]

    def _deltas(self) -> list[torch.Tensor]:
        return [self._delta[parameter] for parameter in self._parameters()]

    def _weights(self) -> list[torch.Tensor]:
        """The memory of the parameters, which shares no counter of changes with them: to write into it
        is no change of what a graph has saved, as far as autograd knows."""
        return [parameter.data for parameter in self._parameters()]

    @contextlib.contextmanager
    def _scaled(self, rate: float) -> Iterator[None]:
        own = [group['lr'] for group in self.param_groups]
        try:
            for group in self.param_groups:
                group['lr'] = group['lr'] * rate
            yield
        finally:
            for group, lr in zip(self.param_groups, own):
                group['lr'] = lr


def rescheduled(delay: float, k: int, annealing: int) -> float:
    """T1: by what the learning rate of update k, from 0, is multiplied: max(delay, 1)^-p."""
    p = 1.0 - min(k / annealing, 1.0) if annealing else 0.0
    return max(delay, 1.0) ** -p


def delays(schedule: Schedule) -> list[float]:
    """tau of every stage: by how many updates the forwards of the last update are old, on the average.

    (n - 1 - s) / N for stage s of n under 'pipedream' and 'pipemare', if the schedule is long enough,
    with N micro-batches an update; 1 under '2bw'; 0 where a schedule flushes. PipeMare itself counts
    (2(n - s) - 1) / N, for a stage that works on a forward and a backward at once; one that alternates
    has half as many in flight.
    """
    late, m = staleness(schedule), schedule.micro_batches
    latest = range(m - (schedule.update_every or m), m)
    return [fmean(late[stage, i] for i in latest) for stage in range(schedule.stages)]


def with_delays(optimizers: dict[tuple[int, int], Any], plans: Plans) -> dict[tuple[int, int], Any]:
    """The optimizers, by (row, stage): every PipeMare among them knows how late its gradients will be, and
    under the rule 'corrected' every optimizer becomes one."""
    corrects = plans.layout.weights == 'corrected'
    if corrects:
        optimizers = {place: optimizer if isinstance(optimizer, PipeMare) else PipeMare(optimizer)
                      for place, optimizer in optimizers.items()}
    if told := {place: optimizer for place, optimizer in optimizers.items() if isinstance(optimizer, PipeMare)}:
        late = delays(plans.in_the_long_run())
        for (_, s), optimizer in told.items():
            optimizer.of_stage(late[s], corrects=corrects)
    return optimizers


def stability_limit(curvature: float, delay: int) -> float:
    """The learning rate below which gradient descent on `curvature` * w^2 / 2 with gradients that are
    `delay` updates late is stable: 2 / curvature * sin(pi / (4 delay + 2))."""
    return 2.0 / curvature * math.sin(math.pi / (4 * delay + 2))
