# misconception: others-cleared
    # STEP 3: go on from the gradient that is handed in
        x, y = self._kept[i]
        y.backward(gradient)
        if i == 0:
            self._kept = {}
        return x.grad
    # END
