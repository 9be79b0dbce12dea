from itertools import product

from fewgpu.workshop.practice.cluster import Plan


def sizes(model, plan, batch):
    quotient, rest = divmod(model.blocks, plan.depth)
    rounds = batch // (plan.micro_batch * plan.width)
    return quotient + bool(rest), rounds


def memory(model, plan, batch):
    blocks, rounds = sizes(model, plan, batch)
    flight = rounds if rounds < plan.depth else plan.depth
    one = plan.micro_batch * model.activations * blocks
    total = blocks * model.weights + blocks * model.state
    if not plan.recompute:
        return total + one * flight
    return total + one + flight * model.boundary * plan.micro_batch


def seconds(model, cluster, plan, batch):
    blocks, rounds = sizes(model, plan, batch)
    passes = 3 if plan.recompute else 2
    work = model.forward * (passes - 1) + model.backward
    t = blocks * (passes * model.start + work * plan.micro_batch)
    total = 0
    for _ in range(rounds + plan.depth - 1):
        total += t
        if plan.depth > 1:
            total += plan.micro_batch * model.boundary / cluster.bandwidth
            total += plan.micro_batch * model.boundary / cluster.bandwidth
    bytes_held = blocks * model.weights
    piece = bytes_held / plan.width
    return total + 2 * (plan.width - 1) * piece / cluster.bandwidth


def divisors(number):
    small = [k for k in range(1, int(number ** 0.5) + 1) if number % k == 0]
    return sorted({*small, *(number // k for k in small)})


def best(model, cluster, batch):
    candidates = []
    for width, micro_batch in product(divisors(batch), repeat=2):
        if batch % (width * micro_batch) == 0 and width <= cluster.devices:
            for depth, recompute in product(range(1, model.blocks + 1), (True, False)):
                if depth * width <= cluster.devices:
                    candidates.append(Plan(depth, width, micro_batch, recompute))
    candidates = [plan for plan in candidates if memory(model, plan, batch) <= cluster.memory]
    candidates.sort(key=lambda plan: seconds(model, cluster, plan, batch))
    return candidates[0] if candidates else None
