# misconception: count-for-rows
    # STEP 3
    if args.balance_by == 'time':
        balance = balance_by_time(len(devices), model, torch.rand(args.num_microbatches, 1, 28, 28))
    elif args.balance_by == 'memory':
        balance = balance_by_size(len(devices), model, torch.rand(args.batchsize, 1, 28, 28), chunks=args.num_microbatches)
    else:
        balance = args.balance_by
    # END
