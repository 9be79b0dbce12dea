# misconception: no-pipeline
    # STEP 4
    GPipe = pipeline_of(args.engine)
    pipeline = GPipe(model, balance, devices=devices, chunks=args.num_microbatches, checkpoint=args.checkpoint)
    # END
