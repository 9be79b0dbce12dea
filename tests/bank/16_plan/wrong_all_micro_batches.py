# misconception: all-micro-batches
import math

from fewgpu.workshop.practice.cluster import Plan


def memory(model, plan, batch):
    n = math.ceil(model.blocks / plan.depth)
    m = batch // plan.width // plan.micro_batch
    fixed = n * (model.weights + model.state)
    acts = n * plan.micro_batch * model.activations
    if plan.recompute:
        return fixed + acts + m * plan.micro_batch * model.boundary
    return fixed + m * acts


def seconds(model, cluster, plan, batch):
    n = math.ceil(model.blocks / plan.depth)
    m = batch // plan.width // plan.micro_batch
    f = n * (model.start + plan.micro_batch * model.forward)
    b = n * (model.start + plan.micro_batch * model.backward)
    t = f + b
    if plan.recompute:
        t += f
    if plan.depth > 1:
        t += 2 * plan.micro_batch * model.boundary / cluster.bandwidth
    reduce = 2 * (plan.width - 1) / plan.width * n * model.weights / cluster.bandwidth
    return (m + plan.depth - 1) * t + reduce


def best(model, cluster, batch):
    winner, least = None, float('inf')
    for width in range(1, cluster.devices + 1):
        if batch % width:
            continue
        for micro_batch in range(1, batch // width + 1):
            if batch // width % micro_batch:
                continue
            for depth in range(1, min(model.blocks, cluster.devices // width) + 1):
                for recompute in (False, True):
                    plan = Plan(depth, width, micro_batch, recompute)
                    if memory(model, plan, batch) > cluster.memory:
                        continue
                    time = seconds(model, cluster, plan, batch)
                    if time < least:
                        winner, least = plan, time
    return winner
