# misconception: balance-ignored
    # STEP 4
    GPipe = pipeline_of(args.engine)
    if args.balance_by in ('time', 'memory'):
        balance = [1] * (stages - 1) + [len(model) - stages + 1]
    model = GPipe(model, balance, devices=devices, chunks=args.num_microbatches, checkpoint=args.checkpoint)
    # END
