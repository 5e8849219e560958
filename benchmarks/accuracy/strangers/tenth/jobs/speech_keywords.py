# Keyword spotting: log-mel front end and a small convolutional-recurrent net.
import argparse, json, math, time
import torch
import torch.nn as nn
import torch.nn.functional as F

SR = 16000
N_FFT, HOP, N_MELS = 512, 160, 64
WORDS = ["yes", "no", "up", "down", "left", "right", "on", "off", "stop", "go"]


def hz_to_mel(f):
    return 2595.0 * math.log10(1.0 + f / 700.0)


def mel_to_hz(m):
    return 700.0 * (10.0 ** (m / 2595.0) - 1.0)


def mel_filters(n_fft=N_FFT, n_mels=N_MELS, fmin=20.0, fmax=SR / 2):
    lo, hi = hz_to_mel(fmin), hz_to_mel(fmax)
    pts = [mel_to_hz(lo + (hi - lo) * i / (n_mels + 1)) for i in range(n_mels + 2)]
    freqs = torch.linspace(0, SR / 2, n_fft // 2 + 1)
    fb = torch.zeros(n_mels, n_fft // 2 + 1)
    for m in range(n_mels):
        left, mid, right = pts[m : m + 3]
        up = (freqs - left) / (mid - left)
        down = (right - freqs) / (right - mid)
        fb[m] = torch.clamp(torch.minimum(up, down), min=0)
    return fb


class LogMel:
    def __init__(self, keep=False):
        self.keep = keep
        self.fb = self.window = None

    def __call__(self, wav):
        if self.fb is None or not self.keep:
            self.window = torch.hann_window(N_FFT)
            self.fb = mel_filters()
        spec = torch.stft(wav, N_FFT, HOP, window=self.window, return_complex=True).abs() ** 2
        return torch.log(self.fb @ spec + 1e-6)


class KWS(nn.Module):
    def __init__(self, ch=48):
        super().__init__()
        self.c1 = nn.Conv1d(N_MELS, ch * 2, 5, padding=2)
        self.c2 = nn.Conv1d(ch * 2, ch * 2, 5, stride=2, padding=2)
        self.gru = nn.GRU(ch * 2, 96, batch_first=True)
        self.out = nn.Linear(96, len(WORDS))

    def forward(self, x):
        x = F.relu(self.c2(F.relu(self.c1(x))))
        h, _ = self.gru(x.transpose(1, 2))
        return self.out(h.mean(1))


def utterance(gen):
    label = int(torch.randint(len(WORDS), (1,), generator=gen))
    t = torch.arange(SR) / SR
    f0 = 180 + 90 * label
    wav = torch.sin(2 * math.pi * f0 * t) + 0.5 * torch.randn(SR, generator=gen)
    return wav, label


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--better", action="store_true")
    parser.add_argument("--times", default=None)
    parser.add_argument("--seconds", type=float, default=14.0)
    args = parser.parse_args()

    torch.manual_seed(3)
    gen = torch.Generator().manual_seed(3)
    corpus = [utterance(gen) for _ in range(400)]
    frontend = LogMel(keep=args.better)
    model = KWS()
    optim = torch.optim.AdamW(model.parameters(), 2e-3)
    step_times, t_begin = [], time.time()
    t_prev = t_begin
    while t_prev - t_begin < args.seconds:
        pick = torch.randint(len(corpus), (24,)).tolist()
        feats, labels = [], []
        for i in pick:
            wav, y = corpus[i]
            shift = int(torch.randint(-800, 800, (1,)))
            feats.append(frontend(wav.roll(shift)))
            labels.append(y)
        logits = model(torch.stack(feats))
        loss = F.cross_entropy(logits, torch.tensor(labels))
        optim.zero_grad()
        loss.backward()
        optim.step()
        if len(step_times) % 20 == 0:
            print(f"{len(step_times):5d}  loss {loss.item():.3f}")
        t = time.time()
        step_times.append(t - t_prev)
        t_prev = t
    if args.times:
        with open(args.times, "w") as f:
            json.dump(step_times, f)
