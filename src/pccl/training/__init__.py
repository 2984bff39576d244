"""Training with PyTorch on top of the communicator. Only modules in here import torch."""
