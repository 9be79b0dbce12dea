# misconception: chunks-not-passed
    # STEP 4
    GPipe = pipeline_of(args.engine)
    model = GPipe(model, balance, devices=devices, chunks=8, checkpoint=args.checkpoint)
    # END
