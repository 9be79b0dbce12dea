# misconception: default-device
    # STEP 5
    return x.cuda(), y.cuda()
    # END
