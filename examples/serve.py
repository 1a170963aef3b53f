"""Serves an artifact with FastAPI: make one (docs/guides/deploying.md), then ``ARTIFACT=out/classifier.fla uvicorn serve:app``."""

from __future__ import annotations

import os

import torch
from fastapi import FastAPI, HTTPException

import fuselens

app = FastAPI()
model = fuselens.load(os.environ.get("ARTIFACT", "classifier.fla"))


@app.post("/predict")
def predict(rows: list[list[float]]) -> list[list[float]]:
    """The scores of each row. A batch that the artifact was not made for is the caller's error."""
    try:
        return model(torch.tensor(rows)).tolist()
    except fuselens.ArtifactError as error:
        raise HTTPException(422, error.diagnostic.message) from error
