# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: fewgpu
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 3 Data parallelism and collectives
#
# When you are through, in about 45 minutes (two exercises, of 40 and 50, come on top), you will be able to
#
# - average gradients so that several processes take exactly the step that one would take;
# - say for each collective operation who has what before and after it, and who sends what to whom;
# - calculate how many bytes a data-parallel step moves, and how long that takes;
# - tell from the size of a model when data parallelism pays, and when it cannot help at all.

# %%
from collections import Counter
from copy import deepcopy
from time import perf_counter

import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

from fewgpu import DataParallel, data, get_devices, launch, plot
from fewgpu.collectives import Group, all_reduce, broadcast, gather, reduce, scatter
from fewgpu.models import build
from fewgpu.workshop import check
from fewgpu.workshop.claims import Claims
from fewgpu.workshop.lesson import compare
from fewgpu.workshop.panel import Choice, Panel, Slider
from fewgpu.workshop.practice.ranks import run_ranks
from fewgpu.workshop.recorded import OPERATIONS, on_ranks, record

claims = Claims()      # what we find out on the way is noted here

# %% [markdown]
# ## The same model, other rows
#
# A mini-batch of 256 images takes one device a second. Two devices with the *whole model* each could take 128 images
# each, and be through in half a second. But then each has the gradient of its own half, and would make another step.
#
# Losses are means over rows. So the gradient of the whole mini-batch is the mean of the gradients of its rows, whoever
# has calculated them. Is that true to the last bit? Here is a network in which all numbers are small integers, so that
# nothing is rounded:

# %%
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 2)).double()
for parameter in net.parameters():
    parameter.data = torch.randint(-3, 4, parameter.shape).double()
x, y = torch.randint(-3, 4, (8, 5)).double(), torch.randint(-3, 4, (8, 2)).double()


def gradient(rows, model=net):
    """Of the mean loss over these rows, as one long vector."""
    loss = (model(x[rows]) - y[rows]).square().sum(1).mean()
    return torch.cat([part.flatten() for part in torch.autograd.grad(loss, [*model.parameters()])])


whole = gradient(slice(0, 8))
halves = gradient(slice(0, 4)), gradient(slice(4, 8))
print(f'{len(whole)} numbers; the mean of the halves is the same, to the bit:',
      torch.equal((halves[0] + halves[1]) / 2, whole))

# %% [markdown]
# What if the parts are not equal? One device takes 2 of the 8 rows, the other takes 6.
#
# **Predict:** the whole gradient is now a weighted mean. What is the weight of the device with 2 rows?

# %%
my_guess = None        # between 0 and 1

parts = gradient(slice(0, 2)), gradient(slice(2, 8))
# whole = weight * parts[0] + (1 - weight) * parts[1], so that
weight = (parts[1] - whole).norm() / (parts[1] - parts[0]).norm()
compare(my_guess, weight.item())

# %%
weighted = 2 / 8 * parts[0] + 6 / 8 * parts[1]
plain = (parts[0] + parts[1]) / 2
print(f'weighted by rows: equal but for rounding: {torch.allclose(weighted, whole, rtol=1e-12)}')
print(f'not weighted:     wrong by {(plain - whole).norm() / whole.norm():.0%}')

normed = nn.Sequential(net[0], nn.BatchNorm1d(6).double(), *net[1:])
at_once, first, second = (gradient(rows, normed) for rows in (slice(0, 8), slice(0, 4), slice(4, 8)))
print(f'with batch norm, equal halves: off by {((first + second) / 2 - at_once).norm() / at_once.norm():.0%}')

# %% [markdown]
# Each device counts with its share of the rows. (Sixths are rounded, so the last bit may differ now.)
# This is all the mathematics of *data parallelism*: the same model everywhere, other rows, and an average
# of the gradients in every step. As all start with the same weights and take the same step, the models stay the same.
#
# But it holds only where each row is calculated by itself. Batch norm mixes rows: each device normalises with the mean
# and variance of its own. That is another step than the plain one.

# %% [markdown]
# ## Ranks
#
# Each device is driven by a process of its own. The processes are numbered: a process is a *rank*, and how many there are
# is the *world size*. All ranks run the same program, and look at their number to know which part is theirs. On a
# cluster its scheduler (such as Slurm) or PyTorch's `torchrun` starts them. From a cell, `launch` does: it calls a
# function in new processes, and returns what each of them returned.

# %%
def hello():
    group = Group()
    number = torch.tensor([group.rank + 1.0])
    all_reduce(number, group)      # the sum over all ranks, for all of them
    return f'rank {group.rank} of {group.size}: 1 + 2 = {number.item():g}'


print(*launch(hello, ranks=2), sep='\n')

# %% [markdown]
# Ranks share no memory. All that they can do is to *send* a tensor to another rank, and *receive* one. What all of them
# do together is called a *collective* operation, and is made of sends and receives. Their names are those of MPI, an
# old standard for programs of many processes.
#
# Here is what each does with four ranks. A line of the picture is what a rank has, in pieces, the columns. `a0` is what
# rank 0 had in piece *a*, and **Σa** the sum over all ranks. Thick frames mark what is new. Arrows show who ever sends to
# whom, over several rounds; the rounds come below. Nothing is drawn by hand: `fewgpu.collectives` ran, on threads that
# only send and receive, and each message was noted.

# %%
plot.before_and_after([record(operation, ranks=4) for operation in OPERATIONS])

# %% [markdown]
# One after the other:
#
# - **Send, receive**: one rank gives to one other. **Broadcast**: one gives the same to all.
# - **Scatter**: one deals out pieces. **Gather**: one collects them. **All-gather**: all collect them.
#   **All-to-all**: every rank deals out pieces to all, as when a matrix is transposed.
# - **Reduce**: one gets the sum. **All-reduce**: all get the sum. **Reduce-scatter**: each gets the sum of
#   one piece.
# - MPI has a **barrier**, too, which moves nothing: nobody goes on before all are there. And it has sends that wait
#   (*blocking*) or return at once (*non-blocking*), and a *tag* on each message, a number by which the receiver picks it.
#
# Which of them does data parallelism need? Every rank has a gradient, and every rank needs the average of all. That is
# an all-reduce, divided by the number of ranks. It is worth a closer look.

# %% [markdown]
# ## Who sends when
#
# Already a broadcast can be done in more than one way. The root (who has the tensor) could send to one after the other,
# which takes as many rounds as there are others. But whoever has received it can send it on.
#
# **Predict:** how many rounds does it take until 8 ranks have it?

# %%
my_guess = None        # rounds

tree = record('broadcast', ranks=8)
compare(my_guess, tree.rounds, ' rounds')
plot.exchanges(tree, title='Broadcast to 8 ranks')

# %% [markdown]
# The number of those who have it doubles in each round: a *tree*, with log2 N rounds for N ranks. Backwards, the same
# tree is a reduce (with 2, 4, 8, ... ranks; with others some send a round earlier).
#
# So an all-reduce could be a reduce, then a broadcast. But rank 0 is busy in all rounds, and the others hardly ever.
# The usual way is a **ring**: every rank sends only to its right neighbour, all at the same time, and never the
# whole tensor. `c03` is the sum of what ranks 0 and 3 had in piece *c*; the more ranks are in it, the darker.

# %%
plot.exchanges(record('all-reduce', ranks=4), title='All-reduce by a ring')

# %% [markdown]
# Follow piece *a*. Rank 1 sends its `a1` to rank 2, which adds its own: `a12`. In round 2 this goes to rank 3, in round
# 3 to rank 0, where the sum is complete. In each round the other pieces are on their way, too, so that every rank sends
# one piece and receives another. After three rounds each rank has one complete sum: this was a reduce-scatter. In three
# more rounds the sums go round: an all-gather. What is half done is overwritten.
#
# Move the sliders: how many rounds does the ring need with 6 ranks? And look at other operations. A message that its
# sender's line does not show, or its receiver does not keep, is written at its arrow: a partial sum of a reduce, or a
# piece of an all-to-all, where received pieces are put in place of sent ones.

# %%
def draw(operation, ranks, round):
    kept = record(operation, ranks)
    now = min(round, kept.rounds)
    senders = {arrow.source for arrow in kept.arrows if arrow.round == now}
    return (plot.exchanges(kept, [now], title=f'{operation}, round {now} of {kept.rounds}'),
            f'{len(senders)} of {ranks} ranks send in this round')


Panel(draw, operation=Choice('all-reduce', tuple(OPERATIONS)),
      ranks=Slider(5, 2, 6), round=Slider(3, 1, 10))

# %% [markdown]
# ## Why a ring
#
# Before the ring, the plain way: rank 0 collects all tensors, adds them up, and sends the sum to everybody. Both are
# run here with tensors of 8 MB, and their messages are counted.
#
# **Predict:** 8 ranks, 8 MB each. How many MB does a rank send in the ring? (A piece is 1 MB. How many rounds?)

# %%
my_guess = None        # MB


def collect(tensor, group):
    """An all-reduce at one rank, to compare with."""
    root = group.rank == 0
    pieces = [torch.empty_like(tensor) for _ in range(group.size)] if root else None
    gather(tensor, pieces, group)
    scatter(tensor, [sum(pieces)] * group.size if root else None, group)


def sent(way, ranks):
    """MB that each rank sends."""
    run = on_ranks(lambda group: way(torch.ones(2_000_000), group), ranks)
    return [count / 1e6 for count in run.bytes_sent]


compare(my_guess, sent(all_reduce, 8)[3], ' MB')

# %%
sizes = [2, 4, 8, 16]
in_ring, at_one = ({n: sent(way, n) for n in sizes} for way in (all_reduce, collect))
for n in sizes:
    formula = 2 * (n - 1) / n * 8
    print(f'{n:2} ranks: in the ring {in_ring[n][0]:5.2f} MB from each (formula {formula:5.2f}), '
          f'else {at_one[n][0]:3.0f} MB from rank 0')
    assert sum(in_ring[n]) == sum(at_one[n])     # all ranks together send as much both ways
plot.lines({'ring': (sizes, [max(in_ring[n]) for n in sizes]),
            'one rank collects': (sizes, [max(at_one[n]) for n in sizes])}, x='ranks',
           y='MB', title='Sent by the rank that sends most, for tensors of 8 MB')

# %% [markdown]
# With N ranks and tensors of S bytes, a rank sends one piece of S / N bytes in each of 2 (N - 1) rounds. That is
# 2 (N - 1) / N · S, **less than twice its tensor, however many ranks there are**. All together send as much in both
# ways. But the ring spreads it over all wires, where collecting puts all of it on those of rank 0.
#
# Now it is your turn. In [exercises/02_all_reduce.py](../exercises/02_all_reduce.py) you write the ring: cut the tensor,
# reduce-scatter, all-gather, and the three together (about 40 minutes; you may come back to it).

# %% tags=["yours"]
check(2)

# %% [markdown]
# If you are stuck: `./workshop.py hint 02` in a terminal.
#
# ## How long it takes
#
# A message takes time for two reasons: its *latency* (the same for every message, also an empty one), and its bytes
# divided by the *bandwidth*. Here the same code runs on a network with a clock of its own: 50 µs of latency,
# and 10 Gbit/s, which are 1.25 GB/s. On the left, a large tensor; on the right a small one.

# %%
def by_tree(tensor, group):
    reduce(tensor, group)
    broadcast(tensor, group)


def milliseconds(way, ranks, numbers):
    return 1e3 * on_ranks(lambda group: way(torch.ones(numbers), group), ranks,
                          latency=50e-6, bandwidth=1.25e9).makespan


ways = {'ring': all_reduce, 'tree': by_tree, 'one rank collects': collect}
picture = plot.Picture(figsize=(9.6, 3.2), layout='constrained')
for ax, numbers, name in zip(picture.subplots(1, 2), (2_000_000, 1000), ('8 MB', '4 kB')):
    times = {label: [milliseconds(way, n, numbers) for n in sizes] for label, way in ways.items()
             if way is not collect or name == '8 MB'}
    plot.lines({label: (sizes, ms) for label, ms in times.items()}, ax, x='ranks', y='ms',
               title=f'All-reduce of {name}')
    print(f'{name}, 16 ranks:', ', '.join(f'{label} {ms[-1]:.2f} ms' for label, ms in times.items()))
picture

# %% [markdown]
# With many bytes the ring wins by far: with 16 ranks it takes only about twice as long as with 2. With few bytes only the
# latencies count: the ring has 2 (N - 1) rounds of them, the tree 2 log2 N.
#
# So: time = 2 (N - 1) · latency + 2 (N - 1) / N · S / bandwidth. One large message is better than many small ones.
# A ResNet-18 has 62 tensors of parameters; sent one by one they would cost 62 times the latencies. So gradients
# are packed into *buckets* of some MB.

# %% [markdown]
# ## A data-parallel step
#
# Now a whole step. First with the least that could do: forward and backward on half of the rows, an all-reduce of
# each gradient, and the optimizer. The reference is the plain model on all rows, in 64-bit numbers.

# %%
torch.manual_seed(0)
start = nn.Sequential(nn.Linear(20, 50), nn.Tanh(), nn.Linear(50, 3)).double()
x, y = torch.randn(8, 20).double(), torch.randn(8, 3).double()


def step(model, rows, average=lambda parameter: None):
    """One step of SGD; the new weights as one long vector."""
    mse_loss(model(x[rows]), y[rows]).backward()
    for parameter in model.parameters():
        average(parameter)
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def on_a_rank(group):
    rows = slice(4 * group.rank, 4 * group.rank + 4)
    return step(deepcopy(start), rows, lambda parameter: all_reduce(parameter.grad, group, 'mean'))


plain, ranks = step(deepcopy(start), slice(0, 8)), on_ranks(on_a_rank, 2).results
apart = max((weights - plain).abs().max().item() for weights in ranks)
print(f'Both ranks have the same weights, to the bit: {torch.equal(*ranks)}. '
      f'They are those of the plain step but for rounding: {apart < 1e-14}.')

# %% [markdown]
# The two ranks agree to the bit, since both got the same sums. With the plain model they agree to about 16 digits: it
# adds up the rows in another order.
#
# `DataParallel(model)` does the same with less waiting. What does it send, besides? Here it runs in two processes, and
# we count the bytes that rank 0 sends in each operation, when it is made and in a step.

# %%
def counted():
    sent, exchange = Counter(), Group.exchange

    def counting(group, what, sends=(), receives=()):
        sent[what] += sum(tensor.nbytes for tensor, _ in sends)
        exchange(group, what, sends, receives)

    Group.exchange = counting
    model = DataParallel(deepcopy(start))
    made = dict(sent)
    sent.clear()
    first = 4 * torch.distributed.get_rank()
    weights = step(model, slice(first, first + 4))
    return made, dict(sent), weights


(made, in_step, weights), (_, _, others) = launch(counted, ranks=2)
same = torch.equal(weights, others) and (weights - plain).abs().max().item() < 1e-14
print(f'bytes when made: {made}\nbytes in a step: {in_step}')
print('same as the plain step, but for rounding:', same)

# %% [markdown]
# When it is made, the ranks compare what model they have, and rank 0 broadcasts its weights, so that all start alike. In
# a step, all but 8 bytes are the all-reduce:
# 2 (N - 1) / N times the 1203 parameters of 8 bytes, and a few numbers that say which parameters had a
# gradient. The 8 bytes are each rank's number of rows, for the weights of the average. Were the parts always
# equal, nobody would have to ask.

# %%
claims.test('C07', apart < 1e-14 and same,
            f"a step with no other equals the plain one but for rounding; DataParallel's step sends "
            f"{in_step['all_reduce']} bytes in all-reduces, {in_step['all_gather']} to agree on rows")

# %% [markdown]
# ## Communication beside the backward
#
# While gradients travel, nobody computes. Is that necessary? The backward starts at the last layer. Its gradient is
# ready long before the backward ends, and can travel while the earlier layers are still at work.
#
# Here is a step in virtual time, on four ranks: the forward takes 8 units, the backward of each of 16 layers takes 1.
# `start_all_reduce` starts a reduction and returns at once. The gradients go in one bucket, at the end; or in 16, one a
# layer; or in some number in between.

# %%
def timed(buckets, latency=0.1):
    def step(rank):
        rank.work(8.0)
        started = []
        for gradients in torch.ones(16, 1000).tensor_split(buckets):
            for _ in gradients:
                rank.work(1.0)
            started.append(rank.start_all_reduce(gradients.clone()))
        for reduction in started:
            reduction.wait()

    return run_ranks(step, [()] * 4, latency=latency, bandwidth=12_000)   # bytes a unit


# %% [markdown]
# With one bucket the all-reduce takes 8.6 units after the 24 of computing: 8 for the bytes, 0.6 for latencies. Each
# bucket pays these 0.6.
#
# **Predict:** how many units does the step take with 8 buckets?

# %%
my_guess = None        # units

compare(my_guess, timed(8).makespan, ' units')
plot.overlaps({'One bucket, after the backward': timed(1), '16 buckets, a layer each': timed(16),
               '8 buckets, two layers each': timed(8)})

# %% [markdown]
# Layers are numbered from the input, so 15 is the last; buckets in the order in which they go. Most of the
# communication is hidden behind the backward. Only the last bucket cannot be: its gradients are ready when the backward
# ends. Small buckets leave little for the end, but pay more latencies. Try it:

# %%
def draw(buckets, latency):
    run = timed(buckets, latency)
    longer = f'{run.makespan - 24:.1f} units longer than computing alone'
    return plot.overlaps({f'{buckets} buckets': run}), longer


Panel(draw, buckets=Slider(4, 1, 16), latency=Slider(0.1, 0.0, 0.5, 0.05))

# %% [markdown]
# `DataParallel` does this with buckets of 25 MB, as PyTorch's `DistributedDataParallel` does. In
# [exercises/03_data_parallel.py](../exercises/03_data_parallel.py) you write it: each rank's share of the rows, the
# average, and the backward with reductions beside it (about 50 minutes).

# %% tags=["yours"]
check(3)

# %% [markdown]
# If you are stuck: `./workshop.py hint 03` in a terminal.
#
# ## What it costs to have the whole model
#
# A step of 32 images with one rank, or with 8 ranks of 4 images each. What lives on a rank? Its share of the activations,
# and all the rest of lesson 2: weights, gradients and optimizer states. The memory of a virtual device is counted
# byte by byte, in two steps: SGD makes its momentum at the end of the first.

# %%
images, labels = data.subset(data.load('train'), 32, seed=0).tensors


def peak(rows, limit=None):
    """Bytes of two steps of ResNet-18, SGD with momentum, on a device of its own."""
    device, = get_devices(1, kind='cpu', memory_limit=limit)
    model, ledger = build('resnet18'), device.meter()
    ledger.adopt([*model.parameters(), *model.buffers()], parameters=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    with device.active():
        for _ in range(2):
            optimizer.zero_grad()
            cross_entropy(model(images[:rows]), labels[:rows]).backward()
            optimizer.step()
    return ledger.peak


# %% [markdown]
# A ResNet-18 has 11.2 million parameters: with gradients and momentum, 134 MB. With 32 images the peak is 235 MB.
#
# **Predict:** the peak memory of a rank with 4 images, as a percentage of that?

# %%
my_guess = None        # percent

peaks = {n: peak(32 // n) for n in (1, 2, 4, 8)}
compare(my_guess, round(100 * peaks[8] / peaks[1]), ' %')

# %%
with torch.device('meta'):         # only the shapes, no numbers
    counts = {arch: sum(parameter.numel() for parameter in build(arch).parameters())
              for arch in ('resnet18', 'resnet50', 'vgg16')}
states = 3 * 4 * counts['resnet18'] / 1e6   # a weight, a gradient, a momentum, each of 4 bytes
plot.bars({f'ranks: {n}': size / 1e6 for n, size in peaks.items()}, write='{:.0f} MB',
          notes={f'ranks: {n}': f'with {32 // n} images' for n in peaks},
          title=f'Peak memory of a rank (weights, gradients and states: {states:.0f} MB)')

# %% [markdown]
# Activations shrink with more ranks. Weights, gradients and states do not, since every rank has all of them: no bar gets
# below 134 MB. With 185 MB on each rank a second rank is what makes it fit. With 120 MB, less than these 134, no number
# of ranks will help (that one can say without a run):

# %%
def fits(rows, megabytes):
    try:
        return peak(rows, limit=megabytes * 1_000_000) > 0
    except torch.OutOfMemoryError:
        return False


fitting = {size: [n for n in (1, 2, 8) if fits(32 // n, size)] for size in (185, 120)}
for size, numbers in fitting.items():
    print(f'{size} MB: of 1, 2 and 8 ranks, it fits with {numbers or None}')

# %% [markdown]
# And the all-reduce? Its S is the size of the gradients, so that of the model. It does not depend on the number of
# images. For three networks of the kit (with 10 classes), in MB that a rank of 8 sends in every step, and how long this
# takes at 10 Gbit/s:

# %%
def ring_seconds(size, n, latency=50e-6, bandwidth=1.25e9):
    return 2 * (n - 1) * latency + 2 * (n - 1) / n * size / bandwidth


moved = {arch: 2 * 7 / 8 * 4 * count / 1e6 for arch, count in counts.items()}
for arch, count in counts.items():
    print(f'{arch:8} {count / 1e6:6.1f} million parameters, gradients of {4 * count / 1e6:3.0f} MB, '
          f'{moved[arch]:3.0f} MB sent, {1e3 * ring_seconds(4 * count, 8):3.0f} ms')
claims.test('C04', not fitting[120] and moved['resnet18'] < moved['resnet50'] < moved['vgg16'],
            f'1, 2 or 8 ranks: {states:.0f} MB of states on each, none fits 120 MB; one of 8 ranks '
            f"sends {moved['resnet18']:.0f} MB a step for ResNet-18, {moved['vgg16']:.0f} MB for VGG16")

# %% [markdown]
# ## When it does not pay
#
# What share of a step is communication? A model of it needs three figures of a network: its parameters, its
# multiplications, and how fast a GPU does them. The first two are torchvision's (for the 1000 classes of ImageNet, so
# there are more parameters than above; 299 pixels in Inception-v3). A multiplication and an addition count as 2
# operations, and the backward takes twice the forward. We assume 32 images a machine, a GPU that keeps up 5 TFLOP/s,
# and 10 Gbit/s between machines. With overlap, at most nine tenths of the sending hide behind the backward: the last
# bucket cannot.

# %%
# Parameters, and multiplications an image
networks = {'AlexNet': (61.1e6, 0.71e9), 'VGG16': (138.4e6, 15.5e9),
            'ResNet-50': (25.6e6, 4.1e9), 'Inception-v3': (27.2e6, 5.7e9)}


def share(network, n, gbit=10, tflops=5, overlap=False):
    """The share of a step in which nobody computes."""
    parameters, multiplications = networks[network]
    computing = 3 * 2 * multiplications * 32 / (tflops * 1e12)
    sending = ring_seconds(4 * parameters, n, bandwidth=gbit * 1e9 / 8) if n > 1 else 0.0
    hidden = min(sending * 0.9, computing * 2 / 3) if overlap else 0.0   # not the last bucket
    return (sending - hidden) / (computing + sending - hidden)


# %% [markdown]
# **Predict:** on 8 machines, without overlap: is more or less than half of a VGG16's step communication? A rough
# percentage is enough.

# %%
my_guess = None        # percent

compare(my_guess, 100 * share('VGG16', 8), ' %')

# %%
machines = [1, 2, 4, 8, 16, 32]


def draw(gbit, tflops, overlap):
    def percent(name):
        return [100 * share(name, n, gbit, tflops, overlap == 'yes') for n in machines]

    return plot.lines({name: (machines, percent(name)) for name in networks}, x='machines',
                      y='% of the step', title='Share of communication')


Panel(draw, gbit=Slider(10, 1, 200, label='Gbit/s'), tflops=Slider(5, 1, 100, label='TFLOP/s'),
      overlap=Choice('no', ('no', 'yes')))

# %% [markdown]
# The share grows most from 1 to 4 machines, then slowly: the ring. It is large for networks with many parameters and
# little computing for each, such as AlexNet and VGG16. Make the GPU faster: the same network suddenly waits more. A
# larger batch on each machine would help, as it needs no more bytes.
#
# PipeDream's authors measured it (arXiv 1806.03377, table 1; Titan X GPUs, 25 Gbit/s). With data parallelism their
# VGG16 on 4, 8 and 16 machines was 1.47, 2.35 and 3.28 times as fast as on one, Inception-v3 7.66 times on 8, and S2VT,
# a network that describes videos, 1.11 times on 4 (3.34 / 3.01). What is missing to N times as fast was lost. Here it
# stands beside our model, at their 25 Gbit/s. (How many parameters S2VT has is not in our sources.)

# %%
measured = [('VGG16', 4, 1.47), ('VGG16', 8, 2.35), ('VGG16', 16, 3.28), ('Inception-v3', 8, 7.66),
            ('S2VT', 4, 1.11)]
lost = {f'{name} on {n}': 1 - times / n for name, n, times in measured}
print('lost                 published   model (with overlap)')
for name, n, _ in measured:
    line = f"{f'{name} on {n}':20} {lost[f'{name} on {n}']:9.0%}"
    if name in networks:
        line += f'   {share(name, n, gbit=25):5.0%} ({share(name, n, gbit=25, overlap=True):.0%})'
    print(line)

# %%
grows = [share(name, n, overlap=overlap) < share(name, 2 * n, overlap=overlap)
         for name in networks for n in machines[:-1] for overlap in (False, True)]
rise = ', '.join(f'{name} from {share(name, 2):.0%} to {share(name, 32):.0%}' for name in networks)
published = [lost[f'VGG16 on {n}'] for n in (4, 8, 16)]
claims.test('C05', all(grows) and published == sorted(published),
            f'from 2 to 32 machines, without overlap: {rise}; published for '
            f'VGG16: from {published[0]:.0%} on 4 to {published[-1]:.0%} on 16',
            by='a cost model and published figures')

# %% [markdown]
# In the model it must grow, as 2 (N - 1) / N does, and a ring keeps it within bounds. The published losses of VGG16
# grow faster, and are at least twice those of the model; Inception-v3's is near the model with overlap. We assumed the
# speed of the GPU and a perfect ring, and their losses may have other causes, too: the model is good for tendencies, not
# for percentages.

# %% [markdown]
# ## On this machine
#
# At last, two ranks train a ResNet-18, each on a GPU of its own if there are two, else on one core. First rank 0 alone
# with 16 images, while the other one waits; then both, with 16 images each.
#
# **Predict:** how many times as many images a second do the two train?

# %% tags=["measured"]
my_guess = None        # times


def train():
    rank = torch.distributed.get_rank()
    device = f'cuda:{rank}' if torch.cuda.device_count() > 1 else 'cpu'
    x, y = images[:16].to(device), labels[:16].to(device)

    def images_per_second(model, steps=2):
        for number in range(steps + 1):
            if number == 1:        # the first step warms up
                begun = perf_counter()
            loss = cross_entropy(model(x), y)
            loss.backward()
            loss.item()            # wait for a GPU
        return 16 * steps / (perf_counter() - begun)

    model = build('resnet18').to(device)
    alone = images_per_second(model) if rank == 0 else 0.0
    torch.distributed.barrier()
    return alone, images_per_second(DataParallel(model))


# %% tags=["measured"]
(alone, first), (_, second) = launch(train, ranks=2)
compare(my_guess, (first + second) / alone, ' times as many')
plot.bars({'one rank': alone, 'two ranks': first + second}, title='ResNet-18, images a second')

# %% [markdown]
# It is near twice where two devices do not disturb each other and the network between them is fast. What is missing to
# twice is the all-reduce of 45 MB of gradients, as far as it is not hidden, and whatever else this machine does. Run
# the cell again: one run of two steps says little.

# %% [markdown]
# ## Remember
#
# 1. Same model on every rank, other rows, average of the gradients weighted by rows: this is the plain step, but for
#    rounding (and but for batch norm, which sees only a rank's own rows).
# 2. The average is an all-reduce. Round a ring, a rank sends 2 (N - 1) / N times the gradients, and most of it can
#    happen during the backward.
# 3. Every rank has the whole model: what does not fit one device does not fit any number of them, and many parameters
#    with little computing make communication the bottleneck.
#
# Next: [lesson 4](04_model_parallelism.ipynb), in which the model is cut.
#
# The claims of lectures that this lesson put to the test (C04, C05, C07), as they came out in this run:

# %%
claims
