# misconception: default-device
    # STEP 5
    return x.to('cuda:0'), y.to('cuda:1')
    # END
