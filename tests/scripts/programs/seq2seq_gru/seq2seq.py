from __future__ import unicode_literals, print_function, division
import random
import time
import math

import torch
import torch.nn as nn
from torch import optim
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset, RandomSampler

from lang import *

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
random.seed(7)
torch.manual_seed(7)

MAX_LENGTH = 24
hidden_size = 128
batch_size = 32
teacher_forcing_ratio = 0.5


class EncoderRNN(nn.Module):
    def __init__(self, input_size, hidden_size, dropout_p=0.1):
        super(EncoderRNN, self).__init__()
        self.hidden_size = hidden_size
        self.embedding = nn.Embedding(input_size, hidden_size, padding_idx=PAD_token)
        self.gru = nn.GRU(hidden_size, hidden_size, batch_first=True)
        self.dropout = nn.Dropout(dropout_p)

    def forward(self, input):
        return self.gru(self.dropout(self.embedding(input)))


class BahdanauAttention(nn.Module):
    def __init__(self, hidden_size):
        super(BahdanauAttention, self).__init__()
        self.Wa = nn.Linear(hidden_size, hidden_size)
        self.Ua = nn.Linear(hidden_size, hidden_size)
        self.Va = nn.Linear(hidden_size, 1)

    def forward(self, query, keys):
        scores = self.Va(torch.tanh(self.Wa(query) + self.Ua(keys))).squeeze(2).unsqueeze(1)
        weights = F.softmax(scores, dim=-1)
        return torch.bmm(weights, keys), weights


class AttnDecoderRNN(nn.Module):
    """ one step at a time """
    def __init__(self, hidden_size, output_size, dropout_p=0.1):
        super(AttnDecoderRNN, self).__init__()
        self.embedding = nn.Embedding(output_size, hidden_size)
        self.attention = BahdanauAttention(hidden_size)
        self.gru = nn.GRU(2 * hidden_size, hidden_size, batch_first=True)
        self.out = nn.Linear(hidden_size, output_size)
        self.dropout = nn.Dropout(dropout_p)

    def forward(self, input, hidden, encoder_outputs):
        embedded = self.dropout(self.embedding(input))
        context, attn_weights = self.attention(hidden.permute(1, 0, 2), encoder_outputs)
        output, hidden = self.gru(torch.cat((embedded, context), dim=2), hidden)
        return self.out(output), hidden, attn_weights


def get_dataloader(batch_size):
    lang_in, lang_out = CharLang('fra'), CharLang('eng')
    pairs = read_pairs('data/eng-fra.txt', reverse=True, limit=20000)
    print("Read %s sentence pairs" % len(pairs))
    src = torch.tensor([lang_in.encode(a, MAX_LENGTH) for a, _ in pairs])
    tgt = torch.tensor([lang_out.encode(b, MAX_LENGTH) for _, b in pairs])
    ds = TensorDataset(src.to(device), tgt.to(device))
    return lang_in, lang_out, DataLoader(ds, sampler=RandomSampler(ds), batch_size=batch_size)


def decode_sequence(decoder, encoder_outputs, encoder_hidden, target_tensor=None):
    bsz = encoder_outputs.size(0)
    decoder_input = torch.empty(bsz, 1, dtype=torch.long, device=device).fill_(SOS_token)
    decoder_hidden = encoder_hidden
    outputs = []
    use_teacher_forcing = target_tensor is not None and random.random() < teacher_forcing_ratio
    for i in range(MAX_LENGTH):
        step_out, decoder_hidden, _ = decoder(decoder_input, decoder_hidden, encoder_outputs)
        outputs.append(step_out)
        if use_teacher_forcing:
            decoder_input = target_tensor[:, i].unsqueeze(1)
        else:
            _, topi = step_out.topk(1)
            decoder_input = topi.squeeze(-1).detach()
    return F.log_softmax(torch.cat(outputs, dim=1), dim=-1)


def as_minutes(s):
    m = math.floor(s / 60)
    return '%dm %ds' % (m, s - m * 60)


def time_since(since, percent):
    s = time.time() - since
    return '%s (- %s)' % (as_minutes(s), as_minutes(s / percent - s))


def train_epoch(dataloader, encoder, decoder, enc_opt, dec_opt, criterion):
    total = 0
    for input_tensor, target_tensor in dataloader:
        enc_opt.zero_grad()
        dec_opt.zero_grad()
        encoder_outputs, encoder_hidden = encoder(input_tensor)
        log_probs = decode_sequence(decoder, encoder_outputs, encoder_hidden, target_tensor)
        loss = criterion(log_probs.view(-1, log_probs.size(-1)), target_tensor.view(-1))
        loss.backward()
        for m in (encoder, decoder):
            nn.utils.clip_grad_norm_(m.parameters(), 5.0)
        enc_opt.step()
        dec_opt.step()
        total += loss.item()
    return total / len(dataloader)


def train(dataloader, encoder, decoder, n_epochs, learning_rate=0.001, print_every=5):
    start = time.time()
    print_loss_total = 0
    enc_opt = optim.Adam(encoder.parameters(), lr=learning_rate)
    dec_opt = optim.Adam(decoder.parameters(), lr=learning_rate)
    criterion = nn.NLLLoss(ignore_index=PAD_token)
    for epoch in range(1, n_epochs + 1):
        print_loss_total += train_epoch(dataloader, encoder, decoder, enc_opt, dec_opt, criterion)
        if epoch % print_every == 0:
            print('%s (%d %d%%) %.4f' % (time_since(start, epoch / n_epochs), epoch,
                                         epoch / n_epochs * 100, print_loss_total / print_every))
            print_loss_total = 0
            torch.save([encoder.state_dict(), decoder.state_dict()], 'attn_seq2seq.pth')


input_lang, output_lang, train_dataloader = get_dataloader(batch_size)
encoder = EncoderRNN(input_lang.n_chars, hidden_size).to(device)
decoder = AttnDecoderRNN(hidden_size, output_lang.n_chars).to(device)
encoder = torch.compile(encoder)
decoder = torch.compile(decoder)
train(train_dataloader, encoder, decoder, 80)

encoder.eval(); decoder.eval()
with torch.no_grad():
    src, tgt = next(iter(train_dataloader))
    pred = decode_sequence(decoder, *encoder(src)).argmax(-1)
    for row in pred[:5].tolist():
        print(''.join(output_lang.index2char[i] for i in row))
