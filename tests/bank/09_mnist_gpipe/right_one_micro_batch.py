    # STEP 3
    micro_batch = torch.randn((args.batchsize + args.num_microbatches - 1) // args.num_microbatches, 1, 28, 28)
    if args.balance_by in ('time', 'memory'):
        how = {'time': balance_by_time, 'memory': balance_by_size}[args.balance_by]
        balance = how(len(devices), model, micro_batch)
    else:
        balance = list(args.balance_by)
    # END
    # STEP 4
    options = {'devices': devices, 'chunks': args.num_microbatches, 'checkpoint': args.checkpoint}
    model = pipeline_of(args.engine)(model, balance, **options)
    # END
    # STEP 5
    x = x.to(device=model.devices[0])
    y = y.to(device=model.devices[-1])
    return x, y
    # END
