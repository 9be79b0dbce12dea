"""What the model states of data parallelism take, shared out or not (ZeRO, arXiv 1910.02054)."""


def bytes_per_rank(parameters: float, ranks: int, stage: int, *, K: float = 12,
                   parameter_bytes: float = 2, gradient_bytes: float = 2) -> float:
    """What the model states take on each rank (ZeRO, figure 1 and table 1): stage 0 is plain data
    parallelism. `K` bytes a parameter are the optimizer's: 12 for Adam in mixed precision, 8 for Adam
    in float32 (with 4 and 4 bytes for parameter and gradient)."""
    if stage not in (0, 1, 2, 3) or ranks < 1:
        raise ValueError(f'a stage is 0, 1, 2 or 3, on at least one rank, not stage {stage} on {ranks}')
    shared = [parameter_bytes, gradient_bytes, K][3 - stage:]
    kept = [parameter_bytes, gradient_bytes, K][:3 - stage]
    return parameters * (sum(kept) + sum(shared) / ranks)
