    # STEP 3
    match args.balance_by:
        case 'time':
            rows = max(args.batchsize // args.num_microbatches, 1)
            balance = balance_by_time(args.devices, model, torch.zeros(rows, 1, 28, 28), timeout=0.5)
        case 'memory':
            balance = balance_by_size(args.devices, model, torch.zeros(args.batchsize, 1, 28, 28), chunks=args.num_microbatches)
        case layers:
            balance = tuple(layers)
    # END
    # STEP 5
    first, *_, last = model.devices
    return [x.to(first, non_blocking=True), y.to(last, non_blocking=True)]
    # END
