# misconception: checkpoint-not-passed
    # STEP 4
    GPipe = pipeline_of(args.engine)
    model = GPipe(model, balance, devices=devices, chunks=args.num_microbatches)
    # END
