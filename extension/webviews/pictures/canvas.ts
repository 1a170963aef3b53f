// The surface that is seen on the screen.

import { head, legs, type Fonts, type Ink, type Lettering, type Point, type Surface } from "./surface";

export class CanvasSurface implements Surface {
  constructor(
    private readonly context: CanvasRenderingContext2D,
    private readonly fonts: Fonts,
  ) {}

  box(x: number, y: number, width: number, height: number, radius: number, ink: Ink): void {
    const { context } = this;
    context.beginPath();
    context.roundRect(x, y, width, height, Math.min(radius, height / 2, width / 2));
    this.paint(ink);
  }

  arrow(points: readonly Point[], ink: Ink, headed: boolean): void {
    if (points.length < 2) {
      return;
    }
    const { context } = this;
    const { start, curves } = legs(points);
    context.beginPath();
    context.moveTo(start.x, start.y);
    curves.forEach(([bend, end]) => context.quadraticCurveTo(bend.x, bend.y, end.x, end.y));
    this.paint(ink);
    if (!headed) {
      return;
    }
    const [tip, left, right] = head(points, 5 + (ink.width ?? 1) * 1.2) as [Point, Point, Point];
    context.beginPath();
    context.moveTo(tip.x, tip.y);
    context.lineTo(left.x, left.y);
    context.lineTo(right.x, right.y);
    context.closePath();
    this.paint({ ...(ink.stroke !== undefined && { fill: ink.stroke }), alpha: ink.alpha ?? 1 });
  }

  text(x: number, y: number, words: string, { size, fill, bold, mono, anchor, alpha, halo }: Lettering): void {
    const { context } = this;
    context.font = `${bold ? "600 " : ""}${size}px ${mono ? this.fonts.mono : this.fonts.plain}`;
    context.textAlign = anchor === "middle" ? "center" : (anchor ?? "start");
    context.textBaseline = "alphabetic";
    context.globalAlpha = alpha ?? 1;
    if (halo !== undefined) {
      context.strokeStyle = halo;
      context.lineWidth = 4;
      context.lineJoin = "round";
      context.strokeText(words, x, y);
    }
    context.fillStyle = fill;
    context.fillText(words, x, y);
    context.globalAlpha = 1;
  }

  private paint({ fill, stroke, width, alpha, dash }: Ink): void {
    const { context } = this;
    context.globalAlpha = alpha ?? 1;
    if (fill !== undefined) {
      context.fillStyle = fill;
      context.fill();
    }
    if (stroke !== undefined) {
      context.strokeStyle = stroke;
      context.lineWidth = width ?? 1;
      context.setLineDash(dash ?? []);
      context.stroke();
    }
    context.globalAlpha = 1;
  }
}
