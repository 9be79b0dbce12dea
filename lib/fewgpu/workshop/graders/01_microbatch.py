"""Grader of exercise 01. Laws: sizes that do not divide, order, views of any shape, and the mean over rows."""

from collections.abc import Callable
from functools import partial
from random import Random

import torch
from torch import nn

from fewgpu.workshop.graders import micro_batches as micro
from fewgpu.workshop.graders.micro_batches import NO_GRAPH, Sizes, truth
from fewgpu.workshop.grading.grader import Hints, check
from fewgpu.workshop.grading.law import Like, Suspect, close, judge, shown
from fewgpu.workshop.grading.work import Work

FORBIDDEN = 'fewgpu.microbatch', 'torchgpipe.microbatch', 'torch.distributed.pipelining.microbatch'

MISCONCEPTIONS = {
    'equal-sizes': 'all micro-batches get the same number of rows, and the rows that are left over are lost',
    'rest-in-last': 'the rows that are left over all go to the last micro-batch: it becomes the slowest of them',
    'rest-in-first': 'the rows that are left over all go to the first micro-batch: it becomes the slowest of them',
    'round-up': 'every micro-batch gets the rows of the largest until none are left (torch.chunk does that): the last '
                'is smaller than it has to be, or there are fewer than asked for',
    'smaller-first': 'the sizes are right, but not in their order: the docstring asks for the larger ones first',
    'empty': 'with fewer rows than chunks some micro-batches are empty',
    'size-for-count': '`chunks` is taken for the rows of a micro-batch; it is how many micro-batches there are',
    'not-whole': 'the sizes are not whole numbers: rows cannot be divided, and / makes a float even of 4 / 2',
    'strided': 'the rows are dealt out like cards: put together again they are in another order',
    'wrong-start': 'micro-batch i begins at i times a size, but the sizes differ: each begins where the one before it '
                   'has ended',
    'last-row-lost': 'the last row of every micro-batch is missing: batch[start:stop] ends before row `stop`',
    'stacked': '`torch.stack` makes a new dimension, and the micro-batches have to be joined along their first',
    'last-dimension': 'the rows are the first dimension, and another one is taken',
    'flattened': 'the rows are flattened: a row of a mini-batch may have a shape of its own, and keeps it',
    'other-dtype': 'the dtype is another than that of what came in: torch.tensor of Python numbers, .float() and '
                   '.long() choose their own',
    'mean-of-means': 'the mean of the means counts a row of a small micro-batch for more than one of a large: weigh '
                     'each loss by its rows',
    'sum-of-means': 'the means are added up: the loss grows with the number of micro-batches',
    'not-divided': 'the losses are weighed by their rows, but not divided by the number of all rows',
    'divided-by-count': 'the losses are weighed by their rows, and then divided by the number of micro-batches: divide '
                        'by the number of all rows',
    'not-a-scalar': 'the loss is a single number, a tensor of no dimension: yours has one',
    'no-graph': 'the values are right, but they have lost their graph (by .item(), .detach(), .numpy() or a new '
                'tensor): no gradient comes back through them',
}

HINTS = {
    'sizes': Hints(
        idea='Five sweets for four children: everybody gets one, and the one that is left goes to the first. How many '
             'does everybody get, and how many are left? Then: two sweets for four children, of whom none may get '
             'nothing.',
        place='`sizes`: first how many micro-batches there really are (never more than rows), then divmod.',
        outline='count = the smaller of rows and chunks\nleast, more = divmod(rows, count)\n'
                'return `more` times least + 1, then count - more times least'),
    'scatter': Hints(
        idea='The sizes say how long every piece is; each begins where the one before it ended.',
        place='`scatter`: a loop over sizes(len(batch), chunks) that keeps the start; or a function of torch that '
              'takes a list of sizes.',
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


@check('sizes differ by one row at most, larger first, and none is empty', points=3)
def sizes(work: Work, random: Random) -> None:
    def one_gets_all(place: int) -> Callable[[Sizes], list[int]]:
        def answer(case: Sizes) -> list[int]:
            rows, count = case[0], min(case)
            answer = [rows // count] * count
            answer[place] += rows % count
            return answer
        return answer

    def last_of_all_gets_all(case: Sizes) -> list[int]:
        rows, chunks = case
        return [rows // chunks] * (chunks - 1) + [rows - rows // chunks * (chunks - 1)]

    judge(micro.sizes_to_try(random), lambda case: micro.numbers(work.sizes(*case)), truth, same=micro.same_numbers,
          suspects=[
        Suspect('not-whole', lambda case: Like(lambda one: any(isinstance(number, float) for number in one))),
        Suspect('equal-sizes', lambda case: [case[0] // case[1]] * case[1]),
        Suspect('equal-sizes', lambda case: [case[0] // min(case)] * min(case)),
        Suspect('rest-in-last', one_gets_all(-1)),
        Suspect('rest-in-last', last_of_all_gets_all),
        Suspect('rest-in-first', one_gets_all(0)),
        Suspect('round-up', micro.round_up),
        Suspect('smaller-first', lambda case: Like(lambda one: sorted(one, reverse=True) == truth(case))),
        Suspect('smaller-first', lambda case: micro.spread(case)[::-1]),
        Suspect('empty', micro.spread),
        Suspect('size-for-count', micro.by_size),
    ], tell=lambda case, got, wanted: f'sizes({case[0]}, {case[1]})\nyours     {shown(got)}\nexpected  {wanted}',
        lines=work.definition('sizes'))


@check('micro-batches have the rows of the mini-batch, in order', points=2, after=['sizes'])
def scatter(work: Work, random: Random) -> None:
    Case = tuple[int, int, tuple[int, ...], torch.dtype]

    def batch(case: Case) -> torch.Tensor:
        rows, _, shape, dtype = case
        return torch.arange(rows * torch.Size(shape).numel()).reshape(rows, *shape).to(dtype)

    def cut(case: Case, counts: list[int]) -> list[torch.Tensor]:
        return list(batch(case).split(counts))

    def slices(bounds: Callable[[int, int, int], tuple[int, int]]) -> Callable[[Case], list[torch.Tensor]]:
        """Of bounds(number, own size, size of the first)."""
        def answer(case: Case) -> list[torch.Tensor]:
            counts = truth(case[:2])
            each = (bounds(number, count, counts[0]) for number, count in enumerate(counts))
            return [batch(case)[start:stop] for start, stop in each]
        return answer

    shapes = [(), (2,), (3, 2)]
    cases = [(*case, shape, random.choice([torch.int64, torch.float64]))
             for case in micro.sizes_to_try(random) for shape in (shapes if sum(case) < 8 else [random.choice(shapes)])]
    judge(cases, lambda case: micro.listed(work.scatter(batch(case), case[1])), lambda case: cut(case, truth(case[:2])),
          suspects=[
        Suspect('round-up', lambda case: cut(case, micro.round_up(case[:2]))),
        Suspect('size-for-count', lambda case: cut(case, micro.by_size(case[:2]))),
        Suspect('empty', lambda case: list(batch(case).tensor_split(case[1]))),
        Suspect('strided', lambda case: [batch(case)[start::min(case[:2])] for start in range(min(case[:2]))]),
        Suspect('wrong-start', slices(lambda number, own, first: (number * own, number * own + own))),
        Suspect('wrong-start', slices(lambda number, own, first: (number * first, number * first + first))),
        Suspect('wrong-start', slices(lambda number, own, first: (number * first, number * first + own))),
        Suspect('last-row-lost', lambda case: [part[:-1] for part in cut(case, truth(case[:2]))]),
        Suspect('last-dimension', lambda case: list(batch(case).tensor_split(min(case[:2]), dim=-1))),
        Suspect('last-dimension', lambda case: list(batch(case).split(truth(case[:2]), dim=-1))),
        Suspect('other-dtype', lambda case: micro.of_another_dtype(cut(case, truth(case[:2])))),
    ], tell=lambda case, got, wanted: f'scatter({shown(batch(case))}, {case[1]})\n{_compared(got, wanted)}',
        lines=work.definition('scatter'))
    micro.verify_graph('scatter', lambda batch: micro.listed(work.scatter(batch, 2)), work.definition('scatter'))


def _compared(got: object, wanted: object) -> str:
    """Both; with their dtypes if those differ."""
    dtypes = [_dtype(got), _dtype(wanted)]
    told = [f' ({dtype})' for dtype in dtypes] if all(dtypes) and dtypes[0] != dtypes[1] else ['', '']
    return f'yours     {shown(got, 44)}{told[0]}\nexpected  {shown(wanted, 44)}{told[1]}'


def _dtype(answer: object) -> str:
    parts = answer if isinstance(answer, list) else [answer]
    return str(parts[0].dtype) if parts and isinstance(parts[0], torch.Tensor) else ''


@check('gather gives back what was cut, whatever the sizes', points=2)
def gather(work: Work, random: Random) -> None:
    Case = tuple[tuple[int, ...], tuple[int, ...], torch.dtype]

    def parts(case: Case) -> list[torch.Tensor]:
        rows, shape, dtype = case
        whole = torch.arange(sum(rows) * torch.Size(shape).numel()).reshape(sum(rows), *shape).to(dtype)
        return list((whole + 0.1 if dtype.is_floating_point else whole).split(rows))

    shapes = [(), (2,), (2, 3)]
    cases = [(rows, shape, torch.int64) for rows in [(1,), (1, 1), (2, 1), (2, 2), (3, 2, 2)] for shape in shapes]
    cases += [(tuple(random.randrange(1, 9) for _ in range(random.randrange(2, 9))), (2,), dtype)
              for dtype in (torch.int64, torch.float32, torch.float64) for _ in range(5)]
    judge(cases, lambda case: work.gather(parts(case)), lambda case: torch.cat(parts(case)), suspects=[
        Suspect('stacked', lambda case: torch.stack(parts(case))),
        Suspect('stacked', lambda case: torch.stack(parts(case)).flatten(0, 1)),
        Suspect('stacked', lambda case: torch.stack(parts(case)).flatten()),
        Suspect('last-dimension', lambda case: torch.cat(parts(case), dim=-1)),
        Suspect('last-dimension', lambda case: torch.hstack(parts(case))),
        Suspect('last-dimension', lambda case: torch.cat(parts(case), dim=1)),
        Suspect('flattened', lambda case: torch.cat(parts(case)).flatten()),
        Suspect('strided', lambda case: torch.stack(parts(case), dim=1).flatten(0, 1)),
        Suspect('other-dtype', lambda case: micro.of_another_dtype(torch.cat(parts(case)))),
    ], tell=lambda case, got, wanted: f'gather of {shown(parts(case))}\n{_compared(got, wanted)}',
        lines=work.definition('gather'))
    micro.verify_graph('gather', lambda batch: work.gather(list(batch.split([2, 1]))), work.definition('gather'))


@check('the mean loss counts every row the same', points=2)
def mean_loss(work: Work, random: Random) -> None:
    Case = tuple[tuple[float, int], ...]

    def losses(case: Case) -> tuple[list[torch.Tensor], list[int]]:
        return [torch.tensor(loss) for loss, _ in case], [rows for _, rows in case]

    def weighed(case: Case) -> float:
        return sum(loss * rows for loss, rows in case)

    def average(case: Case) -> torch.Tensor:
        return of(weighed(case) / sum(rows for _, rows in case))

    def of(value: float) -> torch.Tensor:
        return torch.tensor(value, dtype=torch.float64)

    cases = [((3.0, 2),), ((1.0, 1), (2.0, 1)), ((1.0, 2), (4.0, 1))]
    cases += [tuple((random.uniform(0.5, 4), random.randrange(1, 9)) for _ in range(count)) for count in (2, 3, 4, 5)]
    same = partial(close, tolerance=1e-5)   # in single precision
    judge(cases, lambda case: _tensor(work.mean_loss(*losses(case))), average, same=same, suspects=[
        Suspect('mean-of-means', lambda case: of(sum(loss for loss, _ in case) / len(case))),
        Suspect('sum-of-means', lambda case: of(sum(loss for loss, _ in case))),
        Suspect('not-divided', lambda case: of(weighed(case))),
        Suspect('divided-by-count', lambda case: of(weighed(case) / len(case))),
        Suspect('not-a-scalar', lambda case: average(case).reshape(1)),
    ], tell=lambda case, got, wanted: (f'mean_loss({[round(loss, 3) for loss, _ in case]}, '
                                       f'{[rows for _, rows in case]})\n'
                                       f'yours     {shown(got)}\nexpected  {shown(wanted)}'),
        lines=work.definition('mean_loss'))


def _tensor(answer: object) -> object:
    """Of double precision; a plain number has the right value (whether there is a graph is another check's)."""
    if isinstance(answer, torch.Tensor) and answer.numel() == 1:
        return answer.detach().double()
    return torch.tensor(answer, dtype=torch.float64) if isinstance(answer, float) else answer


@check("its gradients are the plain model's", points=1, after=['scatter', 'mean_loss'])
def loss_gradient(work: Work, random: Random) -> None:
    def gradients(loss: object, model: nn.Module) -> list[torch.Tensor] | str:
        if not isinstance(loss, torch.Tensor) or not loss.requires_grad:
            return NO_GRAPH
        found = list(torch.autograd.grad(loss, list(model.parameters()), allow_unused=True))
        return NO_GRAPH if found[0] is None else found

    def case_of(case: Sizes) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
        torch.manual_seed(sum(case))
        return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)), torch.randn(case[0], 3), \
            torch.randint(2, (case[0],))

    def by_micro_batches(case: Sizes) -> list[torch.Tensor] | str:
        model, x, y = case_of(case)
        parts = list(zip(work.scatter(x, case[1]), work.scatter(y, case[1])))
        losses = [nn.functional.cross_entropy(model(part), target) for part, target in parts]
        return gradients(work.mean_loss(losses, [len(part) for part, _ in parts]), model)

    def plainly(case: Sizes) -> list[torch.Tensor] | str:
        model, x, y = case_of(case)
        return gradients(nn.functional.cross_entropy(model(x), y), model)

    cases = sorted({(random.randrange(2, 12), random.randrange(2, 6)) for _ in range(8)} | {(3, 2)}, key=sum)
    judge(cases, by_micro_batches, plainly, same=partial(close, tolerance=1e-5),
          suspects=[Suspect('no-graph', lambda case: NO_GRAPH)],
          tell=lambda case, got, wanted: f'{case[0]} rows in {case[1]} chunks: gradients of a small model\n'
                                         f'yours     {shown(got)}\nexpected  {shown(wanted)}',
          lines=work.definition('mean_loss'))
