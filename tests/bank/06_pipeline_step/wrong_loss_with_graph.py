# misconception: loss-with-graph
    # STEP 4: forwards, then the loss and the backwards
    outputs = []
    for i, x in enumerate(micro_batches):
        for stage in stages:
            x = stage.forward(i, x)
        outputs.append(x)
    rows, total = sum(map(len, targets)), 0.0
    for i, output in enumerate(outputs):
        output.requires_grad_()
        loss = loss_fn(output, targets[i]) * len(targets[i]) / rows
        loss.backward()
        total += loss
        gradient = output.grad
        for stage in reversed(stages):
            gradient = stage.backward(i, gradient)
    return total
    # END
