# misconception: multiples
    # STEP 1: take the layers stage by stage
    return [model[j * n:(j + 1) * n].to(device) for j, (n, device) in enumerate(zip(balance, devices))]
    # END
