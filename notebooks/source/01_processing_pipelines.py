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
# # 1 Parallel computing and processing pipelines
#
# When you are through, in about 25 minutes (an exercise of 20 comes on top), you will be able to
#
# - share work among workers in two ways: by its items, or by its steps;
# - compute how long a pipeline takes, and how much of that time its workers are idle;
# - say when a pipeline is a good choice, and what spoils it;
# - cut a mini-batch into micro-batches, the items of the pipelines to come.
#
# There is no network in this lesson. What we learn from photographs holds for networks later.

# %%
import io
from collections import defaultdict
from queue import Queue
from threading import Thread
from time import perf_counter

import torch
from matplotlib.cbook import get_sample_data
from PIL import Image
from torch.nn.functional import conv2d, pad

from fewgpu import plot, schedule
from fewgpu.plot import Task
from fewgpu.simulate import Costs, simulate
from fewgpu.workshop import check
from fewgpu.workshop.claims import Claims
from fewgpu.workshop.lesson import compare
from fewgpu.workshop.panel import Panel, Slider

claims = Claims()  # what we find out on the way is noted here

# %% [markdown]
# ## 1 Four steps
#
# A program gets a pile of photographs. With each of them it does four steps: load, add noise, detect edges, save.
#
# The photograph comes with matplotlib. It shows Grace Hopper, who wrote one of the first compilers; it is an
# official photograph of the US Navy, and in the public domain. We cut eight photographs out of it, and keep them
# compressed, as they would lie on a disk.

# %%
with get_sample_data('grace_hopper.jpg') as file:
    portrait = Image.open(file).convert('L')          # L: grey
disk = {}                                             # number of a photograph -> its compressed bytes
for number in range(8):
    buffer = io.BytesIO()
    portrait.crop((8 * number, 0, 448 + 8 * number, 448)).save(buffer, 'png')
    disk[number] = buffer.getvalue()
print(len(disk), 'photographs of 448 x 448 pixels')

# %% [markdown]
# And these are the four steps. `load` and `save` work with compressed bytes in memory, so that nothing is written to
# your disk.

# %%
def load(number):
    pixels = Image.open(io.BytesIO(disk[number])).tobytes()
    return torch.frombuffer(bytearray(pixels), dtype=torch.uint8).view(448, 448) / 255


def add_noise(photo, noise):
    return photo + 0.08 * torch.randn(photo.shape, generator=noise)


def detect_edges(photo):
    sobel = torch.tensor([[1., 2, 1], [0, 0, 0], [-1, -2, -1]]) / 4      # how much darker it is below
    both = torch.stack([sobel, sobel.T])[:, None]
    return conv2d(pad(photo[None, None], (1, 1, 1, 1), 'replicate'), both).norm(dim=1)[0]


def save(photo):
    buffer = io.BytesIO()
    Image.fromarray((255 * photo.clamp(0, 1)).byte().numpy()).save(buffer, 'png')
    return buffer.getvalue()

# %%
loaded = load(0)
noisy = add_noise(loaded, torch.Generator().manual_seed(0))
edges = detect_edges(noisy)
saved = save(edges)
figure = plot.Picture(figsize=(9, 2.7), layout='constrained')
for ax, title, photo in zip(figure.subplots(1, 3), ['load', 'add noise', 'detect edges (then save)'],
                            [loaded, noisy, 1 - edges]):
    ax.imshow(photo.clamp(0, 1), cmap='gray')
    ax.set(xticks=[], yticks=[], title=title)
figure

# %% [markdown]
# ## 2 One worker, then four
#
# A *worker* is whatever can do one thing at a time: a person, a core, a GPU. We need no clock to see who works at what
# time. We say that each step takes 1 unit, and compute the rest: *virtual time*, the same on every machine.
#
# One rule is enough. A step starts as soon as three things are free: its worker, its photograph (the step before is
# done) and, where there is only one of something, that thing.

# %%
STEPS = {'load': 1, 'add noise': 1, 'detect edges': 1, 'save': 1}     # units of time


def work(photos, worker_of, steps=STEPS, only_one=()):
    """Who does what when: worker_of(photo, step) says who, and of `only_one` of the steps at a time."""
    free_at, done = defaultdict(float), []      # at first everything is free at 0
    for photo in range(photos):
        now = 0.0                               # from when on this photograph can go on
        for number, (step, units) in enumerate(steps.items()):
            worker = worker_of(photo, number)
            needed = [f'worker {worker}']
            if step in only_one:
                needed.append(step)
            start = max(now, *(free_at[thing] for thing in needed))
            now = start + units
            for thing in needed:
                free_at[thing] = now
            done.append(Task(worker, step, photo, start, now))
    return done


alone = work(8, lambda photo, step: 0)
plot.tasks(alone, title='One worker, eight photographs', unit='units')

# %% [markdown]
# The number in a bar is the photograph. Now four workers. The plain way to share the work is by its items: worker 0
# takes photographs 0 and 4, worker 1 takes 1 and 5, and so on. Each does all four steps. Since the data are shared
# out, this is called *data parallel*.
#
# **Predict:** how many units do eight photographs take?

# %%
my_guess = None          # units


def ends(done):
    """When the last task is done."""
    return max(task.end for task in done)


by_item = work(8, lambda photo, step: photo % 4)
compare(my_guess, ends(by_item), ' units')
plot.tasks(by_item, title='Data parallel: each worker does all steps of its own photographs', unit='units')

# %% [markdown]
# Four times as fast, and nobody is ever idle. But look at the first column: all four load at the same time. If there
# is *one* disk that serves one worker at a time, that cannot be.
#
# **Predict:** with one disk for loading, how many units?

# %%
my_guess = None          # units

one_disk = work(8, lambda photo, step: photo % 4, only_one=['load'])
compare(my_guess, ends(one_disk), ' units')
plot.tasks(one_disk, title='Data parallel, one disk', unit='units')

# %% [markdown]
# At the beginning all workers want the disk, and three of them queue, once. Afterwards the queue is gone: the disk has
# shifted the workers against each other. It is now in use all the time, by another worker in each unit.

# %% [markdown]
# ## 3 Share the steps instead
#
# The other way to share: worker 0 loads, and does nothing else. It hands each photograph to worker 1, who adds noise,
# and so on, as on an assembly line. This is a *pipeline*; each worker is a *stage* of it.
#
# **Predict:** the last photograph is saved after how many units?

# %%
my_guess = None          # units

pipeline = work(8, lambda photo, step: step, only_one=['load'])
compare(my_guess, ends(pipeline), ' units')
plot.tasks(pipeline, title='Pipeline: each worker does one step of all photographs', unit='units')

# %% [markdown]
# As long as the data-parallel workers with one disk, and longer than those with four disks. The light grey is time in which a
# worker is idle. At the left the pipeline *fills*: worker 3 cannot save before a first photograph has come through.
# At the right it *drains*: worker 0 has nothing left to load. In between everybody works.
#
# So speed is not what a pipeline is for. What is? Count how many workers want to load at the same time, how many ever
# load, and what a worker has to be able to do.

# %%
def most_at_once(done, step):
    """The largest number of workers that do a step in the same unit of time."""
    starts = [task.start for task in done if task.step == step]
    return max(starts.count(start) for start in starts)


wanted = {'data parallel': most_at_once(by_item, 'load'), 'pipeline': most_at_once(pipeline, 'load')}
for name, done in {'data parallel': by_item, 'pipeline': pipeline}.items():
    reach = {task.worker for task in done if task.step == 'load'}
    tools = dict.fromkeys(task.step for task in done if task.worker == 1)
    print(f'{name:13} | load at once: {wanted[name]}, ever: {len(reach)}',
          '| tools of worker 1:', ', '.join(tools))

# %% [markdown]
# A pipeline uses the disk evenly from the start, and one worker has to reach it. Data-parallel workers all have to, and
# queue once. And a pipeline's worker needs the tools of one step only. Keep that in mind: when the steps are the layers of
# a network, *tools* are the weights, and a worker that needs only some of them can be a GPU that the whole would not fit.

# %% [markdown]
# ## 4 When a step depends on the photograph before
#
# The noise comes from a random generator. Each photograph takes some numbers from it, and the next one continues where that
# one stopped. So *add noise* of photograph 5 depends on *add noise* of photograph 4. Now each data-parallel worker has a
# disk of its own again, but there is one generator:

# %%
dependent = {'data parallel': work(8, lambda photo, step: photo % 4, only_one=['add noise']),
             'pipeline': work(8, lambda photo, step: step, only_one=['add noise'])}
free = {'data parallel': ends(by_item), 'pipeline': ends(work(8, lambda photo, step: step))}
for name, done in dependent.items():
    noise = [task.worker for task in sorted(done, key=lambda task: task.start) if task.step == 'add noise']
    passed = sum(one != other for one, other in zip(noise, noise[1:]))
    print(f'{name:13} | {free[name]:2.0f} units, with the dependence {ends(done):.0f}',
          f'| the generator moves {passed} times from worker to worker')
plot.tasks(dependent['data parallel'], title='Data parallel, one generator', unit='units')

# %% [markdown]
# Data-parallel workers have to wait for each other, and must send the generator round. In a pipeline it stays with worker
# 1, who does the photographs in order anyway: the dependence costs nothing.
#
# Could each data-parallel worker not have a generator of its own? It could, and the results would be others. We run
# it, now with real threads that do the real steps. One worker does it first:

# %%
def do_all(numbers, noise):
    """One worker: all four steps of some photographs."""
    return {number: save(detect_edges(add_noise(load(number), noise))) for number in numbers}


by_one = do_all(range(8), torch.Generator().manual_seed(0))
by_four = {}


def own_photographs(worker):
    by_four.update(do_all(range(worker, 8, 4), torch.Generator().manual_seed(worker)))


threads = [Thread(target=own_photographs, args=(worker,)) for worker in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
same = sum(by_four[number] == by_one[number] for number in disk)
print(f'data parallel, a generator each: {same} of 8 saved photographs are those of one worker')

# %% [markdown]
# (Photograph 0 is the same, since worker 0 has the seed of the one worker, and takes it first.)
#
# And the pipeline. Between two workers is a *queue*, where the one puts what the other takes. A worker takes a
# photograph, does its step, and hands the result on; `None` says that no more will come:

# %%
def stage(worker, name, do, inbox, outbox, log):
    """What one worker of a pipeline does, until it is given None."""
    while True:
        item = inbox.get()              # waits until something is there
        if item is None:
            outbox.put(None)
            return
        number, value = item
        start = perf_counter()
        value = do(value)
        log.append(Task(worker, name, number, start, perf_counter()))
        outbox.put((number, value))

# %% [markdown]
# Four such workers, and five queues: one before, one behind, and three between them. That is a complete pipeline.

# %%
def run_pipeline(numbers):
    """Each step by a thread of its own: the saved photographs, and who did what when."""
    noise, log = torch.Generator().manual_seed(0), []
    steps = {'load': load, 'add noise': lambda photo: add_noise(photo, noise),
             'detect edges': detect_edges, 'save': save}
    queues = [Queue() for _ in range(5)]
    for worker, (name, do) in enumerate(steps.items()):
        inbox, outbox = queues[worker], queues[worker + 1]
        Thread(target=stage, args=(worker, name, do, inbox, outbox, log)).start()
    for number in numbers:
        queues[0].put((number, number))
    queues[0].put(None)
    saved = [queues[4].get() for _ in numbers]       # pairs: number, photograph
    return dict(saved), log

# %%
by_pipeline, log = run_pipeline(disk)
in_pipeline = sum(by_pipeline[number] == by_one[number] for number in disk)
print(f'pipeline, one generator: {in_pipeline} of 8 are those of one worker, bit by bit')
even = wanted['pipeline'] < wanted['data parallel']
may_depend = in_pipeline == 8 and ends(dependent['pipeline']) == free['pipeline']
claims.test('C11', even and may_depend,
            f"{wanted['pipeline']} worker loads at a time, data-parallel {wanted['data parallel']} want to "
            f"(with one disk they queue once, then use it as evenly); a step that depends on the photograph "
            f"before costs a pipeline nothing, data-parallel workers {free['data parallel']:.0f} to "
            f"{ends(dependent['data parallel']):.0f} units; but with one disk both take "
            f"{ends(pipeline):.0f} units: a pipeline is no faster", by='the simulator')

# %% [markdown]
# When did each thread do what? The steps do not take equally long, and four threads share the cores of this machine:
# do not expect the tidy picture of virtual time.

# %% tags=["measured"]
first = min(task.start for task in log)
plot.tasks([task._replace(start=task.start - first, end=task.end - first)
            for task in sorted(log, key=lambda task: (task.worker, task.item))],
           title='The pipeline of threads, measured')

# %% [markdown]
# ## 5 How long, and how idle?
#
# Let *n* items pass *k* workers, each step taking *t*. The first item is through after *k t*. From then on one more
# arrives every *t*, and *n* - 1 more have to arrive:
#
#     T = k t + (n - 1) t = (n + k - 1) t
#
# Each worker is busy for *n t* of it. So the busy share of its time, the *utilisation*, is
#
#     u = n t / T = n / (n + k - 1)
#
# Do our rule and these formulas agree? For all small *n* and *k*:

# %%
def busy_share(done):
    """Of all workers together."""
    workers = {task.worker for task in done}
    return sum(task.end - task.start for task in done) / (len(workers) * ends(done))


agree = 0
for n in range(1, 21):
    for k in range(1, 7):
        done = work(n, lambda photo, step: step, steps={f'step {s}': 3 for s in range(k)})
        agree += ends(done) == (n + k - 1) * 3 and abs(busy_share(done) - n / (n + k - 1)) < 1e-12
print(f'{agree} of {20 * 6} pipelines take (n + k - 1) t and are busy for n / (n + k - 1)')

# %% [markdown]
# **Predict:** in lesson 0, four devices needed 27 pieces to be busy for 90 % of the time. How many photographs do eight
# workers need?

# %%
my_guess = None          # photographs

eight = {f'step {s}': 1 for s in range(8)}
enough = next(n for n in range(1, 1000) if busy_share(work(n, lambda photo, step: step, eight)) >= 0.9)
compare(my_guess, enough, ' photographs')
items = [1, 2, 4, 8, 16, 32, 64, 128]
figure = plot.lines({f'{k} workers': (items, [100 * n / (n + k - 1) for n in items])
                     for k in (2, 4, 8, 16)},
                    title='More items, less idle', x='items', y='busy, %', log='x')
figure.axes[0].set_xticks(items, labels=items)
figure.axes[0].minorticks_off()
figure

# %% [markdown]
# Solve u = 0.9 for *n*, and you get 9 (k - 1): twice as many workers need a bit more than twice as many items for the
# same share. So what counts is how many items there are *for each worker*: with 4 times as many items as workers less than
# a fifth is lost, with 10 times as many less than a tenth.

# %% [markdown]
# ## 6 What spoils a pipeline
#
# A good pipeline needs three things. *Many items*: that was the last section. *Balance*: all steps take equally long.
# And *little to move*: between two workers an item has to travel, over a link that carries one at a time.
#
# The library has a simulator in which both can be set, and all later lessons use it; a *forward* is what it calls the
# step of a stage. Does it agree with our rule?

# %%
def pipe(items, steps, moving=0):
    """A pipeline in the library's virtual time; `steps` says what each worker's step takes."""
    forwards, _ = schedule.gpipe(stages=len(steps), micro_batches=items).halves()
    return simulate(forwards, Costs(F=steps, message=moving, bandwidth=1))


def busy(*what):
    """How many percent of the time the workers of a pipeline are busy."""
    return 100 * (1 - pipe(*what).bubble)


for steps in [1, 1, 1, 1], [1, 1, 2, 1], [3, 1, 1, 2]:
    ours = work(8, lambda photo, step: step, steps=dict(enumerate(steps)))
    print(steps, f'our rule: {ends(ours):.0f} units, the library: {pipe(8, steps).makespan:.0f} units')

# %% [markdown]
# One slow step holds up everybody. The item passes all steps, and then the slowest worker sets the pace: the time is the sum
# of all steps plus (n - 1) times the *largest*.
#
# **Predict:** 64 photographs and four workers, but one step takes 2 units, the others 1. For how many percent of the time are
# the workers busy, on average? (With equal steps it is 96 %. The picture draws eight of the 64.)

# %%
my_guess = None          # percent

compare(my_guess, busy(64, [1, 1, 2, 1]), ' % with 64 photographs')
names = dict(enumerate(STEPS))
plot.tasks([Task(row, names[row], span.op.micro_batch, span.start, span.end)
            for row, spans in enumerate(pipe(8, [1, 1, 2, 1]).rows) for span in spans],
           title='Only eight photographs, one step takes twice as long', unit='units')

# %% [markdown]
# Every worker behind the slow one waits for it; every worker before it is done early.
#
# And moving? While one photograph travels, workers go on with others. So a link costs hardly anything, as long
# as it takes less than a step; when it takes longer, it is the slowest stage of all. The three conditions:

# %%
figure = plot.Picture(figsize=(9, 2.8), layout='constrained')
left, middle, right = figure.subplots(1, 3, sharey=True)
few, slow, moves = [1, 4, 16, 64], [1, 1.5, 2, 3, 4], [0, 0.5, 1, 1.5, 2, 3]
plot.lines({'': (few, [busy(n, [1] * 4) for n in few])}, left, title='Many items', log='x',
           x='items for 4 workers', y='busy, %', write='{:.0f}')
plot.lines({'': (slow, [busy(64, [1, 1, s, 1]) for s in slow])}, middle, title='Balanced steps',
           x='units of one step, others 1', write='{:.0f}')
plot.lines({'': (moves, [busy(64, [1] * 4, m) for m in moves])}, right, title='Little to move',
           x='units to move an item', write='{:.0f}')
left.set_xticks(few, labels=few)
left.minorticks_off()
figure

# %%
good, few_items = busy(64, [1] * 4), busy(4, [1] * 4)
uneven, much_moved = busy(64, [1, 1, 2, 1]), busy(64, [1] * 4, 2)
claims.test('C12', good > 90 and max(few_items, uneven, much_moved) < 70,
            f'4 workers are busy for {good:.0f} % with 64 items; {few_items:.0f} % with 4 items, '
            f'{uneven:.0f} % if one step takes twice as long, {much_moved:.0f} % if moving does',
            by='the simulator')

# %% [markdown]
# Play with all of it. The thin bars are items on their way to the next worker. With one step of 2 units, how far do more
# items get you? And how long may moving take before the workers wait for it?

# %%
def draw(items, workers, slow_step, moving):
    steps = [1.0] * workers
    steps[workers // 2] = slow_step
    plan = pipe(items, steps, moving)
    kinds = ['slow step' if units > 1 else 'step' for units in steps]
    done = [Task(row, kinds[row], span.op.micro_batch, span.start, span.end)
            for row, spans in enumerate(plan.rows) for span in spans]
    moves = []
    for row, spans in enumerate(plan.rows[:-1] if moving else []):
        link_free = 0.0                     # each link carries one item at a time
        for span in spans:
            leaves = max(span.end, link_free)
            link_free = leaves + moving
            moves.append(Task(row, 'moving', span.op.micro_batch, leaves, link_free))
    ideal = items / (items + workers - 1)
    return (plot.tasks(done, moves=moves, unit='units'),
            f'busy {1 - plan.bubble:.0%}; with equal steps and nothing to move {ideal:.0%}')


Panel(draw, items=Slider(12, 1, 40), workers=Slider(4, 1, 8), slow_step=Slider(2.0, 1.0, 4.0, 0.5),
      moving=Slider(0.5, 0.0, 3.0, 0.5))

# %% [markdown]
# ## 7 What are the items of a network?
#
# In the lessons to come the workers are devices, and the steps are the layers of a network. What are the items? A network is
# trained on a *mini-batch* of images at a time, and then changes its weights. The next mini-batch must not enter before that.
# So one mini-batch would be one single item, and one item does not fill a pipeline:

# %%
for items in 1, 4, 16:
    print(f'4 devices, mini-batch in {items:2} pieces: busy for {busy(items, [1] * 4):.0f} % of the time')

# %% [markdown]
# But a mini-batch is made of elements, too: its images. Cut it into *micro-batches*, and let these be the items. The rows of a
# tensor are easy to cut:

# %%
mini_batch = torch.stack([load(number) for number in disk])
micro_batches = mini_batch.tensor_split(3)
print('mini-batch', tuple(mini_batch.shape))
print('micro-batches', *(tuple(piece.shape) for piece in micro_batches))
loss = torch.arange(8.)                               # say, of each photograph
means = torch.stack([piece.mean() for piece in loss.tensor_split(3)])
print(f'mean loss of the mini-batch {loss.mean():.2f}, mean of the three means {means.mean():.2f}')

# %% [markdown]
# Eight rows in three pieces are 3, 3 and 2. They go together again as they were cut; but look at the means. What is computed
# from pieces has to be what the whole would give, and a mean of means is not quite the mean: each row of the smaller
# piece has counted more.
#
# **Exercise 01** (about 20 minutes): write the functions that cut a mini-batch, put it together, and join the losses, in
# [exercises/01_microbatch.py](../exercises/01_microbatch.py). Then:

# %% tags=["yours"]
check(1)

# %% [markdown]
# Stuck? `./workshop.py hint 01` in a terminal gives a hint, and a further one each time.

# %% [markdown]
# ## Remember
#
# 1. Data-parallel workers share the items, and each needs everything; pipeline workers share the steps, and each needs
#    its own step only, and sees all items in order.
# 2. *n* items through *k* equal steps take (n + k - 1) t; the workers are busy for n / (n + k - 1) of it.
# 3. A pipeline works well with many more items than workers, equal steps, and less time to move an item than
#    a step takes.
#
# Next: [lesson 2](02_memory.ipynb), what training needs memory for.
#
# The claims of lectures that this lesson put to the test (C11, C12), as they came out in this run:

# %%
claims
