class Stage:
    def __init__(self, module):
        self.module = module
        self.ways_back = {}

    def forward(self, i, x):
        x = x.detach().requires_grad_(x.is_floating_point())
        y = self.module(x)

        def way_back(gradient):
            y.backward(gradient)
            return x.grad

        self.ways_back[i] = way_back
        return y.detach()

    def backward(self, i, gradient):
        return self.ways_back.pop(i)(gradient)


def step(stages, micro_batches, targets, loss_fn):
    """Wave by wave: what could run at the same time comes together."""
    count, last = len(micro_batches), len(stages) - 1
    values = dict(enumerate(micro_batches))
    for clock in range(count + last):
        for j in range(last, -1, -1):
            i = clock - j
            if 0 <= i < count:
                values[i] = stages[j].forward(i, values[i])
    rows = sum(t.size(0) for t in targets)
    total = 0
    for i in values:
        values[i].requires_grad_()
        loss = loss_fn(values[i], targets[i]).mul(targets[i].size(0)).div(rows)
        loss.backward()
        total += float(loss)
        values[i] = values[i].grad
    for clock in range(count + last):
        for j in range(last + 1):
            i = clock - (last - j)
            if 0 <= i < count:
                values[i] = stages[j].backward(i, values[i])
    return total
