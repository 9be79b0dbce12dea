# misconception: callers-tensor
    # STEP 2: a graph that ends at the borders of this stage
        if x.is_floating_point():
            x.requires_grad_()
        y = self.module(x)
        self._kept[i] = x, y
        return y.detach()
    # END
