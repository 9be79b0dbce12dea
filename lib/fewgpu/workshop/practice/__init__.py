"""What exercises are tried on: ranks on a network with a virtual clock (`ranks`), GPUs that any machine has (`gpus`).
"""
