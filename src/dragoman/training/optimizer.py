"""Adam as the paper uses it (Section 5.3)."""

import torch
from torch import nn

from dragoman.config import TrainingConfig


def build_optimizer(model: nn.Module, training: TrainingConfig) -> torch.optim.Adam:
    """Adam with β₁, β₂ and ε of the settings; a shared weight is one parameter and gets one update. The rate is set before each step."""
    return torch.optim.Adam(
        model.parameters(), lr=0.0, betas=(training.adam_beta1, training.adam_beta2), eps=training.adam_epsilon, fused=True
    )
