// What pictures are drawn on: a canvas for the screen, text for a file. Both take the same few shapes.

export interface Point {
  x: number;
  y: number;
}

export interface Ink {
  fill?: string;
  stroke?: string;
  width?: number;
  alpha?: number;
  dash?: number[];
}

export interface Lettering {
  size: number;
  fill: string;
  bold?: boolean;
  mono?: boolean;
  anchor?: "start" | "middle" | "end";
  alpha?: number;
  /** Drawn around the letters, to keep them readable over lines. */
  halo?: string;
}

export interface Surface {
  box(x: number, y: number, width: number, height: number, radius: number, ink: Ink): void;
  /** A smooth line through `points`, with an arrow's head at its end where that can be seen. */
  arrow(points: readonly Point[], ink: Ink, headed: boolean): void;
  text(x: number, y: number, words: string, lettering: Lettering): void;
}

export interface Fonts {
  plain: string;
  mono: string;
}

/** Where the head of an arrow lies, whose last leg comes from `before`. */
export function head(points: readonly Point[], size: number): Point[] {
  const end = points[points.length - 1] as Point;
  const before = points[points.length - 2] ?? end;
  const angle = Math.atan2(end.y - before.y, end.x - before.x);
  const side = (turn: number): Point => ({ x: end.x - size * Math.cos(angle + turn), y: end.y - size * Math.sin(angle + turn) });
  return [end, side(0.45), side(-0.45)];
}

/** The legs of a smooth line: its begin, then quadratic curves (a bend, an end each). */
export function legs(points: readonly Point[]): { start: Point; curves: [Point, Point][] } {
  const start = points[0] as Point;
  const curves = points.slice(1).map((point, k): [Point, Point] => {
    const next = points[k + 2];
    return [point, next === undefined ? point : { x: (point.x + next.x) / 2, y: (point.y + next.y) / 2 }];
  });
  return { start, curves };
}

const round = (value: number): string => String(Math.round(value * 10) / 10);

export class SvgSurface implements Surface {
  private readonly parts: string[] = [];

  constructor(private readonly fonts: Fonts) {}

  box(x: number, y: number, width: number, height: number, radius: number, ink: Ink): void {
    const at = `x="${round(x)}" y="${round(y)}" width="${round(width)}" height="${round(height)}"`;
    this.parts.push(`<rect ${at} rx="${round(Math.min(radius, height / 2, width / 2))}"${attributes(ink)}/>`);
  }

  arrow(points: readonly Point[], ink: Ink, headed: boolean): void {
    if (points.length < 2) {
      return;
    }
    const { start, curves } = legs(points);
    const path = curves.map(([bend, end]) => `Q${round(bend.x)} ${round(bend.y)} ${round(end.x)} ${round(end.y)}`).join("");
    this.parts.push(`<path d="M${round(start.x)} ${round(start.y)}${path}"${attributes({ fill: "none", ...ink })}/>`);
    if (!headed) {
      return;
    }
    const corners = head(points, 5 + (ink.width ?? 1) * 1.2).map(({ x, y }) => `${round(x)},${round(y)}`);
    const filled = { ...(ink.stroke !== undefined && { fill: ink.stroke }), ...(ink.alpha !== undefined && { alpha: ink.alpha }) };
    this.parts.push(`<polygon points="${corners.join(" ")}"${attributes(filled)}/>`);
  }

  text(x: number, y: number, words: string, { size, fill, bold, mono, anchor, alpha, halo }: Lettering): void {
    const font = `font-family="${escaped(mono ? this.fonts.mono : this.fonts.plain)}" font-size="${size}"${bold ? ' font-weight="600"' : ""}`;
    const place = `x="${round(x)}" y="${round(y)}"${anchor === undefined ? "" : ` text-anchor="${anchor}"`}`;
    const around = halo === undefined ? "" : ` stroke="${escaped(halo)}" stroke-width="4" stroke-linejoin="round" paint-order="stroke"`;
    this.parts.push(`<text ${place} ${font}${around}${attributes({ fill, ...(alpha !== undefined && { alpha }) })}>${escaped(words)}</text>`);
  }

  /** The whole file. */
  document(x: number, y: number, width: number, height: number, background: string, title: string): string {
    const view = [x, y, width, height].map(round).join(" ");
    const size = `width="${round(width)}" height="${round(height)}" viewBox="${view}"`;
    const back = `<rect x="${round(x)}" y="${round(y)}" width="${round(width)}" height="${round(height)}" fill="${escaped(background)}"/>`;
    const head = `<svg xmlns="http://www.w3.org/2000/svg" ${size} role="img"><title>${escaped(title)}</title>`;
    return `${head}\n${back}\n${this.parts.join("\n")}\n</svg>\n`;
  }
}

function attributes({ fill, stroke, width, alpha, dash }: Ink): string {
  const all = {
    fill: fill ?? (stroke === undefined ? undefined : "none"),
    stroke,
    "stroke-width": stroke === undefined ? undefined : (width ?? 1),
    "stroke-dasharray": dash === undefined || dash.length === 0 ? undefined : dash.join(" "),
    opacity: alpha === undefined || alpha === 1 ? undefined : alpha,
  };
  return Object.entries(all)
    .map(([name, value]) => (value === undefined ? "" : ` ${name}="${escaped(String(value))}"`))
    .join("");
}

function escaped(text: string): string {
  return text.replace(/[&<>"]/g, (character) => `&#${character.charCodeAt(0)};`);
}
