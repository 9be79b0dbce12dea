# misconception: numbers-ignored
    # STEP 3
    micro_batch = torch.rand(args.batchsize // args.num_microbatches, 1, 28, 28)
    balance = balance_by_time(len(devices), model, micro_batch)
    # END
