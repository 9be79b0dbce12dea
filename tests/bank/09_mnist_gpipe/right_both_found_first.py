    # STEP 3
    sample = torch.rand(args.batchsize, 1, 28, 28)
    found = {
        'time': balance_by_time(len(devices), model, sample[:args.batchsize // args.num_microbatches], timeout=0.1),
        'memory': balance_by_size(len(devices), model, sample, chunks=args.num_microbatches, param_scale=3.0),
    }
    balance = args.balance_by if isinstance(args.balance_by, list) else found[args.balance_by]
    # END
