# misconception: devices-not-passed
    # STEP 4
    GPipe = pipeline_of(args.engine)
    model = GPipe(model, balance, chunks=args.num_microbatches, checkpoint=args.checkpoint)
    # END
