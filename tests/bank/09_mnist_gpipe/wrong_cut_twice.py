# misconception: cut-twice
    # STEP 3
    sample = torch.rand(args.batchsize, 1, 28, 28)
    micro_batch = sample.chunk(args.num_microbatches)[0]
    if args.balance_by == 'time':
        balance = balance_by_time(len(devices), model, micro_batch)
    elif args.balance_by == 'memory':
        balance = balance_by_size(len(devices), model, micro_batch, chunks=args.num_microbatches)
    else:
        balance = args.balance_by
    # END
