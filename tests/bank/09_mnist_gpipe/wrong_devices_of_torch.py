# misconception: devices-not-passed
    # STEP 4
    GPipe = pipeline_of(args.engine)
    model = GPipe(model, balance, devices=[d.torch for d in devices], chunks=args.num_microbatches, checkpoint=args.checkpoint)
    # END
