"""Grader of exercise 01. Laws: sizes that do not divide, order, views of any shape, and the mean over rows."""

from functools import partial
from random import Random

import torch
from torch import nn

from fewgpu.workshop.grading.grader import Hints, check
from fewgpu.workshop.grading.law import Suspect, close, judge, shown
from fewgpu.workshop.grading.work import Work

FORBIDDEN = 'fewgpu.microbatch', 'torchgpipe.microbatch', 'torch.distributed.pipelining.microbatch'

MISCONCEPTIONS = {
    'equal-sizes': 'all micro-batches get the same number of rows, and the rows that are left over are lost',
    'rest-in-last': 'the rows that are left over all go to the last micro-batch: it becomes the slowest of them',
    'rest-in-first': 'the rows that are left over all go to the first micro-batch: it becomes the slowest of them',
    'round-up': 'every micro-batch gets the rows of the largest until none are left: 5 rows in 4 chunks become 2, 2, 1, so '
                'there are fewer micro-batches than asked for (torch.chunk does that)',
    'smaller-first': 'the larger micro-batches come last, and the docstring asks for them first',
    'empty': 'with fewer rows than chunks some micro-batches are empty',
    'size-for-count': '`chunks` is taken for the rows of a micro-batch; it is how many micro-batches there are',
    'strided': 'the rows are dealt out like cards, 0, 4, 8 to the first: put together again they are in another order',
    'stacked': '`torch.stack` makes a new dimension, and the micro-batches have to be joined along their first',
    'last-dimension': 'the rows are the first dimension, and another one is taken',
    'mean-of-means': 'the mean of the means counts a row of a small micro-batch for more than one of a large: weigh each '
                     'loss by its rows',
    'sum-of-means': 'the means are added up: the loss grows with the number of micro-batches',
    'not-divided': 'the losses are weighed by their rows, but not divided by the number of all rows',
    'no-graph': 'the value is right, but it has lost its graph (by .item(), .detach() or a new tensor): no gradient '
                'reaches the model',
}

HINTS = {
    'sizes': Hints(
        idea='Five sweets for four children: everybody gets one, and the one that is left goes to the first. How many '
             'does everybody get, and how many are left? Then: two sweets for four children, of whom none may get nothing.',
        place='`sizes`: first how many micro-batches there really are (never more than rows), then divmod.',
        outline='count = the smaller of rows and chunks\nleast, more = divmod(rows, count)\nreturn `more` times least + 1, '
                'then count - more times least'),
    'scatter': Hints(
        idea='The sizes say how long every piece is; each begins where the one before it ended.',
        place='`scatter`: a loop over sizes(len(batch), chunks) that keeps the start; or a function of torch that takes a list of sizes.',
        outline='start = 0\nfor each size: append batch[start:start + size], and move start by size'),
    'gather': Hints(
        idea='No dimension appears or disappears: the pieces lie one below the other.',
        place='`gather`: one function of torch.', outline='return torch.cat of the micro-batches'),
    'mean_loss': Hints(
        idea='A mean over three rows knows no micro-batches. Turn each mean back into a sum, add, and divide once.',
        place='`mean_loss`: losses[i] * rows[i] is the sum over micro-batch i.',
        outline='add up loss * count for all micro-batches\ndivide by the sum of all counts'),
}
HINTS['loss_gradient'] = HINTS['mean_loss']


def truth(case: tuple[int, int]) -> list[int]:
    """Row k of n goes to micro-batch k * count // n counted from the back: an even spread, said otherwise."""
    rows, chunks = case
    count = min(rows, chunks)
    return [sum(1 for row in range(rows) if row % count == chunk) for chunk in range(count)]


def sizes_to_try(random: Random) -> list[tuple[int, int]]:
    """Rows and chunks: all small ones, and some large."""
    small = [(rows, chunks) for rows in range(1, 9) for chunks in range(1, 7)]
    large = [(random.randrange(9, 300), random.randrange(1, 40)) for _ in range(30)]
    return sorted(small, key=sum) + large


def _round_up(case: tuple[int, int]) -> list[int]:
    return [len(part) for part in torch.arange(case[0]).chunk(case[1])]


def _spread(case: tuple[int, int]) -> list[int]:
    rows, chunks = case
    return [rows // chunks + (chunk < rows % chunks) for chunk in range(chunks)]


def _pieces(case: tuple[int, int]) -> list[int]:
    rows, size = case
    return [min(size, rows - start) for start in range(0, rows, size)]


@check('sizes differ by one row at most, larger first, and none is empty', points=3)
def sizes(work: Work, random: Random) -> None:
    def one_gets_all(place: int):
        def answer(case: tuple[int, int]) -> list[int]:
            rows, count = case[0], min(case)
            answer = [rows // count] * count
            answer[place] += rows % count
            return answer
        return answer

    judge(sizes_to_try(random), lambda case: _whole_numbers(work.sizes(*case)), truth, suspects=[
        Suspect('equal-sizes', lambda case: [case[0] // case[1]] * case[1]),
        Suspect('equal-sizes', lambda case: [case[0] // min(case)] * min(case)),
        Suspect('rest-in-last', one_gets_all(-1)),
        Suspect('rest-in-last', lambda case: [case[0] // case[1]] * (case[1] - 1) + [case[0] - case[0] // case[1] * (case[1] - 1)]),
        Suspect('rest-in-first', one_gets_all(0)),
        Suspect('round-up', _round_up),
        Suspect('smaller-first', lambda case: truth(case)[::-1]),
        Suspect('smaller-first', lambda case: _spread(case)[::-1]),
        Suspect('empty', _spread),
        Suspect('size-for-count', _pieces),
    ], tell=lambda case, got, wanted: f'sizes({case[0]}, {case[1]})\nyours     {shown(got)}\nexpected  {wanted}',
        lines=work.definition('sizes'))


def _whole_numbers(answer: object) -> object:
    """A list of numbers, in whatever container: tensors of one number count as numbers."""
    if isinstance(answer, torch.Tensor):
        return answer.tolist()
    if isinstance(answer, (list, tuple)):
        return [part.item() if isinstance(part, torch.Tensor) and part.numel() == 1 else part for part in answer]
    return answer


@check('micro-batches have the rows of the mini-batch, in order', points=2, after=['sizes'])
def scatter(work: Work, random: Random) -> None:
    def batch(case: tuple[int, int, tuple[int, ...]]) -> torch.Tensor:
        rows, _, shape = case
        return torch.arange(rows * max(1, torch.Size(shape).numel())).reshape(rows, *shape)

    def cut(case: tuple, counts: list[int]) -> list[torch.Tensor]:
        return list(batch(case).split(counts))

    shapes = [(), (2,), (3, 2)]
    cases = [(*case, shape) for case in sizes_to_try(random) for shape in (shapes if sum(case) < 8 else [random.choice(shapes)])]
    judge(cases, lambda case: _listed(work.scatter(batch(case), case[1])), lambda case: cut(case, truth(case[:2])), suspects=[
        Suspect('round-up', lambda case: cut(case, _round_up(case[:2]))),
        Suspect('size-for-count', lambda case: cut(case, _pieces(case[:2]))),
        Suspect('strided', lambda case: [batch(case)[start::min(case[:2])] for start in range(min(case[:2]))]),
        Suspect('last-dimension', lambda case: list(batch(case).tensor_split(min(case[:2]), dim=-1))),
    ], tell=lambda case, got, wanted: f'scatter({shown(batch(case))}, {case[1]})\nyours     {shown(got)}\nexpected  {shown(wanted)}',
        lines=work.definition('scatter'))


def _listed(answer: object) -> object:
    return list(answer) if isinstance(answer, (tuple, list)) or hasattr(answer, '__next__') else answer


@check('gather gives back what was cut, whatever the sizes', points=2)
def gather(work: Work, random: Random) -> None:
    def parts(case: tuple[tuple[int, ...], tuple[int, ...]]) -> list[torch.Tensor]:
        rows, shape = case
        whole = torch.arange(sum(rows) * torch.Size(shape).numel()).reshape(sum(rows), *shape)
        return list(whole.split(rows))

    shapes = [(), (2,), (2, 3)]
    cases = [(rows, shape) for rows in [(1,), (1, 1), (2, 1), (2, 2), (3, 2, 2)] for shape in shapes]
    cases += [(tuple(random.randrange(1, 9) for _ in range(random.randrange(2, 9))), (2,)) for _ in range(10)]
    judge(cases, lambda case: work.gather(parts(case)), lambda case: torch.cat(parts(case)), suspects=[
        Suspect('stacked', lambda case: torch.stack(parts(case))),
        Suspect('last-dimension', lambda case: torch.cat(parts(case), dim=-1)),
        Suspect('strided', lambda case: torch.stack(parts(case), dim=1).flatten(0, 1)),
    ], tell=lambda case, got, wanted: f'gather of {shown(parts(case))}\nyours     {shown(got)}\nexpected  {shown(wanted)}',
        lines=work.definition('gather'))


@check('the mean loss counts every row the same', points=2)
def mean_loss(work: Work, random: Random) -> None:
    def losses(case: tuple[tuple[float, int], ...]) -> tuple[list[torch.Tensor], list[int]]:
        return [torch.tensor(loss, dtype=torch.float64) for loss, _ in case], [rows for _, rows in case]

    def average(case: tuple[tuple[float, int], ...]) -> torch.Tensor:
        return torch.tensor(sum(loss * rows for loss, rows in case) / sum(rows for _, rows in case), dtype=torch.float64)

    def of(value: float) -> torch.Tensor:
        return torch.tensor(value, dtype=torch.float64)

    cases = [((3.0, 2),), ((1.0, 1), (2.0, 1)), ((1.0, 2), (4.0, 1))]
    cases += [tuple((random.uniform(0.5, 4), random.randrange(1, 9)) for _ in range(count)) for count in (2, 3, 4, 5, 6)]
    same = partial(close, tolerance=1e-6)   # of a mean that went through float32
    judge(cases, lambda case: _tensor(work.mean_loss(*losses(case))), average, same=same, suspects=[
        Suspect('mean-of-means', lambda case: of(sum(loss for loss, _ in case) / len(case))),
        Suspect('sum-of-means', lambda case: of(sum(loss for loss, _ in case))),
        Suspect('not-divided', lambda case: of(sum(loss * rows for loss, rows in case))),
    ], tell=lambda case, got, wanted: (f'mean_loss({[round(loss, 3) for loss, _ in case]}, {[rows for _, rows in case]})\n'
                                       f'yours     {shown(got)}\nexpected  {shown(wanted)}'),
        lines=work.definition('mean_loss'))


def _tensor(answer: object) -> object:
    """A plain number has the right value; whether there is a graph is another check's."""
    number = isinstance(answer, float) or isinstance(answer, torch.Tensor) and answer.numel() == 1
    return torch.tensor(float(answer), dtype=torch.float64) if number else answer


@check("its gradients are the plain model's", points=1, after=['scatter', 'mean_loss'])
def loss_gradient(work: Work, random: Random) -> None:
    def gradients(loss: object, model: nn.Module) -> list[torch.Tensor] | str:
        if not isinstance(loss, torch.Tensor) or not loss.requires_grad:
            return 'no graph'
        return list(torch.autograd.grad(loss.sum(), list(model.parameters())))

    def case_of(case: tuple[int, int]) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
        torch.manual_seed(sum(case))
        model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
        return model, torch.randn(case[0], 3, dtype=torch.float64), torch.randint(2, (case[0],))

    def by_micro_batches(case: tuple[int, int]) -> list[torch.Tensor] | str:
        model, x, y = case_of(case)
        parts = list(zip(work.scatter(x, case[1]), work.scatter(y, case[1])))
        losses = [nn.functional.cross_entropy(model(part), target) for part, target in parts]
        return gradients(work.mean_loss(losses, [len(part) for part, _ in parts]), model)

    def plainly(case: tuple[int, int]) -> list[torch.Tensor] | str:
        model, x, y = case_of(case)
        return gradients(nn.functional.cross_entropy(model(x), y), model)

    cases = sorted({(random.randrange(1, 12), random.randrange(1, 6)) for _ in range(8)} | {(3, 2)}, key=sum)
    judge(cases, by_micro_batches, plainly, same=close, suspects=[Suspect('no-graph', lambda case: 'no graph')],
          tell=lambda case, got, wanted: f'{case[0]} rows in {case[1]} chunks: gradients of a small model\n'
                                         f'yours     {shown(got)}\nexpected  {shown(wanted)}',
          lines=work.definition('mean_loss'))
