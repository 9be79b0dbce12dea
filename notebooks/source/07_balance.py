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
# # 7 Balancing
#
# When you are through, in about 45 minutes (an exercise of 40 comes on top), you will be able to
#
# - say what an unbalanced pipeline loses, and why more micro-batches do not help it;
# - profile the layers of a network, and cut it by time or by memory;
# - compute the best of millions of cuts, and tell when GPipe's own rule misses it;
# - name what else a cut has to respect: memory, recompute, and residual blocks.

# %%
import random
from itertools import accumulate, chain, combinations, pairwise
from math import comb
from statistics import mean, median

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from fewgpu import GPipe, data, get_devices, plot, schedule
from fewgpu.balance import balance_by_size, cut, cut_by_variance, profile
from fewgpu.balance.profile import weigh
from fewgpu.models import build
from fewgpu.simulate import Costs, simulate
from fewgpu.workshop import check
from fewgpu.workshop.claims import Claims
from fewgpu.workshop.here import Here
from fewgpu.workshop.lesson import compare
from fewgpu.workshop.panel import Panel, Slider
from fewgpu.workshop.practice.chain import VGG16

claims = Claims()      # what we find out on the way is noted here

# %% [markdown]
# ## The slowest stage sets the pace
#
# So far all stages of a pipeline took equally long. Real layers differ, and so do stages. Think of four stages whose
# forwards take 1, 1, 1 and 2 units, and whose backwards take twice that. That is 5 units of forward in all. Balanced,
# each stage would take 1.25.
#
# **Predict:** with eight micro-batches, by how many percent is the step longer than a balanced one?

# %%
def step(costs, micro_batches=8):
    """A step of GPipe in virtual time: what each stage takes for a forward; a backward takes twice that."""
    plan = schedule.gpipe(len(costs), micro_batches)
    return simulate(plan, Costs(F=costs, B=[2 * cost for cost in costs]))


my_guess = None        # percent

uneven, even = step([1, 1, 1, 2]), step([1.25] * 4)
compare(my_guess, 100 * (uneven.makespan / even.makespan - 1), ' % longer')
plot.timelines({'1, 1, 1 and 2 units': uneven, 'Balanced: 1.25 units each': even}, unit='units')

# %% [markdown]
# In plain grey a device is *idle*. At the top right, *makespan* is the length of the whole picture, and *bubble* the idle
# share of it. The last stage works without a break, and all others wait for it, with every micro-batch. Set the costs
# yourself. What happens to the step if you make a fast stage slower? And if you make the slowest stage slower?

# %%
def draw(stage_0, stage_1, stage_2, stage_3, micro_batches):
    costs = [stage_0, stage_1, stage_2, stage_3]
    timeline, balanced = step(costs, micro_batches), step([sum(costs) / 4] * 4, micro_batches)
    return (plot.timeline(timeline, unit='units'),
            f'{timeline.makespan:g} units, balanced {balanced.makespan:g}; bubble {timeline.bubble:.0%}')


Panel(draw, stage_0=Slider(2, 1, 8, label='stage 0'), stage_1=Slider(3, 1, 8, label='stage 1'),
      stage_2=Slider(6, 1, 8, label='stage 2'), stage_3=Slider(1, 1, 8, label='stage 3'),
      micro_batches=Slider(6, 1, 12, label='micro-batches'))

# %% [markdown]
# In a formula: one micro-batch has to pass all stages, and the other m - 1 leave the slowest stage one after the
# other. Forward and backward together take 3 times the cost, so a step takes 3 (sum + (m - 1) slowest) units. The
# slowest stage counts m times, every other stage once.

# %%
for costs in [1, 1, 1, 2], [2, 3, 6, 1], [5, 1, 4, 4]:
    print(costs, step(costs, 6).makespan, '=', 3 * (sum(costs) + 5 * max(costs)))

# %% [markdown]
# In [lesson 5](05_gpipe.ipynb) more micro-batches made the bubble as small as you like. Not so here:

# %%
counts = [1, 4, 8, 16, 32, 64]
plot.lines({name: (counts, [100 * step(costs, m).bubble for m in counts])
            for name, costs in {'1, 1, 1 and 2': [1, 1, 1, 2], 'balanced': [1.25] * 4}.items()},
           x='micro-batches', y='bubble, %', title='More micro-batches do not mend a bad cut')

# %% [markdown]
# The bubble of the uneven pipeline goes to 1 - 1.25 / 2 = 37.5 %, as three of the four devices wait for half of the
# time. So the first aim is clear: cut the network such that the slowest stage is as fast as it can be.

# %% [markdown]
# ## What layers cost
#
# `profile` runs a network layer by layer and measures each forward and backward. A *layer* is what is not cut: in a
# ResNet a whole residual block. We take two networks of different kinds, with 8 images, on one device of this machine.

# %% tags=["measured"]
here = Here(2)
here

# %% tags=["measured"]
images, labels = data.subset(data.load('train'), 512, seed=0).tensors
sample = images[:8]
networks = {arch: build(arch) for arch in ('resnet50', 'vgg16')}
times = {}      # ms of every layer
figure = plot.Picture(figsize=(9, 4.6), layout='constrained')
for (arch, network), ax in zip(networks.items(), figure.subplots(1, 2)):
    layers = profile(network, sample, timeout=0.1)
    times[arch] = [1e3 * (layer.forward + layer.backward) for layer in layers]
    named = dict(zip(network._modules, times[arch]))
    plot.bars({name: ms for name, ms in named.items() if not name.endswith(('_relu', 'dropout', 'flatten'))},
              ax, title=f'{arch}: ms of 8 images')
figure

# %% [markdown]
# (Some layers that take next to nothing are left out of the picture.) Equal numbers of layers are not equal times.
# And the memory is elsewhere. A layer needs what its forward keeps for the backward, and three numbers for each of
# its parameters: the weight, its gradient, its momentum.
#
# **Predict:** which percentage of the memory of VGG-16 is in its first linear layer, from 25,088 inputs to 4,096
# outputs?

# %%
my_guess = None        # percent

sizes = {}      # MB of every layer
figure = plot.Picture(figsize=(9, 4.6), layout='constrained')
for (arch, network), ax in zip(networks.items(), figure.subplots(1, 2)):
    layers = weigh(network, sample, device='cpu')
    sizes[arch] = [(layer.saved_bytes + 3 * layer.parameter_bytes) / 1e6 for layer in layers]
    named = dict(zip(network._modules, sizes[arch]))
    plot.bars({name: mb for name, mb in named.items() if not name.endswith(('_relu', 'dropout', 'flatten'))},
              ax, title=f'{arch}: MB of 8 images')
compare(my_guess, 100 * named['linear1'] / sum(sizes['vgg16']), ' %')
figure

# %% [markdown]
# In ResNet-50 time is spread over all blocks, while the last three have much of the memory. In VGG-16 one layer has most
# of it, and no cut can divide a layer: on a device of 1 GB it does not fit at all.
#
# On a CPU this layer, `linear1`, also takes long: with 8 images it computes little, but has to read all its weights,
# and to write as many gradients. On a GPU, and with larger images, it does not matter. There is a profile of the same
# network by the authors of PipeDream:

# %%
linear1 = networks['vgg16'].linear1
print(f'linear1 has {sum(weight.nbytes for weight in linear1.parameters()) / 1e6:.0f} MB of weights; in the '
      f'profile of PipeDream it takes {VGG16[33]:.1f} of {sum(VGG16):.0f} ms, {VGG16[33] / sum(VGG16):.0%}')

# %% [markdown]
# So a profile holds for one device, one size of images, and one size of micro-batch: take yours.

# %% [markdown]
# ## By time, or by memory
#
# `cut` finds where to cut, given what each layer costs in any unit. It makes the largest sum of a stage as small as
# possible. Give it milliseconds, or megabytes:

# %% tags=["measured"]
def stages(costs, balance):
    """What each stage costs in all."""
    stops = list(accumulate(balance, initial=0))
    return [sum(costs[start:stop]) for start, stop in pairwise(stops)]


print(' ' * 31, *(f'| stage {k}       ' for k in range(4)))
for arch in networks:
    for by, costs in {'time': times[arch], 'memory': sizes[arch]}.items():
        balance = cut(costs, 4)
        pairs = zip(stages(times[arch], balance), stages(sizes[arch], balance))
        print(f'{arch:8} by {by:6} {balance!s:14}', *(f'| {ms:4.0f} ms {mb:4.0f} MB' for ms, mb in pairs))

# %% [markdown]
# The lists are *balances*: how many layers each stage gets. By time, the stages of ResNet-50 differ more in their
# memory. By memory, they differ more in their time. Neither is right or wrong: it depends on what you lack. (On a
# CPU, the two cuts of VGG-16 hardly differ: `linear1` is heavy both ways.)
#
# In a script you need one line of this. `balance_by_time(4, network, micro_batch)` profiles and cuts,
# `balance_by_size` weighs and cuts:

# %%
print({arch: balance_by_size(4, network, sample, param_scale=3, device='cpu')
       for arch, network in networks.items()})

# %% [markdown]
# ## How many cuts are there?
#
# A chain of n layers has n - 1 places to cut, and k stages need k - 1 of them. The profile of PipeDream has 40 layers
# for VGG-16 (ours has 36). **Predict:** in how many thousand ways can they be cut into four stages? (Their order stays.)

# %%
my_guess = None        # thousand ways

ways = list(combinations(range(1, 40), 3))
compare(my_guess, len(ways) / 1000, ' thousand ways')
print(len(ways), 'ways; the formula, 39 choose 3:', comb(39, 3))

# %% [markdown]
# So few can all be tried. What layers cost, we take from that profile: it comes with the kit, and is the same for
# everybody. The slowest stage, in milliseconds:

# %%
slowest = {}
for stops in ways:
    balance = [stop - start for start, stop in pairwise([0, *stops, 40])]
    slowest[tuple(balance)] = max(stages(VGG16, balance))
best = min(slowest, key=slowest.get)
plot.bars({'best': slowest[best], 'the median of all cuts': median(slowest.values()),
           'ten layers each': slowest[10, 10, 10, 10], 'worst': max(slowest.values())},
          write='{:.0f} ms', title='VGG-16 in four stages: the slowest stage')

# %% [markdown]
# It pays to search. But trying all of them soon takes too long. A *dynamic programme* does not try them all. Its idea:
# wherever the last stage begins, all that stands before it should be cut in the best way. So find the best cut of the
# first 1, 2, 3, ... layers into one stage, from these the best cuts into two stages, from these into three. Each is
# found once and used many times. It is exact: nothing is guessed.
#
# For each of k stages it looks at every end and every beginning of the stage, so it takes at most k times n times n
# steps:

# %%
for layers, k in (40, 4), (40, 8), (200, 8):
    cuts, steps = comb(layers - 1, k - 1), k * layers ** 2
    print(f'{layers} layers in {k} stages: {cuts:,} cuts, at most {steps:,} steps')

# %% [markdown]
# ## Your turn
#
# Write it, in [exercises/08_balance.py](../exercises/08_balance.py): first the time of the slowest stage, then the
# best cut. That takes about 40 minutes.

# %% tags=["yours"]
check(8)

# %% [markdown]
# (For a hint: `./workshop.py hint 08` in a terminal.)
#
# The library's `cut` does the same, with fewer steps. Its slowest stage is as fast as the best one of all the cuts
# that we tried:

# %%
balance = cut(VGG16, 4)
print(balance, f'{max(stages(VGG16, balance)):.2f} ms; the best of all cuts: {slowest[best]:.2f} ms')

# %% [markdown]
# ## GPipe's rule
#
# GPipe has another rule: it cuts such that the *variance* of the stages' costs is least (arXiv 1811.06965, section
# 2.2). `cut_by_variance` does so, exactly. Is it the same? Here are four layers for three stages:

# %%
for rule in cut, cut_by_variance:
    balance = rule([1, 5, 2, 3], 3)
    print(f'{rule.__name__:15} {balance} stages cost {stages([1, 5, 2, 3], balance)}')

# %% [markdown]
# Not always. The variance counts a stage that is too fast as bad, though it harms nobody. So the rule may pay for a
# better looking balance with a slower slowest stage. How often?
#
# **Predict:** we take 200 chains of 20 layers with random costs from 1 to 100, cut into four stages. For what
# percentage of them is the pipeline slower by GPipe's rule?

# %%
my_guess = None        # percent

generator = random.Random(0)      # the same chains everywhere
random_chains = [[generator.randint(1, 100) for _ in range(20)] for _ in range(200)]
slower = {}      # by which share a step is longer, for every chain
for k in (2, 4, 8):
    slower[k] = [step(stages(costs, cut_by_variance(costs, k)), 16).makespan
                 / step(stages(costs, cut(costs, k)), 16).makespan - 1 for costs in random_chains]
share = {k: 100 * mean(more > 1e-9 for more in slower[k]) for k in slower}
compare(my_guess, share[4], ' %')

# %%
notes = {}
for k, rows in slower.items():
    worse = [more for more in rows if more > 1e-9] or [0.0]
    notes[f'{k} stages'] = 'of the chains' + (f', by {mean(worse):.1%} on average and {max(worse):.1%} '
                                              'at most' if max(worse) else '')
plot.bars({f'{k} stages': share[k] for k in slower}, write='{:.1f} %', notes=notes,
          title="By GPipe's rule a step is longer for")

# %% [markdown]
# With two stages both rules are one: what one stage gains, the other loses. With more stages they part, mostly by
# little. And for a real network? With PipeDream's profile of VGG-16:

# %%
def differ(costs):
    """The numbers of stages, from 2 to 8, for which GPipe's rule has a slower slowest stage."""
    return [k for k in range(2, 9) if max(stages(costs, cut(costs, k)))
            < max(stages(costs, cut_by_variance(costs, k)))]


print("GPipe's rule is slower with", differ(VGG16) or 'none of 2 to 8', 'stages')

# %% [markdown]
# By the formula above, a step gets longer with its slowest stage, and with nothing else. So the least variance can
# tie with the best cut, and never beat it. Mostly it is as good. But the best cut takes no longer to find, so there
# is no reason to take less.

# %%
fine = all(more < 1e-9 for rows in slower.values() for more in rows) and not differ(VGG16)
claims.test('C13', fine, 'the least variance gives a slower pipeline than the smallest slowest stage for '
            + ', '.join(f'{share[k]:.0f} % of random chains in {k} stages' for k in slower)
            + f" (by {max(map(max, slower.values())):.0%} at most); for PipeDream's VGG-16 it "
            + ('differs, too' if differ(VGG16) else 'is as good'), by='the simulator')

# %% [markdown]
# ## What else a cut has to respect
#
# **Micro-batches in flight.** A GPipe stage keeps the activations of *all* micro-batches until their backwards come.
# With recompute it keeps those of one ([lesson 6](06_recompute.ipynb)), beside the small inputs of the others. So the
# best cut by memory is another one. `chunks` tells `balance_by_size` into how many micro-batches it should divide the
# batch, and it weighs one of them. For ResNet-50 in four stages, and a batch of 32:

# %%
batch = images[:32]
resnet50 = networks['resnet50']
layers = weigh(resnet50, batch, device='cpu')
print(' ' * 40, *(f'| stage {k}    ' for k in range(4)))
for name, chunks in {'all images are kept': 1, 'one of eight micro-batches': 8}.items():
    balance = balance_by_size(4, resnet50, batch, chunks=chunks, param_scale=3, device='cpu')
    fill = stages([layer.saved_bytes / chunks / 1e6 for layer in layers], balance)
    weights = stages([3 * layer.parameter_bytes / 1e6 for layer in layers], balance)
    print(f'{name:26} {balance!s:13}', *(f'| {a:3.0f} + {w:3.0f} MB' for a, w in zip(fill, weights)))

# %% [markdown]
# (Activations + three numbers a weight.) Where all activations are kept, the first stages are full of them, and have
# to be short.
#
# **Recompute** also changes times. A stage then runs its forward twice, so it is balanced by 2 F + B instead of F +
# B. It matters where layers differ in how much longer their backward is.
#
# **A limit.** The fastest cut is of no use if a stage does not fit. Here are all cuts of ResNet-50 into four stages,
# each a point (many cuts have the same slowest and fullest stage: their points lie on each other). Draw a line at
# the memory that you have, and take the leftmost point below it.

# %% tags=["measured"]
ms, mb = times['resnet50'], sizes['resnet50']
cuts = [[stop - start for start, stop in pairwise([0, *stops, len(ms)])]
        for stops in combinations(range(1, len(ms)), 3)]
figure = plot.Picture(figsize=(6.5, 3.4), layout='constrained')
ax = figure.add_subplot()
ax.scatter([max(stages(ms, one)) for one in cuts], [max(stages(mb, one)) for one in cuts],
           s=8, color='#9a9a9a')
for by, mark, colour, costs in ('by time', 's', '#1f5583', ms), ('by memory', '^', '#ffe9b8', mb):
    balance = cut(costs, 4)
    ax.scatter(max(stages(ms, balance)), max(stages(mb, balance)), s=70, marker=mark, color=colour,
               edgecolor='black', label=f'{by}: {balance}')
ax.set(xlabel='slowest stage, ms', ylabel='fullest stage, MB')
ax.set_title(f'ResNet-50 in four stages: all {len(cuts):,} cuts', loc='left', fontsize=10, fontweight='bold')
ax.legend(frameon=False, fontsize=9, loc='lower right')
figure

# %% [markdown]
# ## Inside a residual block?
#
# Why is a residual block one layer? Finer layers could be balanced better. But the block's *shortcut* goes past a cut
# inside, so two tensors cross there. Here a block is taken apart into its convolutions, each with what follows it:

# %%
class Piece(nn.Module):
    """A convolution of a residual block, its batch norm and ReLU. The shortcut travels beside it."""

    def __init__(self, block, start):
        super().__init__()
        self.operations = block.branch[start:start + 3]
        self.shortcut = block.shortcut if start == 0 else None
        self.relu = block.relu if start + 3 >= len(block.branch) else None

    def forward(self, value):
        tensor, skip = value if self.shortcut is None else (value, self.shortcut(value))
        tensor = self.operations(tensor)
        return (tensor, skip) if self.relu is None else self.relu(tensor + skip)


def in_pieces(network):
    """For each layer of the network, the list of pieces that it can be cut into."""
    return [[Piece(layer, start) for start in range(0, len(layer.branch), 3)] if hasattr(layer, 'branch')
            else [layer] for layer in network]

# %% [markdown]
# **Predict:** 50 kB of an image cross before `block3_2` of ResNet-18, and 50 kB behind it. How many kB inside?

# %%
my_guess = None        # kB

pieces = {arch: in_pieces(build(arch).eval()) for arch in ('resnet18', 'resnet50')}
bytes_behind = {}      # every piece
for arch, layers in pieces.items():
    weighed = iter(weigh(nn.Sequential(*chain(*layers)), images[:1], device='cpu'))
    bytes_behind[arch] = [[next(weighed).output_bytes for _ in layer] for layer in layers]
compare(my_guess, bytes_behind['resnet18'][8][0] / 1e3, ' kB')

# %% [markdown]
# It has to be more: the shortcut alone is as large as what comes out. How much more is it in other blocks? We take the
# best place inside each block, and compare it with the better one of its two ends.

# %%
more = {}
for arch, layers in bytes_behind.items():
    more[arch] = [min(layer[:-1]) / min(before[-1], layer[-1])
                  for before, layer in pairwise(layers) if len(layer) > 1]
    counts = {times: more[arch].count(times) for times in sorted({*more[arch]})}
    print(f'{arch}:', ', '.join(f'{times:g} times as much (blocks: {n})' for times, n in counts.items()))

# %% [markdown]
# (The blocks of ResNet-50 are narrow in the middle, so little is added there. The shortcut of the first one makes four
# times the channels.) And what do we gain? We profile the pieces, and cut into four stages with whole blocks, and with
# pieces. A block counts as the sum of its pieces.

# %% tags=["measured"]
gain = {}      # the share of its time that the slowest stage saves
for arch, layers in pieces.items():
    costs = [1e3 * (one.forward + one.backward)
             for one in profile(nn.Sequential(*chain(*layers)), sample, timeout=0.1)]
    whole = stages(costs, [len(layer) for layer in layers])
    of_blocks, of_pieces = (max(stages(each, cut(each, 4))) for each in (whole, costs))
    gain[arch] = 1 - of_pieces / of_blocks
    print(f'{arch}: the slowest of four stages takes {of_blocks:.0f} ms with whole blocks, '
          f'{of_pieces:.0f} ms with cuts inside')

# %% [markdown]
# So it is a trade: more bytes, and a better balance. Over a slow link the bytes decide, over a fast one the balance.
# We call the claim confirmed if no network gains 5 % or more.

# %% tags=["measured"]
claims.test('C08', max(gain.values()) < 0.05 if here.steady else None, '; '.join(
    f'{arch}: a cut inside a block moves {median(more[arch]):g} times the bytes (median of the blocks), '
    f'and the slowest of four stages takes {gain[arch]:.0%} less time' for arch in pieces) + here.doubt)

# %% [markdown]
# ## Does it show?
#
# At last a measured pipeline: ResNet-18 on four devices, with 16 images in eight micro-batches. It is cut badly, [2, 2,
# 2, 8], and by time. Your machine may not have four GPUs, or four cores to spare. So these devices have a *pace*: each
# computes for a quarter of the time, and sleeps for the rest. They are slow, but they do not hold each other up.
#
# **Predict:** how many times as fast as with [2, 2, 2, 8] is it with the cut by time?

# %% tags=["measured"]
def fastest(balance, times=3):
    """The timeline of the fastest of a few forwards and backwards."""
    torch.manual_seed(0)
    devices, timelines = get_devices(4, kind='cpu', pace=0.25), []
    pipeline = GPipe(build('resnet18'), balance, devices=devices, chunks=8, checkpoint='never')
    for _ in range(times):
        cross_entropy(pipeline(images[:16]), labels[:16]).backward()
        timelines.append(pipeline.timeline)
    return min(timelines, key=lambda timeline: timeline.makespan)


my_guess = None        # times

layers = profile(build('resnet18'), images[:2], timeout=0.3, device='cpu')
costs = [layer.forward + layer.backward for layer in layers]
balances = {'badly': [2, 2, 2, 8], 'by time': cut(costs, 4)}
measured = {name: fastest(balance) for name, balance in balances.items()}
faster = measured['badly'].makespan / measured['by time'].makespan
compare(my_guess, faster, ' times as fast', doubt=here.doubt)

# %% tags=["measured"]
promised = {name: step(stages(costs, balance)).makespan for name, balance in balances.items()}
print('In virtual time, with the costs of the profile:',
      f"{promised['badly'] / promised['by time']:.2f} times as fast")
plot.timelines({f'Cut {name}, {balances[name]}': timeline for name, timeline in measured.items()})

# %% [markdown]
# (A grey bar in the middle of a row: the device waits for a message, from the previous stage or the next. If both
# figures are far apart here, other programs keep the cores busy.)

# %% [markdown]
# ## Remember
#
# 1. A step takes as long as m times its slowest stage, and a bit: no number of micro-batches makes up for a bad cut.
# 2. Profile, then let a dynamic programme find the cut with the fastest slowest stage; the least variance comes close.
# 3. Time and memory ask for different cuts, and recompute changes both; inside a residual block more bytes cross.
#
# Next: [lesson 8](08_mnist_gpipe.ipynb), a script of your own becomes a pipeline.
#
# The claims of lectures that this lesson put to the test (C08, C13), as they came out in this run:

# %% tags=["measured"]
claims
