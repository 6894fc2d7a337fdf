import torch
import torch.nn.functional as F
from torch import nn

import lipforge as lf


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.conv1, self.conv2 = (nn.Conv2d(c, 16, 3, padding=1) for c in (3, 16, 16))
        self.head = nn.Linear(16, 10)

    def forward(self, x):
        x = F.relu(self.stem(x))
        return self.head((x + self.conv2(F.relu(self.conv1(x)))).mean((2, 3)))


model = Net().eval()
print(lf.forge_(model, torch.rand(64, 3, 32, 32), mask=lf.Step(), ratio=2**-7).bounds)
lf.save_recipe("recipe.json", model)
