# misconception: whole-model-moved
    # STEP 4
    GPipe = pipeline_of(args.engine)
    model = GPipe(model, balance, devices=devices, chunks=args.num_microbatches, checkpoint=args.checkpoint)
    model.to(devices[0].torch)
    # END
