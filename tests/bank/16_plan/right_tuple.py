import math

from fewgpu.workshop.practice.cluster import Plan


def memory(model, plan, batch):
    n = math.ceil(model.blocks / plan.depth)
    m = batch // plan.width // plan.micro_batch
    fixed = n * (model.weights + model.state)
    acts = n * plan.micro_batch * model.activations
    if plan.recompute:
        return fixed + acts + min(m, plan.depth) * plan.micro_batch * model.boundary
    return fixed + min(m, plan.depth) * acts


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
    plans = []
    for width in range(1, min(batch, cluster.devices) + 1):
        if batch % width == 0:
            for m in range(1, batch // width + 1):
                if batch // width % m == 0:
                    plans += [(d, width, batch // width // m, again) for again in (True, False)
                              for d in range(1, model.blocks + 1) if d * width <= cluster.devices]
    plans = [plan for plan in plans if memory(model, Plan(*plan), batch) <= cluster.memory]
    return min(plans, key=lambda plan: seconds(model, cluster, Plan(*plan), batch)) if plans else None
