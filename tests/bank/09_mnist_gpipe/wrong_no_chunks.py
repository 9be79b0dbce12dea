# misconception: chunks-not-passed
    # STEP 4
    GPipe = pipeline_of(args.engine)
    model = GPipe(model, balance, devices=devices, checkpoint=args.checkpoint)
    # END
