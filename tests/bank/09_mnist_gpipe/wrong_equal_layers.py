# misconception: not-measured
    # STEP 3
    if isinstance(args.balance_by, list):
        balance = args.balance_by
    else:
        balance = [len(model) // len(devices)] * len(devices)
        balance[-1] += len(model) - sum(balance)
    # END
