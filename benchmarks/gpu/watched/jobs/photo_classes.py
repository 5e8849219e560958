"""ResNet-50 on photos of 224 pixels with automatic mixed precision."""

import argparse

import torch
import torch.nn.functional as F
from stopwatch import Stopwatch
from torchvision.models import resnet18, resnet50

cuda = torch.cuda.is_available()


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=256 if cuda else 2)
    parser.add_argument("--side", type=int, default=224 if cuda else 32)
    parser.add_argument("--lr", type=float, default=0.1)
    return parser.parse_args()


def main():
    args = parse()
    device = torch.device("cuda" if cuda else "cpu")
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    net = (resnet50 if cuda else resnet18)(num_classes=1000).to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(net.parameters(), args.lr, momentum=0.9, weight_decay=5e-5, nesterov=True, fused=True)

    photos, labels = [], []
    for _ in range(3):
        photo = torch.randint(0, 256, (args.batch, 3, args.side, args.side), dtype=torch.uint8)
        photo = photo.contiguous(memory_format=torch.channels_last)
        label = torch.randint(1000, (args.batch,))
        photos.append(photo.pin_memory() if cuda else photo)
        labels.append(label.pin_memory() if cuda else label)
    mean = torch.tensor([123.7, 116.3, 103.5], device=device).view(1, 3, 1, 1)
    scale = 1 / torch.tensor([58.4, 57.1, 57.4], device=device).view(1, 3, 1, 1)

    clock = Stopwatch()
    step = 0
    while True:
        photo = photos[step % 3].to(device, non_blocking=True)
        label = labels[step % 3].to(device, non_blocking=True)
        photo = ((photo - mean) * scale).to(torch.bfloat16)
        with torch.autocast(device.type, torch.bfloat16):
            loss = F.cross_entropy(net(photo), label, label_smoothing=0.1)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        step += 1
        if step % 50 == 0:
            print(f"step {step} loss {loss.item():.3f}")
        if clock.tick():
            break


if __name__ == "__main__":
    main()
