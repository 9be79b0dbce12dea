"""What a plan costs, by the formulas of the exercise; and what it seems to cost where one of them is mistaken."""

from dataclasses import dataclass, replace
from random import Random

from fewgpu.workshop.grading.law import shown
from fewgpu.workshop.practice.bars import bars
from fewgpu.workshop.practice.cluster import Cluster, Model, Plan


@dataclass(frozen=True)
class Case:
    model: Model
    cluster: Cluster
    plan: Plan
    batch: int

    @property
    def micro_batches(self) -> int:
        return self.batch // (self.plan.width * self.plan.micro_batch)

    @property
    def blocks(self) -> int:
        """Of the first stage."""
        return -(-self.model.blocks // self.plan.depth)

    @property
    def order(self) -> tuple:
        """Simple ones first."""
        return self.plan.depth * self.plan.width, self.plan.micro_batch, self.batch, self.model.blocks


def draw_model(random: Random, *, blocks: int) -> Model:
    """Small whole numbers, unlike each other, so that nothing can be taken for something else."""
    weights, state, activations, boundary = random.sample(range(2, 40), 4)
    return Model(blocks=blocks, forward=float(random.randrange(1, 6)), backward=float(random.randrange(6, 12)),
                 start=float(random.randrange(1, 5)), weights=float(weights), state=float(state),
                 activations=float(activations), boundary=float(boundary))


def cases(random: Random, *, recompute: bool, silent: bool = False) -> list[Case]:
    """Plans of all kinds. Models that are `silent` have nothing to send."""
    shapes = [(1, 1, 1, 1, 1), (2, 1, 1, 1, 1), (1, 1, 1, 1, 2), (1, 1, 1, 2, 1), (2, 2, 1, 1, 4), (3, 2, 1, 1, 4),
              (4, 4, 1, 1, 2), (4, 2, 1, 2, 4), (2, 1, 2, 1, 2), (2, 2, 2, 1, 2), (8, 4, 1, 2, 8), (8, 4, 2, 2, 4),
              (9, 4, 2, 1, 2)]
    shapes += [(random.randrange(1, 20), random.randrange(1, 9), random.randrange(1, 6), random.randrange(1, 5),
                random.randrange(1, 12)) for _ in range(25)]
    found = []
    for index, (blocks, depth, width, micro_batch, micro_batches) in enumerate(shapes):
        batch = micro_batches * width * micro_batch
        model = draw_model(random, blocks=max(blocks, depth))
        if silent:
            model = replace(model, weights=0.0, state=0.0, activations=0.0, boundary=0.0)
        cluster = Cluster(devices=64, memory=1e9, bandwidth=float(random.randrange(2, 9)))
        found.append(Case(model, cluster, Plan(depth, width, micro_batch, recompute and index % 3 > 0), batch))
    return sorted(found, key=lambda case: case.order)


def memory(case: Case, mistake: str = '') -> float:
    model, plan, m, n = case.model, case.plan, case.micro_batches, _blocks(case, mistake)
    b = 1 if mistake == 'one-sample' else plan.micro_batch
    if mistake == 'batch-of-all':
        m = case.batch // plan.micro_batch
    on_their_way = {'all-micro-batches': m, 'more-than-there-are': plan.depth, 'one-on-its-way': 1}.get(
        mistake, min(m, plan.depth))
    fixed = n * {'state-forgotten': model.weights, 'weights-forgotten': model.state}.get(
        mistake, model.weights + model.state)
    whole = b * n * model.activations
    kept = on_their_way * whole
    if plan.recompute and mistake != 'recompute-ignored':
        inputs = {'input-once': 1, 'inputs-of-blocks': on_their_way * n}.get(mistake, on_their_way)
        again = {'nothing-again': 0, 'one-block-again': b * model.activations}.get(mistake, whole)
        kept = inputs * b * model.boundary + again
        if mistake == 'inputs-forgotten':
            kept = again
    if mistake == 'width-divides':
        return (fixed + kept) / plan.width
    if mistake == 'width-divides, weights':
        return fixed / plan.width + kept
    if mistake == 'width-multiplies':
        return plan.width * (fixed + kept)
    return fixed + kept


def seconds(case: Case, mistake: str = '') -> float:
    model, plan, m, n = case.model, case.plan, case.micro_batches, _blocks(case, mistake)
    bandwidth, depth, width = case.cluster.bandwidth, plan.depth, plan.width
    b = 1 if mistake == 'one-sample' else plan.micro_batch
    if mistake == 'batch-of-all':
        m = case.batch // plan.micro_batch
    start = {'no-start': 0.0, 'start-times-samples': model.start * b}.get(mistake, model.start)
    forward, backward = n * (start + b * model.forward), n * (start + b * model.backward)
    if mistake == 'start-once':
        forward, backward = start + n * b * model.forward, start + n * b * model.backward
    if mistake == 'start-of-forwards':
        backward = n * b * model.backward
    t = forward + backward
    if plan.recompute:
        t += {'recompute-free': 0.0, 'backward-again': backward, 'recompute-doubles': forward + backward,
              'no-start-again': n * b * model.forward}.get(mistake, forward)
    message = b * model.boundary / bandwidth
    messages = {'one-way': 1, 'no-messages': 0, 'messages-of-blocks': 2 * n}.get(mistake, 2) * message
    if depth == 1 and mistake != 'nobody-to-tell':
        messages = 0.0
    rounds = {'no-bubble': m, 'bubble-of-depth': m + depth, 'bubble-twice': m + 2 * (depth - 1), 'serial': m * depth,
              'bubble-share': m * (1 + (depth - 1) / (m + depth - 1))}.get(mistake, m + depth - 1)
    sent = {'message-once': 1, 'no-messages-in-bubble': m}.get(mistake, rounds)
    total = rounds * t + sent * messages
    return (total / width if mistake == 'width-again' else total) + _all_reduce(case, mistake, n, m)


def _all_reduce(case: Case, mistake: str, n: int, m: int) -> float:
    model, width = case.model, case.plan.width
    weights = model.blocks * model.weights if mistake == 'whole-model' else n * model.weights
    if mistake == 'state-travels':
        weights = n * (model.weights + model.state)
    share = {'no-all-reduce': 0.0, 'half-a-ring': (width - 1) / width, 'root': 2.0 * (width - 1),
             'root, one way': width - 1.0, 'root, all': 2.0 * width if width > 1 else 0.0,
             'whole-each-way': 2.0 if width > 1 else 0.0, 'whole-each-way, once': 1.0 if width > 1 else 0.0,
             'each-micro-batch': 2 * (width - 1) / width * m}
    return share.get(mistake, 2 * (width - 1) / width) * weights / case.cluster.bandwidth


def _blocks(case: Case, mistake: str) -> float:
    blocks, depth = case.model.blocks, case.plan.depth
    return {'rounded-down': blocks // depth, 'part-of-a-block': blocks / depth, 'not-cut': blocks,
            'one-more': blocks // depth + 1}.get(mistake, case.blocks)


def told(function: str, case: Case, got: object, wanted: float) -> str:
    """A case, as it is called; figures that are 0 are left out."""
    figures = ', '.join(f'{name}={value:g}' for name, value in vars(case.model).items() if value)
    first = figures.rfind(', ', 0, 66) + 1
    if not all(vars(case.model).values()):
        figures += ', the rest 0'
    plan, place = case.plan, f', cluster with bandwidth {case.cluster.bandwidth:g}' * (function == 'seconds')
    return '\n'.join([
        f'model   {figures[:first]}', f'        {figures[first:].strip()}',
        f'plan    depth={plan.depth}, width={plan.width}, micro_batch={plan.micro_batch}, recompute={plan.recompute}',
        f'{function} for a batch of {case.batch}{place}', f'yours     {shown(got)}', f'expected  {wanted:g}'])


def memory_drawn(case: Case) -> str:
    """What fills the first stage's device."""
    fixed = case.blocks * (case.model.weights + case.model.state)
    again = case.plan.micro_batch * case.blocks * case.model.activations if case.plan.recompute else 0.0
    kept = memory(case) - fixed - again
    rows = [('weights, state', fixed, f'{fixed:g}'),
            ('inputs that wait' if case.plan.recompute else 'activations', kept, f'{kept:g}')]
    return bars([*rows, ('recomputed', again, f'{again:g}')] if again else rows)


def seconds_drawn(case: Case) -> str:
    """The parts of a step."""
    t = (seconds(case) - _all_reduce(case, '', case.blocks, 0)) / (case.micro_batches + case.plan.depth - 1)
    parts = [(f'micro-batches ({case.micro_batches})', case.micro_batches * t), ('bubble', (case.plan.depth - 1) * t),
             ('all-reduce', _all_reduce(case, '', case.blocks, 0))]
    return bars((name, value, f'{value:g}') for name, value in parts if value)
