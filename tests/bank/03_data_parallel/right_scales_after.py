import torch


def share(rows, rank):
    total = torch.tensor([rows])
    rank.start_all_reduce(total).wait()
    return rows / int(total)


def finish(handles):
    while handles:
        handles.pop(0).wait()


def begin(parameter, share, rank):
    with torch.no_grad():
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        else:
            parameter.grad.copy_(parameter.grad * share)
    return rank.start_all_reduce(parameter.grad)


def average(parameters, share, rank):
    finish([begin(parameter, share, rank) for parameter in parameters])


def backward(loss, parameters, share, rank):
    queue, complete, handles = iter(parameters[::-1]), {}, []
    head = [next(queue, None)]

    def advance():
        while head[0] is not None and complete.get(id(head[0])):
            handles.append(begin(head[0], share, rank))
            head[0] = next(queue, None)

    def hook(parameter):
        complete[id(parameter)] = True
        advance()

    hooks = list(map(lambda parameter: parameter.register_post_accumulate_grad_hook(hook), parameters))
    torch.autograd.backward([loss])
    for parameter in parameters:
        complete[id(parameter)] = True
    advance()
    finish(handles)
    for each in hooks:
        each.remove()
