# misconception: others-cleared
    # STEP 3: go on from the gradient that is handed in
        x, y = self._kept[i]
        y.backward(gradient)
        self._kept.clear()
        return x.grad
    # END
