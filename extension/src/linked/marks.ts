// The marks beside line numbers, as pictures: a bar for each kernel, a bolt where the graph breaks, an arrow where a run compiled
// again, how much of the last run's time was spent there, and a triangle that points down where code is compiled worse than at a revision
// (up where it is better).

import type { Correspondence } from "../server/protocol";

/** What one line has. */
export interface Mark {
  /** Colours of kernels; the first ones are drawn. */
  colours: readonly number[];
  breaks: boolean;
  recompiles: boolean;
  /** From 1 (little of the time) to 4; 0 for what was not timed. */
  heat: number;
  /** Since a revision; "" where nothing is compared, or nothing changed. */
  since: "" | "worse" | "better";
}

const NONE: Mark = { colours: [], breaks: false, recompiles: false, heat: 0, since: "" };
const MOST_BARS = 3;

/** The marks of a file, by line. */
export function marksOf({ kernels, source, breaks, heat, since }: Correspondence): Map<number, Mark> {
  const out = new Map<number, Mark>();
  const at = (line: number): Mark => out.get(line) ?? NONE;
  for (const [line, numbers] of source) {
    const colours = [...new Set(numbers.flatMap((number) => kernels[number]?.colour ?? []))];
    if (colours.length > 0) {
      out.set(line, { ...at(line), colours: colours.slice(0, MOST_BARS) });
    }
  }
  for (const line of breaks) {
    out.set(line, { ...at(line), breaks: true });
  }
  for (const { line, share, recompiles } of heat) {
    out.set(line, { ...at(line), heat: share > 0 ? Math.min(4, Math.ceil(share * 4)) : 0, recompiles: recompiles > 0 });
  }
  for (const { line, direction } of since) {
    out.set(line, { ...at(line), since: direction });
  }
  return out;
}

/** Equal for marks that look the same. */
export function keyOf({ colours, breaks, recompiles, heat, since }: Mark): string {
  return `${colours.join(",")} ${breaks} ${recompiles} ${heat} ${since}`;
}

export interface Palette {
  kernels: readonly string[];
  break: string;
  recompile: string;
  heat: string;
  worse: string;
  better: string;
}
export const LIGHT = { break: "#B05A00", recompile: "#6A3FA0", heat: "#C62828", worse: "#AD1457", better: "#00695C" };
export const DARK = { break: "#FFB454", recompile: "#C9A6FF", heat: "#FF6B60", worse: "#FF7AB2", better: "#4DD0B1" };

/** A picture of 16 × 16, as an address. Lines of one kernel touch, so that their bars are one. */
export function picture(mark: Mark, palette: Palette): string {
  const bars = mark.colours.map((colour, n) => {
    const width = [0, 3, 2.2, 1.6][mark.colours.length] ?? 1.6;
    return `<rect x="${(15.5 - (mark.colours.length - n) * (width + 0.6)).toFixed(1)}" width="${width}" height="16" fill="${palette.kernels[colour]}"/>`;
  });
  const heat = mark.heat > 0 ? [`<rect y="${16 - 4 * mark.heat}" width="2.4" height="${4 * mark.heat}" fill="${palette.heat}"/>`] : [];
  const symbol = mark.breaks
    ? [`<path d="M7.6 1.5 3.4 8.8h2.5L5 14.5l4.4-7.6H6.8z" fill="${palette.break}"/>`]
    : mark.recompiles
      ? [
          `<path d="M8.6 6A3 3 0 1 0 9 9" fill="none" stroke="${palette.recompile}" stroke-width="1.5"/>`,
          `<path d="M9.8 3v3.6H6.2z" fill="${palette.recompile}"/>`,
        ]
      : [];
  const since =
    mark.since === "" ? [] : [`<path d="${mark.since === "worse" ? "M0 9.5h7L3.5 16z" : "M0 16h7L3.5 9.5z"}" fill="${palette[mark.since]}"/>`];
  const above = since.length > 0 ? symbol.map((drawn) => `<g transform="translate(1.6 -.6) scale(.62)">${drawn}</g>`) : symbol;
  const parts = [...heat, ...above, ...since, ...bars].join("");
  const svg = `<svg xmlns="http://www.w3.org/2000/svg" width="16" height="16" viewBox="0 0 16 16">${parts}</svg>`;
  return `data:image/svg+xml;base64,${Buffer.from(svg).toString("base64")}`;
}
