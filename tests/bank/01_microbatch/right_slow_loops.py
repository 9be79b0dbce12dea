import torch


def deal(rows, players):
    """One row after the other, in turn."""
    hands = [0] * players
    for row in range(rows):
        hands[row % players] += 1
    return hands


def sizes(n, k):
    return tuple(hand for hand in deal(n, k) if hand > 0)


def scatter(mini, k):
    parts = []
    remaining = mini
    for hand in sizes(mini.shape[0], k):
        parts.append(remaining[:hand])
        remaining = remaining[hand:]
    return parts


def gather(parts):
    whole = parts[0]
    for part in parts[1:]:
        whole = torch.cat([whole, part])
    return whole


def mean_loss(losses, rows):
    total = 0
    for i in range(len(losses)):
        total = total + losses[i] * (rows[i] / sum(rows))
    return total
