# misconception: returns-nothing
    # STEP 3: go on from the gradient that is handed in
        x, y = self._kept.pop(i)
        y.backward(gradient)
        x.grad
    # END
