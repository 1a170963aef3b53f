import math
import torch
import torch.nn as nn


def mel_filterbank(n_mels, n_fft, sr, fmin=20.0, fmax=None):
    fmax = fmax or sr / 2
    to_mel = lambda f: 2595.0 * math.log10(1 + f / 700.0)
    mels = torch.linspace(to_mel(fmin), to_mel(fmax), n_mels + 2)
    hz = 700 * (10 ** (mels / 2595) - 1)
    freqs = torch.linspace(0, sr / 2, n_fft // 2 + 1)
    up = (freqs[None] - hz[:-2, None]) / (hz[1:-1] - hz[:-2])[:, None]
    down = (hz[2:, None] - freqs[None]) / (hz[2:] - hz[1:-1])[:, None]
    return torch.clamp(torch.minimum(up, down), min=0)


class LogMel(nn.Module):
    def __init__(self, sr=8000, n_fft=256, hop=80, n_mels=40):
        super().__init__()
        self.n_fft, self.hop = n_fft, hop
        self.register_buffer("window", torch.hann_window(n_fft), persistent=False)
        self.register_buffer("fb", mel_filterbank(n_mels, n_fft, sr), persistent=False)

    @torch.no_grad()
    def forward(self, wav):
        # (B, 1, T) -> (B, 1, n_mels, frames)
        spec = torch.stft(wav.squeeze(1), self.n_fft, hop_length=self.hop, window=self.window,
                          center=True, return_complex=True)
        power = spec.real.pow(2) + spec.imag.pow(2)
        x = torch.log(self.fb @ power + 1e-6)
        x = (x - x.mean(dim=(1, 2), keepdim=True)) / (x.std(dim=(1, 2), keepdim=True) + 1e-5)
        return x.unsqueeze(1)
