import torch
import torch.nn as nn
import torch.nn.functional as F


class TextTransformer(nn.Module):
    def __init__(self, vocab_size, num_classes, max_len, d_model=128, nhead=4, num_layers=2, dropout=0.1):
        super().__init__()
        self.tok = nn.Embedding(vocab_size, d_model, padding_idx=0)
        self.pos = nn.Parameter(torch.zeros(1, max_len, d_model))
        layer = nn.TransformerEncoderLayer(d_model, nhead, 4 * d_model, dropout, activation="gelu",
                                           batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, num_layers, enable_nested_tensor=False)
        self.head = nn.Linear(d_model, num_classes)
        nn.init.trunc_normal_(self.pos, std=0.02)

    def forward(self, input_ids):
        pad = input_ids.eq(0)
        x = self.tok(input_ids) + self.pos[:, : input_ids.size(1)]
        x = self.encoder(x, src_key_padding_mask=pad)
        keep = (~pad).unsqueeze(-1).to(x.dtype)
        return self.head((x * keep).sum(1) / keep.sum(1).clamp(min=1))


class TextCNN(nn.Module):
    def __init__(self, vocab_size, num_classes, d_model=128, kernel_sizes=(3, 4, 5), channels=100):
        super().__init__()
        self.emb = nn.Embedding(vocab_size, d_model, padding_idx=0)
        self.convs = nn.ModuleList(nn.Conv1d(d_model, channels, k) for k in kernel_sizes)
        self.fc = nn.Linear(channels * len(kernel_sizes), num_classes)

    def forward(self, input_ids):
        x = self.emb(input_ids).transpose(1, 2)
        x = torch.cat([F.relu(c(x)).amax(-1) for c in self.convs], 1)
        return self.fc(F.dropout(x, 0.5, self.training))
