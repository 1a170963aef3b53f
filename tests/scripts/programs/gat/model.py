import torch
from torch import nn
import torch.nn.functional as F


class GATLayer(nn.Module):
    def __init__(self, c_in, c_out, heads, concat=True, dropout=0.6, alpha=0.2):
        super().__init__()
        self.heads, self.c_out, self.concat = heads, c_out, concat
        self.W = nn.Linear(c_in, heads * c_out, bias=False)
        self.a_src = nn.Parameter(torch.empty(1, heads, c_out))
        self.a_dst = nn.Parameter(torch.empty(1, heads, c_out))
        self.bias = nn.Parameter(torch.zeros(heads * c_out if concat else c_out))
        self.p = dropout
        self.leaky = nn.LeakyReLU(alpha)
        for p in (self.W.weight, self.a_src, self.a_dst):
            nn.init.xavier_uniform_(p, gain=1.414)

    def forward(self, x, edge_index):
        N = x.shape[0]
        src, dst = edge_index
        h = self.W(F.dropout(x, self.p, self.training)).view(N, self.heads, self.c_out)
        s_src = (h * self.a_src).sum(-1)
        s_dst = (h * self.a_dst).sum(-1)
        e = self.leaky(s_src.index_select(0, src) + s_dst.index_select(0, dst))

        # softmax over the incoming edges of each node
        mx = torch.full((N, self.heads), float("-inf"), device=x.device)
        mx = mx.scatter_reduce(0, dst[:, None].expand(-1, self.heads), e.detach(), "amax")
        e = (e - mx.index_select(0, dst)).exp()
        den = torch.zeros(N, self.heads, device=x.device).index_add(0, dst, e)
        att = e / (den.index_select(0, dst) + 1e-16)
        att = F.dropout(att, self.p, self.training)

        out = torch.zeros_like(h)
        out.index_add_(0, dst, h.index_select(0, src) * att.unsqueeze(-1))
        out = out.flatten(1) if self.concat else out.mean(1)
        return out + self.bias


class GAT(nn.Module):
    def __init__(self, num_features, num_classes, hidden, heads, out_heads, dropout, alpha):
        super().__init__()
        self.conv1 = GATLayer(num_features, hidden, heads, True, dropout, alpha)
        self.conv2 = GATLayer(hidden * heads, num_classes, out_heads, False, dropout, alpha)

    def forward(self, data):
        x, edge_index = data
        x = F.elu(self.conv1(x, edge_index))
        return self.conv2(x, edge_index).log_softmax(-1)
