# misconception: halved
def slowest(costs, balance):
    remaining = iter(costs)
    return max(sum(next(remaining) for _ in range(count)) for count in balance)


def balance(costs, stages):
    parts = [costs]
    for _ in range(stages - 1):
        worst = None
        for index, part in enumerate(parts):
            if len(part) > 1 and (worst is None or sum(part) > sum(parts[worst])):
                worst = index
        part = parts.pop(worst)
        middle, least = 1, None
        for end in range(1, len(part)):
            time = max(sum(part[:end]), sum(part[end:]))
            if least is None or time < least:
                middle, least = end, time
        parts.insert(worst, part[middle:])
        parts.insert(worst, part[:middle])
    return list(map(len, parts))
