# misconception: not-moved
    # STEP 5
    return x, y
    # END
