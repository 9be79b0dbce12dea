# misconception: halved
def slowest(costs, balance):
    worst, layer = 0, 0
    for count in balance:
        time = 0
        for _ in range(count):
            time += costs[layer]
            layer += 1
        worst = max(worst, time)
    return worst


def balance(costs, stages):
    if stages == 1:
        return [len(costs)]
    left = stages // 2
    share = sum(costs) * left / stages
    best = None
    for end in range(left, len(costs) - (stages - left) + 1):
        off = abs(sum(costs[:end]) - share)
        if best is None or off < best[0]:
            best = off, end
    return balance(costs[:best[1]], left) + balance(costs[best[1]:], stages - left)
