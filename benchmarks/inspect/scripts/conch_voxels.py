"""Conch: points into voxels, with atomic counters."""

import torch
from conch.ops.vision.voxelization import VoxelizationParameter, generate_voxels

torch.manual_seed(0)
parameter = VoxelizationParameter((0.0, 0.0, 0.0), (4.0, 4.0, 2.0), (1.0, 1.0, 1.0), 8)
points = torch.rand(300, 4, device="cuda") * 4
filled, features, places, counts = generate_voxels(points, parameter)
number = int(filled)
print(number, counts[:number].sum().item(), places[:number, :3].sum().item())
