"""Embeds scanned herbarium sheets for similarity search: ViT-B/16, 128 sheets a request, vectors handed back in host memory."""

import torch

from stopwatch import Stopwatch

gpu = torch.cuda.is_available()
device = "cuda" if gpu else "cpu"
dtype = torch.bfloat16 if gpu else torch.float32
SHEETS = 128 if gpu else 2
SIDE = 256 if gpu else 64


def backbone():
    name = "vit_base_patch16_224" if gpu else "vit_tiny_patch16_224"
    try:
        import timm
    except ImportError:
        return torch.nn.Sequential(torch.nn.Conv2d(3, 192, 16, 16), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten())
    return timm.create_model(name, pretrained=False, num_classes=0, img_size=SIDE, class_token=False, global_pool="avg")


class Service:
    def __init__(self, model, width, slots=3):
        self.model = model
        self.vectors = [torch.empty(SHEETS, width, pin_memory=gpu) for _ in range(slots)]
        self.ready = [torch.cuda.Event() if gpu else None for _ in range(slots)]
        self.mean = torch.tensor([0.5, 0.5, 0.5], device=device, dtype=dtype).view(1, 3, 1, 1)
        self.served = 0

    @torch.inference_mode()
    def submit(self, sheets):
        slot = self.served % len(self.vectors)
        if gpu and self.served >= len(self.vectors):
            self.ready[slot].synchronize()
        pixels = sheets.to(device, non_blocking=True).to(dtype).div_(255).sub_(self.mean).mul_(2)
        vectors = torch.nn.functional.normalize(self.model(pixels).float(), dim=-1)
        self.vectors[slot].copy_(vectors, non_blocking=True)
        if gpu:
            self.ready[slot].record()
        self.served += 1


torch.manual_seed(5)
model = backbone().to(device, dtype).eval()
queue = [torch.randint(256, (SHEETS, 3, SIDE, SIDE), dtype=torch.uint8) for _ in range(8)]
if gpu:
    queue = [sheets.pin_memory() for sheets in queue]
service = Service(model, 768 if gpu else 192)
clock = Stopwatch()
while True:
    service.submit(queue[service.served % len(queue)])
    if clock.tick():
        break
