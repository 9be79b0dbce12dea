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
# # 15 On a cluster
#
# When you are through, in about 40 minutes, you will be able to
#
# - run one and the same script on threads, on ranks, and on several nodes, and say who numbers the ranks;
# - write a batch script for Slurm that lets a run go on where its time was up;
# - read from an error message who waits for whom, and find the line that is to blame;
# - say what to look at first when a run on many GPUs is slow.

# %%
import inspect
import os
import socket
import subprocess
import sys
from functools import partial
from tempfile import NamedTemporaryFile, TemporaryDirectory

import torch
from torch import nn
from torch.nn.functional import mse_loss

from fewgpu import Pipeline, launch, plot
from fewgpu.checkpoint import Checkpoints, load_training_state, training_state
from fewgpu.collectives import Group, all_reduce
from fewgpu.schedule import one_f_one_b
from fewgpu.simulate import Costs, simulate
from fewgpu.transport import Deadlock
from fewgpu.workshop.lesson import compare

# %% [markdown]
# You need no cluster for this lesson. What belongs to PyTorch and to this kit runs here, with small numbers. What
# belongs to Slurm stands in the text.
#
# ## One script, wherever it runs
#
# In earlier lessons a stage was a thread of the notebook, or a *rank*: a process that `launch` had started
# ([lesson 3](03_data_parallelism.ipynb)). On a cluster others start the processes: *Slurm*, which hands out the
# computers, and `torchrun`, which comes with PyTorch. Such a computer is called a *node*.
#
# The script can stay the same. This one makes a pipeline of four stages and takes three steps. Nothing in it says how
# many processes there are. `Pipeline` looks: if it is one of several ranks, it runs its own stage; if it is alone,
# all four, each on a device of this process.

# %%
def train():
    """Three steps of a pipeline of four stages; their losses."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(4))).double()
    x = torch.rand(16, 8).double()
    pipeline = Pipeline(model, [1, 1, 1, 1], chunks=4, loss_fn=mse_loss,
                        optimizer=partial(torch.optim.SGD, lr=0.5))
    return [f'{pipeline.step(x, x).item():.6f}' for _ in range(3)]


threads = train()
print('one process, four threads:', *threads)

# %% [markdown]
# ## Two nodes
#
# On a cluster you would put this into a file and start `torchrun` once **on each node**, with four things: how many
# nodes there are, how many ranks each of them has, where all meet (an address and a port), and which of the nodes
# this is.
#
#     torchrun --nnodes=2 --nproc-per-node=2 --master-addr=node1 --master-port=29500 --node-rank=0 train.py
#
# (With one node `torchrun --standalone --nproc-per-node=2 train.py` is enough.) Here two nodes are played by two
# torchruns on this machine:

# %%
def torchrun(script, nodes, ranks_a_node):
    """One torchrun a node, all of them on this machine. What the ranks print, a line each, in order."""
    with socket.create_server(('127.0.0.1', 0)) as server:
        port = server.getsockname()[1]      # one that is free
    surroundings = {**os.environ, 'PYTHONPATH': os.pathsep.join(sys.path),
                    'OMP_NUM_THREADS': '1', 'CUDA_VISIBLE_DEVICES': ''}
    command = [sys.executable, '-m', 'torch.distributed.run', f'--nnodes={nodes}',
               f'--nproc-per-node={ranks_a_node}', '--master-addr=127.0.0.1', f'--master-port={port}']
    runs = []
    with NamedTemporaryFile('w', suffix='.py') as file:
        file.write(script)
        file.flush()
        try:
            for node in range(nodes):
                runs.append(subprocess.Popen(
                    [*command, f'--node-rank={node}', file.name], env=surroundings, text=True,
                    stdout=subprocess.PIPE, stderr=subprocess.PIPE))
            said = [run.communicate(timeout=300) for run in runs]
        finally:
            for run in runs:
                run.terminate()             # nothing stays behind
    for run, (_, errors) in zip(runs, said):
        assert run.returncode == 0, errors
    return sorted(''.join(out for out, _ in said).splitlines())

# %% [markdown]
# A rank learns who it is from variables of its environment. `RANK` counts all ranks from 0, `LOCAL_RANK` those of its
# own node, which is the number of its GPU; `GROUP_RANK` is the number of the node, and `WORLD_SIZE` is how many ranks
# there are in all. torchrun sets them.
#
# **Predict:** two nodes of two ranks. On the second node, the rank with `LOCAL_RANK` 1: what is its `RANK`?

# %%
my_guess = None        # RANK

script = f'''
import os, torch
from functools import partial
from torch import nn
from torch.nn.functional import mse_loss
from fewgpu import Pipeline

{inspect.getsource(train)}
words = ['RANK', *map(os.environ.get, ('RANK', 'LOCAL_RANK', 'GROUP_RANK')), *train()]
print(' '.join(words) + chr(10), end='')      # a line in one piece, as others print, too
'''
ranks = [line.split() for line in torchrun(script, nodes=2, ranks_a_node=2)]
compare(my_guess, *(int(rank) for _, rank, local, node, *_ in ranks if (node, local) == ('1', '1')))
for _, rank, local, node, *losses in ranks:
    print(f'RANK {rank} is LOCAL_RANK {local} on node {node}: losses', *losses)
    assert losses == threads

# %% [markdown]
# Rank 3: ranks are counted node by node, `RANK` = node · ranks a node + `LOCAL_RANK`. And the four processes on two
# "nodes" found the losses that four threads had found.
#
# How did they meet? On the first node a *store* is opened, a small table that all can write to, at the address and
# the port that everybody was told. There each rank writes that it has come, and how to reach it. Only then are there
# connections from rank to rank. A rank that makes the first object for several ranks (a `Pipeline`, say) waits there
# for the others, in this library for at most 60 seconds. If one has not come by then, an error says which one.

# %% [markdown]
# ## Slurm
#
# On a cluster nobody logs in on two nodes to type commands. You hand in a *batch script*, and Slurm runs it when
# nodes are free. Below its first line, `#!/usr/bin/env bash`, it says what it needs, and then what to do. (Bash takes
# `#SBATCH` lines for comments; Slurm reads them.)
#
# ```bash
# #SBATCH --nodes=2
# #SBATCH --ntasks-per-node=1       # tasks are what srun starts: one torchrun a node
# #SBATCH --gpus-per-node=4
# #SBATCH --cpus-per-task=16        # cores for the four ranks of a node, and their data
# #SBATCH --time=04:00:00
#
# first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
# srun torchrun --nnodes="$SLURM_NNODES" --nproc-per-node=4 \
#     --rdzv-backend=c10d --rdzv-id="$SLURM_JOB_ID" --rdzv-endpoint="$first:29500" train.py
# ```

# %% [markdown]
# `sbatch FILE` puts it into the queue. Slurm runs it **once**, on the first node. The line with `scontrol` finds the
# name of this node in the list of all. `srun` runs its command on all nodes. `--rdzv-...` (rendezvous: meeting) is the
# other way to tell where to meet: `c10d` is the store of PyTorch, the id is a name for this meeting, and the endpoint
# is the address and the port. The torchruns then number the nodes themselves, so that the same line serves on all.
#
# The number 29500 is a guess: another job on that node may have it. [jobs/job_ddp.sh](../jobs/job_ddp.sh) and its
# neighbours do without. There the first node takes a port that is free, and writes it into a file that the others read.
#
# A job on one node needs none of this: [jobs/job_gpipe.sh](../jobs/job_gpipe.sh) is one process that drives all GPUs.

# %% [markdown]
# Slurm numbers its *tasks*, the processes that `srun` starts, and tells each of them:
#
# | what | torchrun tells a rank | `srun` tells a task |
# | --- | --- | --- |
# | its number among all | `RANK` | `SLURM_PROCID` |
# | how many there are | `WORLD_SIZE` | `SLURM_NTASKS` |
# | its number on its node | `LOCAL_RANK` | `SLURM_LOCALID` |
# | the number of its node | `GROUP_RANK` | `SLURM_NODEID` |
# | where to meet | `MASTER_ADDR`, `MASTER_PORT` | nothing: take the first of `SLURM_JOB_NODELIST` |
#
# **Predict:** the batch script above, two nodes of four GPUs. How large is `WORLD_SIZE`, and how large is
# `SLURM_NTASKS`? (Write the second one into the cell.)

# %%
my_guess = None        # SLURM_NTASKS

nodes, tasks_a_node, ranks_a_task = 2, 1, 4
compare(my_guess, nodes * tasks_a_node)
print('WORLD_SIZE', nodes * tasks_a_node * ranks_a_task)

# %% [markdown]
# A task is a torchrun here, not a rank. A script that reads `SLURM_PROCID` as its rank gets the number of its node:
# four ranks take themselves for rank 0, and all write the same checkpoint. Read `RANK` where torchrun starts the
# ranks. (Without torchrun, with `--ntasks-per-node=4`, tasks are ranks. Then the script has to set `RANK` and the
# others from Slurm's numbers, and call `init_process_group` itself.)
#
# Commands for later:
#
# | command | what it does |
# | --- | --- |
# | `sbatch --test-only FILE` | says whether it would be accepted, and when it might start |
# | `squeue --me` | your jobs: PD waits (the last column says for what), R runs |
# | `srun --jobid=N --overlap --pty bash` | a shell on a node of the running job |
# | `scancel N` | ends it |

# %% [markdown]
# ## When it hangs at the start
#
# One node works, two do not: they start, and nothing follows. Often that is the *interface*. A computer has several
# ways into networks, and each of them, an interface, has a name. The machine of this notebook has these:

# %% tags=["measured"]
print(*(name for _, name in socket.if_nameindex()))

# %% [markdown]
# `lo` leads from a computer to itself. On a node of a cluster there may be a slow interface for the people who run
# it, and a fast one, perhaps `ib0` (for InfiniBand, a kind of fast network). PyTorch's *gloo* (messages of CPU tensors)
# takes the interface that the node's own name leads to; *NCCL* (messages of GPU tensors) chooses by rules of its own.
# If the choice is one that the other nodes cannot reach, everybody waits. Then name the right one, the same for all, in
# the batch script:
#
#     export GLOO_SOCKET_IFNAME=ib0 NCCL_SOCKET_IFNAME=ib0
#     export NCCL_DEBUG=INFO        # NCCL says what it has chosen
#
# `ip -brief address` on a node lists the names. Two other reasons: a port that another job on the same node uses
# (take another number), and one node with an older copy of the script or of its environment.

# %% [markdown]
# ## When the time is up
#
# Each job has a time limit, and nodes fail. Training goes on after that only if it saves *checkpoints*. What does one
# hold? Weights, of course. But also what the optimizer remembers, how many steps are done, and the state of the
# random numbers, from which dropout and the order of the data come. (The option `checkpoint=` of a pipeline is
# something else: it means recompute, and saves nothing to a disk.)

# %%
def job(folder, ends_after=100):
    """A job that goes on from the newest checkpoint, until it is ended after a step. Its losses, by step."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.Dropout(0.2), nn.Linear(32, 8))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    checkpoints, losses, done = Checkpoints(folder), {}, 0
    if saved := checkpoints.latest():
        load_training_state(saved, model, optimizer)
        done = saved.step
    for step in range(done + 1, ends_after + 1):
        x = torch.rand(16, 8)
        loss = mse_loss(model(x), x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses[step] = loss.item()
        if step % 10 == 0:
            checkpoints.save(step, training_state(model, optimizer))
    return losses

# %% [markdown]
# A hundred steps, a checkpoint after every tenth. The first job is ended after step 37, the second one goes on.
#
# **Predict:** how many steps are computed twice?

# %%
my_guess = None        # steps

with TemporaryDirectory() as folder:
    first, second = job(folder, ends_after=37), job(folder)
with TemporaryDirectory() as folder:
    in_one_go = job(folder)
compare(my_guess, len(first.keys() & second.keys()), ' steps')
print(f'The second job begins with step {min(second)}. '
      f'All losses are those of one job of 100 steps, to the bit: '
      f'{in_one_go == {**first, **second} == {**second, **first}}')

# %% [markdown]
# Steps 31 to 37. (A job that is ended *while* it saves does no harm: `Checkpoints` writes under another name, and
# renames the folder when all of it is on the disk. The folder has to be one that all nodes see.)
#
# How often should one save? Saving often takes time by itself. Saving seldom means that more is computed again: on
# average half of the time between two saves, for each failure.
#
# **Predict:** saving takes 30 seconds, and something fails every eight hours. After how many minutes would you save?

# %%
my_guess = None        # minutes

saving, until_failure = 0.5, 8 * 60       # minutes


def lost(interval):
    """The share of the time that goes into saving, and into what is computed again."""
    return saving / interval + interval / 2 / until_failure


best = min(range(1, 121), key=lost)
compare(my_guess, best, ' minutes')
print(f'{lost(best):.1%} is lost then, {lost(5):.1%} with a checkpoint every 5 minutes, '
      f'{lost(120):.1%} with one every 2 hours')
minutes = (4, 5, 6, 8, 10, 15, best, 30, 40, 60, 80, 100, 120)
plot.lines({'lost': (minutes, [100 * lost(m) for m in minutes])},
           x='minutes from save to save', title='Time lost, %')

# %% [markdown]
# The lowest point is where both parts of the loss are equal, that of saving and that of computing again. With T minutes
# from save to save: saving / T = T / (2 · until failure). So T is the square root of 2 · saving · until failure, here
# of 2 · 0.5 · 480. (J. W. Young gave it in 1974 as a first approximation; the formula is quoted from memory.)

# %% [markdown]
# ## Ask for a warning
#
# The end of the time limit is no surprise. Slurm can send a signal before, and the batch script can put the job back
# into the queue:
#
# ```bash
# #SBATCH --requeue
# #SBATCH --open-mode=append         # the log goes on, too
# #SBATCH --signal=B:USR1@300        # to this script (B), 300 seconds before the end
#
# mkdir -p runs/mine && rm -f runs/mine/stop
# again() { touch runs/mine/stop; wait "$!"; scontrol requeue "$SLURM_JOB_ID"; }
# trap again USR1
# srun torchrun ... train.py &       # in the background, for
# wait "$!"                          # bash runs a trap while it waits, not while a command runs
# ```

# %% [markdown]
# `trap` says: on this signal, call the function `again`. `&` starts a command in the background, and `$!` is the number
# of its process.
#
# The signal goes to the script only, and the script leaves a file, `stop`. After each step the training looks whether
# the file is there; then it saves, and ends. So nothing is computed twice. (Slurm looks at its clock about once a
# minute, so leave it some minutes.) A job that is requeued keeps its number and starts from the first line of its
# script: `latest()` does the rest. (The kit's jobs of several ranks pass the signal on to all ranks instead; see
# `fewgpu/stopping.py`.)

# %% [markdown]
# ## A hang, made on purpose
#
# "After each step it looks whether the file is there." If each of two ranks does just that, it goes wrong. Can you see
# why?
#
# Ranks do not look at the same moment. After step 2, rank 1 looks first, and there is no file. Then the file appears,
# and rank 0 finds it. So rank 0 finds it after step 2, but rank 1 only after step 3. (Below, no file is written: the
# variable `there` says what each rank would find.)

# %%
def until_told(folder, agree):
    """Train until the file is there, then save; after how many steps. `agree` decides on all ranks."""
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)), torch.rand(16, 8)
    pipeline = Pipeline(model, [1, 1], chunks=2, loss_fn=mse_loss, time_limit=4.0,
                        optimizer=partial(torch.optim.SGD, lr=0.5))
    group, checkpoints = Group(), Checkpoints(folder)
    for step in range(1, 10):
        pipeline.step(x, x)
        there = step >= (2 if group.rank == 0 else 3)      # "is there a file?"
        if agree(there, group):
            break
    checkpoints.save(step, training_state(pipeline))
    return step

# %%
with TemporaryDirectory() as folder:
    try:
        launch(until_told, ranks=2, args=(folder, lambda there, group: there))
    except Deadlock as error:
        print(error)

# %% [markdown]
# Read it word by word.
#
# - **Who speaks?** Rank 1. It waited for 4 seconds, the time limit of its pipeline.
# - **For what?** For a word of rank 0. A word is what one rank tells all others, and words are counted: one when the
#   pipeline is made, and two in a step. At its start the rank of stage 0 tells how many rows there are, and at its end
#   the last rank tells the loss. After two steps that makes five. So rank 1 has begun step 3, and waits for its first
#   word, the sixth.
# - **Where is the other one?** Not in a step, after step 2. So it has left the loop, and is in what follows: `save`,
#   where it waits for rank 1. (It lives: of a dead one the message would say that it gives no sign of life.)

# %% [markdown]
# Each waits for the other, for ever: a *deadlock*. Neither the step nor the `save` is wrong by itself. What is wrong is
# that each rank decided alone. Whatever decides how the program goes on has to be the same on all ranks: one decides
# and tells the others, or all put together what they know. Here an all-reduce takes the largest of what the ranks have
# seen (1 for the file, else 0). So if one has seen the file, all stop:

# %%
def one_is_enough(there, group):
    seen = torch.tensor([float(there)])
    all_reduce(seen, group, 'max')
    return bool(seen)


with TemporaryDirectory() as folder:
    print('both ranks save after step', *launch(until_told, ranks=2, args=(folder, one_is_enough)))
    saved = Checkpoints(folder).latest()
    print(f'saved after step {saved.step} by {len(saved.parts)} ranks:', *saved.whole('model'))

# %% [markdown]
# (The checkpoint holds the plain model's names, whoever saved which part. The next job may have other nodes, another
# cut or no ranks at all, and go on from it.)
#
# The usual reasons why ranks part:
#
# - `if rank == 0:` around something that all have to call: a step, an all-reduce, a `save`.
# - Ranks with different numbers of mini-batches: one is through, the others wait for its next.
# - A rank failed, and the others wait. torchrun ends them; with `srun` alone `--kill-on-bad-exit` does.
# - Each rank decides by its own clock, file or random number.
#
# The first message in the log counts. Those after it are mostly its consequences ("closed the connection").

# %% [markdown]
# ## When nothing is said
#
# Not every program tells who waits. Plain `torch.distributed` waits for minutes before it says anything (by default
# 10 with NCCL, 30 with gloo), and often names only the operation that was late. Then look yourself:
#
# - Get a shell on each node (`srun --jobid=N --overlap --nodelist=NODE --pty bash`) and let each process show the
#   lines that it is in: `py-spy dump --pid PID` (py-spy is a package of its own). Most ranks show the same lines. Look
#   at those that do not: they are what the others wait for.
# - `launch(..., time_limit=60)` shows such lines of every rank that is not through after 60 seconds.
# - Give waits a limit that is longer than the longest step and much shorter than the job:
#   `init_process_group(timeout=timedelta(minutes=2))` in plain PyTorch, `time_limit=` in this library.
# - Make it small. Two ranks on one node with tiny layers hang in the same way, in seconds.

# %% [markdown]
# ## When it is slow
#
# Everything runs, but slowly: four stages on four nodes, 1F1B with 16 micro-batches. A forward should take 1 unit of
# time, a backward 2. But node 2 needs twice as long for everything. Perhaps another job uses its cores.
#
# **Predict:** how many times as long does a step take, compared with four equal nodes?

# %%
my_guess = None        # times

even = simulate(one_f_one_b(4, 16), Costs(F=1, B=2))
uneven = simulate(one_f_one_b(4, 16), Costs(F=[1, 1, 2, 1], B=[2, 2, 4, 2]))
compare(my_guess, uneven.makespan / even.makespan, ' times')
plot.timeline(uneven, title='Device 2, on node 2, is twice as slow', unit='units')

# %% [markdown]
# Nearly twice. All wait for the slowest, in a pipeline as in an all-reduce. (Only while the pipeline fills and empties,
# the speed of the others counts, too.) So **idle devices are not where the fault is: look at the one that is hardly
# ever idle.** Here it is device 2, busy for 93 % of the step, and the others for 47 %. A timeline shows it.
# `nvidia-smi`, which tells how busy GPUs are, may not: a GPU that waits for others inside an operation of NCCL counts
# as busy there.

# %% [markdown]
# What to look at, in this order:
#
# 1. **One device alone.** Is the plain model on one GPU as fast as you expect? If not, it is the data (too few cores:
#    `--cpus-per-task`; files on a slow file system) or the model, and no cluster helps.
# 2. **One node.** Two GPUs of one node against one GPU: lessons [3](03_data_parallelism.ipynb), [7](07_balance.ipynb)
#    and [14](14_which_one_when.ipynb) say what may be expected.
# 3. **One rank against the others.** The same step, timed on every rank: is one of them, or one node, always the slow
#    one? `sbatch --exclude=NODE` leaves it out. After `pipeline.save_trace('traces')` on every rank
#    `./workshop.py trace traces` puts all on one clock, and says what to change first.
# 4. **Two nodes.** Now the network counts. Is it the fast one (`NCCL_DEBUG=INFO`)?

# %% [markdown]
# If the network is what limits, change who talks over it. Links within a node are fast, those between nodes are
# slower. So what talks most stays inside a node: first the parts of layers ([tensor
# parallelism](13_parts_and_skips.ipynb)), which talk in every layer; stages talk once a micro-batch, and replicas
# once a step. (Megatron-LM, arXiv 2104.04473, advises tensor parallelism up to the GPUs of a node, and pipelines
# across nodes.)
#
# Ranks are counted node by node. In `parallelize(model, '2x4', ...)` of `fewgpu.hybrid`, ranks 0 to 3 are the four
# stages of the first replica: on nodes of four GPUs each pipeline has its own node, and only gradients travel between
# nodes, once a step.

# %% [markdown]
# ## Remember
#
# 1. The script is the same everywhere; `RANK`, `LOCAL_RANK` and `WORLD_SIZE` say who it is, and who starts the
#    processes sets them: under torchrun read those, not Slurm's numbers.
# 2. Save what goes on: weights, optimizer, steps, random numbers. All ranks decide together when, or they wait for
#    each other for ever.
# 3. In a hang ask: who waits, for what, and where is the one waited for? In a slow run look at the device that is
#    hardly ever idle.
#
# This is the last lesson. `./workshop.py list` in a terminal says which exercises are left, `./workshop.py report`
# makes a page of what you have done, and `./workshop.py demo` lists the systems that the lessons were about, at
# length. `./workshop.py fail --quiz` lets a run go wrong in one of seven ways, and asks you in which. And
# `jobs/slurm-in-a-box` makes a Slurm of one Linux machine, if you have no cluster to try the jobs on.
