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
# # 12 ZeRO: share out what every rank holds
#
# When you are through, in about 45 minutes (exercises of 40 and of 35 come on top), you will be able to
#
# - say what a rank holds and what it sends in each of the three stages of ZeRO, and change a script to use it;
# - train a model that is larger than the device, with its weights on a disk, and say how far ahead to load;
# - cut a layer that is too large itself into tiles;
# - tell from a bandwidth whether it will slow the training down when states live on the host or on a disk.

# %%
from collections import Counter
from copy import deepcopy
from functools import partial
from inspect import getsource
from statistics import median
from time import perf_counter

import torch
from torch import nn
from torch.nn.functional import mse_loss

from fewgpu import DataParallel, Device, Offloaded, ZeRO, infinity, launch, plot
from fewgpu.collectives import Group
from fewgpu.models.gpt import gpt, next_token_loss
from fewgpu.offload import DiskStore, HostStore
from fewgpu.workshop import check
from fewgpu.workshop.claims import Claims
from fewgpu.workshop.demos import zero, zero_infinity
from fewgpu.workshop.lesson import compare
from fewgpu.workshop.measured import zero_infinity as steps
from fewgpu.workshop.noise import Quiet
from fewgpu.workshop.panel import Choice, Panel, Slider
from fewgpu.zero import bytes_per_rank

claims = Claims()      # what we find out on the way is noted here

# %% [markdown]
# ## N copies of the same
#
# In data parallelism ([lesson 3](03_data_parallelism.ipynb)) every rank holds the whole model. Activations aside,
# these are the *model states*: weights, gradients, and what the optimizer remembers. Large models are trained with
# Adam in mixed precision, and for every parameter that is
#
# - 2 bytes for the weight and 2 for its gradient, in half precision;
# - 12 for the optimizer: a precise copy of the weight, a mean of gradients and a mean of their squares, 4 bytes
#   each.
#
# 64 ranks hold these 16 bytes 64 times. *ZeRO* (arXiv 1910.02054: *zero redundancy*) cuts them into 64 pieces, one a
# rank. Its stage 1 does so with the optimizer's 12 bytes, stage 2 with gradients, too, stage 3 also with weights.
# Stage 0 is plain data parallelism. (These *stages* are no stages of a pipeline.)
#
# **Predict:** a model of 7.5 billion parameters takes 120 GB on each rank. In stage 1, on 64 ranks?

# %%
my_guess = None        # GB

on_64 = [bytes_per_rank(7.5e9, 64, stage) / 1e9 for stage in range(4)]
compare(my_guess, on_64[1], ' GB')
print('stages 0 to 3:', ', '.join(f'{size:.3g}' for size in on_64), 'GB a rank')

# %%
many = [1, 4, 16, 64, 256, 1024]
plot.lines({f'stage {stage}': (many, [bytes_per_rank(7.5e9, n, stage) / 1e9 for n in many])
            for stage in (1, 2, 3)},
           title='Model states, 7.5 billion parameters', x='ranks', y='GB a rank', log='xy')

# %% [markdown]
# (On both axes equal steps are equal factors.) These are the figures of the paper (table 1). Stages 1 and 2 come down
# to what is still whole: 4 bytes a parameter, which are 30 GB, or 2, which are 15 GB. Only in stage 3 do more ranks
# always mean less on each.

# %% [markdown]
# ## One rank trains one piece
#
# How can a rank do without most of the optimizer's state? It updates only its own piece of the weights. The
# all-reduce of lesson 3 was two operations: after the *reduce-scatter* each rank has its piece of the summed
# gradients, after the *all-gather* all have all pieces. The update fits in between:
#
# ```
# data parallel    reduce-scatter, all-gather of gradients   | update all weights
# stages 1 and 2   reduce-scatter of gradients | update my piece | all-gather of weights
# stage 3          all-gather of weights (forward), all-gather of weights (backward),
#                  reduce-scatter of gradients | update my piece
# ```
#
# Stages 1 and 2 send the same, but not at the same time. In stage 1 a rank keeps all its gradients until the backward
# is over. In stage 2 the gradients of a layer are reduced as soon as they are there, and each rank lets go of all but
# its piece.
#
# Stage 3 goes layer by layer in all that it does: the weights of a layer come together just before it computes, and
# are let go at once.

# %% [markdown]
# Here are two training loops for a tiny GPT of four blocks. (They pause at `yield`, so that we can look at the memory:
# after a backward, when activations are gone, and before the update.)

# %%
def network():
    torch.manual_seed(0)
    return gpt(4, 96, vocabulary=128, longest=32)


def data_parallel(batches):
    model = DataParallel(network())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for tokens in batches:
        loss = next_token_loss(model(tokens), tokens)
        loss.backward()
        yield loss.item()
        optimizer.step()
        optimizer.zero_grad()


# %%
def sharded(batches, stage):
    model = ZeRO(network(), stage=stage, optimizer=partial(torch.optim.Adam, lr=1e-3))
    for tokens in batches:
        loss = next_token_loss(model(tokens), tokens)
        loss.backward()
        yield loss.item()
        model.step()


before, after = ([line for line in getsource(loop).splitlines()[1:] if line]
                 for loop in (data_parallel, sharded))
changed = sum(line not in after for line in before)
print(f'of the {len(before)} lines of the first loop {changed} are gone, '
      f'{sum(line not in before for line in after)} are new')

# %% [markdown]
# The optimizer now belongs to the model: `ZeRO` makes it for this rank's pieces, and `model.step()` updates and drops
# the gradients. Nothing else changes.
#
# Now both loops run on four ranks, and every rank counts: the bytes that live on it at the `yield`, and what it
# sends in a step. (All that a collective sends goes through `Group.exchange`: the cell puts a counter in its place,
# which then calls it.) Weights are in single precision here, and no copy of them is needed. So it is 4 + 4 + 8 bytes a
# parameter. (In the formula K is what the optimizer remembers, 8 bytes.)

# %%
def on_a_rank():
    """Of stages 0 to 3: bytes held, bytes sent in a step by operation, losses."""
    sent, exchange, found = Counter(), Group.exchange, []

    def counting(group, what, sends=(), receives=()):
        sent[what] += sum(tensor.nbytes for tensor, _ in sends)
        exchange(group, what, sends, receives)

    Group.exchange = counting
    numbers = torch.Generator().manual_seed(torch.distributed.get_rank())
    batches = [torch.randint(128, (4, 32), generator=numbers) for _ in range(3)]
    for stage in range(4):
        losses, device = [], Device('cpu')
        ledger = device.meter()
        with device.counting():
            for loss in sharded(batches, stage) if stage else data_parallel(batches):
                step, held = dict(sent), ledger.allocated
                losses.append(loss)
                sent.clear()
        found.append((held, step, losses))
    return found


# %% [markdown]
# **Predict:** how many bytes a parameter does a rank of four hold in stage 3?

# %%
my_guess = None        # bytes a parameter

ranks = launch(on_a_rank, ranks=4)
count = sum(parameter.numel() for parameter in network().parameters())
held = [max(rank[stage][0] for rank in ranks) / count for stage in range(4)]
formula = [bytes_per_rank(1, 4, stage, K=8, parameter_bytes=4, gradient_bytes=4) for stage in range(4)]
compare(my_guess, held[3], ' bytes')
for stage in range(4):
    print(f'stage {stage}: {held[stage]:5.2f} bytes a parameter, {formula[stage]:4.0f} by the formula')

# %%
losses = [[f'{loss:.4f}' for loss in ranks[0][stage][2]] for stage in range(4)]
print('losses of rank 0 in data parallelism:', *losses[0])
print('the same to four digits in stages 1, 2 and 3:', losses[1] == losses[2] == losses[3] == losses[0])

# %% [markdown]
# And what does it cost in traffic? Let P be the bytes of the weights times (N - 1) / N, what a reduce-scatter or an
# all-gather sends. Data parallelism sends 2 P a step.
#
# **Predict:** and stage 3?

# %%
my_guess = None        # P

P = 4 * count * 3 / 4
compare(my_guess, sum(ranks[0][3][1].values()) / P, ' P')
for stage in range(4):
    moved = {what: size / P for what, size in sorted(ranks[0][stage][1].items()) if size > 0.01 * P}
    print(f'stage {stage}:', ', '.join(f'{what} {times:.2f} P' for what, times in moved.items()))

# %% [markdown]
# Up to stage 2 less memory costs no traffic: the same bytes travel, in another order. Stage 3 gathers twice and
# sends half as much again. And what it gathers has to be there in time, so the next layer is gathered while one
# computes.

# %%
off = max(abs(found / said - 1) for found, said in zip(held, formula))
apart = max(abs(one / other - 1) for stage in (1, 2, 3)
            for one, other in zip(ranks[0][stage][2], ranks[0][0][2]))
sent = [sum(step.values()) / P for _, step, _ in ranks[0]]
claims.test('C39', zero.is_shared_out(off, apart, changed),
            f'on 4 ranks a rank holds {", ".join(f"{each:.3g}" for each in held)} bytes a parameter in '
            f'stages 0 to 3 and sends {", ".join(f"{each:.0f}" for each in sent)} P a step; losses are '
            f'those of data parallelism; {changed} lines of the loop change')

# %% [markdown]
# [exercises/13_zero.py](../exercises/13_zero.py) asks you for it: the bytes of each stage, an optimizer that trains
# one piece, and a forward and a backward that gather layer by layer. It takes about 40 minutes.

# %% tags=["yours"]
check(13)

# %% [markdown]
# Stuck? `./workshop.py hint 13` in a terminal.
#
# ## Where would a trillion parameters fit?
#
# ZeRO needs as many GPUs as hold all states together. Count 20 bytes a parameter here, not 16: ZeRO-Infinity keeps a
# copy of the gradients in single precision, too (as we remember the paper).
#
# **Predict:** how many GPUs of 32 GB hold the states of a trillion parameters, if they hold nothing else?

# %%
my_guess = None        # GPUs

compare(my_guess, 20 * 1e12 / 32e9, ' GPUs')

# %% [markdown]
# But a machine has other memory. This is a table of *ZeRO-Infinity* (arXiv 2104.07857, figure 2b), for nodes
# (servers) of 16 GPUs: how much memory there is in all, and how fast a GPU reaches it if all do so at the same time.
# *CPU* is the memory of the hosts, *NVMe* are their disks. *GPU to GPU* is what a GPU gets from others: in the same
# node, or from 64 GPUs on from other nodes.

# %%
print('              TB in all             GB/s of each GPU')
print('nodes GPUs    GPU   CPU   NVMe      GPU to GPU   CPU   NVMe')
for gpus in (1, 16, 64, 256, 1024):
    row = infinity.figure_2b(gpus)
    between = '   -   ' if row.gpu_to_gpu is None else '{:3.0f}-{:3.0f}'.format(*row.gpu_to_gpu)
    print(f'{row.nodes:4} {gpus:5} {row.gpu_memory:7.3g} {row.cpu_memory:5g} {row.nvme:6g}   '
          f'   {between:10} {row.cpu:5.1f} {row.nvme_speed:6.1f}')

# %% [markdown]
# The 20 TB of a trillion parameters fit the disks of a single node. The price stands at the right: a GPU reads 1.6 GB
# a second from there, a hundredth of what it gets from its neighbours. The rest of this lesson is about how to live
# with that.
#
# ## Layer by layer
#
# `Offloaded` trains a model whose weights and optimizer states are in a *store*: the host's memory or a disk. Layers
# visit the device one after the other, first to last and back again. In the backward a layer is loaded again and
# recomputed ([lesson 6](06_recompute.ipynb)). Its gradients go to the host, which updates it: the optimizer's states
# never come to the device.
#
# Here is a chain of 80 equal linear layers with everything on the disk of this machine. Each has 1.25 % of the weights.
#
# **Predict:** what does the device hold at its peak, in percent of the weights?

# %% tags=["measured"]
my_guess = None        # percent

module, x, y = steps.chain(80, 96), torch.randn(3, 96), torch.randn(3, 96)
plain, device = deepcopy(module), Device('cpu')
size, ledger = sum(parameter.nbytes for parameter in module.parameters()), device.meter()
with DiskStore() as store:
    model = Offloaded(module, optimizer=torch.optim.Adam, loss_fn=mse_loss, device=device, store=store)
    for _ in range(2):
        model.step(x, y)
    stored = sum(tensor.nbytes for name in store.names() for tensor in store.read(name))
    weights = model.state_dict()
compare(my_guess, 100 * ledger.peak / size, ' %')

# %% [markdown]
# A few layers of 80: the one that computes, those that are loaded ahead, and gradients on their way out. (How many
# of them are there at the same moment differs a little from run to run.) Has it learned the same as the plain model?
# (On the disk are the weights, and for each of them Adam's two means: three times the weights in all.)

# %%
optimizer = torch.optim.Adam(plain.parameters())
for _ in range(2):
    with Device('cpu').active():      # on one core, as above
        optimizer.zero_grad()
        mse_loss(plain(x), y).backward()
        optimizer.step()
same = all(torch.equal(value, weights[name]) for name, value in plain.state_dict().items())
claims.test('C40', zero_infinity.lives_elsewhere(same, size, stored, ledger.peak),
            f'{stored / 1e6:.1f} MB of states on disk, {size / 1e6:.1f} MB of them weights; the device '
            f'never held a tenth of the weights; trained as by the plain model, to the bit: {same}')

# %% [markdown]
# ## Loading ahead
#
# A layer goes from the disk to the host and from there over a link to the device: a pipeline of three, as in [lesson
# 1](01_processing_pipelines.ipynb). Each can work on another layer, if loading begins before the device asks for it.
# Here is a forward in virtual time: a layer computes for 1 unit, and takes `disk` and `link` units to be loaded. At
# most `ahead` layers are on their way or wait for the device.

# %%
def forward(ahead, disk=0.8, link=0.8, layers=8):
    """What the disk (row 0), the link (1) and the device (2) do."""
    done, free = [], [0.0, 0.0, 0.0]
    for k in range(layers):
        computed = [task for task in done if task.worker == 2]
        at = 0.0 if k < ahead else computed[k - ahead].start if ahead else free[2]
        for row, (step, length) in enumerate([('read', disk), ('copy', link), ('compute', 1.0)]):
            start = max(at, free[row])
            at = free[row] = start + length
            done.append(plot.Task(row, step, k, start, at))
    return done


def rows(done, **looks):
    figure = plot.tasks(done, **looks)
    figure.axes[0].set_yticklabels(['disk', 'link', 'device'])
    return figure


# %% [markdown]
# With nothing loaded ahead, each of 8 layers takes 0.8 + 0.8 + 1 = 2.6 units, and the forward 20.8.
#
# **Predict:** and with one layer ahead?

# %%
my_guess = None        # units

ends = {ahead: forward(ahead)[-1].end for ahead in (0, 1, 2, 3)}
compare(my_guess, ends[1], ' units')
print({ahead: round(end, 1) for ahead, end in ends.items()})
rows(forward(1), title='One layer ahead', unit='units')

# %% [markdown]
# While layer 0 computes, layer 1 is on its way; but the disk stands still while the link copies, since only one
# layer may be on its way. With two ahead all three work at the same time: while layer i computes, i + 1 is on the
# link, and i + 2 is read. With several ranks there is a fourth step, the gathering. So ZeRO-Infinity loads three
# ahead: i + 1 is gathered, i + 2 on the link, and i + 3 read.
#
# Try it. What does loading further ahead not help against?

# %%
def draw(ahead, disk, link):
    done = forward(ahead, disk, link)
    end = done[-1].end
    return rows(done, unit='units'), f'{end:.1f} units; the device waits for {1 - 8 / end:.0%} of them'


Panel(draw, ahead=Slider(2, 0, 4), disk=Slider(0.8, 0.2, 2.0, 0.2), link=Slider(0.8, 0.2, 2.0, 0.2))

# %% [markdown]
# Against a disk or a link that is slower than the device: then it sets the pace, however far ahead it begins. Nor does
# it help against the first load: there is nothing to compute yet.
#
# Now the library, on a simulated disk and link that take 0.8 of a layer's computing each. `depth` says how many
# layers are loaded ahead: none, one, or three. By `forward` above, a device with 12 layers would wait for 62, 41 and
# 12 % of the time.

# %% tags=["measured"]
x = torch.randn(1536, steps.WIDTH)
bandwidth = steps.bandwidth_for(0.8, x)
models = {depth: steps.offloaded(bandwidth, depth) for depth in (0, 1, 3)}
found, quiet = {depth: [] for depth in models}, Quiet()
for _ in range(4):
    quiet.look()
    for depth, model in models.items():
        model.evaluate(x)
        found[depth].append(model.times.share)
share = {depth: median(each[1:]) for depth, each in found.items()}      # the first one warms up
spans = sorted((span for span in models[3].spans if span.step in ('read', 'copy', 'compute')),
               key=lambda span: span.start)
rows([plot.Task(('read', 'copy', 'compute').index(span.step), span.step, span.unit,
                span.start - spans[0].start, span.end - spans[0].start) for span in spans],
     title='A forward of 12 layers, three loaded ahead')

# %% tags=["measured"]
claims.test('C42', quiet.verdict(zero_infinity.waits_less(share)),
            f'of a forward the device waits {share[0]:.0%} with nothing loaded ahead, {share[1]:.0%} '
            f'with one layer ahead, {share[3]:.0%} with three{quiet.note}',
            because='Disk and link are simulated. The first layer is waited for in any case.')

# %% [markdown]
# ## Slices
#
# On several ranks all need all weights. One rank may read them and *broadcast* them to the others. Or each reads a
# slice, its piece as in ZeRO, and an all-gather puts them together: then the links of all are at work.
#
# In the table a GPU alone reads 12 GB/s from the host; 16 that read at the same time get 4.1 each.
#
# **Predict:** how many times as fast do 16 GPUs read a model in slices, compared with one GPU that reads all?

# %%
my_guess = None        # times

one = infinity.figure_2b(1).cpu
compare(my_guess, 16 * infinity.figure_2b(16).cpu / one, ' times')
print('1 TB of weights, seconds:   one reads all   in slices   gather them')
for gpus in (16, 64, 256, 1024):
    row = infinity.figure_2b(gpus)
    gather = 1000 * (gpus - 1) / gpus / row.gpu_to_gpu[0]
    print(f'{gpus:19} GPUs {1000 / one:15.1f} {1000 / (gpus * row.cpu):11.1f} {gather:13.1f}')

# %% [markdown]
# More GPUs read faster and faster: 16 of them 5 times as fast, 1024 of them 350 times. But all these slices have to
# reach every GPU, at 60 GB/s between nodes. Layers are read and gathered at the same time, and the slower of both
# counts. So from 64 GPUs on it is the gathering, and what is left is about 5 times. (A broadcast has to pass there,
# too.)
#
# Here are two ranks with a simulated disk of 5 MB/s each, and a model of 4 layers of 263 kB. In a step each layer is
# read twice, but the last one once: when its backward begins, it is still on the device. So 7 layers are read, 1.84 MB.
# How much of that does each rank read?

# %%
def loading(reading):
    """Bytes read in a step; seconds that the rank waits for them, the least of three steps; weights."""
    with HostStore(bandwidth=5e6) as store:
        model = Offloaded(steps.chain(4, 256), optimizer=partial(torch.optim.SGD, lr=0.1), depth=1,
                          loss_fn=mse_loss, device=Device('cpu'), store=store, reading=reading)
        begun, waited = store.bytes_read, []
        for _ in range(3):
            model.step(torch.ones(4, 256), torch.zeros(4, 256))
            waited.append(model.times.waiting)
        return (store.bytes_read - begun) // 3, min(waited), model.state_dict()


ways = 'broadcast', 'slices'
quiet = Quiet()
quiet.look()
found = launch(lambda: [loading(reading) for reading in ways], ranks=2)
for way, ranks in zip(ways, zip(*found)):
    print(f'{way:9}: bytes read by ranks 0 and 1:', *(f'{rank[0]:,}' for rank in ranks))
alike = all(torch.equal(value, rank[1][2][name]) for rank in found
            for name, value in rank[0][2].items())
print('the same weights after three steps:', alike)

# %% tags=["measured"]
quiet.look()
waited = {way: max(rank[1] for rank in ranks) for way, ranks in zip(ways, zip(*found))}
ratio = waited['broadcast'] / waited['slices']
claims.test('C41', quiet.verdict(zero_infinity.beats_broadcast(alike, ratio)),
            f'two ranks load slices {ratio:.1f} times as fast as one loads all and broadcasts; by the '
            f'table 16 GPUs read {16 * infinity.figure_2b(16).cpu / one:.1f} times as fast{quiet.note}',
            because='Disks are simulated. Gathering takes time, too; between nodes it sets the pace.')

# %% [markdown]
# ## A layer that does not fit
#
# So far a layer had to fit as a whole, with its gradient beside it. What if it does not? In a linear layer,
# Y = X Wᵀ + b, some rows of W give some columns of Y. So it can be computed in *tiles*, of which only one is on the
# device:

# %%
torch.manual_seed(0)
linear, x, y = nn.Linear(256, 4096), torch.randn(8, 256), torch.randn(8, 4096)
tiles = zip(linear.weight.split(1024), linear.bias.split(1024))
columns = [x @ weight.T + bias for weight, bias in tiles]
print(*(tuple(each.shape) for each in columns))
print('the same as the layer:', torch.allclose(torch.cat(columns, dim=1), linear(x), atol=1e-5))

# %% [markdown]
# In the backward each tile gives its own gradient, which goes to the host at once, and adds its part to the gradient
# of X.
#
# The layer above has 4.2 MB of weights. A device with just as much memory cannot train it: for a step it needs at
# least twice as much, because of its gradient. `TiledLinear` in an `Offloaded` model is loaded tile by tile.
#
# **Predict:** in how many tiles (1, 2, 4, 8 or 16) does it train there?

# %%
my_guess = None        # tiles

plain, fitting = deepcopy(linear), {}
mse_loss(plain(x), y).backward()
torch.optim.SGD(plain.parameters(), lr=1.0).step()
for n in (1, 2, 4, 8, 16):
    try:
        small = Device('cpu', memory_limit=linear.weight.nbytes)
        _, fitting[n] = steps.tiled_step(linear, n, x, y, small)
    except torch.OutOfMemoryError:
        print(f'tiles: {n}: out of memory')
alike = all(torch.allclose(weight, plain.weight, atol=1e-6) for weight in fitting.values())
compare(my_guess, min(fitting), ' tiles')
print(f'trains in {", ".join(map(str, fitting))} tiles, as the plain layer: {alike}')

# %%
peaks = {n: steps.tiled_step(linear, n, x, y, Device('cpu'))[0] / 1e6 for n in (1, 4, 16)}
claims.test('C43', zero_infinity.trains_in_tiles([*fitting], alike),
            f'a layer of {linear.weight.nbytes / 1e6:.1f} MB is out of memory on a device of as much, '
            f'in {min(fitting)} tiles it trains there; 16 need {peaks[1] / peaks[16]:.0f} times less',
            because='Inputs and outputs of the layer are not tiled: they stay whole.')
plot.bars({f'tiles: {n}': peak for n, peak in peaks.items()}, write='{:.2f} MB',
          title='Peak of a step, on a device that is large enough')

# %% [markdown]
# (With two tiles, one tile and its gradient are 2.1 MB each. They fill the device, and no room is left for X and Y.)
#
# [exercises/14_offload.py](../exercises/14_offload.py) asks you for both: a forward and a backward that read ahead
# and keep within the memory that there is, and a layer in tiles. It takes about 35 minutes.

# %% tags=["yours"]
check(14)

# %% [markdown]
# Stuck? `./workshop.py hint 14` in a terminal.
#
# ## How fast is fast enough?
#
# All that moves has to be worth its way. The *arithmetic intensity* says how many operations a step computes for
# each byte that it moves. For a Transformer, batch being the sequences on a GPU and seq their length (ZeRO-Infinity,
# section 4; our source is a summary of the paper):
#
# | what moves | operations a byte |
# |:--|:--|
# | weights and gradients | seq · batch |
# | states of the optimizer | seq · batch / 4 |
# | activations kept for recompute: the input of each layer | 24 · width |
#
# Take the first line. A step computes 8 operations for each parameter and token: 2 in the forward, 2 in the recompute,
# 4 in the backward. It moves 8 bytes for each parameter: its weight for each of these three, and its gradient once, 2
# bytes each. So there is one operation a byte for each of the seq · batch tokens. (The optimizer's 16 bytes are read
# and written, which is 4 times as much.)

# %% [markdown]
# Now a GPU that computes 70 · 10¹² operations a second, as in the paper, and sequences of 1024 tokens.
#
# **Predict:** at which bandwidth does moving the weights take as long as computing, with one sequence?

# %%
my_guess = None        # GB/s

compare(my_guess, infinity.V100_PEAK / infinity.ait_of_parameters(1) / 1e9, ' GB/s')
speeds = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024]
needs = {'weights': infinity.ait_of_parameters(1), 'states': infinity.ait_of_optimizer_states(1),
         'activations, width 2048': infinity.ait_of_activations(2048)}
plot.lines({name: (speeds, [100 * infinity.efficiency(ait, speed * 1e9) for speed in speeds])
            for name, ait in needs.items()}, log='x', x='bandwidth (GB/s)', y='efficiency (%)',
           title='Share of computing in a step, one after the other')

# %% [markdown]
# *Efficiency* here is computing over computing plus moving, as if nothing was done at the same time. With enough
# loaded ahead a step takes only the longer of both. So 50 % is the border: what is above it can be hidden.
#
# Twice the batch, half the bandwidth. And with slices all links and disks work together: 16 GPUs read weights and
# states at 16 times the speed in the table. (Weights have to be gathered, too: there the slower of both counts. A
# GPU moves its activations alone, at the speed in the table; the width is 8192 now.)
#
# Look which row of the table, that is, how many `gpus`, is fast enough for what, and from which batch on. When are the
# states on NVMe hidden, with 16 GPUs and with 1024?

# %%
def draw(gpus, batch):
    row = infinity.figure_2b(gpus)
    network = row.gpu_to_gpu[0] if row.gpu_to_gpu else float('inf')
    shares = {}
    for place, speed in (('CPU', gpus * row.cpu), ('NVMe', gpus * row.nvme_speed)):
        shares[f'weights on {place}'] = infinity.ait_of_parameters(batch), min(speed, network)
        shares[f'states on {place}'] = infinity.ait_of_optimizer_states(batch), speed
    shares['activations on CPU'] = infinity.ait_of_activations(8192), row.cpu   # its own, width 8192
    percent = {name: 100 * infinity.efficiency(ait, speed * 1e9)
               for name, (ait, speed) in shares.items()}
    hidden = [name for name, share in percent.items() if share >= 50]
    return (plot.bars(percent, write='{:.0f} %'),
            'Can be hidden: ' + (', '.join(hidden) or 'nothing'))


Panel(draw, gpus=Choice(16, (1, 16, 64, 256, 1024)), batch=Slider(2, 1, 32))

# %% [markdown]
# On one node the states on its disks need a batch of 11 sequences a GPU; on 64 nodes a single one is enough. That is
# why the states go to the disks first: the more ranks, the smaller the piece that each has to move, and nobody needs
# the pieces of others. Weights gain less by more nodes: all of them have to reach every GPU, over the network.
#
# ## The two per cent
#
# A lecture says that offloading costs about two per cent. If all is hidden, what remains is waiting for the first
# load and for the last update, beside which there is nothing left to compute.
#
# Here the disk and the link are simulated, and take 0.15 of a layer's forward each: no bandwidth is short. We
# compare with the same model all on the device, which recomputes, too. A step of 12 layers is as long as 48 forwards
# of a layer (forward, recompute, and a backward that counts twice), and the first load takes 0.3 of one: 0.6 %.
#
# **Predict:** how many per cent longer does a step take?

# %% tags=["measured"]
my_guess = None        # percent

x, y = torch.randn(2, 2048, steps.WIDTH)
model = steps.offloaded(steps.bandwidth_for(0.15, x), depth=3)
kept = steps.chain(steps.LAYERS, steps.WIDTH)
adam = torch.optim.Adam(kept.parameters())
resident = partial(steps.resident_step, kept, adam, x, y, recomputed=True)
took, quiet = {'on the device': [], 'offloaded': []}, Quiet()
for _ in range(4):
    quiet.look()
    for name, step in zip(took, (resident, partial(model.step, x, y))):
        start = perf_counter()
        step()
        took[name].append(perf_counter() - start)
base, ours = (median(each[1:]) for each in took.values())     # the first one warms up
compare(my_guess, 100 * (ours / base - 1), ' %')
waiting, computing, finishing = model.times
print(f'of the last step the device waited {waiting / sum(model.times):.1%} for loads, '
      f'{finishing / sum(model.times):.1%} for updates')

# %% tags=["measured"]
steady = max(took['on the device'][1:]) < 1.2 * min(took['on the device'][1:])
claims.test('C44', quiet.verdict(zero_infinity.is_cheap(ours, base)) if steady else None,
            f'a step takes {ours / base - 1:+.1%} against the same recompute on the device, '
            f'{model.times.share:.1%} of it are waits; a model trained whose weights are ten times '
            'what the device held (C40)'
            + '; equal steps differ by a fifth' * (not steady) + quiet.note,
            because='Device and host are one machine here: updates take cores and memory from computing.')

# %% [markdown]
# The two waits do not grow with the model: a hundred layers would wait as long as twelve. What is lost beyond them
# (on a quiet machine) probably goes to the updates, since the processor that plays the device is the host as well. A
# GPU does not share its memory with the host. (If equal steps differ by a fifth, the claim is not decided: the machine
# has been too busy.)
#
# `./workshop.py demo zero-infinity` shows the same at length, also against a step without recompute.

# %% [markdown]
# ## Remember
#
# 1. ZeRO cuts the model states into one piece a rank: stages 1 and 2 send what data parallelism sends, stage 3 half
#    as much again, and only in stage 3 do more ranks always mean less memory on each.
# 2. Weights and states can live on the host or on disks: layers visit the device, loaded ahead by a pipeline, in
#    slices by all ranks at once, and in tiles where a layer is too large.
# 3. It costs little where moving takes no longer than computing: operations a byte times bandwidth against the speed
#    of the GPU. A larger batch lowers the bandwidth that is needed, and more ranks raise the one that is there.
#
# Next: [lesson 13](13_parts_and_skips.ipynb), in which layers are cut as well, and skips are long.
#
# The claims of lectures that this lesson put to the test (C39, C40, C41, C42, C43, C44), as they came out in this
# run:

# %% tags=["measured"]
claims
