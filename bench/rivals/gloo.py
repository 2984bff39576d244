"""Gloo, as torch.distributed on CPUs uses it."""

import os

import numpy as np

from rivals.rival import Facts


class Gloo:
    """Settings: `directory` (where the ranks find each other), `interface`."""

    def __init__(self, settings: Facts) -> None:
        os.environ["GLOO_SOCKET_IFNAME"] = str(settings["interface"])
        self.rank = int(settings["rank"])
        self._size = int(settings["size"])
        self._store = f"file://{settings['directory']}/gloo"

    def offer(self) -> Facts:
        return {}

    def connect(self, offers: list[Facts]) -> Facts:
        import torch
        import torch.distributed

        self._torch = torch
        torch.distributed.init_process_group("gloo", init_method=self._store, rank=self.rank, world_size=self._size)
        return {"version": torch.__version__}

    def all_reduce(self, values: np.ndarray) -> None:
        self._torch.distributed.all_reduce(self._torch.from_numpy(values))

    def close(self) -> None:
        self._torch.distributed.destroy_process_group()
