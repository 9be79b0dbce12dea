# misconception: unsolved
    # STEP 3
    # END
