// The virtual documents of a function, arranged for a picker.

import type { StageDocument } from "../server/protocol";
import { parseAddress } from "./uris";

export interface StageGroup {
  title: string;
  documents: StageDocument[];
}

/** Documents by graph, in the server's order; those about the whole function come first. */
export function byGraph(documents: readonly StageDocument[]): StageGroup[] {
  const groups = new Map<string, StageDocument[]>();
  for (const document of documents) {
    const address = parseAddress(document.uri);
    const key = address ? `${address.function}\n${address.graph}` : "\n";
    groups.set(key, [...(groups.get(key) ?? []), document]);
  }
  const functions = new Set([...groups.keys()].map((key) => key.split("\n")[0]));
  return [...groups].map(([key, members]) => {
    const [name = "", graph = ""] = key.split("\n");
    const part = graph === "" ? "whole function" : graph.replace(/^graph(\d+)$/, "graph $1");
    return { title: functions.size > 1 && name !== "" ? `${name} · ${part}` : part, documents: members };
  });
}

/**
 * Where to look first in generated source, counted from 1: at the line that came from `place` ("toy.py:12"), if there is one, else
 * at the first kernel, past what every file begins with. undefined when the text has no kernel.
 */
export function kernelLine(text: string, place?: string): number | undefined {
  const lines = text.split("\n");
  const from = place === undefined ? -1 : lines.findIndex((line) => new RegExp(`\\b${escaped(place)}(?!\\d)`).test(line));
  const found = from >= 0 ? from : lines.findIndex((line) => /^\/\/ (?:kernel )?\w+_\d+:|^extern "C" void \w+_\d+\(|^@triton\.jit/.test(line));
  return found >= 0 ? found + 1 : undefined;
}

function escaped(text: string): string {
  return text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
}
