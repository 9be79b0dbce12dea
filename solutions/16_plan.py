"""Exercise 16: a plan for a cluster (about 40 minutes).

You have a model, some devices, and a batch size. How many stages, how many replicas, which micro-batches, and
recompute or not? Deep pipelines have a bubble, wide ones hold the whole model many times, large micro-batches need
memory, and with small ones devices spend their time on starting. Planners answer this with a cost model: a few
formulas for memory and time, and a search through all plans. You write one.

    ./workshop.py check 16       # is it right?
    ./workshop.py run exercises/16_plan.py

The formulas follow those of PipeDream-2BW (arXiv 2006.09503, section 4) and Megatron-LM (arXiv 2104.04473, section
2), for 1F1B with a flush: the pipeline runs empty before each update.

`Model`, `Cluster` and `Plan` are dataclasses (lib/fewgpu/workshop/practice/cluster.py):

    model.blocks        how many blocks, all alike, one after the other
    model.forward       seconds of a block's forward, for each sample
    model.backward      seconds of its backward, for each sample
    model.start         seconds that each forward and each backward of a block takes besides, however many samples
    model.weights       bytes of a block's weights; its gradients have as many when they travel
    model.state         bytes of a block's gradients and optimizer state, which stay beside its weights
    model.activations   bytes that a block's forward keeps for its backward, for each sample
    model.boundary      bytes that go into a block, or come out of it, for each sample

    cluster.devices     how many, all alike
    cluster.memory      bytes of one device
    cluster.bandwidth   bytes a second of a link between two devices, in each direction

    plan.depth          stages of the pipeline, each on a device of its own
    plan.width          replicas of the whole pipeline: there are depth * width devices in use
    plan.micro_batch    samples of a micro-batch
    plan.recompute      True: activations are dropped after a forward, and computed again before the backward

A batch is shared by the replicas: each has batch / width samples, in m = batch / (width * micro_batch) micro-batches.
Both are whole numbers in every plan that your functions get. Where the blocks do not divide by the depth, some stages
have one block more, the first stage among them.
"""

from fewgpu.workshop.practice.cluster import GPT, GPUS, Cluster, Model, Plan


def memory(model: Model, plan: Plan, batch: int) -> float:
    """Bytes that the fullest device needs: one of the first stage.

    - The weights and the state of the stage's blocks.
    - Activations, without recompute: those of all its blocks, for all samples of every micro-batch that is on its way
      at a time. Under 1F1B those are as many micro-batches as there are stages, but of course no more than there are.
    - With recompute, instead: for every micro-batch that is on its way only what goes into the stage (its boundary),
      and the activations of all its blocks for one micro-batch, the one that is being computed again.

        model = Model(blocks=8, forward=1, backward=2, start=0, weights=10, state=30, activations=5, boundary=1)
        memory(model, Plan(depth=4, width=1, micro_batch=2), batch=16)                   ->  160
            2 blocks: 2 * (10 + 30) = 80; 8 micro-batches, 4 on their way: 4 * 2 samples * 2 blocks * 5 = 80
        memory(model, Plan(depth=4, width=1, micro_batch=2, recompute=True), batch=16)   ->  108
            80; boundaries 4 * 2 * 1 = 8; one micro-batch 2 * 2 * 5 = 20
    """
    # STEP 1: the blocks of the first stage, the micro-batches on their way, and the bytes of both
    blocks = -(-model.blocks // plan.depth)
    micro_batches = batch // (plan.width * plan.micro_batch)
    on_their_way = min(micro_batches, plan.depth)
    activations = plan.micro_batch * blocks * model.activations   # of one micro-batch
    if plan.recompute:
        kept = on_their_way * plan.micro_batch * model.boundary + activations
    else:
        kept = on_their_way * activations
    return blocks * (model.weights + model.state) + kept
    # END


def seconds(model: Model, cluster: Cluster, plan: Plan, batch: int) -> float:
    """Seconds of a training step with this batch.

    The slowest stage is the one with the most blocks. It needs the time t for a micro-batch: for each of its blocks a
    forward and a backward, each with its start, and with recompute another forward (with its start). If there is more
    than one stage, two messages come on top, once for the whole stage: the boundary of the micro-batch, and the
    gradient of it, of the same size, that comes back. Nothing overlaps.

    The pipeline takes m + depth - 1 times t: m micro-batches, and a bubble while the first one reaches the last stage
    and the last one comes back.

    After that, if there is more than one replica, those of a stage all-reduce their gradients on a ring: each device
    sends 2 * (width - 1) / width times the bytes of the gradients that it holds. Stages do so at the same time.

        model = Model(blocks=8, forward=1, backward=2, start=0, weights=10, state=30, activations=5, boundary=1)
        cluster = Cluster(devices=8, memory=200, bandwidth=4)
        seconds(model, cluster, Plan(depth=4, width=2, micro_batch=2), batch=16)         ->  96
            t = 2 blocks * 2 samples * 3 + 2 messages * 2 / 4 = 13; m = 4, so 4 + 4 - 1 = 7 times 13: 91
            all-reduce: 2 * 1/2 * 2 blocks * 10 bytes / 4 = 5
    """
    # STEP 2: t, the pipeline, the all-reduce
    blocks = -(-model.blocks // plan.depth)
    micro_batches = batch // (plan.width * plan.micro_batch)
    forward = blocks * (model.start + plan.micro_batch * model.forward)
    backward = blocks * (model.start + plan.micro_batch * model.backward)
    messages = 2 * plan.micro_batch * model.boundary / cluster.bandwidth if plan.depth > 1 else 0.0
    t = forward * (2 if plan.recompute else 1) + backward + messages
    all_reduce = 2 * (plan.width - 1) / plan.width * blocks * model.weights / cluster.bandwidth
    return (micro_batches + plan.depth - 1) * t + all_reduce
    # END


def best(model: Model, cluster: Cluster, batch: int) -> Plan | None:
    """The plan with the least `seconds` of all that are possible; None if there is none.

    A plan is possible if it has no more stages than the model has blocks, if depth * width is at most cluster.devices
    (some may stay idle), if width * micro_batch divides the batch, and if `memory` is at most cluster.memory. Of
    equally fast plans any will do.

    It has to come to an end for thousands of devices and batches of thousands, too: do not try widths and micro-batches
    that do not divide the batch.

        best(model, cluster, batch=16)     ->  Plan(depth=4, width=2, micro_batch=1)      76.5 seconds
            model and cluster as above
    """
    # STEP 3: go through all possible plans, and keep the fastest
    plans = [Plan(depth, width, micro_batch, recompute)
             for width in _divisors(batch) for micro_batch in _divisors(batch // width)
             for depth in range(1, min(model.blocks, cluster.devices // width) + 1)
             for recompute in (False, True)]
    fitting = [plan for plan in plans if memory(model, plan, batch) <= cluster.memory]
    return min(fitting, key=lambda plan: seconds(model, cluster, plan, batch), default=None)
    # END


def _divisors(number: int) -> list[int]:
    """All whole numbers that divide it, for `best`. (It is here to be used.)"""
    return [each for each in range(1, number + 1) if number % each == 0]


if __name__ == '__main__':
    example = Model(blocks=8, forward=1, backward=2, start=0, weights=10, state=30, activations=5, boundary=1)
    small, four = Cluster(devices=8, memory=200, bandwidth=4), Plan(depth=4, width=2, micro_batch=2)
    print('memory ', memory(example, Plan(depth=4, width=1, micro_batch=2), 16))
    print('seconds', seconds(example, small, four, 16))
    print('best   ', best(example, small, 16))
    print('A GPT of 2.1 billion parameters on 64 GPUs of 16 GB, a batch of 512')
    for some in (Plan(48, 1, 1), Plan(8, 8, 1, recompute=True), best(GPT, GPUS, 512)):
        if some and seconds(GPT, GPUS, some, 512):
            print(f'   {some}: {seconds(GPT, GPUS, some, 512):.2f} s, {memory(GPT, some, 512) / 1e9:.1f} GB')
