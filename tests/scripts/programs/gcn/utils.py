import numpy as np
import torch


def encode_onehot(labels):
    classes = sorted(set(labels))
    eye = np.identity(len(classes))
    table = {c: eye[i] for i, c in enumerate(classes)}
    return np.array([table[l] for l in labels], dtype=np.int32)


def normalize(mx):
    """Row-normalize"""
    rowsum = mx.sum(1)
    with np.errstate(divide='ignore'):
        r_inv = np.power(rowsum, -1.0)
    r_inv[np.isinf(r_inv)] = 0.
    return mx * r_inv[:, None]


def load_data(path="data/cora/", dataset="cora", sparse=False):
    print('Loading {} dataset...'.format(dataset))
    raw = np.genfromtxt("{}{}.content".format(path, dataset), dtype=np.dtype(str))
    features = raw[:, 1:-1].astype(np.float32)
    labels = encode_onehot(raw[:, -1])

    idx = np.array(raw[:, 0], dtype=np.int32)
    idx_map = {j: i for i, j in enumerate(idx)}
    edges_raw = np.genfromtxt("{}{}.cites".format(path, dataset), dtype=np.int32)
    edges = np.array([idx_map[e] for e in edges_raw.flatten()], dtype=np.int64).reshape(edges_raw.shape)
    n = labels.shape[0]
    adj = np.zeros((n, n), dtype=np.float32)
    adj[edges[:, 0], edges[:, 1]] = 1.
    adj = np.maximum(adj, adj.T)          # symmetric

    features = normalize(features)
    adj = normalize(adj + np.eye(n, dtype=np.float32))

    idx_train = torch.arange(140)
    idx_val = torch.arange(200, 500)
    idx_test = torch.arange(500, 1500)

    adj = torch.from_numpy(adj)
    if sparse:
        adj = adj.to_sparse()
    return (adj, torch.FloatTensor(features), torch.LongTensor(np.where(labels)[1]),
            idx_train, idx_val, idx_test)


def accuracy(output, labels):
    preds = output.max(1)[1].type_as(labels)
    return preds.eq(labels).double().sum() / len(labels)
