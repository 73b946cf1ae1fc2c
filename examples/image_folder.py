"""A folder of images as a `Dataset` whose transform is random, shared out among ten clients."""

from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import progfed


class Images(Dataset[tuple[Tensor, int]]):
    def __init__(self, folder: Path, part: str, noise: float = 0.0) -> None:
        self.files, self.noise = sorted(folder.glob(f"{part}-*.npy")), noise

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, place: int) -> tuple[Tensor, int]:
        image, label = torch.from_numpy(np.load(self.files[place])), int(self.files[place].name.split("-")[1])
        return image + self.noise * torch.randn(1, 16, 16), label


def main(folder: Path, rounds: int = 12) -> None:
    for i in range(300):  # stands for the images that you have: stripes in three directions
        waves = np.sin(np.tensordot([(0, 1), (1, 0), (1, 1)][i % 3], np.mgrid[:16, :16], 1) + i)
        np.save(folder / f"{'train' if i < 240 else 'test'}-{i % 3}-{i}.npy", waves[None].astype(np.float32))
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Conv2d(width, 8, 3, 2, 1), nn.ReLU()) for width in (1, 8, 8)]
    net = nn.Sequential(*layers, nn.Flatten(), nn.Linear(32, 3))
    model = progfed.split(net, stages=3, example=torch.zeros(1, 1, 16, 16))
    clients = progfed.partitioned(Images(folder, "train", noise=0.3), clients=10, how="dirichlet:0.5")
    data = progfed.from_datasets(clients, test=Images(folder, "test"), classes=3)
    local = progfed.Local(epochs=2, batch=10, momentum=0.9)
    recipe = progfed.Recipe(schedule=progfed.progressive(rounds, stages=3), cohort=5, local=local)
    experiment = progfed.Experiment(name="images", model=model, data=data, recipe=recipe)
    print(f"reported:         {progfed.run(experiment, folder / 'run')['metric']:.1f} %")
    net.load_state_dict(load_file(folder / "run" / "exported.safetensors"))
    right = [net(images).argmax(1) == labels for images, labels in DataLoader(Images(folder, "test"), 20)]
    print(f"in plain PyTorch: {100 * torch.cat(right).float().mean():.1f} %")


if __name__ == "__main__":
    Path("stripes").mkdir(exist_ok=True)
    main(Path("stripes"))
