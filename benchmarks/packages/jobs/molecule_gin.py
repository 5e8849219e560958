"""Predict a property of molecule-like graphs with positional encodings."""

import tempfile

import torch
import torch_geometric.transforms as T
from clock import Clock, arguments
from torch import nn
from torch_geometric.data import Data, InMemoryDataset
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GINEConv, global_add_pool
from torch_geometric.utils import to_undirected


class Molecules(InMemoryDataset):
    def __init__(self, root, transform=None, pre_transform=None):
        super().__init__(root, transform, pre_transform)
        self.load(self.processed_paths[0])

    @property
    def processed_file_names(self):
        return ["molecules.pt"]

    def process(self):
        graphs = [self.make_graph(int(size)) for size in torch.randint(30, 90, (640,))]
        if self.pre_transform is not None:
            graphs = [self.pre_transform(graph) for graph in graphs]
        self.save(graphs, self.processed_paths[0])

    @staticmethod
    def make_graph(size):
        chain = torch.stack([torch.arange(size - 1), torch.arange(1, size)])
        rings = torch.randint(size, (2, size // 5))
        edges = to_undirected(torch.cat([chain, rings], dim=1))
        return Data(
            x=torch.randn(size, 16),
            edge_index=edges,
            edge_attr=torch.randn(edges.shape[1], 48),
            y=torch.randn(1),
        )


class Net(nn.Module):
    def __init__(self, width=48, depth=4):
        super().__init__()
        self.nodes = nn.Linear(16 + 8, width)
        self.convs = nn.ModuleList(
            GINEConv(nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width)))
            for _ in range(depth)
        )
        self.out = nn.Linear(width, 1)

    def forward(self, data):
        x = self.nodes(torch.cat([data.x, data.laplacian_eigenvector_pe], dim=1))
        for conv in self.convs:
            x = conv(x, data.edge_index, data.edge_attr).relu()
        return self.out(global_add_pool(x, data.batch)).squeeze(1)


def main():
    args = arguments(steps=260)
    clock = Clock()
    torch.manual_seed(0)
    encoding = T.AddLaplacianEigenvectorPE(k=8)
    root = tempfile.mkdtemp()
    dataset = Molecules(root, pre_transform=encoding) if args.fixed else Molecules(root, transform=encoding)
    loader = DataLoader(dataset, batch_size=64, shuffle=True)
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    while clock.count < args.steps:
        for data in loader:
            loss = nn.functional.mse_loss(model(data), data.y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            clock.tick()
            if clock.count == args.steps:
                break
    clock.report()


if __name__ == "__main__":
    main()
