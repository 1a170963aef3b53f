cora = dict(
    url="https://linqs-data.soe.ucsc.edu/public/lbc/cora.tgz",
    archive="data/cora.tgz",
    num_nodes=2708,
    num_features=1433,
    num_classes=7,
    num_train_per_class=20,
)

model = dict(hidden=8, heads=8, out_heads=1, dropout=0.6, alpha=0.2)

optim = dict(lr=5e-3, weight_decay=5e-4, epochs=300, patience=100)
