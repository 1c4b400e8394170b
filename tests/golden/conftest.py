"""Golden models are tiny: threads cost them more than they bring, and two waiting ones starve a busy machine."""

from __future__ import annotations

import torch

torch.set_num_threads(1)
