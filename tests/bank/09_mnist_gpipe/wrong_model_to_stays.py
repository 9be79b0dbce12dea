# misconception: whole-model-moved
    # STEP 2
    model.to(devices[0].torch)
    # END
