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
    def widths():
        return (w for w in range(1, cluster.devices + 1) if batch % w == 0)

    found = {}
    for width in widths():
        share = batch // width
        for micro_batch in [b for b in range(1, share + 1) if not share % b]:
            for depth in range(1, model.blocks + 1):
                if depth * width > cluster.devices:
                    break
                for plan in (Plan(depth, width, micro_batch), Plan(depth=depth, width=width, micro_batch=micro_batch, recompute=True)):
                    if memory(model, plan, batch) <= cluster.memory:
                        found[plan] = seconds(model, cluster, plan, batch)
    if not found:
        return None
    return min(found, key=found.get)
