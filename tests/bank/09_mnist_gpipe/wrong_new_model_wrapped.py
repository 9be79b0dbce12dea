# misconception: other-weights
    # STEP 4: a model for the pipeline
    GPipe = pipeline_of(args.engine)
    model = GPipe(models.build(args.arch), balance, devices=devices, chunks=args.num_microbatches,
                  checkpoint=args.checkpoint)
    # END
