// What belongs together in a file and in the document beside it: look-ups in what the server said.

import type { Correspondence, LinkedRow } from "../server/protocol";

/** Lines from `first` to `last`, counted from 0. */
export interface Run {
  first: number;
  last: number;
}

export class Links {
  private readonly rows: Map<number, LinkedRow>;
  private readonly documentRows: Map<number, LinkedRow>;
  private readonly byUserLine = new Map<number, LinkedRow[]>();
  /** The kernels that the document shows. */
  private readonly kernels: Set<number>;

  constructor(readonly data: Correspondence) {
    this.rows = new Map(data.source.map((row) => [row[0], row]));
    this.documentRows = new Map(data.shown.map((row) => [row[0], row]));
    this.kernels = new Set(data.shown.flatMap(([, kernels]) => kernels));
    for (const row of data.shown) {
      for (const line of row[2]) {
        const rows = this.byUserLine.get(line);
        if (rows === undefined) {
          this.byUserLine.set(line, [row]);
        } else {
          rows.push(row);
        }
      }
    }
  }

  /** The colour of a line of the file, if the document shows what became of it. */
  colourOfSource(line: number): number | undefined {
    const kernel = this.byUserLine.has(line) ? this.rows.get(line)?.[1].find((k) => this.kernels.has(k)) : undefined;
    return kernel === undefined ? undefined : this.data.kernels[kernel]?.colour;
  }

  colourOfShown(line: number): number | undefined {
    return this.data.kernels[this.documentRows.get(line)?.[1][0] ?? -1]?.colour;
  }

  /**
   * The lines of the document that a line of the file became: those that came from the fewest others, because a kernel's head
   * stands for all of its lines.
   */
  fromSource(line: number): number[] {
    const rows = this.byUserLine.get(line) ?? [];
    const least = Math.min(...rows.map(([, , lines]) => lines.length));
    return rows.filter(([, , lines]) => lines.length === least).map(([shown]) => shown);
  }

  /** The lines of the file that a line of the document came from. */
  fromShown(line: number): number[] {
    return this.documentRows.get(line)?.[2] ?? [];
  }

  /** The documents, of the form that is shown, that have something of a line of the file. */
  documentsOf(line: number): string[] {
    return (this.rows.get(line)?.[2] ?? []).flatMap((number) => this.data.documents[number] ?? []);
  }

  /** The first line of the document that is a kernel's. */
  get firstKernel(): number | undefined {
    return this.data.shown.find(([, kernels]) => kernels.length > 0)?.[0];
  }
}

/** Lines by colour, as few runs as there are. Lines without a colour are left out. */
export function byColour(lines: Iterable<number>, colourOf: (line: number) => number | undefined): Map<number, Run[]> {
  const out = new Map<number, Run[]>();
  for (const line of [...lines].sort((a, b) => a - b)) {
    const colour = colourOf(line);
    if (colour !== undefined) {
      out.set(colour, joined(out.get(colour) ?? [], line));
    }
  }
  return out;
}

/** Consecutive lines as runs. */
export function runs(lines: Iterable<number>): Run[] {
  return [...lines].sort((a, b) => a - b).reduce(joined, []);
}

function joined(found: Run[], line: number): Run[] {
  const last = found[found.length - 1];
  if (last !== undefined && last.last >= line - 1) {
    last.last = line;
  } else {
    found.push({ first: line, last: line });
  }
  return found;
}
