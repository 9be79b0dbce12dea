# misconception: unsolved
    # STEP 4
    # END
