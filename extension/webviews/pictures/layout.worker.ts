// Lays graphs out beside the page, which goes on answering meanwhile.

import type { FusedGraph } from "../../src/server/protocol";
import { arranged, type Options } from "./scene";

export interface Question {
  number: number;
  graphs: FusedGraph[];
  options: Options;
}

onmessage = ({ data: { number, graphs, options } }: MessageEvent<Question>): void => {
  const began = performance.now();
  const scene = arranged(graphs, options);
  postMessage({ number, scene, milliseconds: performance.now() - began });
};
