# misconception: time-for-memory
    # STEP 3
    if isinstance(args.balance_by, str):
        micro_batch = torch.rand(args.batchsize, 1, 28, 28).chunk(args.num_microbatches)[0]
        balance = balance_by_time(len(devices), model, micro_batch)
    else:
        balance = args.balance_by
    # END
