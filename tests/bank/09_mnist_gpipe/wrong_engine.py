# misconception: engine-ignored
    # STEP 4
    from fewgpu import GPipe
    model = GPipe(model, balance, devices=devices, chunks=args.num_microbatches, checkpoint=args.checkpoint)
    # END
